# shellcheck shell=bash
# md over an attached volume and a disk of the host: a loss that is mended is not noticed, the
# mirror goes on without a volume that is given up, and it is whole again when that is back.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
export MDADM_NO_UDEV=1
modprobe raid1
undo_with 'mdadm --quiet --stop /dev/md0'
attach_nsid 3 -c 1 -l 10
wipefs -qa "$DISK" /dev/lab5
mdadm --quiet --create /dev/md0 --run --metadata=1.2 --level=1 --raid-devices=2 --assume-clean --bitmap=internal "$DISK" /dev/lab5
survives_the_target /dev/md0
grep -q '\[UU\]' /proc/mdstat || fail "md has given up a disk for a loss that was mended: $(cat /proc/mdstat)"
refused 'is used by md0' capstan detach "$DISK"
put_tree /dev/md0
# The target stays away for longer than capstan tries.
target_kill
random late 65536
dd if=late of=/dev/md0 bs=4k seek=12288 oflag=direct status=none
within 30 "md has given the volume up" grep -q '\[_U\]' /proc/mdstat
target_start
mdadm --quiet /dev/md0 --remove "$DISK"
# md was told of the write that failed, which capstan cannot know. Where it was the flush before
# that write, capstan has never seen the write, and misses nothing.
capstan detach "$ATTACHED" >detached 2>&1 || grep -q 'were not repeated' detached || fail "detach says: $(cat detached)"
ATTACHED=''
attach_nsid 3
mdadm --quiet /dev/md0 --re-add "$DISK"
within 60 "the mirror is whole again" grep -q '\[UU\]' /proc/mdstat
mdadm --quiet --stop /dev/md0
# What the volume alone has.
mdadm --quiet --assemble --run /dev/md0 "$DISK"
tree_is_there /dev/md0
dd if=/dev/md0 of=back bs=4k skip=12288 count=16 iflag=direct status=none
same "what was written while the volume was away" back late
mdadm --quiet --stop /dev/md0
undo_with ''
wipefs -qa "$DISK" /dev/lab5
detach
