#!/usr/bin/env bash
# Checks the unit without starting it: systemd-analyze verify must be silent (it exits 0 even for
# keys that do not exist), and the exposure must not exceed THRESHOLD (tenths of what
# `systemd-analyze security` prints; 100 is everything).
#
#   tests/systemd/verify.sh [PATH OF capstan-target]     default: build/debug/capstan-target
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh
THRESHOLD=20

binary=$(realpath "${1:-build/debug/capstan-target}")
need_packages "systemd-analyze" systemd
work=$(mktemp -d)
undo rm -rf "$work"

# verify looks for the program, which is not installed here.
sed "s|/usr/bin/capstan-target|$binary|" systemd/capstan-target.service >"$work/capstan-target.service"
complaints=$(systemd-analyze verify --man=no "$work/capstan-target.service" 2>&1) || true
[ -z "$complaints" ] || die "systemd-analyze verify: $complaints"

if ! report=$(systemd-analyze security --offline=true --threshold="$THRESHOLD" --no-pager \
    "$work/capstan-target.service" 2>&1); then
    grep '✗' <<<"$report" >&2 || printf '%s\n' "$report" >&2
    die "the unit is more exposed than $THRESHOLD allows: $(tail -1 <<<"$report")"
fi

# With the drop-in for NFS it is root, with the rights that are written there.
NFS_THRESHOLD=32
cp -r systemd/capstan-target.service.d "$work"
complaints=$(systemd-analyze verify --man=no "$work/capstan-target.service" 2>&1) || true
[ -z "$complaints" ] || die "systemd-analyze verify, with nfs.conf: $complaints"
if ! nfs_report=$(systemd-analyze security --offline=true --threshold="$NFS_THRESHOLD" --no-pager \
    "$work/capstan-target.service" 2>&1); then
    grep '✗' <<<"$nfs_report" >&2 || printf '%s\n' "$nfs_report" >&2
    die "with nfs.conf the unit is more exposed than $NFS_THRESHOLD allows: $(tail -1 <<<"$nfs_report")"
fi

# systemd-sysusers --root makes the user in an empty tree.
mkdir -p "$work/root/etc" "$work/root/usr/lib/sysusers.d"
cp systemd/capstan-target.sysusers.conf "$work/root/usr/lib/sysusers.d/capstan-target.conf"
systemd-sysusers --root="$work/root"
grep -q '^capstan:' "$work/root/etc/passwd" || die "sysusers.d makes no user capstan"
say "unit and user are in order; $(tail -1 <<<"$report"); with nfs.conf: $(tail -1 <<<"$nfs_report")"
