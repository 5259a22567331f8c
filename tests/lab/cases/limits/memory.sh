# shellcheck shell=bash
# memory.max: a budget that does not fit is refused at the start; one that fits is no reason to be
# killed, whatever is written through the page cache, which counts in the group, too.
# shellcheck source=tests/lab/guest/limits.sh
. "$LAB/limits.sh"
in_group memory.max=$((48 << 20))
target_configuration | sed "s/128MiB/64MiB/" >"$RUN/target.toml"
target_refused 'the memory budget needs 64 MiB' 'at most 48 MiB' "$GROUP/memory.max" 'MemoryMax='

# More is written than the group may have.
echo $((64 << 20)) >"$GROUP/memory.max"
make_medium
truncate -s 192M medium/image
DISK_5=$PWD/medium/image NAMESPACE_5_OPTIONS='direct = false' target_configuration with-5 | sed "s/128MiB/64MiB/" >"$RUN/target.toml"
target_accepted
runs_under_load 64m
cat "$GROUP/memory.events"
grep -E "^(anon|file|sock|kernel|file_dirty) " "$GROUP/memory.stat"
happened() { awk -v name="$1" '$1 == name { print $2 }' "$GROUP/memory.events"; }
[ "$(happened max)" -gt 0 ] || fail "the page cache has not filled the group: at most $(cat "$GROUP/memory.peak") bytes"
equal "processes killed for memory" "$(happened oom_kill)" 0
out_of_group_and_medium
