# shellcheck shell=bash
# Controller reset and namespace rescan while fio writes and verifies: no I/O fails, and the
# controller is live again.
connect nr_io_queues=2
disk 1
disk_load load "$DISK" 8
for _ in 1 2; do
    echo 1 >"/sys/class/nvme/$CONTROLLER/reset_controller"
    within 20 "$CONTROLLER is live again after a reset" is_live
    echo 1 >"/sys/class/nvme/$CONTROLLER/rescan_controller"
    within 20 "I/O goes on" goes_on load "$DISK"
done
finish load
disk 3
disconnect
