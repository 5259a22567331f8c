# shellcheck shell=bash
# Write zeroes, discard and flush on an attached volume reach the target's disk: exactly the blocks
# that were named. Compare and Verify, for which a disk has no words, are sent as they are.
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

# Compare says whether the blocks are these, on both LBA sizes; a difference in the last byte is
# one.
compare() { capstan_to io-passthru -i 1 -N "$1" --opcode 5 --cdw10 64 --cdw12 7 --input-file "$2"; }
for nsid in 1 3; do
    bytes=4096
    [ $nsid = 1 ] || bytes=32768
    random blocks $bytes
    capstan_to write -N $nsid --start-block 64 -d blocks
    cp blocks other
    printf '\0\1\2' | dd of=other bs=1 seek=$((bytes - 3)) conv=notrunc status=none
    if [ "$TARGET" = nvmet ]; then
        # Linux has no Compare and no Verify, and says so.
        refused 'Compare: Invalid Command Opcode \(SCT 0h, SC 01h' compare $nsid blocks
        refused 'Verify: Invalid Command Opcode \(SCT 0h, SC 01h' capstan_to io-passthru -N $nsid --opcode 0xc --cdw10 64 --cdw12 7
    else
        compare $nsid blocks
        refused 'Compare: Compare Failure \(SCT 2h, SC 85h' compare $nsid other
        capstan_to io-passthru -N $nsid --opcode 0xc --cdw10 64 --cdw12 7
    fi
    capstan_to read -N $nsid --start-block 64 -z $bytes -d back
    same "NSID $nsid after Compare" back blocks
done
