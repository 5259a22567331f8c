# shellcheck shell=bash
# btrfs on a volume: `capstan mount`, a subvolume and a bind mount of it, `list` and `umount`. Its
# mounts have device numbers of their own.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
modprobe btrfs
attach_blank 1
mkfs.btrfs -q "$DISK"
file_system_keeps_a_tree btrfs true "btrfs check -q"
detach
mkdir whole bound
undo_with "umount -l whole bound"
capstan_to mount -N 1 whole
make_tree made
cp -a made whole/
btrfs -q subvolume create whole/part
mount --bind whole/part bound
capstan list >listed
cat listed
matches "capstan list" "$(cat listed)" "$PWD/whole"
matches "capstan list" "$(cat listed)" "$PWD/bound"
diff -r --no-dereference made whole/made || fail "files are not what was written"
umount bound
capstan umount whole
undo_with ''
matches "capstan list" "$(capstan list 2>&1)" '^$|nothing|no '
attach
wipefs -qa "$DISK"
detach
