# shellcheck shell=bash
# Flush, Write Zeroes, Dataset Management (deallocate), Compare and Verify do what they say, on both
# LBA sizes.
connect nr_io_queues=1
# nvme writes over the beginning of a file that is there.
back() { rm -f back && nvme read "$DISK" "$@" -d back; }

for nsid in 1 3; do
    disk $nsid
    lba_bytes=$(cat "/sys/block/${DISK#/dev/}/queue/logical_block_size")
    eight=$((8 * lba_bytes))
    random data $((4 * eight))
    nvme write "$DISK" -s 64 -c 31 -z $((4 * eight)) -d data
    nvme flush "$DISK"

    # Eight blocks of zeroes, and not one more.
    nvme write-zeroes "$DISK" -s 72 -c 7
    cp data expected
    dd if=/dev/zero of=expected bs=$eight count=1 seek=1 conv=notrunc status=none
    back -s 64 -c 31 -z $((4 * eight))
    same "NSID $nsid around the zeroes" back expected

    # Two ranges deallocated: zeroes or what it was, and the others as they were.
    nvme dsm "$DISK" -d -s 64,88 -b 8,8 -a 0,0
    back -s 80 -c 7 -z $eight
    dd if=expected of=third bs=$eight count=1 skip=2 status=none
    same "NSID $nsid between the deallocated ranges" back third
    for range in 64 88; do
        back -s $range -c 7 -z $eight
        dd if=/dev/zero of=zeroes bs=$eight count=1 status=none
        same "NSID $nsid, deallocated at LBA $range" back zeroes
    done

    # The block layer's ways to the same.
    random data 65536
    dd if=data of="$DISK" bs=64k seek=4 oflag=direct conv=fsync status=none
    blkdiscard -o 262144 -l 16384 "$DISK"
    blkdiscard -z -o 294912 -l 16384 "$DISK"
    dd if="$DISK" of=back bs=64k skip=4 count=1 iflag=direct status=none
    dd if=/dev/zero of=data bs=16k count=1 conv=notrunc status=none
    dd if=/dev/zero of=data bs=16k count=1 seek=2 conv=notrunc status=none
    same "NSID $nsid after blkdiscard and blkdiscard -z" back data

    random data $eight
    cp data other
    printf '\0\1\2' | dd of=other bs=1 seek=$((eight - 3)) conv=notrunc status=none
    nvme write "$DISK" -s 64 -c 7 -z $eight -d data
    nvme compare "$DISK" -s 64 -c 7 -z $eight -d data
    refused 'Compare Failure.*\(0x[0-9a-f]*285\)' nvme compare "$DISK" -s 64 -c 7 -z $eight -d other
    nvme verify "$DISK" -s 64 -c 7
done
disconnect
