# shellcheck shell=bash
# The target is killed while fio writes and verifies, and started again: the host reconnects by
# itself, and everything that was acknowledged is there.
connect nr_io_queues=2,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=60
disk 1
disk_load load "$DISK" 8
target_kill
within 15 "the host sees that the target is gone" is_not_live
running load || fail "the load ended while its target was gone: $(tail -1 load.out)"
target_start
within 30 "the host is connected again" is_live
within 20 "I/O goes on" goes_on load "$DISK"
finish load
disconnect
