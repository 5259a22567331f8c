# shellcheck shell=bash
# The RDMA device goes under I/O, and comes back. The target says so and lets go of it, so that removing it does not hang, and
# listens again by itself. It is the Linux host's device as well, with which nvme-rdma deletes its controller.
[ "$TARGET_PROVIDER" = verbs ] || skip "only where the target uses the RDMA device"
device=${LINK}0
connect nr_io_queues=2,keep_alive_tmo=15,reconnect_delay=1,ctrl_loss_tmo=60
disk 1
load load "$DISK" 20
remove_device "$device"
within 10 "the host has deleted its controller" gone "/sys/class/nvme/$CONTROLLER"
matches "what the target says" "$(target_log_since)" "the RDMA device was removed.* device=\"?$device"
within 10 "the target has let go of the device" target_said "closed the RDMA device that was removed"
add_device "$device"
within 10 "the target listens again" target_said "listening again"
connect
disk 1
verify "$DISK" --bs=16k --iodepth=8 --size=4m
disconnect
