# shellcheck shell=bash
# A container with a systemd of its own, for tests of the units: a small Debian or Ubuntu in
# systemd-nspawn. Sourced after say.sh, packages.sh and cleanup.sh. Needs root, loop devices and
# debootstrap.
#
# The root file system is made once and kept in CAPSTAN_TEST_CACHE (default
# /var/cache/capstan-test); a run works on a layer above it and leaves it as it was.

# new_root RELEASE: makes the layer at $work/root, of Debian or Ubuntu without anything of ours;
# $work/result is /result in there. An empty RELEASE is this machine's.
new_root() {
    local cache=${CAPSTAN_TEST_CACHE:-/var/cache/capstan-test}
    [ "$(id -u)" = 0 ] || die "a container with its own systemd needs root: sudo $0"
    need_packages "a container with its own systemd" debootstrap systemd-container e2fsprogs mount
    # The same release as this machine, because the binaries are linked against its C library.
    # shellcheck disable=SC1091
    . /etc/os-release
    local mirror components
    case $ID in
        debian) mirror=http://deb.debian.org/debian components=main ;;
        ubuntu) mirror=http://archive.ubuntu.com/ubuntu components=main,universe ;;
        *) die "this test knows how to make a container of Debian and Ubuntu, not of $ID" ;;
    esac
    local release=${1:-$VERSION_CODENAME}
    # Those of RDMA are called otherwise in other releases. Without them the programs start, too.
    local packages=systemd,systemd-sysv,dbus,iproute2
    [ "$release" != "$VERSION_CODENAME" ] || packages+=,libibverbs1,librdmacm1,jq,socat
    local root=$cache/$ID-$release-2
    if [ ! -d "$root" ]; then
        say "making the container's root file system in $root (once; some 250 MB)"
        mkdir -p "$cache"
        undo rm -rf --one-file-system "$root.part"
        rm -rf --one-file-system "$root.part"
        debootstrap --variant=minbase --components="$components" --include="$packages" \
            "$release" "$root.part" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
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
    container_flags=()
}

# new_container BIN: that layer with both programs, units, rules and folders of a package.
new_container() {
    local bin=$1 program
    for program in capstan-target capstan; do
        [ -x "$bin/$program" ] || die "$bin/$program is not there: cargo build --bin $program"
    done
    new_root ""
    say "installing into the container"
    local lib=$work/root/usr/lib
    install -D -m 755 "$bin/capstan-target" "$bin/capstan" -t "$work/root/usr/bin"
    ln -s ../bin/capstan "$work/root/usr/sbin/mount.capstan"
    ln -s ../bin/capstan "$work/root/usr/sbin/umount.capstan"
    install -D -m 644 systemd/*.service -t "$lib/systemd/system"
    install -D -m 644 systemd/90-capstan*.preset -t "$lib/systemd/system-preset"
    install -D -m 644 systemd/capstan-target.sysusers.conf "$lib/sysusers.d/capstan-target.conf"
    install -D -m 644 systemd/capstan.tmpfiles.conf "$lib/tmpfiles.d/capstan.conf"
    install -D -m 644 systemd/60-capstan.rules -t "$lib/udev/rules.d"
    install -d "$work/root/etc/capstan"
}

# boot_container SCRIPT [NAME=VALUE…]: boots the container and runs SCRIPT in there, as root, after
# multi-user.target, with these variables; the container ends with it. What SCRIPT says is printed.
boot_container() {
    local script=$1 setting
    shift
    install -m 755 "$script" "$work/root/root/inside.sh"
    {
        printf '[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\n'
        for setting in "$@"; do
            printf 'Environment=%s\n' "$setting"
        done
        cat <<'UNIT'
ExecStart=/root/inside.sh
StandardOutput=append:/result/log
StandardError=append:/result/log
TimeoutStartSec=180
ExecStopPost=/bin/sh -c 'echo "$SERVICE_RESULT $EXIT_STATUS" >/result/status; systemctl --no-block poweroff'
UNIT
    } >"$work/root/etc/systemd/system/capstan-test.service"
    cat >"$work/root/etc/systemd/system/capstan-test.target" <<'UNIT'
[Unit]
Requires=multi-user.target
Wants=capstan-test.service
After=multi-user.target
UNIT

    rm -f "$work/result/status" "$work/result/log"
    say "booting it"
    # bpf: systemd has the kernel apply the rules of devices of a unit by it.
    # open_by_handle_at: files of exports are opened so.
    local flags=(--system-call-filter="bpf open_by_handle_at" --quiet --register=no --capability=all
        --private-network --directory "$work/root" --machine "capstan-test-$$"
        --bind "$work/result:/result" --bind /dev/fuse --bind /dev/loop-control
        "${container_flags[@]}" --boot)
    if [ -d /run/systemd/system ]; then
        flags+=("--property=DeviceAllow=block-loop rwm" "--property=DeviceAllow=/dev/fuse rw"
            "--property=DeviceAllow=/dev/loop-control rw")
    else
        # No systemd here to make a scope in.
        flags+=(--keep-unit)
    fi
    # Control groups of version 2, whatever this machine has: of version 1 a container has no rules
    # of devices.
    # shellcheck disable=SC2016
    local version_2='[ -e /sys/fs/cgroup/cgroup.procs ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"'
    timeout --kill-after=10 240 unshare --mount --propagation private bash -c "$version_2" bash \
        systemd-nspawn "${flags[@]}" -- --unit=capstan-test.target \
        </dev/null >"$work/console.log" 2>&1 || true

    if [ ! -s "$work/result/status" ]; then
        tail -40 "$work/console.log" >&2
        die "the container did not get as far as the test"
    fi
    cat "$work/result/log"
    [ "$(cat "$work/result/status")" = "success 0" ] ||
        die "the services do not do under systemd what they should: see above ($(cat "$work/result/status"))"
}
