#!/usr/bin/env bash
# In the guest: rping (Send, RDMA READ and RDMA WRITE from user space through libibverbs) over siw with sizes that are
# no multiple of four, and one NVMe discovery, with tcpdump running. Leaves NAME.pcap in $OUT.
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
tcpdump -i lo -s 0 -B 65536 -U -Z root -w "$OUT/$name.pcap" 'tcp port 4420' 2>"$OUT/$name.tcpdump.log" &
tcpdump_pid=$!
until [ -s "$OUT/$name.pcap" ]; do sleep 0.2; done

# rping rounds what it sends to its own structure (16 bytes); the READs and WRITEs have the size asked for.
for size in 65 66 67 5001; do
    rping -s -a 10.9.0.1 -p 14420 -C 2 -S $size -V &
    server=$!
    sleep 2
    tcpdump -i lo -s 0 -U -Z root -w "$OUT/$name-rping-$size.pcap" 'tcp port 14420' 2>/dev/null &
    dump=$!
    until [ -s "$OUT/$name-rping-$size.pcap" ]; do sleep 0.2; done
    rping -c -a 10.9.0.1 -p 14420 -C 2 -S $size -V
    wait $server || true
    sleep 1
    kill -INT $dump
    wait $dump || true
done
nvme discover -t rdma -a 10.9.0.1 -s 4420 "--hostnqn=$HOSTNQN" "--hostid=$HOSTID"
sleep 1
kill -INT $tcpdump_pid
wait $tcpdump_pid || true
dmesg >"$OUT/$name.dmesg.log"
