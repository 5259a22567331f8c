#!/usr/bin/env bash
# The rules of udev, on a volume that is attached: the names of its disk and of a partition of it,
# and that they go with it. `udevadm test` follows the rules as udevd does, in a mount namespace
# with /run, /dev and rules of its own, and a network namespace. Needs root and loop devices.
#
#   tests/systemd/udev.sh [FOLDER WITH capstan-target AND capstan]     default: build/debug
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh

bin=$(realpath "${1:-build/debug}")
if [ -z "${CAPSTAN_UDEV_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || die "namespaces and loop devices need root: sudo $0 $*"
    need_packages "rules of udev, and a partition" udev gdisk
    CAPSTAN_UDEV_INSIDE=1 exec unshare --mount --net --propagation private "$0" "$bin"
fi

rules=/usr/lib/udev/rules.d nqn=nqn.2026-11.com.example:disk
mount -t tmpfs none /run
mkdir -p /run/udev/rules.d /run/lock /run/dev
chmod 1777 /run/lock
# What tells that udev runs.
: >/run/udev/control
mount -t tmpfs none /etc/udev
mount -t tmpfs none "$rules"
sed "s|/usr/bin/capstan|$bin/capstan|" systemd/60-capstan.rules >"$rules/60-capstan.rules"
mount -t tmpfs none /run/dev
cp -a /dev/null /dev/zero /dev/urandom /dev/fuse /dev/loop-control /run/dev
for number in $(seq 0 63); do
    mknod -m 660 "/run/dev/loop$number" b 7 "$number"
done
ln -s /proc/self/fd /run/dev/fd
mount --move /run/dev /dev
ip link set lo up

truncate -s 64M /run/disk.img
sgdisk --new 1:2048:+20M /run/disk.img >/dev/null
"$bin/capstan-target" serve --export /run/disk.img --lba 512 --listen 127.0.0.1:4420 --nqn "$nqn" >/run/target.log 2>&1 &
target=$!
undo stop "$target" 10
tenths=100
until grep -q 'listening at' /run/target.log; do
    tenths=$((tenths - 1))
    [ $tenths -gt 0 ] || die "the target does not listen: $(cat /run/target.log)"
    sleep 0.1
done
disk=$("$bin/capstan" attach -t rdma -a 127.0.0.1 -n "$nqn" --name data 2>/run/said) || die "attach: $(cat /run/said)"
undo "$bin/capstan" detach data
[ ! -e /dev/capstan ] || die "capstan makes the names itself though udev runs"
kernel=${disk#/dev/}

# events ACTION: what the kernel sends of the disk and its partition.
events() {
    local device
    for device in "/sys/block/$kernel" "/sys/block/$kernel/${kernel}p1"; do
        [ ! -e "$device" ] || udevadm test --action="$1" "$device" >/run/udevadm 2>&1 || die "udevadm test: $(cat /run/udevadm)"
    done
}
# leads NAME DEVICE
leads() {
    [ "$(readlink -f "/dev/capstan/$1")" = "$2" ] || die "/dev/capstan/$1 does not lead to $2: $(ls -lR /dev/capstan)"
}
events add
leads by-name/data "$disk"
leads by-name/data-part1 "${disk}p1"
id=$(find /dev/capstan/by-id -name 'uuid.*' ! -name '*-part1' | head -1)
[ -n "$id" ] || die "no /dev/capstan/by-id/uuid.…: $(ls -lR /dev/capstan)"
leads "by-id/${id##*/}" "$disk"
leads "by-id/${id##*/}-part1" "${disk}p1"
"$bin/capstan" detach data || die "detach"
UNDO=("${UNDO[@]:1}")
events change
[ ! -e /dev/capstan/by-name/data ] || die "the name of a disk that is gone is left: $(ls -lR /dev/capstan)"
say "PASS: rules of udev $(udevadm --version)"
