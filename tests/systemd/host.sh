#!/usr/bin/env bash
# The host side under a real systemd: boots a container (container.sh) with both programs, a target
# at an address that goes with the network, and runs host-inside.sh: fstab, mount and automount
# units, capstan@NAME, capstan-connect-all. What is mounted when the container is shut down has to
# be unmounted in order, which is looked at from outside.
#
#   tests/systemd/host.sh [FOLDER WITH capstan-target AND capstan]     default: build/debug
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh
. tests/systemd/container.sh

new_container "${1:-build/debug}"

# One subsystem and one file system for each way to mount it.
ways=(direct auto data hand shell spare)
mkdir "$work/images"
{
    printf '[target]\nreactors = 1\nmemory_budget = "192MiB"\n[[listener]]\naddress = "192.0.2.1"\nprovider = "iwarp"\n'
    for way in "${ways[@]}"; do
        truncate -s 64M "$work/images/$way.img"
        mkfs.ext4 -q -b 4096 "$work/images/$way.img"
        printf '[[subsystem]]\nnqn = "nqn.2026-11.com.example:%s"\nallow_any_host = true\n' "$way"
        printf '[[subsystem.namespace]]\npath = "/srv/images/%s.img"\nlba = 4096\n' "$way"
    done
} >"$work/root/etc/capstan/target.toml"
container_flags+=(--bind "$work/images:/srv/images")
automount=no
if [ -c /dev/autofs ]; then
    container_flags+=(--bind /dev/autofs)
    [ ! -d /run/systemd/system ] || container_flags+=("--property=DeviceAllow=/dev/autofs rw")
    automount=yes
fi
boot_container tests/systemd/host-inside.sh "CAPSTAN_TEST_AUTOMOUNT=$automount"

# What was mounted until the end: by fstab, on a volume of the file, by hand on one, from a shell.
for way in direct data hand shell; do
    image=$work/images/$way.img
    dumpe2fs -h "$image" >"$work/ext4" 2>&1 || { cat "$work/ext4" >&2; die "$way: dumpe2fs"; }
    grep -q '^Filesystem state: *clean$' "$work/ext4" || die "$way was not unmounted: $(grep 'state:' "$work/ext4")"
    ! grep -q needs_recovery "$work/ext4" || die "$way was not unmounted: its journal is to be replayed"
    written=$(debugfs -R "cat /last" "$image" 2>/dev/null)
    [ "$written" = "until the end" ] || die "$way: what was written last is not there: '$written'"
    e2fsck -fn "$image" >"$work/ext4" 2>&1 || { cat "$work/ext4" >&2; die "$way: e2fsck"; }
    note "$way was unmounted in order at the shutdown"
done
say "PASS: volumes under systemd $(systemctl --version | awk 'NR == 1 { print $2 }')"
