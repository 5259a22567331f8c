#!/usr/bin/env bash
# In the guest: capstan on capstan-target, both with the verbs provider.
#
#   tests/lab/boot.sh capstan-verbs.sh rxe|siw PATH_OF_CAPSTAN_TARGET PATH_OF_CAPSTAN
set -euo pipefail
link=$1 program=$2 CAPSTAN=$3
# Only siw looks at it: see setup.sh for what is wrong with the stock one.
export SIW=$LAB/siw-mended.ko
# shellcheck source=/dev/null
. "$LAB/rdma-$link.sh"
ulimit -l unlimited
NQN=nqn.2026-11.org.example:capstan
truncate -s 64M /tmp/volume.img
# Soft-RoCE owns the address, so `auto` must be verbs on both sides; siw it avoids.
provider=auto
[ "$link" = rxe ] || provider=verbs
"$program" serve --export /tmp/volume.img --lba 512 --listen 10.9.0.1:4420 --nqn "$NQN" --allow-any-host \
    --provider $provider >"$OUT/target.log" 2>&1 &
TARGET=$!
trap 'kill $TARGET 2>/dev/null || true; cat "$OUT/target.log"; dmesg | tail -40' EXIT
for _ in $(seq 50); do
    grep -q 'listening at' "$OUT/target.log" && break
    sleep 0.2
done
grep -q 'provider="verbs"' "$OUT/target.log"
AT=(-t rdma -a 10.9.0.1 -s 4420 --provider "$provider")
TO=("${AT[@]}" -n "$NQN")
"$CAPSTAN" discover "${AT[@]}" | tee /tmp/discovered
grep -q "$NQN" /tmp/discovered
bench() { # bench BLOCK_SIZE SIZE OPTION…
    local bs=$1 size=$2
    shift 2
    "$CAPSTAN" bench "${TO[@]}" --bs "$bs" --size "$size" "$@"
}
for queues in 1 2; do
    bench 512 1m --rw randwrite --iodepth 64 --verify crc32c -i "$queues"
    bench 4k 4m --rw randwrite --iodepth 16 --verify crc32c -i "$queues"
    bench 64k 8m --rw randwrite --iodepth 8 --verify crc32c -i "$queues"
    bench 1m 8m --rw randwrite --iodepth 1 --verify crc32c -i "$queues"
done
bench 4k 8m --rw randread --iodepth 32
for _ in $(seq 10); do
    "$CAPSTAN" id-ctrl "${TO[@]}" >/tmp/ctrl
done
cat /tmp/ctrl
kill -TERM $TARGET
wait $TARGET
rdma resource show
echo "case passed"
