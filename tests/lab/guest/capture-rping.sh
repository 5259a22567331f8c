#!/usr/bin/env bash
# In the guest: rping (Send, RDMA READ and RDMA WRITE from user space through libibverbs) over siw
# with sizes that are no multiple of four, and one NVMe discovery, with tcpdump running. Leaves
# NAME.pcap in $OUT.
#
#   capture-rping.sh NAME LO_MTU SIW_MODULE
set -euo pipefail
name=$1
SIW=$LAB/$3
export SIW
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
ip link set lo mtu "$2"
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
modprobe nvme-rdma
# shellcheck source=tests/lab/guest/capture.sh
. "$LAB/capture.sh"

# rping rounds what it sends to its own structure (16 bytes); the READs and WRITEs have the size
# asked for.
for size in 65 66 67 5001; do
    rping -s -a 10.9.0.1 -p 14420 -C 2 -S $size -V &
    server=$!
    sleep 2
    start_capture "$OUT/$name-rping-$size.pcap" 14420
    rping -c -a 10.9.0.1 -p 14420 -C 2 -S $size -V
    wait $server || true
    end_capture
done
start_capture "$OUT/$name.pcap" 4420
nvme discover -t rdma -a 10.9.0.1 -s 4420 "--hostnqn=$HOSTNQN" "--hostid=$HOSTID"
end_capture
dmesg >"$OUT/$name.dmesg.log"
