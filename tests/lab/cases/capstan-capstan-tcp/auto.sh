# shellcheck shell=bash
# No transport is named: capstan takes NVMe/TCP, which is all that the target speaks, and says
# so in one line; a disk stays with it.
capstan discover -a "$TARGET_ADDRESS" -w "$HOST_ADDRESS" "${AS_HOST[@]}" >found 2>said
cat said
matches "what was found" "$(cat found)" "$SUBSYSTEM"
# shellcheck disable=SC2016 # quoted by capstan
taken='^connected to '"$TARGET_ADDRESS"' port 4420 over NVMe/TCP, which `-t tcp` takes at once; tried before: RDMA \(iwarp\): '
matches "what capstan says" "$(cat said)" "$taken"
equal "lines that capstan says" "$(wc -l <said)" 1
modprobe -a fuse loop
# shellcheck disable=SC2034 # of host-capstan.sh
ATTACHED=$(capstan attach -a "$TARGET_ADDRESS" -w "$HOST_ADDRESS" "${AS_HOST[@]}" -n "$SUBSYSTEM" 2>said)
matches "what capstan says of the disk" "$(cat said)" "$taken"
matches "what capstan lists" "$(capstan list -o json)" '"transport": "tcp"'
detach
