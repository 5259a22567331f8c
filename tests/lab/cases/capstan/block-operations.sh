# shellcheck shell=bash
# Write zeroes, discard and flush on an attached volume reach the target's disk: exactly the blocks that were named.
attach
random data 262144
dd if=data of="$DISK" bs=64k oflag=direct conv=fsync status=none
blkdiscard -z -o 65536 -l 32768 "$DISK"
blkdiscard -o 131072 -l 65536 "$DISK"
sync "$DISK"
dd if=/dev/zero of=data bs=32k seek=2 count=1 conv=notrunc status=none
dd if=/dev/zero of=data bs=64k seek=2 count=1 conv=notrunc status=none
# What the host sees, and what is on the medium.
dd if="$DISK" of=seen bs=64k count=4 iflag=direct status=none
dd if=/dev/lab1 of=medium bs=64k count=4 iflag=direct status=none
same "the attached disk" seen data
same "the target's disk" medium data
detach
