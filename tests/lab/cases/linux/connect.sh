# shellcheck shell=bash
# nvme connect with one I/O queue, and with several of two kinds; every queue carries I/O, from
# every processor.
try() { # try QUEUES OPTION…
    local queues=$1
    shift
    nvme connect "${PORTAL[@]}" "--hostnqn=$HOSTNQN" "--hostid=$HOSTID" -n "$SUBSYSTEM" "$@"
    CONTROLLER=$(basename "$(ls -d /sys/class/nvme/nvme*)")
    equal "state" "$(state)" live
    equal "transport" "$(cat "/sys/class/nvme/$CONTROLLER/transport")" "$HOST_TRANSPORT"
    # The admin queue is counted, too.
    equal "queues" "$(cat "/sys/class/nvme/$CONTROLLER/queue_count")" $((queues + 1))
    equal "entries of a queue" "$(cat "/sys/class/nvme/$CONTROLLER/sqsize")" 31
    disk 3
    random data 65536
    for cpu in $(seq 0 $(($(nproc) - 1))); do
        taskset -c "$cpu" dd if=data of="$DISK" bs=4k seek=$((16 * cpu)) oflag=direct status=none
        taskset -c "$cpu" dd if="$DISK" of=back bs=4k skip=$((16 * cpu)) count=16 iflag=direct status=none
        same "what processor $cpu wrote and read" back data
    done
    nvme disconnect -n "$SUBSYSTEM" | grep -q 'disconnected 1 controller' || fail "nvme disconnect says otherwise"
    within 20 "the controller goes" gone "/sys/class/nvme/$CONTROLLER"
}

try 1 -i 1 -Q 32
try 4 -i 2 -W 2 -Q 32
