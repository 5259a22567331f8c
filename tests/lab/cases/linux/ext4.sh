# shellcheck shell=bash
# ext4 on a volume with 512-byte LBAs.
connect nr_io_queues=2
disk 1
file_system_keeps_a_tree ext4 "mkfs.ext4 -q -F -E nodiscard" "fsck.ext4 -fn"
disconnect
