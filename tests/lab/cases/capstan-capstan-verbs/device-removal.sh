# shellcheck shell=bash
# RDMA devices are removed while capstan writes, and come back. Target and host log the removal and
# close the device, so that removing it does not hang; the target listens again, capstan reconnects
# by itself, and nothing is lost.
target_device=siw0 host_device=siw0
[ "$LINK" != rxe ] || target_device=rxe1 host_device=rxe0
load load 8
remove_device "$target_device"
matches "what the target says" "$(target_log_since)" "the RDMA device was removed.* device=\"?$target_device"
within 5 "the target has let go of the device" target_said "closed the RDMA device that was removed"
running load || finish load
add_device "$target_device"
within 10 "the target listens again" target_said "listening again addr="
within 30 "I/O goes on" goes_on load /dev/lab1
finish_load load
if [ "$host_device" != "$target_device" ]; then
    load load 8
    remove_device "$host_device"
    add_device "$host_device"
    within 30 "I/O goes on over the host's device" goes_on load /dev/lab1
    finish_load load
fi
matches "what capstan says" "$(cat load.out)" "the RDMA device was removed.* device=\"?$host_device"
# And once more, with no host connected.
remove_device "$target_device"
add_device "$target_device"
within 10 "the target listens again" target_said "listening again addr=" 2
# A message that a link loses as it comes up is repeated after 4 s, which is most of what a connect
# waits.
within 30 "capstan reaches the target" capstan discover "${PORTAL[@]}" "${AS_HOST[@]}"
verify -N 1 --bs 4k --iodepth 4 --size 1m --runtime 2
