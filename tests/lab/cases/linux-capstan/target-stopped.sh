# shellcheck shell=bash
# The target is stopped (SIGSTOP) with a write in its sockets for longer than the host waits, and
# goes on: the old copy does not come after what the host writes next.
# shellcheck source=tests/lab/guest/replay.sh
. "$LAB/replay.sh"
connect nr_io_queues=1,keep_alive_tmo=30,reconnect_delay=1,ctrl_loss_tmo=120
disk 1
wait_for_io 2
rounds stopped_target
disconnect
