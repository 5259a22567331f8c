# shellcheck shell=bash
# xfs on a volume with 512-byte LBAs.
connect nr_io_queues=2
disk 1
file_system_keeps_a_tree xfs "mkfs.xfs -q -f" "xfs_repair -n"
disconnect
