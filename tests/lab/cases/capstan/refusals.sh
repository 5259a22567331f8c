# shellcheck shell=bash
# What the target refuses is told with the reason, and what cannot be is not tried.
refused 'Connect Invalid Host|not allow|Invalid Host' \
    capstan id-ctrl "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM_A"
refused 'Invalid Parameters|no such subsystem|unknown|Connect Invalid' \
    capstan id-ctrl "${PORTAL[@]}" "${AS_HOST[@]}" -n nqn.2026-11.org.example:nobody
refused '(nobody|nothing) listens' capstan id-ctrl -s 4499 "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM"
random data 4096
refused 'expected at most 2048: the bytes of namespace 1' capstan_to write --start-block $((LBAS_1 - 4)) -z 4096 -d data
refused 'namespace 9' capstan_to read -N 9 -z 512 -d /dev/null
