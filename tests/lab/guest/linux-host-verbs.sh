#!/usr/bin/env bash
# In the guest: the stock Linux host (nvme-rdma) on capstan-target with the verbs provider.
#
#   tests/lab/boot.sh linux-host-verbs.sh rxe|siw PATH_OF_CAPSTAN_TARGET
set -euo pipefail
link=$1 program=$2
# Only siw looks at it: see setup.sh for what is wrong with the stock one.
export SIW=$LAB/siw-mended.ko
# shellcheck source=/dev/null
. "$LAB/rdma-$link.sh"
modprobe -a nvme-rdma
ulimit -l unlimited
NQN=nqn.2026-11.org.example:capstan
truncate -s 256M /tmp/volume.img
"$program" serve --export /tmp/volume.img --lba 4096 --listen 10.9.0.1:4420 --nqn "$NQN" --provider verbs \
    --allow-any-host >"$OUT/target.log" 2>&1 &
TARGET=$!
trap 'kill $TARGET 2>/dev/null || true; cat "$OUT/target.log"; dmesg | tail -40' EXIT
for _ in $(seq 50); do
    grep -q 'listening at' "$OUT/target.log" && break
    sleep 0.2
done
nvme discover -t rdma -a 10.9.0.1 -s 4420
for queues in 1 2; do
    nvme connect -t rdma -a 10.9.0.1 -s 4420 -n "$NQN" -i "$queues"
    sleep 1
    nvme list
    nvme id-ctrl /dev/nvme0 | head -20
    fio --name=v --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-1m --iodepth=16 \
        --size=32m --verify=crc32c --randrepeat=0 --output-format=terse --minimal | cut -c1-120
    nvme disconnect -n "$NQN"
done
nvme connect -t rdma -a 10.9.0.1 -s 4420 -n "$NQN" -i 2
sleep 1
mkfs.ext4 -q /dev/nvme0n1
mkdir -p /tmp/mnt
mount /dev/nvme0n1 /tmp/mnt
findmnt -t ext4 /tmp/mnt
cp -r /etc/. /tmp/mnt/
umount /tmp/mnt
mount /dev/nvme0n1 /tmp/mnt
diff -r --no-dereference /etc /tmp/mnt | grep -v lost+found && exit 1
umount /tmp/mnt
fsck.ext4 -fn /dev/nvme0n1
nvme disconnect -n "$NQN"
for _ in $(seq 10); do
    nvme connect -t rdma -a 10.9.0.1 -s 4420 -n "$NQN" -i 2
    nvme disconnect -n "$NQN"
done
kill -TERM $TARGET
wait $TARGET
rdma resource show
echo "case passed"
