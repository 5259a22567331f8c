#!/usr/bin/env bash
# In the guest: the stock Linux host (nvme-rdma over siw) on capstan-target with the user-space iwarp provider.
#
#   tests/lab/boot.sh linux-host-iwarp.sh PATH_OF_CAPSTAN_TARGET
set -euo pipefail
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
modprobe -a nvme-rdma
NQN=nqn.2026-11.org.example:capstan
truncate -s 256M /tmp/volume.img
"$1" serve --export /tmp/volume.img --lba 4096 --listen 10.9.0.1:4420 --nqn "$NQN" \
    --allow-any-host >"$OUT/target.log" 2>&1 &
TARGET=$!
trap 'kill $TARGET 2>/dev/null; cat "$OUT/target.log"; dmesg | tail -40' EXIT
sleep 2
tcpdump -i lo -s 256 -w "$OUT/host.pcap" tcp port 4420 2>/dev/null &
sleep 1
nvme discover -t rdma -a 10.9.0.1 -s 4420
nvme connect -t rdma -a 10.9.0.1 -s 4420 -n "$NQN" -i 2
sleep 1
nvme list
nvme id-ctrl /dev/nvme0 | head -30
lsblk
fio --name=v --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-1m --iodepth=16 --size=64m \
    --verify=crc32c --randrepeat=0 --output-format=terse --minimal | cut -c1-120
mkfs.ext4 -q /dev/nvme0n1
mkdir -p /tmp/mnt
mount /dev/nvme0n1 /tmp/mnt
cp -r /etc/. /tmp/mnt/
umount /tmp/mnt
mount /dev/nvme0n1 /tmp/mnt
diff -r --no-dereference /etc /tmp/mnt | grep -v lost+found && exit 1
umount /tmp/mnt
fsck.ext4 -fn /dev/nvme0n1
nvme disconnect -n "$NQN"
echo "case passed"
