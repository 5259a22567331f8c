#!/usr/bin/env bash
# Runs the commands that README.md, docs/operations.md and docs/control-protocol.md show, in a
# container (container.sh) with the machine that they tell of: an address, two disks, a directory,
# the source with its programs built. What is run elsewhere is named with where.
#
#   tests/systemd/documents.sh [FOLDER WITH capstan-target AND capstan]     default: build/debug
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/cleanup.sh
. tests/systemd/container.sh

bin=${1:-build/debug}
for program in capstan-target capstan; do
    [ -x "$bin/$program" ] || die "$bin/$program is not there: cargo build --bin $program"
done
new_root ""
source=$work/root/root/source
mkdir -p "$source/config" "$source/blocks"
install -D -m 755 "$bin/capstan-target" "$bin/capstan" -t "$source/build/release"
cp -r systemd "$source"
cp -r config/samples "$source/config"
# Each block of commands, or of a file, in one of its own: README.md-03.sh.
for document in README.md docs/operations.md docs/control-protocol.md; do
    awk -v out="$source/blocks/$(basename "$document")" '
        /^```(sh|toml|json)$/ { file = sprintf("%s-%02d.%s", out, ++number, substr($0, 4)); next }
        /^```/ { file = ""; next }
        file { print > file }' "$document"
done
for disk in vdb vdc; do
    truncate -s 64M "$work/$disk.img"
    loop=$(losetup --find --show "$work/$disk.img")
    undo losetup -d "$loop"
    mknod "$work/$disk" b "$(stat -c %Hr "$loop")" "$(stat -c %Lr "$loop")"
    chmod 660 "$work/$disk"
    chgrp disk "$work/$disk"
    container_flags+=(--bind "$work/$disk:/dev/$disk")
    [ ! -d /run/systemd/system ] || container_flags+=("--property=DeviceAllow=$loop rw")
done
truncate -s 64M "$work/result/projects.img"
mkfs.ext4 -q "$work/result/projects.img"
boot_container tests/systemd/documents-inside.sh
say "PASS: the commands that the documents show"
