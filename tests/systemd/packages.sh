#!/usr/bin/env bash
# The .deb packages under a real systemd: boots a container (container.sh) that has nothing of ours,
# and runs packages-inside.sh in there, twice, as a machine that is installed and rebooted: install,
# a configuration of six lines, a volume in fstab over a network between two namespaces, a reboot,
# an upgrade under load, remove, purge. Nothing may be left.
#
#   tests/systemd/packages.sh [--release CODENAME] DEB…      both packages, of one version
#
# The packages that are upgraded are the same ones with a lower version. Without --release it is the
# release of this machine; a later one has what the programs are linked with, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh
. tests/systemd/container.sh

release=
if [ "${1:-}" = --release ]; then
    release=${2:?"--release needs a codename, as bookworm"}
    shift 2
fi
[ $# -gt 0 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
for deb in "$@"; do
    [ -f "$deb" ] || die "$deb is not there: scripts/package.sh deb"
done

new_root "$release"
mkdir "$work/result"/{old,new}
for deb in "$@"; do
    cp "$deb" "$work/result/new"
    dpkg-deb --raw-extract "$deb" "$work/deb"
    sed -i 's/^Version: .*/Version: 0.0.1~test-1/' "$work/deb/DEBIAN/control"
    dpkg-deb --build -Znone "$work/deb" "$work/result/old" >/dev/null
    rm -r "$work/deb"
done
# Not every release has e2fsprogs in its smallest installation.
truncate -s 128M "$work/result/disk.img"
mkfs.ext4 -q -b 4096 "$work/result/disk.img"
boot_container tests/systemd/packages-inside.sh CAPSTAN_TEST_PHASE=install
boot_container tests/systemd/packages-inside.sh CAPSTAN_TEST_PHASE=reboot
# shellcheck disable=SC1091
. "$work/root/etc/os-release"
say "PASS: packages on $PRETTY_NAME"
