#!/usr/bin/env bash
# A volume served and mounted over RDMA, on any Linux machine: makes an ext4 image, exports it with
# capstan-target, mounts it with capstan, copies the Rust toolchain onto it, mounts it anew,
# compares the SHA-256 of every file, runs fio with verification, and checks the file system of the
# image.
#
#   scripts/demo.sh [FOLDER]     copies FOLDER instead of the Rust toolchain
#
# Everything happens on 127.0.0.1 and in one temporary folder, and is undone at the end, also after
# ctrl-C. Needs root for the loop device and the mount (asks sudo). Installs what is missing through
# apt. CAPSTAN_VERBS=0 builds without hardware RDMA.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/verbs.sh
. scripts/lib/cleanup.sh
. scripts/lib/leftovers.sh

NQN=nqn.2026-11.local.capstan:demo
# The verification writes this much into the volume (tests/fio/verify.fio), and a file system has
# its own needs.
SPARE_MIB=768

started=$SECONDS
command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
command -v cargo >/dev/null || die "there is no cargo: install Rust from https://rustup.rs"
need_packages "a linker for Rust, ext4, loop devices, FUSE, cpio to copy, fio" \
    gcc libc6-dev e2fsprogs mount util-linux fuse3 cpio fio
choose_verbs
as_root true

say "building"
cargo build --release -p capstan-target -p capstan-cli "${CARGO_FEATURES[@]}"
target=$PWD/build/release/capstan-target
capstan=$PWD/build/release/capstan
warm=$SECONDS

# What is copied: the toolchain without its documentation, or else the programs of the machine.
tree=${1:-$(rustc --print sysroot)}
[ -d "$tree" ] || die "$tree is not a folder"
tree=$(realpath "$tree")
tree_mib=$(du -sm --exclude=share/doc "$tree" | cut -f1)
if [ $# = 0 ] && [ "$tree_mib" -lt 100 ]; then
    tree=/usr/lib
    tree_mib=$(du -sm "$tree" | cut -f1)
fi
tree_files() { (cd "$1" && find . -path ./share/doc -prune -o "${@:2}"); }

work=$(mktemp -d "${TMPDIR:-/var/tmp}/capstan-demo.XXXXXX")
undo rm -rf --one-file-system "$work"
watch_leftovers "$work"
image=$work/image.ext4
mount_point=$work/volume
mkdir "$mount_point"

image_mib=$((tree_mib * 5 / 4 + SPARE_MIB))
free_mib=$(df --output=avail -m "$work" | tail -1)
[ "$free_mib" -gt "$image_mib" ] ||
    die "the image needs $image_mib MiB and $work has $free_mib: set TMPDIR to a folder with more"
say "making $image: ext4, $image_mib MiB"
truncate -s "${image_mib}M" "$image"
mkfs.ext4 -q -b 4096 -E "root_owner=$(id -u):$(id -g)" "$image"

# In a session of its own, so that ctrl-C reaches this script only and the volume is unmounted
# before its target goes.
say "capstan-target serve --export $image --listen 127.0.0.1:0 --nqn $NQN"
setsid "$target" serve --export "$image" --listen 127.0.0.1:0 --nqn "$NQN" >"$work/target.log" 2>&1 &
target_pid=$!
undo stop "$target_pid" 10
port=
for _ in $(seq 100); do
    port=$(sed -n 's/.*listening.*127\.0\.0\.1:\([0-9]*\).*/\1/p' "$work/target.log" | head -1)
    [ -z "$port" ] || break
    kill -0 "$target_pid" 2>/dev/null || break
    sleep 0.1
done
[ -n "$port" ] || { cat "$work/target.log" >&2; die "capstan-target did not start"; }
note "listening on 127.0.0.1:$port"

remote=(-t rdma -a 127.0.0.1 -s "$port")
"$capstan" discover "${remote[@]}" | grep -qF "$NQN" || die "capstan discover does not list $NQN"

is_mounted() { mountpoint -q "$mount_point"; }
unmount() { as_root "$capstan" umount "$mount_point"; }
# When capstan is what fails, the kernel still lets go.
unmount_somehow() {
    is_mounted || return 0
    unmount || as_root umount --lazy "$mount_point"
}
mount_volume() {
    say "capstan mount ${remote[*]} -n $NQN $mount_point"
    as_root "$capstan" mount "${remote[@]}" -n "$NQN" "$mount_point"
    # Without this, everything below would pass on the local disk.
    local type
    type=$(findmnt --noheadings --output FSTYPE,SOURCE --mountpoint "$mount_point") ||
        die "nothing is mounted on $mount_point"
    case $type in
        ext4*/dev/*) note "mounted: $type"; watch_disk "${type##* }" ;;
        *) die "$mount_point is '$type', not ext4 on a block device" ;;
    esac
}
unmount_volume() {
    say "capstan umount $mount_point"
    unmount
    ! is_mounted || die "still mounted"
}
# rate MIB START_NS: throughput since then.
rate() {
    local ms=$((($(date +%s%N) - $2) / 1000000))
    printf '%s MiB in %d.%03d s: %d MiB/s' "$1" $((ms / 1000)) $((ms % 1000)) $(($1 * 1000 / (ms + 1)))
}
checksums() { tree_files "$1" -type f -print0 | (cd "$1" && sort -z | xargs -0 -r sha256sum); }
# Everything else of the tree: folders, links and where they lead, modes.
shape() { tree_files "$1" -printf '%P|%y|%m|%l\n' | sort; }

undo unmount_somehow
mount_volume
say "copying $tree without share/doc ($tree_mib MiB)"
mkdir "$mount_point/tree"
start=$(date +%s%N)
(cd "$tree" && tree_files . -print0 | cpio --null --quiet --pass-through --make-directories \
    --preserve-modification-time "$mount_point/tree")
# cpio leaves the folder that was there as it was, with the mode of this user's umask.
chmod --reference="$tree" "$mount_point/tree"
sync -f "$mount_point/tree"
write_rate=$(rate "$tree_mib" "$start")
note "$write_rate, on the medium"
unmount_volume

mount_volume
say "comparing the SHA-256 of every file"
checksums "$tree" >"$work/expected"
start=$(date +%s%N)
checksums "$mount_point/tree" >"$work/found"
read_rate=$(rate "$tree_mib" "$start")
cmp "$work/expected" "$work/found" || die "files differ: diff $work/expected $work/found"
shape "$tree" >"$work/expected.shape"
shape "$mount_point/tree" >"$work/found.shape"
diff "$work/expected.shape" "$work/found.shape" >&2 || die "folders, links or modes differ"
files=$(wc -l <"$work/expected")
[ "$files" -gt 0 ] || die "there was nothing to compare"
note "$files files are equal; $read_rate with hashing"

say "fio tests/fio/verify.fio"
CAPSTAN_VOLUME=$mount_point/fio.dat fio --output="$work/fio.log" tests/fio/verify.fio ||
    { cat "$work/fio.log" >&2; die "fio found wrong data"; }
rm "$mount_point/fio.dat"
grep -E '^ *(READ|WRITE):' "$work/fio.log" | sed 's/^ */    /'
unmount_volume

say "stopping the target"
kill -TERM "$target_pid"
status=0
wait "$target_pid" || status=$?
[ $status = 0 ] || { tail -20 "$work/target.log" >&2; die "capstan-target exited with $status"; }

say "e2fsck -fn $image"
e2fsck -fn "$image" >"$work/e2fsck.log" 2>&1 || { cat "$work/e2fsck.log" >&2; die "e2fsck"; }
note "$(tail -1 "$work/e2fsck.log")"

rm -rf --one-file-system "$work"
no_leftovers
say "PASS: $files files, wrote $write_rate, read $read_rate; $((SECONDS - warm)) s ($((SECONDS - started)) s with the build)"
