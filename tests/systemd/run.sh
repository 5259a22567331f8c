#!/usr/bin/env bash
# Starts capstan-target under a real systemd: boots a container (container.sh), installs the binary,
# the unit, the user and the sample configuration there, and runs inside.sh against it.
#
#   tests/systemd/run.sh [FOLDER WITH capstan-target AND capstan]     default: build/debug
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh
. tests/systemd/container.sh

new_container "${1:-build/debug}"

truncate -s 64M "$work/disk.img"
loop=$(losetup --find --show "$work/disk.img")
undo losetup -d "$loop"
# A node of its own, as udev makes them: this machine's may belong to another group.
mknod "$work/disk" b "$(stat -c %Hr "$loop")" "$(stat -c %Lr "$loop")"
chmod 660 "$work/disk"
chgrp disk "$work/disk"
# Marks the first LBAs, so that the host sees that it reads this disk.
echo "capstan systemd test" | dd of="$loop" conv=notrunc,fsync status=none
container_flags+=(--bind "$work/disk:$loop")
[ ! -d /run/systemd/system ] || container_flags+=("--property=DeviceAllow=$loop rw")

install -D -m 644 systemd/capstan-target.service.d/nfs.conf -t "$work/root/root"
# The sample as it is, with this container's address and disk.
sed -e 's|^address = .*|address = "127.0.0.1"|' -e "s|^path = .*|path = \"$loop\"|" \
    config/samples/block-device.toml >"$work/root/etc/capstan/target.toml"
boot_container tests/systemd/inside.sh "CAPSTAN_TEST_DISK=$loop"
say "PASS: capstan-target runs under systemd $(systemctl --version | awk 'NR == 1 { print $2 }')"
