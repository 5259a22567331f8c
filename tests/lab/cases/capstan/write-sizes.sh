# shellcheck shell=bash
# Writes below, at and above what fits into a capsule; every one lands where it belongs, and its
# neighbours stay.
capstan_to id-ctrl >ctrl
in_capsule_bytes=$((16 * $(value ioccsz ctrl) - 64))
[ "$in_capsule_bytes" -ge 4096 ] || fail "the target takes $in_capsule_bytes bytes in a capsule, expected 4096 or more"

random expected 2097152
capstan_to write --start-block 64 -z 2097152 -d expected
at=0
for bytes in 512 $((in_capsule_bytes - 512)) "$in_capsule_bytes" $((in_capsule_bytes + 512)) 65536 1048576; do
    random data "$bytes"
    at=$((at + 512))
    capstan_to write --start-block $((64 + at / 512)) -z "$bytes" -d data
    dd if=data of=expected bs="$bytes" seek=$at oflag=seek_bytes conv=notrunc status=none
    at=$((at + bytes))
done
capstan_to flush
capstan_to read --start-block 64 -z 2097152 -d after
same "the volume after all writes" after expected
