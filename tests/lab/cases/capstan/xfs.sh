# shellcheck shell=bash
# xfs on an attached volume with 512-byte LBAs.
attach
file_system_keeps_a_tree xfs "mkfs.xfs -q -f -K" "xfs_repair -n"
detach
