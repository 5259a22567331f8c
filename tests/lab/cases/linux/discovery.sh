# shellcheck shell=bash
# The discovery log has what this host may use, at the address it asked, and nothing else.
log() { nvme discover "${PORTAL[@]}" "--hostnqn=$1" "--hostid=$2"; }
subsystems() { sed -n 's/^subnqn: *//p' "$1" | grep -v discovery | sort -u; }

log "$HOSTNQN" "$HOSTID" >any
# The entry of the subsystem: from its own "=====" line on.
awk -v nqn="$SUBSYSTEM" 'BEGIN { RS = "=====" } $0 ~ "subnqn: +" nqn "\n"' any >entry
values entry <<EXPECTED
trtype:  $HOST_TRANSPORT
adrfam:  ipv4
subtype: nvme subsystem
trsvcid: 4420
subnqn:  $SUBSYSTEM
traddr:  $TARGET_ADDRESS
EXPECTED
equal "subsystems for any host" "$(subsystems any)" "$SUBSYSTEM"

log "$HOSTNQN_A" "$HOSTID_A" >a
equal "subsystems for host A" "$(subsystems a)" "$SUBSYSTEM
$SUBSYSTEM_A"
