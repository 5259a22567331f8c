#!/usr/bin/env bash
# Checks the units without starting them: systemd-analyze verify must be silent (it exits 0 even for
# keys that do not exist), and the exposure must not exceed a threshold (tenths of what
# `systemd-analyze security` prints; 100 is everything). Folders, users and rules of udev likewise.
#
#   tests/systemd/verify.sh [PATH OF capstan-target]     default: build/debug/capstan-target
#
# `capstan` is expected beside it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh
binary=$(realpath "${1:-build/debug/capstan-target}")
host=$(dirname "$binary")/capstan
need_packages "systemd-analyze and udevadm" systemd udev
work=$(mktemp -d)
undo rm -rf "$work"

# checked FILE NAME THRESHOLD [NAME OF DROP-INS]: the unit in FILE as NAME, without a complaint and
# not more exposed than that. What security says last is in $exposure.
checked() {
    local unit=$work/$2 complaints report
    # verify looks for the programs, which are not installed here.
    sed "s|/usr/bin/capstan-target|$binary|; s|/usr/bin/capstan |$host |" "$1" >"$unit"
    complaints=$(systemd-analyze verify --man=no "$unit" 2>&1) || true
    [ -z "$complaints" ] || die "systemd-analyze verify: $complaints"
    if ! report=$(systemd-analyze security --offline=true --threshold="$3" --no-pager "$unit" 2>&1); then
        grep '✗' <<<"$report" >&2 || printf '%s\n' "$report" >&2
        die "$2 is more exposed than $3 allows: $(tail -1 <<<"$report")"
    fi
    exposure=$(tail -1 <<<"$report")
    exposure=${exposure#* }
}

checked systemd/capstan-target.service capstan-target.service 20
say "$exposure"
checked systemd/capstan-connect-all.service capstan-connect-all.service 20
say "$exposure"
# What is beyond 20 cannot be had: it mounts and makes loop devices as root (CAP_SYS_ADMIN, @mount,
# devices), locks its memory, and connects to targets that may have any address.
checked systemd/capstan@.service capstan@volume.service 23
say "$exposure"
# With the drop-in for NFS it is root, with the rights that are written there.
cp -r systemd/capstan-target.service.d "$work"
checked systemd/capstan-target.service capstan-target.service 32
say "with nfs.conf: $exposure"

# Folders, users and presets in an empty tree.
mkdir -p "$work/tree/usr/lib"/{sysusers.d,tmpfiles.d,systemd/system,systemd/system-preset} "$work/tree/etc"
cp systemd/capstan-target.sysusers.conf "$work/tree/usr/lib/sysusers.d/capstan-target.conf"
cp systemd/capstan.tmpfiles.conf "$work/tree/usr/lib/tmpfiles.d/capstan.conf"
cp systemd/*.service "$work/tree/usr/lib/systemd/system"
cp systemd/90-capstan*.preset "$work/tree/usr/lib/systemd/system-preset"
systemd-sysusers --root="$work/tree"
grep -q '^capstan:' "$work/tree/etc/passwd" || die "sysusers.d makes no user capstan"
systemd-tmpfiles --root="$work/tree" --create capstan.conf
[ "$(stat -c %a "$work/tree/run/capstan-host")" = 700 ] || die "tmpfiles.d makes no /run/capstan-host of mode 0700"
systemctl --root="$work/tree" --quiet preset capstan-connect-all.service capstan-target.service
[ -L "$work/tree/etc/systemd/system/multi-user.target.wants/capstan-connect-all.service" ] ||
    die "the preset does not enable capstan-connect-all.service"
[ ! -e "$work/tree/etc/systemd/system/multi-user.target.wants/capstan-target.service" ] ||
    die "the preset enables capstan-target.service"
# Newer ones check rules by themselves (systemd 254).
if udevadm verify --help >/dev/null 2>&1; then
    udevadm verify systemd/60-capstan.rules || die "udevadm verify"
else
    note "SKIPPED udevadm verify: systemd $(systemctl --version | awk 'NR == 1 { print $2 }') has none"
fi
say "units, user, folders, presets and rules are in order"
