#!/bin/bash
# Runs inside the container that packages.sh boots, as root, after multi-user.target: at the first
# boot with CAPSTAN_TEST_PHASE=install, at the second with reboot.
set -eu

nqn=nqn.2026-11.com.example:disk
address=192.0.2.1
export DEBIAN_FRONTEND=noninteractive

step() { printf '  * %s\n' "$*"; }
fail() {
    printf '  FAIL: %s\n' "$*"
    capstan list || true
    systemctl --no-pager --no-legend --all list-units 'capstan*' 'srv-*' || true
    journalctl --no-pager --output=short-precise -b -u 'capstan*' -u 'srv-*' -u 'test-*' | tail -60
    exit 1
}
property() { systemctl show --property "$1" --value "$2"; }
# wait_until SECONDS WHAT COMMAND…
wait_until() {
    local tenths=$(($1 * 10)) what=$2
    shift 2
    until "$@"; do
        tenths=$((tenths - 1))
        [ $tenths -gt 0 ] || fail "not after a while: $what"
        sleep 0.1
    done
}
state_is() { [ "$(systemctl is-active "$1" || true)" = "$2" ]; }
enabled_is() { [ "$(systemctl is-enabled "$1" 2>/dev/null || true)" = "$2" ]; }
is_mounted() { grep -q " $1 ext4 " /proc/self/mounts; }
has_disk() { [ -b "$(readlink -f /dev/capstan/by-name/data)" ]; }
# Processes of a program that is called so, by their ids and names (there is no pgrep here).
processes() { grep -lx "$1" /proc/[0-9]*/comm 2>/dev/null || true; }
# The processes that serve volumes.
serving() { capstan list --output json | grep '"pid"'; }
installs() { dpkg --force-confdef --force-confold -i "$@" >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; fail "dpkg -i"; }; }
# What there is on disk, but for what dpkg, systemd and user management write for themselves, and
# what the test has made.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp \
        -o -path /result -o -path /root -o -path /var/log -o -path /var/lib/dpkg -o -path '/var/lib/systemd/*' \
        ! -path '/var/lib/systemd/deb-systemd-helper*' -o -path '/etc/systemd/system/*test*' \
        -o -path /srv \) -prune -o -print | grep -vE \
        '^/(etc/(\.pwd\.lock|\.updated|fstab|machine-id|resolv.conf|(passwd|group|shadow|gshadow|subuid|subgid)-)|var/(\.updated|lib/private|cache/private|cache/ldconfig/aux-cache))$' |
        sort
}

# Once per boot, before anything that needs it: the network with the target behind it, and the loop
# devices, as this container has no devtmpfs, whose nodes the kernel makes by itself.
before() {
    cat >/root/before.sh <<'SCRIPT'
#!/bin/bash
set -eu
for number in $(seq 0 63); do
    [ -e "/dev/loop$number" ] || mknod -m 660 "/dev/loop$number" b 7 "$number"
done
ip netns add target
ip link add host type veth peer name target netns target
ip address add 192.0.2.2/24 dev host
ip link set host up
ip -n target address add 192.0.2.1/24 dev target
ip -n target link set target up
ip -n target link set lo up
SCRIPT
    chmod 755 /root/before.sh
    cat >/etc/systemd/system/test-before.service <<'UNIT'
[Unit]
Before=network.target network-online.target capstan-target.service
Wants=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/root/before.sh
[Install]
WantedBy=multi-user.target network-online.target
UNIT
    # The target is on this machine here, in a network namespace, and outlives its hosts.
    mkdir -p /etc/systemd/system/capstan-target.service.d
    cat >/etc/systemd/system/capstan-target.service.d/test.conf <<'UNIT'
[Unit]
Requires=test-before.service
After=test-before.service
Wants=remote-fs-pre.target
Before=remote-fs-pre.target
[Service]
NetworkNamespacePath=/run/netns/target
UNIT
    systemctl daemon-reload
    systemctl enable --quiet --now test-before.service || fail "no network"
}

install_phase() {
    files >/result/before
    step "install: the service waits to be configured, what attaches volumes runs"
    installs /result/old/*.deb
    enabled_is capstan-target disabled || fail "capstan-target is $(systemctl is-enabled capstan-target)"
    state_is capstan-target inactive || fail "capstan-target runs"
    enabled_is capstan-connect-all enabled || fail "capstan-connect-all is not enabled"
    state_is capstan-connect-all active || fail "capstan-connect-all does not run"
    id capstan >/dev/null || fail "no user capstan"
    [ "$(stat -c %a /run/capstan-host)" = 700 ] || fail "no /run/capstan-host of mode 0700"
    for program in capstan capstan-target; do
        ! ldd /usr/bin/$program | grep 'not found' || fail "$program lacks a library"
        $program --version >/dev/null || fail "$program does not start"
        bash -n /usr/share/bash-completion/completions/$program || fail "completions of bash"
        [ -s /usr/share/fish/vendor_completions.d/$program.fish ] || fail "no completions of fish"
        [ -s /usr/share/zsh/vendor-completions/_$program ] || fail "no completions of zsh"
        [ -s /usr/share/man/man1/$program.1.gz ] || fail "no $program(1)"
    done
    [ -s /usr/share/man/man8/mount.capstan.8.gz ] || fail "no mount.capstan(8)"
    [ -s /usr/share/man/man5/capstan-volumes.toml.5.gz ] || fail "no capstan-volumes.toml(5)"
    grep -qx /etc/capstan/samples/image-file.toml /var/lib/dpkg/info/capstan-target.conffiles || fail "samples are no conffiles"

    step "six lines, and it serves"
    before
    mkdir -m 750 /var/lib/capstan
    cp /result/disk.img /var/lib/capstan
    truncate -s 128M /var/lib/capstan/data.img
    cat >/etc/capstan/target.toml <<TOML
listener = [{ address = "$address" }]
[[subsystem]]
nqn = "$nqn"
allow_any_host = true
[[subsystem.namespace]]
path = "/var/lib/capstan/disk.img"
TOML
    systemctl enable --quiet --now capstan-target || fail "capstan-target does not start"

    step "a line of fstab mounts it from another network namespace"
    mkdir /srv/disk
    echo "$nqn@$address /srv/disk capstan _netdev,nofail,nsid=1 0 0" >>/etc/fstab
    systemctl daemon-reload
    mount /srv/disk || fail "mount"
    is_mounted /srv/disk || fail "not mounted"
    umount /srv/disk || fail "umount"
    # Its process is to outlive this script, in the unit of the mount.
    systemctl start srv-disk.mount || fail "srv-disk.mount"
    echo first >/srv/disk/first

    step "another namespace is added while it runs, saved, and attached at every boot"
    capstan-target namespace add $nqn /var/lib/capstan/data.img >/dev/null || fail "namespace add"
    capstan-target config save >/dev/null || fail "config save"
    capstan attach -a $address -n $nqn --namespace-id 2 --persist --name data >/dev/null || fail "attach --persist"
    has_disk || fail "no disk"
    echo data >/tmp/mark
    dd if=/tmp/mark of=/dev/capstan/by-name/data conv=sync,fsync status=none
    echo changed >>/etc/capstan/samples/image-file.toml
}

# Files that are written, synced and read back from the disk, one after another, until they are told
# to end.
work() {
    local number=0
    while [ ! -e /tmp/enough ]; do
        number=$((number + 1))
        head -c 300K /dev/urandom >/srv/disk/$number
        sync /srv/disk/$number
        (cd /srv/disk && sha256sum $number) >>/tmp/sums
        dd if=/srv/disk/$number iflag=direct bs=4K status=none | sha256sum >/tmp/read
        [ "$(cut -d ' ' -f 1 /tmp/read)" = "$(tail -1 /tmp/sums | cut -d ' ' -f 1)" ]
    done
}
has_written() { [ "$(wc -l </tmp/sums)" -ge "$1" ]; }

upgrade() {
    step "an upgrade restarts the target, and takes no disk away from what reads and writes it"
    : >/tmp/sums
    trap 'touch /tmp/enough' EXIT
    work >/tmp/work 2>&1 &
    worker=$!
    wait_until 30 "something is written" has_written 5
    local target host unit
    target=$(property MainPID capstan-target) host=$(serving) unit=$(property MainPID capstan@data)
    installs /result/new/*.deb
    kill -0 $worker || fail "the work has ended: $(cat /tmp/work)"
    wait_until 30 "something is written after it" has_written $(($(wc -l </tmp/sums) + 5))
    [ "$(property MainPID capstan-target)" != "$target" ] || fail "the target was not restarted"
    enabled_is capstan-target enabled || fail "capstan-target is not enabled any more"
    [ "$(serving)" = "$host" ] || fail "volumes are served by other processes: $(serving), before: $host"
    [ "$(property MainPID capstan@data)" = "$unit" ] || fail "capstan@data was restarted"
    touch /tmp/enough
    wait $worker || fail "what was read is not what was written: $(cat /tmp/work)"
    tail -1 /etc/capstan/samples/image-file.toml | grep -qx changed || fail "a changed sample was overwritten"
    [ -s /etc/capstan/target.toml ] || fail "the configuration is gone"
    umount /srv/disk || fail "umount"
    mount /srv/disk || fail "mount"
    (cd /srv/disk && sha256sum --quiet -c /tmp/sums) || fail "what was written is another"
    note=$(wc -l </tmp/sums)
    step "$note files were written, read and compared"
}

remove() {
    step "remove: refused while a volume is mounted"
    ! dpkg -r capstan >/tmp/dpkg 2>&1 || fail "removed under a mount"
    grep -q 'not removed, as volumes above are mounted: umount' /tmp/dpkg || fail "it does not say why: $(cat /tmp/dpkg)"
    is_mounted /srv/disk || fail "it was unmounted"
    state_is capstan@data active || fail "capstan@data was ended"
    umount /srv/disk

    step "remove: services end, configuration and state stay, and another installation goes on"
    dpkg -r capstan capstan-target >/tmp/dpkg 2>&1 || fail "dpkg -r: $(cat /tmp/dpkg)"
    [ -z "$(processes 'capstan.*')" ] || fail "processes are left: $(processes 'capstan.*')"
    for gone in /usr/bin/capstan /usr/bin/capstan-target /usr/lib/systemd/system/capstan-target.service; do
        [ ! -e $gone ] || fail "$gone is left"
    done
    for kept in /etc/capstan/target.toml /etc/capstan/volumes.toml /etc/capstan/samples/image-file.toml /var/lib/capstan/namespaces.toml; do
        [ -s $kept ] || fail "$kept is gone"
    done
    installs /result/new/*.deb
    enabled_is capstan-target enabled || fail "it is not enabled any more"
    systemctl start capstan-target || fail "it does not start any more"
    systemctl restart capstan-connect-all || fail "volumes are not attached any more"
    has_disk || fail "no disk"

    step "purge: nothing is left but what hosts have written"
    dpkg --purge capstan capstan-target >/tmp/dpkg 2>&1 || fail "dpkg --purge: $(cat /tmp/dpkg)"
    grep -q '/var/lib/capstan is kept' /tmp/dpkg || fail "it does not say that image files are kept: $(cat /tmp/dpkg)"
    [ "$(cd /var/lib/capstan && echo *)" = "data.img disk.img" ] || fail "left: $(ls -A /var/lib/capstan)"
    rm -r /var/lib/capstan /etc/systemd/system/capstan-target.service.d
    systemctl disable --quiet test-before.service
    rmdir --ignore-fail-on-non-empty /etc/systemd/system/*.wants
    files >/result/after
    diff /result/before /result/after || fail "the files above are gone (<) or left (>)"
    for gone in /run/capstan-host /run/capstan-target; do
        [ ! -e $gone ] || fail "$gone is left"
    done
    ! systemctl --no-legend --all list-units 'capstan*' | grep -v capstan-test | grep loaded || fail "units are left"
}

case $CAPSTAN_TEST_PHASE in
    install) install_phase ;;
    reboot)
        step "behind a reboot everything is back"
        state_is capstan-target active || fail "capstan-target does not run"
        wait_until 30 "/srv/disk is mounted" is_mounted /srv/disk
        [ "$(cat /srv/disk/first)" = first ] || fail "what was written is not there"
        wait_until 30 "capstan@data is attached" has_disk
        [ "$(head -c 4 /dev/capstan/by-name/data)" = data ] || fail "another disk"
        upgrade
        remove
        ;;
esac
