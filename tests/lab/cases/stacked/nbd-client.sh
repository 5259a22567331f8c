# shellcheck shell=bash
# A disk of the kernel's NBD driver on `capstan serve-nbd`: a loss that is mended is not noticed
# there, and a file system is there for the next client that connects.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
modprobe nbd nbds_max=1
undo_with 'nbd-client -d /dev/nbd0'
begin served "$LAB/capstan" serve-nbd "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM" -N 1 -i 2 -c 1 -l 60 \
    --socket "$WORK/socket" --export-name lab
within 15 "capstan listens" [ -S socket ]
nbd_disk() { nbd-client -unix "$WORK/socket" /dev/nbd0 -name lab -block-size 512; }
nbd_disk
equal "bytes of /dev/nbd0" "$(blockdev --getsize64 /dev/nbd0)" $((LBAS_1 * 512))
wipefs -qa /dev/nbd0
survives_the_target /dev/nbd0
put_tree /dev/nbd0
nbd-client -d /dev/nbd0
# The kernel lets go of the device some time after it has said so.
within 15 "the device is there for the next connection" nbd_disk
tree_is_there /dev/nbd0
wipefs -qa /dev/nbd0
nbd-client -d /dev/nbd0
undo_with ''
kill -TERM "$(cat served.pid)"
finish served
