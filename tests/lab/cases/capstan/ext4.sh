# shellcheck shell=bash
# ext4 on an attached volume with 512-byte LBAs.
attach
file_system_keeps_a_tree ext4 "mkfs.ext4 -q -F -E nodiscard" "fsck.ext4 -fn"
detach
