# shellcheck shell=bash
# A namespace is added and taken away while fio works on another: the target tells the host (AEN),
# which sees the disk come, with the right size and identity, and go; the I/O on the other one never
# fails.
connect nr_io_queues=2
disk 1
disk_load load "$DISK" 6
find_disk 5 && fail "NSID 5 is there before it was added"
target_add_namespace
disk 5
equal "bytes of $DISK" $(($(cat "/sys/block/${DISK#/dev/}/size") * 512)) $((LBAS_5 * 512))
equal "wwid of $DISK" "$(cat "/sys/block/${DISK#/dev/}/wwid")" "uuid.$UUID_5"
random data 65536
dd if=data of="$DISK" bs=64k oflag=direct status=none
dd if="$DISK" of=back bs=64k count=1 iflag=direct status=none
same "what was written to NSID 5" back data
target_remove_namespace
within 20 "NSID 5 goes" no_disk 5
finish load

# It comes again with what was written to it.
target_add_namespace
disk 5
dd if="$DISK" of=back bs=64k count=1 iflag=direct status=none
same "NSID 5 after it was away" back data
target_remove_namespace
within 20 "NSID 5 goes again" no_disk 5
disconnect
