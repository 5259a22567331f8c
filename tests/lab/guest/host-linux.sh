# shellcheck shell=bash
# Sourced in the guest by case.sh: the Linux host, nvme-rdma or nvme-tcp with nvme-cli and fio.
#
#   connect [KEY=VALUE,…]   connects to $SUBSYSTEM as $HOSTNQN and sets $CONTROLLER (nvme0)
#   disk NSID               sets $DISK (/dev/nvme0n1)
#
# Programs start slowly here, so `connect` talks to the kernel as nvme-cli does (`nvme connect`
# itself is run by the case `connect`), and output is taken apart by the shell.

# shellcheck disable=SC2034 # for the cases
PORTAL=(-t "$HOST_TRANSPORT" -a "$TARGET_ADDRESS" -s 4420 -w "$HOST_ADDRESS")
CONTROLLER='' DISK=''

# shellcheck disable=SC2153 # of volumes.sh
connect() { connect_as "$HOSTNQN" "$HOSTID" "$SUBSYSTEM" "${1:-nr_io_queues=2}"; }

connect_as() { # connect_as HOSTNQN HOSTID SUBNQN KEY=VALUE,…
    local reply
    reply=$(fabrics "hostnqn=$1,hostid=$2,nqn=$3,$4" 2>&1) || fail "connecting to $3 as $1: $reply"
    CONTROLLER=nvme$(sed -n 's/.*instance=\([0-9]*\).*/\1/p' <<<"$reply")
    equal "state of $CONTROLLER" "$(state)" live
}

# One connect, in the words of the kernel.
fabrics() {
    exec 3<>/dev/nvme-fabrics
    printf '%s' "transport=$HOST_TRANSPORT,traddr=$TARGET_ADDRESS,trsvcid=4420,host_traddr=$HOST_ADDRESS,$1" >&3 || return 1
    cat <&3
    exec 3>&-
}

state() { cat "/sys/class/nvme/$CONTROLLER/state"; }
is_live() { [ "$(state)" = live ]; }
is_not_live() { [ "$(state)" != live ]; }

disconnect() { # disconnect [CONTROLLER]
    local controller=${1:-$CONTROLLER}
    echo 1 >"/sys/class/nvme/$controller/delete_controller"
    within 20 "$controller goes" gone "/sys/class/nvme/$controller"
}

gone() { [ ! -e "$1" ]; }

# Linux scans in parallel and numbers disks as it finds them, so /dev/nvme0n2 may be NSID 1.
disk() { # disk NSID
    within 20 "a disk for NSID $1 of $CONTROLLER" find_disk "$1"
    find_disk "$1"
}

find_disk() {
    local subsystem path
    for subsystem in /sys/class/nvme-subsystem/*; do
        [ -e "$subsystem/$CONTROLLER" ] || continue
        # With multipath the disk belongs to the subsystem, without it to the controller.
        for path in "$subsystem"/nvme*n*/nsid "$subsystem/$CONTROLLER"/nvme*n*/nsid; do
            [ "$(cat "$path" 2>/dev/null)" = "$1" ] || continue
            DISK=/dev/$(basename "$(dirname "$path")")
            [ -b "$DISK" ] && return 0
        done
    done
    return 1
}

# How long the host waits for a command of $CONTROLLER before it gives up its association.
wait_for_io() { # wait_for_io SECONDS
    local file
    # With multipath the queue of each path counts; that of the disk is there as well.
    for file in "/sys/class/nvme/$CONTROLLER"/nvme*n*/queue/io_timeout "/sys/block/$(basename "$DISK")/queue/io_timeout"; do
        [ ! -e "$file" ] || echo $(($1 * 1000)) >"$file"
    done
}

no_disk() { ! find_disk "$1"; }

# Writes with checksums, then reads everything back and compares.
verify() { # verify DEVICE OPTION…
    local device=$1
    shift
    fio --filename="$device" --direct=1 --ioengine=libaio --thread --randrepeat=0 --rw=randwrite \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 \
        --output-format=terse --terse-version=3 --name=job "$@" >fio.out || fail "fio: $(grep -v '^3;' fio.out | tail -1)"
    # Fields 5, 6 and 47: errors, KiB read, KiB written, of each job.
    awk -F';' '/^3;/ { print $3, $5, $6, $47; jobs++; if ($5 || $6 != $47 || !$6) bad = 1 } END { exit bad || !jobs }' \
        fio.out >fio.jobs || fail "not everything written was read back: $(cat fio.jobs)"
}

host_clean_up() { :; }
