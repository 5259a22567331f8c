# shellcheck shell=bash
# The link goes down for two seconds while fio writes and verifies: I/O stops, goes on, and nothing
# is lost. Over TCP the association outlives it; over Soft-RoCE the host makes another one, and the
# old one ends with its Keep Alive Timer.
connect nr_io_queues=2,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=60
disk 1
disk_load load "$DISK" 6
link_down
sleep 1
before=$(completed "$DISK")
sleep 1
equal "I/Os completed while the link was down" $(($(completed "$DISK") - before)) 0
running load || fail "the load ended before the link was down"
link_up
within 30 "I/O goes on" goes_on load "$DISK"
finish load
within 30 "the controller is live" is_live
disconnect
