# shellcheck shell=bash
# Two hosts at once, each with a subsystem of its own; a third one is refused with the reason on
# both sides.
as_a=(-q "$HOSTNQN_A" -I "$HOSTID_A") as_b=(-q "$HOSTNQN_B" -I "$HOSTID_B")
random data_a 262144
random data_b 262144
begin a capstan write "${PORTAL[@]}" "${as_a[@]}" -n "$SUBSYSTEM_A" -z 262144 -d data_a
begin b capstan write "${PORTAL[@]}" "${as_b[@]}" -n "$SUBSYSTEM_B" -z 262144 -d data_b
finish a
finish b
capstan read "${PORTAL[@]}" "${as_a[@]}" -n "$SUBSYSTEM_A" -z 262144 -d back_a
capstan read "${PORTAL[@]}" "${as_b[@]}" -n "$SUBSYSTEM_B" -z 262144 -d back_b
same "host A's data" back_a data_a
same "host B's data" back_b data_b
refused 'not allow|Invalid Host' capstan id-ctrl "${PORTAL[@]}" "${as_a[@]}" -n "$SUBSYSTEM_B"
matches "the target's log" "$(target_log_since)" "$HOSTNQN_A.*not allowed|not allowed.*$HOSTNQN_A"
refused 'not allow|Invalid Host' capstan id-ctrl "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM_A"
matches "the target's log" "$(target_log_since)" "$HOSTNQN.*not allowed|not allowed.*$HOSTNQN"
