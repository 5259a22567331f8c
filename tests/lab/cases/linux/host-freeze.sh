# shellcheck shell=bash
# Nothing comes from the host for longer than its Keep Alive Timeout: the target ends the
# association and says why. When the host is back it connects again by itself, and its data is
# there.
connect nr_io_queues=1,keep_alive_tmo=2,reconnect_delay=1,ctrl_loss_tmo=60
disk 1
random data 65536
dd if=data of="$DISK" bs=64k oflag=direct status=none
link_down
expired() { target_log_since | grep -qiE 'keep.alive timer .*expired'; }
within 20 "the target ends the association" expired
link_up
within 40 "the host is connected again" is_live
dd if="$DISK" of=back bs=64k count=1 iflag=direct status=none
same "what was written before" back data
disconnect
