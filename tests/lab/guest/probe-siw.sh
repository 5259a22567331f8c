#!/usr/bin/env bash
# In the guest: asks siw (through nvmet-rdma) how it behaves, by probe_siw.py, with tcpdump running.
# Leaves probe-siw.log, probe-siw.pcap and probe-siw.dmesg.log in $OUT.
set -euo pipefail
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
# shellcheck source=tests/lab/guest/capture.sh
. "$LAB/capture.sh"
start_capture "$OUT/probe-siw.pcap" 4420
/usr/bin/python3 -u "$LAB/probe_siw.py" 10.9.0.1 4420 "$HOSTNQN" "$SUBSYSTEM" 2>&1 | tee "$OUT/probe-siw.log"
end_capture
dmesg >"$OUT/probe-siw.dmesg.log"
