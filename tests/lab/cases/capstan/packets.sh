# shellcheck shell=bash
# Seen on the wire: a READ is one RDMA WRITE and the response; a small write has its data in the
# capsule; a large one is pulled by RDMA READ. Over NVMe/TCP these are C2HData, whose SUCCESS stands
# for the response, and R2T.
capture
random small 4096
random large 32768
capstan_to write -N 3 --start-block 4608 -z 4096 -d small
capstan_to write -N 3 --start-block 4624 -z 32768 -d large
capstan_to read -N 3 --start-block 4608 -z 4096 -d back
same "what was written in the capsule" back small
stop_capture
if over_tcp; then
    equal "the steps of a small write" "$(steps 'Write nsid 0x3 cdw10 0x1200 ')" "-> CAPSULE_CMD 4160
<- CAPSULE_RESP 16"
    equal "the steps of a read" "$(steps 'Read nsid 0x3 cdw10 0x1200 ')" "-> CAPSULE_CMD 64
<- C2H_DATA 4096 SUCCESS"
    large=$(steps 'Write nsid 0x3 cdw10 0x1210 ')
    equal "the first step of a large write" "$(head -1 <<<"$large")" "-> CAPSULE_CMD 64"
    asked=$(awk '/<- R2T/ { asked += $3 } /-> H2C_DATA/ { bytes += $3 } END { print asked, bytes }' <<<"$large")
    equal "bytes asked for and sent" "$asked" "32768 32768"
    equal "the last step of a large write" "$(tail -1 <<<"$large")" "<- CAPSULE_RESP 16"
else
    equal "the steps of a small write" "$(steps 'Write nsid 0x3 cdw10 0x1200 ')" "-> SEND 4160
<- SEND 16"
    equal "the steps of a read" "$(steps 'Read nsid 0x3 cdw10 0x1200 ')" "-> SEND 64
<- RDMA_WRITE 4096
<- SEND 16"
    large=$(steps 'Write nsid 0x3 cdw10 0x1210 ')
    equal "the first step of a large write" "$(head -1 <<<"$large")" "-> SEND 64"
    pulled=$(awk '/<- READ_REQUEST/ { asked += $3 } /-> READ_RESPONSE/ { bytes += $3 } END { print asked, bytes }' <<<"$large")
    equal "bytes asked for and pulled" "$pulled" "32768 32768"
    equal "the last step of a large write" "$(tail -1 <<<"$large")" "<- SEND 16"
fi
