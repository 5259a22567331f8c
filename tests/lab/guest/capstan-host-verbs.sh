#!/usr/bin/env bash
# In the guest: capstan with the verbs provider on the stock Linux target (nvmet-rdma).
#
#   tests/lab/boot.sh capstan-host-verbs.sh rxe|siw PATH_OF_CAPSTAN
set -euo pipefail
link=$1 CAPSTAN=$2
# Only siw looks at it: see setup.sh for what is wrong with the stock one.
export SIW=$LAB/siw-mended.ko
# shellcheck source=/dev/null
. "$LAB/rdma-$link.sh"
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
ulimit -l unlimited
AT=(-t rdma -a 10.9.0.1 -s 4420 -q "$HOSTNQN" -I "$HOSTID" --provider verbs)
TO=("${AT[@]}" -n "$SUBSYSTEM")
trap 'dmesg | tail -30' EXIT
"$CAPSTAN" discover "${AT[@]}" | tee /tmp/discovered
grep -q "$SUBSYSTEM" /tmp/discovered
"$CAPSTAN" id-ctrl "${TO[@]}" | grep -i 'linux nvmet in the lab'
"$CAPSTAN" list-ns "${TO[@]}"
"$CAPSTAN" smart-log "${TO[@]}" | head -5
head -c 1048576 /dev/urandom >/tmp/data
"$CAPSTAN" write "${TO[@]}" --namespace-id 3 --start-block 16 --data-size 1048576 --data /tmp/data
"$CAPSTAN" flush "${TO[@]}" --namespace-id 3
"$CAPSTAN" read "${TO[@]}" --namespace-id 3 --start-block 16 --data-size 1048576 --data /tmp/back
cmp /tmp/data /tmp/back
for sizes in 512:1m 4k:4m 64k:8m 1m:8m; do
    "$CAPSTAN" bench "${TO[@]}" --namespace-id 1 --rw randwrite --bs "${sizes%:*}" --iodepth 16 --size "${sizes#*:}" \
        --verify crc32c
done
if "$CAPSTAN" id-ctrl "${AT[@]}" -n "$RESTRICTED" 2>/tmp/refused; then
    echo "connected where this host is not allowed"
    exit 1
fi
cat /tmp/refused
rdma resource show
echo "case passed"
