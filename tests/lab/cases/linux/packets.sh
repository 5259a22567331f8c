# shellcheck shell=bash
# Seen on the wire: a READ is one RDMA WRITE and the response; a small write has its data in the
# capsule; a large one is pulled by RDMA READ. Over NVMe/TCP these are C2HData and R2T, and a
# response as well, as the host leaves SQ flow control on.
capture
connect nr_io_queues=1
disk 3
# By the character device: udev does not look at a disk that was closed.
generic=${DISK/nvme/ng}
random small 4096
random large 32768
nvme write "$generic" -s 0x1200 -c 0 -z 4096 -d small
nvme write "$generic" -s 0x1210 -c 7 -z 32768 -d large
nvme read "$generic" -s 0x1200 -c 0 -z 4096 -d back
same "what was written in the capsule" back small
disconnect
stop_capture
if over_tcp; then
    equal "the steps of a small write" "$(steps 'Write nsid 0x3 cdw10 0x1200 ')" "-> CAPSULE_CMD 4160
<- CAPSULE_RESP 16"
    equal "the steps of a read" "$(steps 'Read nsid 0x3 cdw10 0x1200 ')" "-> CAPSULE_CMD 64
<- C2H_DATA 4096
<- CAPSULE_RESP 16"
    equal "the steps of a large write" "$(steps 'Write nsid 0x3 cdw10 0x1210 ')" "-> CAPSULE_CMD 64
<- R2T 32768
-> H2C_DATA 32768
<- CAPSULE_RESP 16"
else
    equal "the steps of a small write" "$(steps 'Write nsid 0x3 cdw10 0x1200 ')" "-> SEND 4160
<- SEND 16"
    equal "the steps of a read" "$(steps 'Read nsid 0x3 cdw10 0x1200 ')" "-> SEND 64
<- RDMA_WRITE 4096
<- SEND 16"
    large=$(steps 'Write nsid 0x3 cdw10 0x1210 ')
    equal "the first step of a large write" "$(head -1 <<<"$large")" "-> SEND 64"
    equal "the second step of a large write" "$(sed -n 2p <<<"$large")" "<- READ_REQUEST 32768"
    equal "bytes pulled" "$(awk '/-> READ_RESPONSE/ { bytes += $3 } END { print bytes }' <<<"$large")" 32768
    equal "the last step of a large write" "$(tail -1 <<<"$large")" "<- SEND 16"
fi
