# shellcheck shell=bash
# The RDMA device goes while capstan writes, and comes back. Both ends say so and let go of it, so that removing it does not
# hang; the target listens again, capstan reconnects by itself, and nothing is lost.
[ "$TARGET_PROVIDER/$HOST_PROVIDER" = verbs/verbs ] || skip "only where both ends use the RDMA device"
device=${LINK}0
load load 14
remove_device "$device"
matches "what the target says" "$(target_log_since)" "the RDMA device was removed.* device=\"?$device"
within 5 "the target has let go of the device" target_said "closed the RDMA device that was removed"
running load || finish load
add_device "$device"
within 10 "the target listens again" target_said "listening again"
within 30 "I/O goes on" moves /dev/lab1
finish_load load
matches "what capstan says" "$(cat load.out)" "the RDMA device was removed"
# And once more, with nobody connected.
remove_device "$device"
within 5 "the target has let go of the idle device" target_said "closed the RDMA device that was removed" 2
add_device "$device"
within 10 "the target listens again" target_said "listening again" 2
verify -N 1 --bs 4k --iodepth 4 --size 1m --runtime 2
# Its port, too, says when it goes and comes.
link_down
within 10 "the target says that the port is down" target_said "the port is down"
link_up
within 10 "the target says that the port is up" target_said "the port is up"
