# shellcheck shell=bash
# dm-crypt on an attached volume: the target's disk holds nothing that can be read, and all is there
# through the key.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
modprobe -a dm-mod dm-crypt
crypt() { cryptsetup --batch-mode --key-file key "$@"; }
undo_with 'cryptsetup close lab'
random key 32
attach_blank 1
# As few iterations as it takes: the processor is emulated.
crypt luksFormat --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$DISK"
crypt open "$DISK" lab
survives_the_target "$(dm_disk lab)"
printf 'plain text that nobody may find' >plain
dd if=plain of=/dev/mapper/lab bs=4k seek=4 conv=sync,notrunc oflag=direct status=none
dd if=/dev/lab1 bs=1M count=64 status=none | grep -qa 'plain text that nobody' && fail "the target's disk has plain text"
put_tree /dev/mapper/lab
refused 'is used by dm-' capstan detach "$DISK"
cryptsetup close lab
detach
attach
crypt open "$DISK" lab
tree_is_there /dev/mapper/lab
cryptsetup close lab
undo_with ''
wipefs -qa "$DISK"
detach
