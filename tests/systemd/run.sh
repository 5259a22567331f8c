#!/usr/bin/env bash
# Starts capstan-target under a real systemd: boots a small Debian or Ubuntu in a container
# (systemd-nspawn), installs the binary, the unit, the user and the sample configuration there, and
# runs inside.sh against it. Needs root, a loop device and debootstrap.
#
#   tests/systemd/run.sh [FOLDER WITH capstan-target AND capstan]     default: build/debug
#
# The root file system is made once and kept in CAPSTAN_TEST_CACHE (default
# /var/cache/capstan-test); a run works on a layer above it and leaves it as it was.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh

bin=${1:-build/debug}
cache=${CAPSTAN_TEST_CACHE:-/var/cache/capstan-test}
[ "$(id -u)" = 0 ] || die "a container with its own systemd needs root: sudo $0 $*"
for program in capstan-target capstan; do
    [ -x "$bin/$program" ] || die "$bin/$program is not there: cargo build --bin $program"
done
need_packages "a container with its own systemd" debootstrap systemd-container e2fsprogs mount

# The same release as this machine, because the binaries are linked against its C library.
# shellcheck disable=SC1091
. /etc/os-release
case $ID in
    debian) mirror=http://deb.debian.org/debian components=main ;;
    ubuntu) mirror=http://archive.ubuntu.com/ubuntu components=main,universe ;;
    *) die "this test knows how to make a container of Debian and Ubuntu, not of $ID" ;;
esac
packages=systemd,systemd-sysv,dbus,iproute2,libibverbs1,librdmacm1
root=$cache/$ID-$VERSION_CODENAME-1

if [ ! -d "$root" ]; then
    say "making the container's root file system in $root (once; some 250 MB)"
    mkdir -p "$cache"
    undo rm -rf --one-file-system "$root.part"
    rm -rf --one-file-system "$root.part"
    debootstrap --variant=minbase --components="$components" --include="$packages" \
        "$VERSION_CODENAME" "$root.part" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
        { tail -5 "$cache/debootstrap.log" >&2; die "debootstrap failed; $cache/debootstrap.log"; }
    rm -rf "$root.part/var/cache/apt/archives" "$root.part/var/lib/apt/lists"
    : >"$root.part/etc/machine-id"
    mv "$root.part" "$root"
fi

work=$(mktemp -d -p "$cache")
undo rm -rf --one-file-system "$work"
mkdir "$work"/{upper,layer,root,result}
mount -t overlay capstan-test -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/layer" "$work/root"
undo umount "$work/root"

truncate -s 64M "$work/disk.img"
loop=$(losetup --find --show "$work/disk.img")
undo losetup -d "$loop"
# A node of its own, as udev makes them: this machine's may belong to another group.
mknod "$work/disk" b "$(stat -c %Hr "$loop")" "$(stat -c %Lr "$loop")"
chmod 660 "$work/disk"
chgrp disk "$work/disk"
# Marks the first LBAs, so that the host sees that it reads this disk.
echo "capstan systemd test" | dd of="$loop" conv=notrunc,fsync status=none

say "installing into the container"
install -D -m 755 "$bin/capstan-target" "$bin/capstan" -t "$work/root/usr/bin"
install -D -m 644 systemd/capstan-target.service -t "$work/root/usr/lib/systemd/system"
install -D -m 644 systemd/capstan-target.service.d/nfs.conf -t "$work/root/root"
install -D -m 644 systemd/capstan-target.sysusers.conf \
    "$work/root/usr/lib/sysusers.d/capstan-target.conf"
# The sample as it is, with this container's address and disk.
mkdir -p "$work/root/etc/capstan"
sed -e 's|^address = .*|address = "127.0.0.1"|' -e "s|^path = .*|path = \"$loop\"|" \
    config/samples/block-device.toml >"$work/root/etc/capstan/target.toml"
install -m 755 tests/systemd/inside.sh "$work/root/root/inside.sh"
cat >"$work/root/etc/systemd/system/capstan-test.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
Environment=CAPSTAN_TEST_DISK=$loop
ExecStart=/root/inside.sh
StandardOutput=append:/result/log
StandardError=append:/result/log
TimeoutStartSec=120
ExecStopPost=/bin/sh -c 'echo "\$SERVICE_RESULT \$EXIT_STATUS" >/result/status; systemctl --no-block poweroff'
UNIT
cat >"$work/root/etc/systemd/system/capstan-test.target" <<UNIT
[Unit]
Requires=multi-user.target
Wants=capstan-test.service
After=multi-user.target
UNIT

say "booting it"
# bpf: systemd has the kernel apply the rules of devices of a unit by it.
# open_by_handle_at: files of exports are opened so.
flags=(--system-call-filter="bpf open_by_handle_at" --quiet --register=no --capability=all --private-network --directory "$work/root"
    --machine "capstan-test-$$" --bind "$work/disk:$loop" --bind "$work/result:/result"
    --bind /dev/fuse --bind /dev/loop-control --boot)
if [ -d /run/systemd/system ]; then
    flags+=("--property=DeviceAllow=$loop rw" "--property=DeviceAllow=block-loop rwm"
        "--property=DeviceAllow=/dev/fuse rw" "--property=DeviceAllow=/dev/loop-control rw")
else
    # No systemd here to make a scope in.
    flags+=(--keep-unit)
fi
# Control groups of version 2, whatever this machine has: of version 1 a container has no rules of
# devices.
version_2='[ -e /sys/fs/cgroup/cgroup.procs ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"'
timeout --kill-after=10 180 unshare --mount --propagation private bash -c "$version_2" bash systemd-nspawn "${flags[@]}" -- --unit=capstan-test.target \
    </dev/null >"$work/console.log" 2>&1 || true

if [ ! -s "$work/result/status" ]; then
    tail -40 "$work/console.log" >&2
    die "the container did not get as far as the test"
fi
cat "$work/result/log"
[ "$(cat "$work/result/status")" = "success 0" ] ||
    die "the service does not do under systemd what it should: see above"
say "PASS: capstan-target runs under systemd $(systemctl --version | awk 'NR == 1 { print $2 }')"
