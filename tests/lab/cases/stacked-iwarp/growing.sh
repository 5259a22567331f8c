# shellcheck shell=bash
# A mapping of the device mapper grows below the target while its disk is in use: the disk follows,
# and holds what is written behind its old end.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
modprobe dm-mod
undo_with 'take_away'
take_away() {
    target_remove_namespace
    dmsetup remove lab
}
mapping() { echo "0 $(($1 * 2048)) linear /dev/lab5 0"; } # mapping MIB
has_mib() { [ "$(blockdev --getsize64 "$DISK")" = $(($1 << 20)) ]; } # has_mib MIB
mapping 32 | dmsetup create lab
DISK_5=$(dm_disk lab) target_add_namespace
attach_nsid 5
has_mib 32 || fail "the disk has $(blockdev --getsize64 "$DISK") bytes, expected 32 MiB"
disk_load load "$DISK" 8
mapping 48 | dmsetup load lab
dmsetup resume lab
within 15 "the disk has grown" has_mib 48
finish load
random data 1048576
dd if=data of="$DISK" bs=64k seek=752 oflag=direct conv=notrunc,fsync status=none
dd if=/dev/lab5 of=back bs=64k skip=752 count=16 iflag=direct status=none
same "what the last of its MiB has below the mapping" back data
detach
take_away
undo_with ''
