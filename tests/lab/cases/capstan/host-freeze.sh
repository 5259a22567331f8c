# shellcheck shell=bash
# capstan is stopped for longer than its Keep Alive Timeout: the target ends the association and
# says why. When capstan goes on it connects again by itself, and the data is there. (With I/O in
# flight nvmet-rdma over siw never lets go of it.)
attach -k 1 -c 1 -l 60
random data 65536
dd if=data of="$DISK" bs=64k oflag=direct status=none
pid=$(capstan list | awk -v disk="$DISK" 'index($0, disk) { print $NF }')
kill -STOP "$pid"
expired() { target_log_since | grep -qiE 'keep.alive timer .*expired'; }
within 20 "the target ends the association" expired
kill -CONT "$pid"
timeout 30 dd if="$DISK" of=back bs=64k count=1 iflag=direct status=none || fail "the disk does not answer after the pause"
same "what was written before" back data
detach
