# shellcheck shell=bash
# The medium hangs with a write for longer than capstan waits: capstan connects again, and the write
# is answered when no copy of it can land any more.
# shellcheck source=tests/lab/guest/replay.sh
. "$LAB/replay.sh"
slow_disk
attach_nsid 5 --io-timeout 2 -k 5 -c 1 -l 120
rounds slow_write
detach
slow_disk_away
