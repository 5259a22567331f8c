# shellcheck shell=bash
# The target's RDMA device goes under I/O, and comes back. The target says so and lets go of it, so
# that removing it does not hang, and listens again; the host reconnects by itself and loses
# nothing. Where it is the host's device as well (siw), nvme-rdma deletes its controller, and a new
# one is made.
device=siw0
[ "$LINK" != rxe ] || device=rxe1
connect nr_io_queues=2,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=60
disk 1
disk_load load "$DISK" 12
remove_device "$device"
matches "what the target says" "$(target_log_since)" "the RDMA device was removed.* device=\"?$device"
within 10 "the target has let go of the device" target_said "closed the RDMA device that was removed"
if [ "$LINK" = rxe ]; then
    within 20 "the host sees that the target is gone" is_not_live
else
    within 10 "the host has deleted its controller" gone "/sys/class/nvme/$CONTROLLER"
fi
add_device "$device"
within 10 "the target listens again" target_said "listening again addr="
if [ "$LINK" = rxe ]; then
    within 40 "the host is connected again" is_live
    within 20 "I/O goes on" goes_on load "$DISK"
    finish load
else
    connect
    disk 1
fi
verify "$DISK" --bs=16k --iodepth=8 --size=4m
disconnect
