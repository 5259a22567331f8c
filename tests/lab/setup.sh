#!/usr/bin/env bash
# Prepares the virtual RDMA lab: a stock Debian kernel that has NVMe over RDMA, the siw module built
# for it, and what boots it under QEMU without KVM. Idempotent: what is there already is kept.
#
# Environment: CAPSTAN_LAB_CACHE   folder for everything fetched or built (default
#                                  /var/cache/capstan-lab)
#              CAPSTAN_LAB_KERNEL  kernel release to use (default: the one Debian's
#                                  linux-source-6.12 was made from)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/lab/common.sh
. "$here/common.sh"

VIRTME_NG_VERSION=1.42
QEMU_SUITE=bookworm-backports
PACKAGES=(qemu-system-x86 busybox-static rdma-core ibverbs-providers ibverbs-utils rdmacm-utils nvme-cli fio kmod cpio
    zstd xz-utils git tcpdump iproute2 nfs-common nfs-kernel-server e2fsprogs xfsprogs btrfs-progs lvm2 cryptsetup-bin mdadm nbd-client systemd-container python3 python3-venv gcc-12 make linux-source-6.12)

install_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    # A fresh machine has no package lists at all.
    apt-cache show linux-source-6.12 >/dev/null 2>&1 || as_root apt-get update -q
    say "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null
}

# Name of the release that linux-source-6.12 was built from: 6.12.117-1~deb12u1 is
# 6.12.117+deb12-amd64.
default_release() {
    local version
    version=$(dpkg-query -W -f '${Version}' linux-source-6.12)
    printf '%s+deb12-amd64\n' "${version%%-*}"
}

# Kernel, modules and build tree. The packages are unpacked and not installed: the headers depend on
# the image, whose maintainer scripts would touch this machine's boot loader.
fetch_kernel() {
    local boot=$CAPSTAN_LAB_CACHE/boot modules=/lib/modules/$release base=${release%-amd64} scratch
    tree=$CAPSTAN_LAB_CACHE/linux-$release
    if [ -r "$boot/vmlinuz-$release" ] && [ -r "$modules/modules.dep" ] && [ -r "$tree/.unpacked" ]; then
        say "kernel $release is there"
        return 0
    fi
    say "fetching kernel $release and its build tree (about 120 MB)"
    scratch=$CAPSTAN_LAB_CACHE/fetch
    rm -rf "$scratch" "$tree"
    mkdir -p "$scratch" "$tree"
    # apt hands the download to an unprivileged user where it can, and warns when the folder does
    # not let it.
    (cd "$scratch" && apt-get download -q "linux-image-$release" "linux-headers-$release" \
        "linux-headers-$base-common" "linux-kbuild-$base")
    dpkg -x "$scratch"/linux-image-*.deb "$scratch/root"
    mkdir -p "$boot"
    cp "$scratch/root/boot/vmlinuz-$release" "$scratch/root/boot/config-$release" "$boot/"
    # A real copy: the guest sees this machine's root over 9p and looks in /lib/modules.
    as_root mkdir -p "$modules"
    as_root cp -a "$scratch/root/lib/modules/$release/." "$modules/"
    as_root depmod -a "$release"
    local package
    for package in "$scratch"/linux-headers-*.deb "$scratch"/linux-kbuild-*.deb; do
        dpkg -x "$package" "$tree"
    done
    # The headers name their common part by its absolute path.
    sed -i "s|/usr/src/|$tree/usr/src/|" "$tree/usr/src/linux-headers-$release/Makefile"
    touch "$tree/.unpacked"
    rm -rf "$scratch"
}

# Sources of the parts the lab builds or reads; the whole tree would be 1.5 GB.
unpack_source() {
    source_dir=$CAPSTAN_LAB_CACHE/linux-source-6.12
    [ -e "$source_dir/.unpacked" ] && return 0
    say "unpacking the RDMA and NVMe parts of linux-source-6.12"
    mkdir -p "$source_dir"
    tar -xJf /usr/src/linux-source-6.12.tar.xz -C "$source_dir" --strip-components=1 --wildcards \
        'linux-source-6.12/Makefile' \
        'linux-source-6.12/drivers/infiniband/*' \
        'linux-source-6.12/drivers/nvme/*' \
        'linux-source-6.12/include/linux/nvme*.h' \
        'linux-source-6.12/include/rdma/*' \
        'linux-source-6.12/include/uapi/rdma/*'
    touch "$source_dir/.unpacked"
}

# Debian's kernel leaves siw out; its headers build it. What siw asks of its peer is fixed by
# constants, so the other ways of connecting need builds of their own; and one build has the faults
# mended that would fail cases at random. Each SED_SCRIPT has to change its file.
build_siw() { # build_siw NAME [FILE SED_SCRIPT]…: leaves $CAPSTAN_LAB_CACHE/siw-$release/NAME.ko
    local name=$1 folder=$CAPSTAN_LAB_CACHE/siw-$release changes work
    shift
    changes="$*"
    if [ -r "$folder/$name.ko" ] && [ "$(cat "$folder/$name.changes" 2>/dev/null)" = "$changes" ]; then
        say "$name.ko for $release is there"
        return 0
    fi
    say "building $name.ko for $release"
    work=$folder/build-$name
    rm -rf "$work"
    mkdir -p "$folder"
    cp -r "$source_dir/drivers/infiniband/sw/siw" "$work"
    while [ $# -gt 0 ]; do
        cp "$work/$1" "$work/before"
        sed -i "$2" "$work/$1"
        ! cmp -s "$work/$1" "$work/before" || die "$1 of siw is not changed by: $2"
        shift 2
    done
    # Debian ships no pahole with the headers, and nothing here reads type information of modules.
    make -s -C "$tree/usr/src/linux-headers-$release" "M=$work" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules
    cp "$work/siw.ko" "$folder/$name.ko"
    printf '%s\n' "$changes" >"$folder/$name.changes"
    rm -rf "$work"
}

install_virtme() {
    local venv=$CAPSTAN_LAB_CACHE/venv
    if [ -x "$venv/bin/vng" ] && "$venv/bin/vng" --version 2>&1 | grep -qF "$VIRTME_NG_VERSION"; then
        say "virtme-ng $VIRTME_NG_VERSION is there"
        return 0
    fi
    say "installing virtme-ng $VIRTME_NG_VERSION into $venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "virtme-ng==$VIRTME_NG_VERSION"
}

# Every start of a program in the guest reads it through 9p again unless its root folder, which is
# read-only, is cached.
cache_root() {
    local script
    script=$(echo "$CAPSTAN_LAB_CACHE"/venv/lib/python3*/site-packages/virtme/mkinitramfs.py)
    sed -i 's|,msize=524288 /dev/root /newroot/|,msize=524288,cache=loose /dev/root /newroot/|' "$script"
    grep -q 'cache=loose /dev/root' "$script" || die "virtme-ng $VIRTME_NG_VERSION mounts the root folder in another way than expected: $script"
}

# A newer QEMU emulates the lab in two thirds of the processor time that Debian 12's takes, and
# starts programs in it in less than half. Unpacked beside the installed one, whose libraries it
# uses; where it cannot be had, the installed one serves.
fetch_qemu() {
    local folder=$CAPSTAN_LAB_CACHE/qemu apt=$CAPSTAN_LAB_CACHE/qemu-apt missing
    if [ -x "$folder/run" ]; then
        say "$("$folder/run" --version | head -1) is there"
        return 0
    fi
    rm -rf "$folder" "$apt"
    mkdir -p "$folder" "$apt/lists/partial" "$apt/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $QEMU_SUITE main" >"$apt/sources"
    # Lists of its own: what this machine installs is not to come from there.
    local options=(-q -o "Dir::Etc::sourcelist=$apt/sources" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
        -o "Dir::Cache=$apt")
    if ! { apt-get "${options[@]}" update && (cd "$apt" && apt-get "${options[@]}" download qemu-system-{x86,common,data} seabios); }; then
        rm -rf "$folder" "$apt"
        say "no QEMU from $QEMU_SUITE, so the lab is slower: $(qemu-system-x86_64 --version | head -1)"
        return 0
    fi
    local package
    for package in "$apt"/*.deb; do dpkg -x "$package" "$folder"; done
    rm -rf "$apt"
    missing=$(ldd "$folder/usr/bin/qemu-system-x86_64" | awk '/not found/ { print $1 }')
    [ -z "$missing" ] || die "QEMU from $QEMU_SUITE lacks libraries: $missing"
    # Modules of the installed QEMU (qemu-system-gui has some) are hidden: this one would look for
    # what it lacks among them, and ends when it finds one of another version.
    cat >"$folder/run" <<END
#!/bin/sh
modules=/usr/lib/x86_64-linux-gnu/qemu
export QEMU_MODULE_DIR=$folder\$modules
if [ -d \$modules ] && [ -z "\$CAPSTAN_LAB_HIDDEN" ]; then
    CAPSTAN_LAB_HIDDEN=1 exec unshare -m -- "\$0" "\$@"
fi
[ -z "\$CAPSTAN_LAB_HIDDEN" ] || mount --bind \$QEMU_MODULE_DIR \$modules || exit 1
exec $folder/usr/bin/qemu-system-x86_64 -L $folder/usr/share/qemu -L $folder/usr/share/seabios -L /usr/lib/ipxe/qemu "\$@"
END
    chmod 755 "$folder/run"
    say "unpacked $("$folder/run" --version | head -1)"
}

# Kernel names, compiler and package names below are those of this one release.
# shellcheck source=/dev/null
distribution=$(. /etc/os-release && printf '%s %s' "$ID" "$VERSION_ID")
[ "$distribution" = "debian 12" ] || die "the lab needs Debian 12 (with its updates and security suites), this is $distribution"
as_root mkdir -p "$CAPSTAN_LAB_CACHE"
[ -w "$CAPSTAN_LAB_CACHE" ] || die "$CAPSTAN_LAB_CACHE is not writable: run as root or set CAPSTAN_LAB_CACHE"
install_packages "${PACKAGES[@]}"
release=${CAPSTAN_LAB_KERNEL:-$(default_release)}
fetch_kernel
unpack_source
build_siw siw
build_siw siw-crc siw_main.c 's/^const bool mpa_crc_required;/const bool mpa_crc_required = true;/'
build_siw siw-p2p siw_main.c 's/^const bool peer_to_peer;/const bool peer_to_peer = true;/'
# Where Capstan is above siw as well (README.md says more): completed transfers are not read by TCP
# any more; the socket is taken over before the peer may send; a connection that ends before it is
# accepted does not end the listener; what is sent is read by its pages, and never by the address
# that only the process can read.
build_siw siw-mended siw_main.c 's/^const bool zcopy_tx = true;/const bool zcopy_tx;/' \
    siw_cm.c '/siw_dbg_cep(cep, "\[QP %u\]: send mpa reply/i\	if (!wait_for_peer_rts)\n\t\tsiw_qp_socket_assoc(cep, qp);' \
    siw_cm.c '/^	case TCP_CLOSE_WAIT:/a\		if (cep->state == SIW_EPSTATE_LISTENING)\n\t\t\tbreak;'
fetch_qemu
install_virtme
cache_root
printf '%s\n' "$release" >"$CAPSTAN_LAB_CACHE/kernel-release"
say "ready: kernel $release, cache $CAPSTAN_LAB_CACHE; boot it with tests/lab/boot.sh"
