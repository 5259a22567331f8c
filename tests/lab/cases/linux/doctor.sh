# shellcheck shell=bash
# The target's doctor, while a host is connected: it finds what its listener needs, and disturbs
# nothing.
connect nr_io_queues=1
disk 3
target_doctor
random data 65536
dd if=data of="$DISK" bs=64k oflag=direct status=none
dd if="$DISK" of=back bs=64k count=1 iflag=direct status=none
same "what was written afterwards" back data
disconnect
