# shellcheck shell=bash
# Writes below, at and above what fits into a capsule, by the block layer; every one lands where it
# belongs, and its neighbours stay as they were. What travels in the capsule and what the target
# pulls is decided by the size alone.
connect nr_io_queues=1
disk 1
nvme id-ctrl "/dev/$CONTROLLER" >ctrl
in_capsule_bytes=$((16 * $(value ioccsz ctrl) - 64))
[ "$in_capsule_bytes" -ge 4096 ] || fail "the target takes $in_capsule_bytes bytes in a capsule, expected 4096 or more"

random before 4194304
dd if=before of="$DISK" bs=1M oflag=direct status=none
cp before expected
at=0
for bytes in 512 1024 4096 $((in_capsule_bytes - 512)) "$in_capsule_bytes" $((in_capsule_bytes + 512)) 12288 65536 131072 \
    1048576; do
    random data "$bytes"
    at=$((at + 512))
    dd if=data of="$DISK" bs="$bytes" seek=$at oflag=direct,seek_bytes status=none
    dd if=data of=expected bs="$bytes" seek=$at oflag=seek_bytes conv=notrunc status=none
    at=$((at + bytes))
done
echo 1 >/proc/sys/vm/drop_caches
dd if="$DISK" of=after bs=1M count=4 iflag=direct status=none
same "the volume after all writes" after expected

# The same without the block layer, which may cut requests: one command per size.
for bytes in 512 "$in_capsule_bytes" $((in_capsule_bytes + 512)) 131072; do
    random data "$bytes"
    lbas=$((bytes / 512 - 1))
    nvme write "$DISK" -s 20000 -c $lbas -z "$bytes" -d data
    rm -f back
    nvme read "$DISK" -s 20000 -c $lbas -z "$bytes" -d back
    same "$bytes bytes in one command" back data
done
disconnect
