# shellcheck shell=bash
# LVM on an attached volume: what a logical volume holds is there after the volume was detached and
# attached again.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
modprobe dm-mod
# /etc/lvm is on a folder that cannot be written here.
lvm_on() { lvm "$1" --config 'backup { backup=0 archive=0 } devices { use_devicesfile=0 }' "${@:2}"; }
undo_with 'lvm_on vgchange -an lab'
attach_blank 1
lvm_on pvcreate -q "$DISK"
lvm_on vgcreate -q lab "$DISK"
lvm_on lvcreate -q -L 256M -n tree lab
lvm_on lvcreate -q -L 64M -n load lab
put_tree /dev/mapper/lab-tree
survives_the_target "$(dm_disk lab-load)"
# A volume in use is not taken away.
refused 'is used by dm-' capstan detach "$DISK"
lvm_on vgchange -an lab
detach
attach
lvm_on vgchange -ay lab
tree_is_there /dev/mapper/lab-tree
lvm_on vgchange -an lab
undo_with ''
wipefs -qa "$DISK"
detach
