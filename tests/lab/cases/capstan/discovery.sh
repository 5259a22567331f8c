# shellcheck shell=bash
# The discovery log has what this host may use, at the address it asked, and nothing else.
subsystems() { sed -n 's/^subnqn: *//p' "$1" | grep -v discovery | sort -u; }

capstan discover "${PORTAL[@]}" "${AS_HOST[@]}" >any
awk -v nqn="$SUBSYSTEM" 'BEGIN { RS = "=====" } $0 ~ "subnqn: +" nqn "\n"' any >entry
values entry <<EXPECTED
trtype:  $(case $HOST_PROVIDER in tcp) echo tcp ;; *) echo rdma ;; esac)
adrfam:  ipv4
subtype: nvme subsystem
trsvcid: 4420
subnqn:  $SUBSYSTEM
traddr:  $TARGET_ADDRESS
EXPECTED
equal "subsystems for any host" "$(subsystems any)" "$SUBSYSTEM"

capstan discover "${PORTAL[@]}" -q "$HOSTNQN_A" -I "$HOSTID_A" >a
equal "subsystems for host A" "$(subsystems a)" "$SUBSYSTEM
$SUBSYSTEM_A"
