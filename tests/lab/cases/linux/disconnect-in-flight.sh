# shellcheck shell=bash
# The host disconnects with I/O in flight: the I/O fails at once and nothing hangs; the next
# connection works.
for round in 1 2; do
    connect nr_io_queues=2
    disk 1
    disk_load "load$round" "$DISK" 30
    echo 1 >"/sys/class/nvme/$CONTROLLER/delete_controller"
    within 20 "$CONTROLLER goes" gone "/sys/class/nvme/$CONTROLLER"
    ended() { ! running "load$round"; }
    within 20 "fio ends" ended
    if wait "$(cat "load$round.pid")"; then fail "fio did not notice that its disk went"; fi
done
connect nr_io_queues=1
disk 1
verify "$DISK" --bs=4k --iodepth=8 --size=64k
disconnect
