# shellcheck shell=bash
# The medium hangs with a write for longer than the host waits: the host connects again and issues
# the write again, and gets its answer when the old copy is off the medium.
# shellcheck source=tests/lab/guest/replay.sh
. "$LAB/replay.sh"
slow_disk
connect nr_io_queues=1,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=120
disk 5
wait_for_io 2
rounds slow_write
disconnect
slow_disk_away
