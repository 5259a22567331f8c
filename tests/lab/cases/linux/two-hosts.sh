# shellcheck shell=bash
# Two hosts at once, each with a subsystem and a namespace of its own; neither sees the other's, and
# a third host is refused with the reason on both sides.
connect_as "$HOSTNQN_A" "$HOSTID_A" "$SUBSYSTEM_A" nr_io_queues=1
disk 1
a=$CONTROLLER disk_a=$DISK
connect_as "$HOSTNQN_B" "$HOSTID_B" "$SUBSYSTEM_B" nr_io_queues=1
disk 1
b=$CONTROLLER disk_b=$DISK
equal "wwid of host A's disk" "$(cat "/sys/block/${disk_a#/dev/}/wwid")" "uuid.$UUID_A"
equal "wwid of host B's disk" "$(cat "/sys/block/${disk_b#/dev/}/wwid")" "uuid.$UUID_B"
random data_a 262144
random data_b 262144
dd if=data_a of="$disk_a" bs=64k oflag=direct status=none &
dd if=data_b of="$disk_b" bs=64k oflag=direct status=none
wait $!
dd if="$disk_a" of=back_a bs=64k count=4 iflag=direct status=none
dd if="$disk_b" of=back_b bs=64k count=4 iflag=direct status=none
same "host A's data" back_a data_a
same "host B's data" back_b data_b

stranger() { # stranger HOSTNQN HOSTID SUBNQN
    if fabrics "hostnqn=$1,hostid=$2,nqn=$3,nr_io_queues=1" >said 2>&1; then fail "$1 may connect to $3"; fi
    matches "the kernel's log" "$(dmesg | tail -5)" "Connect for subsystem $3 is not allowed, hostnqn: $1"
    matches "the target's log" "$(target_log_since)" "host $1 is not allowed to use subsystem $3"
}
stranger "$HOSTNQN_A" "$HOSTID_A" "$SUBSYSTEM_B"
stranger "$HOSTNQN" "$HOSTID" "$SUBSYSTEM_A"
disconnect "$a"
disconnect "$b"
