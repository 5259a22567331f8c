# shellcheck shell=bash
# Images on xfs, btrfs and an overlay below the target: what was written is there, holes are made,
# and a killed target takes nothing along.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
modprobe -a xfs btrfs overlay loop
below=$PWD/below
undo_with 'take_away'
take_away() {
    target_remove_namespace
    mountpoint -q "$below/over" && umount "$below/over"
    mountpoint -q "$below" && umount "$below"
}
mkdir "$below"
truncate -s 400M medium

image_on() { # image_on WHAT IMAGE
    local bytes
    echo "an image on $1"
    truncate -s 64M "$2"
    DISK_5=$2 target_add_namespace
    attach_nsid 5
    disk_load load "$DISK" 6
    target_kill
    target_start
    within 30 "I/O goes on" goes_on load "$DISK"
    finish load
    random data 4194304
    dd if=data of="$DISK" bs=64k oflag=direct conv=notrunc,fsync status=none
    bytes=$(du -B 1 "$2" | cut -f 1)
    blkdiscard -o 2097152 -l 2097152 "$DISK"
    truncate -s 2097152 data
    truncate -s 4194304 data
    dd if="$DISK" of=back bs=64k count=64 iflag=direct status=none
    same "what was written, and zeroes where it was discarded" back data
    sync "$2"
    [ "$(du -B 1 "$2" | cut -f 1)" -lt "$bytes" ] || fail "discarding 2 MiB of $bytes bytes has freed nothing on $1"
    detach
    target_remove_namespace
    dd if="$2" of=back bs=64k count=64 status=none
    same "the image" back data
    rm "$2"
}

mkfs.xfs -q -f medium
mount -o loop medium "$below"
image_on xfs "$below/image"
mkdir "$below/lower" "$below/upper" "$below/work" "$below/over"
mount -t overlay overlay -o "lowerdir=$below/lower,upperdir=$below/upper,workdir=$below/work" "$below/over"
image_on "an overlay" "$below/over/image"
umount "$below/over"
umount "$below"
mkfs.btrfs -q -f medium
mount -o loop medium "$below"
image_on btrfs "$below/image"
umount "$below"
undo_with ''
