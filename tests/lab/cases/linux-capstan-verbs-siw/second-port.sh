# shellcheck shell=bash
# siw binds a TCP port of the kernel: NVMe/TCP is at the next one. The target's log and the
# discovery log say so, and a host connects there.
grep 'listening for NVMe/TCP' "$TARGET_LOG"
matches "the target's log" "$(grep 'listening for NVMe/TCP' "$TARGET_LOG")" 'the iWARP device siw0 has TCP port 4420.*:4421'
nvme discover "${PORTAL[@]}" "--hostnqn=$HOSTNQN" "--hostid=$HOSTID" >log
cat log
awk -v nqn="$SUBSYSTEM" 'BEGIN { RS = "=====" } /trtype: +tcp\n/ && $0 ~ "subnqn: +" nqn "\n"' log >entry
values entry <<EXPECTED
trtype:  tcp
adrfam:  ipv4
subtype: nvme subsystem
trsvcid: 4421
subnqn:  $SUBSYSTEM
traddr:  $TARGET_ADDRESS
EXPECTED
"$LAB/capstan" id-ctrl -t tcp -a "$TARGET_ADDRESS" -s 4421 -n "$SUBSYSTEM" -q "$HOSTNQN" -I "$HOSTID" >ctrl
equal "the subsystem at the second port" "$(value subnqn ctrl)" "$SUBSYSTEM"
