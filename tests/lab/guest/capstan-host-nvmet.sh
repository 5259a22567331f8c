#!/usr/bin/env bash
# In the guest: capstan with the user-space iwarp provider on the stock Linux target (nvmet-rdma over siw).
#
#   tests/lab/boot.sh capstan-host-nvmet.sh PATH_OF_CAPSTAN
set -euo pipefail
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
CAPSTAN=$1
AT=(-t rdma -a 10.9.0.1 -s 4420 -q "$HOSTNQN" -I "$HOSTID" --provider iwarp)
TO=("${AT[@]}" -n "$SUBSYSTEM")
trap 'dmesg | tail -30' EXIT
tcpdump -i lo -s 256 -w "$OUT/host.pcap" tcp port 4420 2>/dev/null &
sleep 1
"$CAPSTAN" discover "${AT[@]}" | grep -q "$SUBSYSTEM"
"$CAPSTAN" id-ctrl "${TO[@]}" | grep -i 'linux nvmet in the lab'
"$CAPSTAN" list-ns "${TO[@]}"
"$CAPSTAN" smart-log "${TO[@]}" | head -5
head -c 1048576 /dev/urandom >/tmp/data
"$CAPSTAN" write "${TO[@]}" --namespace-id 3 --start-block 16 --data-size 1048576 --data /tmp/data
"$CAPSTAN" flush "${TO[@]}" --namespace-id 3
"$CAPSTAN" read "${TO[@]}" --namespace-id 3 --start-block 16 --data-size 1048576 --data /tmp/back
cmp /tmp/data /tmp/back
for bs in 512 4k 64k 1m; do
    "$CAPSTAN" bench "${TO[@]}" --namespace-id 1 --rw randwrite --bs $bs --iodepth 16 --size 8m --verify crc32c
done
if "$CAPSTAN" id-ctrl "${AT[@]}" -n "$RESTRICTED" 2>/tmp/refused; then echo "connected where this host is not allowed"; exit 1; fi
cat /tmp/refused
echo "case passed"
