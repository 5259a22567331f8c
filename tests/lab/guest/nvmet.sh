# shellcheck shell=bash
# Sourced in the guest after rdma-siw.sh (or another that gives an RDMA device): the Linux NVMe
# target, with identities that never change, so that captured bytes can be compared between runs.
#
#   $SUBSYSTEM  two namespaces: 1 (512-byte LBAs, 64 MiB) and 3 (4096-byte LBAs, 64 MiB), any host
#   $RESTRICTED one namespace, allows only $ALLOWED_HOST
#
# Set beforehand, TRTYPE=tcp and TRADDR make the port NVMe/TCP's, at that address; INLINE_BYTES is
# how much in-capsule data it takes.

HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:6f0c1c1e-2b5a-4c0e-9d3f-0a1b2c3d4e5f
HOSTID=6f0c1c1e-2b5a-4c0e-9d3f-0a1b2c3d4e5f
export HOSTNQN HOSTID
ALLOWED_HOST=nqn.2014-08.org.nvmexpress:uuid:00000000-1111-2222-3333-444444444444
SUBSYSTEM=nqn.2026-11.org.example:capstan-lab
RESTRICTED=nqn.2026-11.org.example:capstan-restricted
NVMET=/sys/kernel/config/nvmet

nullb() { # nullb NAME LBA_BYTES: a RAM-backed disk of 64 MiB that supports discard
    local dir=/sys/kernel/config/nullb/$1
    mkdir "$dir"
    echo 64 >"$dir/size"
    echo "$2" >"$dir/blocksize"
    echo 1 >"$dir/memory_backed"
    echo 1 >"$dir/discard"
    echo 1 >"$dir/power"
}

namespace() { # namespace SUBSYSTEM NSID DEVICE UUID NGUID
    local dir=$NVMET/subsystems/$1/namespaces/$2
    mkdir "$dir"
    echo "$3" >"$dir/device_path"
    echo "$4" >"$dir/device_uuid"
    echo "$5" >"$dir/device_nguid"
    echo 1 >"$dir/enable"
}

# Block device of a namespace of a controller. Linux scans namespaces in parallel and numbers disks
# as it finds them, so /dev/nvme0n2 may be NSID 1.
disk_of() { # disk_of CONTROLLER NSID, for example disk_of nvme0 3: waits for it, then prints /dev/nvme0n…
    local subsystem path try
    for try in $(seq 100); do
        for subsystem in /sys/class/nvme-subsystem/*; do
            [ -e "$subsystem/$1" ] || continue
            # With multipath the disk belongs to the subsystem, without it to the controller.
            for path in "$subsystem"/nvme*n*/nsid "$subsystem/$1"/nvme*n*/nsid; do
                [ -r "$path" ] || continue
                [ "$(cat "$path")" = "$2" ] || continue
                path=/dev/$(basename "$(dirname "$path")")
                [ -b "$path" ] && echo "$path" && return 0
            done
        done
        sleep 0.2
    done
    echo "no block device for NSID $2 of $1 after $((try / 5)) s" >&2
    return 1
}

modprobe -a configfs
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
modprobe null_blk nr_devices=0
modprobe -a nvmet "nvmet-${TRTYPE:-rdma}"
nullb lab512 512
nullb lab4096 4096
nullb labspare 512

mkdir "$NVMET/subsystems/$SUBSYSTEM" "$NVMET/subsystems/$RESTRICTED" "$NVMET/hosts/$ALLOWED_HOST"
echo 1 >"$NVMET/subsystems/$SUBSYSTEM/attr_allow_any_host"
echo LAB0000000000001 >"$NVMET/subsystems/$SUBSYSTEM/attr_serial"
echo "Linux nvmet in the lab" >"$NVMET/subsystems/$SUBSYSTEM/attr_model"
namespace "$SUBSYSTEM" 1 /dev/lab512 11111111-2222-4333-8444-555555555501 01020304-0506-0708-090a-0b0c0d0e0f01
namespace "$SUBSYSTEM" 3 /dev/lab4096 11111111-2222-4333-8444-555555555503 01020304-0506-0708-090a-0b0c0d0e0f03
echo 0 >"$NVMET/subsystems/$RESTRICTED/attr_allow_any_host"
ln -s "$NVMET/hosts/$ALLOWED_HOST" "$NVMET/subsystems/$RESTRICTED/allowed_hosts/"

mkdir "$NVMET/ports/1"
echo "${TRTYPE:-rdma}" >"$NVMET/ports/1/addr_trtype"
echo ipv4 >"$NVMET/ports/1/addr_adrfam"
echo "${TRADDR:-10.9.0.1}" >"$NVMET/ports/1/addr_traddr"
echo 4420 >"$NVMET/ports/1/addr_trsvcid"
[ -z "${INLINE_BYTES:-}" ] || echo "$INLINE_BYTES" >"$NVMET/ports/1/param_inline_data_size"
ln -s "$NVMET/subsystems/$SUBSYSTEM" "$NVMET/ports/1/subsystems/"
ln -s "$NVMET/subsystems/$RESTRICTED" "$NVMET/ports/1/subsystems/"
