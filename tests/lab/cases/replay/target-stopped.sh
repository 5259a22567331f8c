# shellcheck shell=bash
# The target is stopped (SIGSTOP) with a write in its sockets, or in shared memory, for longer than
# capstan waits, and goes on: the old copy does not come after what capstan writes next.
# shellcheck source=tests/lab/guest/replay.sh
. "$LAB/replay.sh"
attach_nsid 1 --io-timeout 2 -k 30 -c 1 -l 120
rounds stopped_target
detach
