# shellcheck shell=bash
# pids.max, which counts threads: too few are refused at the start, and with as many as are asked
# for then, the target runs under load.
# shellcheck source=tests/lab/guest/limits.sh
. "$LAB/limits.sh"
in_group pids.max=4
make_medium
truncate -s 128M medium/image
DISK_5=$PWD/medium/image NAMESPACE_5_OPTIONS='direct = false' target_configuration with-5 >"$RUN/target.toml"
target_refused ' of 4 left \(' "$GROUP/pids.max" 'TasksMax='
needed=$( (target_program serve 2>&1 || true) | sed -n 's/.* left (.*expected \([0-9]*\).*/\1/p')
[ -n "$needed" ] || fail "it does not say how many threads it needs"
echo "$needed" >"$GROUP/pids.max"
target_accepted
runs_under_load 96m
echo "threads: at most $(cat "$GROUP/pids.peak"), refused: $(cat "$GROUP/pids.events")"
out_of_group_and_medium
