# shellcheck shell=bash
# Sourced in the guest: the file systems that NFS servers export, the same for each.

# The folder above it is the root that version 4 starts from with knfsd, which cannot export that of
# the guest.
NFS_ROOT=/run/nfs NFS_PSEUDO=/export
NFS_EXPORT=$NFS_ROOT$NFS_PSEUDO

# A file system for the export, from memory: TYPE of MIB.
nfs_backing() { # nfs_backing ext4|tmpfs MIB
    mkdir -p "$NFS_ROOT"
    mount -t tmpfs -o size=1m,mode=755 nfs-root "$NFS_ROOT"
    nfs_file_system "$1" "$2" "$NFS_EXPORT"
}

# As the one of the export, anywhere below $NFS_ROOT; there is one of ext4.
nfs_file_system() { # nfs_file_system ext4|tmpfs MIB FOLDER
    mkdir -p "$3"
    case $1 in
        tmpfs) mount -t tmpfs -o "size=$2m,mode=755" export "$3" ;;
        ext4)
            modprobe configfs
            mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
            modprobe null_blk nr_devices=0
            mkdir /sys/kernel/config/nullb/nfs
            (
                cd /sys/kernel/config/nullb/nfs || exit
                echo "$2" >size
                echo 4096 >blocksize
                echo 1 >memory_backed
                echo 1 >discard
                echo 1 >power
            )
            mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/nfs
            mount -t ext4 /dev/nfs "$3"
            ;;
        *) echo "a backing file system is ext4 or tmpfs, not $1" >&2 && return 1 ;;
    esac
    chmod 755 "$3"
}
