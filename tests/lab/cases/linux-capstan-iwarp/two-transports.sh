# shellcheck shell=bash
# One namespace by two paths, over RDMA and over TCP at the same port (native multipath): I/O takes
# both, and goes on by the other one when either is taken away.
modprobe nvme-tcp
# shellcheck disable=SC2034 # of case.sh
AT_THE_END='modprobe -r nvme-tcp'

# Of the disk by one path: the sectors read and written so far (Documentation/block/stat.rst).
sectors() { # sectors CONTROLLER
    awk '{ sum += $3 + $7 } END { print sum }' /sys/class/nvme/"$1"/nvme*c*n*/stat
}

moved_more() { # moved_more CONTROLLER SECTORS
    [ "$(sectors "$1")" -gt "$2" ]
}

connect nr_io_queues=1
rdma=$CONTROLLER
HOST_TRANSPORT=tcp connect nr_io_queues=1
tcp=$CONTROLLER
equal "transports" "$(cat "/sys/class/nvme/$rdma/transport" "/sys/class/nvme/$tcp/transport")" $'rdma\ntcp'
disk 1
for path in /sys/class/nvme-subsystem/*; do
    [ ! -e "$path/$tcp" ] || subsystem=$path
done
[ -e "$subsystem/$rdma" ] || fail "$rdma and $tcp are not of one subsystem"
equal "disks of NSID 1" "$(grep -lx 1 "$subsystem"/nvme*n*/nsid | wc -l)" 1
echo round-robin >"$subsystem/iopolicy"

before_rdma=$(sectors "$rdma") before_tcp=$(sectors "$tcp")
verify "$DISK" --bs=4k --iodepth=8 --size=4m
moved_more "$rdma" "$before_rdma" || fail "no I/O went over RDMA"
moved_more "$tcp" "$before_tcp" || fail "no I/O went over TCP"

begin load verify "$DISK" --bs=16k --iodepth=8 --size=8m --rate=2m
within 20 "the load is under way" moved_more "$tcp" "$(sectors "$tcp")"
disconnect "$rdma"
finish load
connect nr_io_queues=1
rdma=$CONTROLLER
begin load verify "$DISK" --bs=16k --iodepth=8 --size=8m --rate=2m
within 20 "the load has come to RDMA" moved_more "$rdma" "$(sectors "$rdma")"
disconnect "$tcp"
finish load
disconnect "$rdma"
