#!/usr/bin/env bash
# In the guest: asks siw (through nvmet-rdma) how it behaves, by probe_siw.py, with tcpdump running. Leaves
# probe-siw.log, probe-siw.pcap and probe-siw.dmesg.log in $OUT.
set -euo pipefail
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
tcpdump -i lo -s 0 -B 65536 -U -Z root -w "$OUT/probe-siw.pcap" 'tcp port 4420' 2>"$OUT/probe-siw.tcpdump.log" &
tcpdump_pid=$!
until [ -s "$OUT/probe-siw.pcap" ]; do sleep 0.2; done
/usr/bin/python3 -u "$LAB/probe_siw.py" 10.9.0.1 4420 "$HOSTNQN" "$SUBSYSTEM" 2>&1 | tee "$OUT/probe-siw.log"
sleep 1
kill -INT $tcpdump_pid
wait $tcpdump_pid || true
dmesg >"$OUT/probe-siw.dmesg.log"
