# shellcheck shell=bash
# Sourced in the guest by cases: block devices of the kernel on an attached volume, and file systems
# below the target.
# shellcheck disable=SC2034 # variables of case.sh

# Nothing here waits for udev to make names: libdevmapper makes them.
export DM_DISABLE_UDEV=1

# The disk of a volume, without what an earlier case may have left there.
attach_blank() { # attach_blank NSID
    attach_nsid "$1"
    wipefs -qa "$DISK"
}

# The disk that the kernel knows a device of the device mapper as.
dm_disk() { echo "/dev/$(dmsetup info -c --noheadings -o blkdevname "$1")"; } # dm_disk NAME

undo_with() { AT_THE_END=$1; } # undo_with COMMAND: however the case ends

# A tree on a device; the file system is checked and stays unmounted.
put_tree() { # put_tree DEVICE
    mkfs.ext4 -q -F -E nodiscard "$1"
    mkdir -p mnt
    make_tree tree
    MOUNTED=$PWD/mnt
    mount "$1" mnt
    cp -a tree mnt/
    umount mnt
    MOUNTED=''
}

tree_is_there() { # tree_is_there DEVICE
    fsck.ext4 -fn "$1" || fail "fsck.ext4 finds damage on $1"
    MOUNTED=$PWD/mnt
    mount -o ro "$1" mnt
    diff -r --no-dereference tree mnt/tree || fail "files are not what was written"
    umount mnt
    MOUNTED=''
}

# The target is killed and started again while the device is written to, which waits and goes on.
survives_the_target() { # survives_the_target DEVICE
    disk_load load "$1" 8
    target_kill
    target_start
    within 30 "I/O on $1 goes on" goes_on load "$1"
    finish load
}
