# shellcheck shell=bash
# `ulimit -l 64`, without the capability that lifts it: what it costs is told, and target and host
# work under load.
# shellcheck source=tests/lab/guest/limits.sh
. "$LAB/limits.sh"
LOWERED="prlimit --memlock=65536:65536 setpriv --bounding-set -ipc_lock"
in_group memory.max=max
target_configuration with-5 >"$RUN/target.toml"
target_accepted
matches "what check says" "$(cat check)" 'RLIMIT_MEMLOCK: 64 KiB; expected '
matches "what check says" "$(cat check)" 'LimitMEMLOCK=infinity'
runs_under_load 16m
target_said 'WARN disk I/O goes without fixed buffers' || fail "the target does not say what it does without"
out_of_group
