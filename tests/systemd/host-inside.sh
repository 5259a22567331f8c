#!/bin/bash
# Runs inside the container that host.sh boots, as root, after multi-user.target.
set -eu

nqn=nqn.2026-11.com.example
address=192.0.2.1
remote=(-t rdma -a "$address")

step() { printf '  * %s\n' "$*"; }
fail() {
    printf '  FAIL: %s\n' "$*"
    capstan list || true
    systemctl --no-pager --no-legend --all list-units 'capstan*' 'srv-*' || true
    journalctl --no-pager --output=short-precise -u 'capstan@*' -u capstan-connect-all -u 'srv-*' | tail -60
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
# Whether a volume of this subsystem is attached.
is_listed() { capstan list --output json | grep -qF "\"subnqn\": \"$nqn:$1\""; }
is_gone() { ! is_listed "$1"; }
# mountpoint(1) reads /etc/mtab.
is_mounted() { grep -q " $1 ext4 " /proc/self/mounts; }

# This container has no devtmpfs, whose nodes the kernel makes by itself.
for number in $(seq 0 63); do
    [ -e "/dev/loop$number" ] || mknod -m 660 "/dev/loop$number" b 7 "$number"
done
mkdir -p /srv/direct /srv/auto /srv/data /srv/hand /srv/shell
systemd-sysusers
systemd-tmpfiles --create
chown capstan /srv/images /srv/images/*.img

step "presets: volumes are attached at every boot, and the target serves when it is told to"
systemctl preset capstan-connect-all.service capstan-target.service 2>/dev/null
[ "$(systemctl is-enabled capstan-connect-all)" = enabled ] || fail "capstan-connect-all is not enabled"
[ "$(systemctl is-enabled capstan-target || true)" = disabled ] || fail "capstan-target is enabled"

step "systemd-analyze verify is silent"
for unit in capstan@data.service capstan-connect-all.service; do
    complaints=$(systemd-analyze verify --man=no $unit 2>&1) || true
    [ -z "$complaints" ] || fail "verify: $complaints"
done

# A network that goes with the shutdown: the target's address.
cat >/etc/systemd/system/test-network.service <<'UNIT'
[Unit]
Before=network.target network-online.target
Wants=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/ip address add 192.0.2.1/32 dev lo
ExecStop=/usr/sbin/ip address del 192.0.2.1/32 dev lo
UNIT
# The target is on this machine here, and outlives its hosts.
mkdir -p /etc/systemd/system/capstan-target.service.d /etc/systemd/system/capstan@.service.d
cat >/etc/systemd/system/capstan-target.service.d/test.conf <<'UNIT'
[Unit]
Requires=test-network.service
After=test-network.service
Before=remote-fs-pre.target
[Service]
ReadWritePaths=/srv/images
UNIT
cat >/etc/systemd/system/capstan@.service.d/test.conf <<'UNIT'
[Unit]
After=capstan-target.service
[Service]
TimeoutStopSec=3s
RestartSec=1s
UNIT
cat >/etc/fstab <<FSTAB
$nqn:direct@$address:4420 /srv/direct capstan _netdev,nofail,transport=rdma,provider=iwarp,noatime 0 0
$nqn:auto@$address /srv/auto capstan _netdev,nofail,noauto,x-systemd.automount,transport=tcp 0 0
FSTAB
# What the line
#   /dev/capstan/by-name/data /srv/data ext4
#       _netdev,nofail,noauto,x-systemd.requires=capstan@data.service 0 0
# (in one) would make: in a container systemd-fstab-generator leaves devices out.
cat >/etc/systemd/system/srv-data.mount <<'UNIT'
[Unit]
Requires=capstan@data.service
After=capstan@data.service
[Mount]
What=/dev/capstan/by-name/data
Where=/srv/data
Type=ext4
Options=_netdev,nofail,noauto
UNIT
systemctl daemon-reload
systemctl start test-network.service capstan-target.service || fail "no target"

step "mount -a mounts a volume of fstab, once"
mount -a || fail "mount -a"
is_mounted /srv/direct || fail "/srv/direct is not mounted"
is_listed direct || fail "list does not show it"
echo first >/srv/direct/file
mount -a || fail "mount -a, again"
[ "$(capstan list --output json | grep -cF "\"subnqn\"")" = 1 ] || fail "mounted twice"

step "umount(8) has capstan end the volume, with and without its helper"
umount /srv/direct || fail "umount"
is_gone direct || fail "the helper came back before the volume was gone: $(capstan list)"
mount /srv/direct || fail "mount"
umount -i /srv/direct || fail "umount -i"
wait_until 10 "the volume has ended" is_gone direct

step "a mistake in fstab is named, with the exit status of mount(8)"
! mount -t capstan -o nsid=none $nqn:direct@$address /srv/direct 2>/tmp/said || fail "mounted"
grep -qF -- '-o nsid is "none", expected 1 to 4294967294' /tmp/said || fail "it is not named: $(cat /tmp/said)"
status=0
mount -t capstan -o transport=rdma $nqn:none@$address /srv/direct 2>/tmp/said || status=$?
[ $status = 32 ] || fail "exit status $status of a mount that fails: $(cat /tmp/said)"

step "the mount unit of fstab mounts and unmounts it, behind the network"
systemctl start srv-direct.mount || fail "srv-direct.mount does not start"
[ "$(cat /srv/direct/file)" = first ] || fail "what was written is not there"
for unit in network-online.target remote-fs-pre.target; do
    property After srv-direct.mount | grep -qw $unit || fail "srv-direct.mount is not after $unit"
done
systemctl restart srv-direct.mount || fail "restart of a mount"
is_mounted /srv/direct || fail "not mounted after a restart"
systemctl stop srv-direct.mount || fail "srv-direct.mount does not stop"
wait_until 10 "the volume has ended" is_gone direct

if [ "$CAPSTAN_TEST_AUTOMOUNT" = yes ]; then
    step "an automount unit mounts it when it is looked into"
    systemctl start srv-auto.automount || fail "srv-auto.automount does not start"
    is_gone auto || fail "mounted before anything asks"
    echo auto >/srv/auto/file || fail "nothing can be written"
    is_mounted /srv/auto || fail "not mounted"
    capstan list | grep -F "$nqn:auto" | grep -q TCP || fail "not over TCP: $(capstan list)"
    systemctl stop srv-auto.automount srv-auto.mount || fail "the units do not stop"
    wait_until 10 "the volume has ended" is_gone auto
else
    step "SKIPPED automount: this kernel has no autofs"
fi

step "attach --persist has a unit serve the volume, writes it down, and names its disk"
device=$(capstan attach "${remote[@]}" -n $nqn:data --persist --name data) || fail "attach --persist"
state_is capstan@data active || fail "capstan@data is not active"
[ "$(property Type capstan@data)" = notify ] || fail "not Type=notify"
# shellcheck disable=SC2016
property StatusText capstan@data | grep -qF "$device is namespace 1 of $nqn:data" || fail "no status"
grep -qx 'name = "data"' /etc/capstan/volumes.toml || fail "not in volumes.toml: $(cat /etc/capstan/volumes.toml)"
[ "$(readlink -f /dev/capstan/by-name/data)" = "$device" ] || fail "no /dev/capstan/by-name/data"
id=$(find /dev/capstan/by-id -lname "$device" | head -1)
[[ "$id" = /dev/capstan/by-id/uuid.* ]] || fail "no /dev/capstan/by-id/uuid.…: $(ls -l /dev/capstan/by-id)"
pid=$(property MainPID capstan@data)
capstan list --output json | grep -qF "\"pid\": $pid" || fail "another process serves it: $(capstan list)"
[ "$(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c1-9)" = "@capstan " ] || fail "its name does not begin with @"
! capstan attach "${remote[@]}" -n $nqn:spare --name data 2>/tmp/said || fail "a name twice"

step "a restart of the unit takes the mount along that requires it, and loses nothing"
systemctl start srv-data.mount || fail "srv-data.mount does not start"
head -c 8M /dev/urandom >/srv/data/random
sum=$(sha256sum </srv/data/random)
systemctl restart capstan@data || fail "restart"
[ "$(property MainPID capstan@data)" != "$pid" ] || fail "the process is the same"
wait_until 10 "/srv/data is mounted again" is_mounted /srv/data
[ "$(sha256sum </srv/data/random)" = "$sum" ] || fail "what was written is another"

step "a volume that is mounted by hand does not stop, and loses nothing"
capstan attach "${remote[@]}" -n $nqn:hand --persist --name hand >/dev/null || fail "attach --persist"
mount /dev/capstan/by-name/hand /srv/hand
pid=$(property MainPID capstan@hand)
head -c 8M /dev/urandom >/srv/hand/random
sum=$(sha256sum </srv/hand/random)
! systemctl restart capstan@hand 2>/dev/null || fail "restarted under a mount"
kill -0 "$pid" || fail "its process was ended"
journalctl --no-pager -u capstan@hand | grep -F "asked to end, but" | grep -qF /srv/hand ||
    fail "the log does not say what it waits for"
echo more >/srv/hand/more
sync -f /srv/hand/more || fail "it is not written any more"
[ "$(sha256sum </srv/hand/random)" = "$sum" ] || fail "what was written is another"
umount /srv/hand
renewed() {
    local now
    now=$(property MainPID capstan@hand)
    [ "$now" != 0 ] && [ "$now" != "$pid" ] && state_is capstan@hand active
}
wait_until 20 "capstan@hand has started again by itself" renewed
mount /dev/capstan/by-name/hand /srv/hand
[ "$(sha256sum </srv/hand/random)" = "$sum" ] || fail "what was written is another"
umount /srv/hand

step "killed, it comes back"
pid=$(property MainPID capstan@hand)
systemctl kill --signal=KILL capstan@hand
wait_until 20 "capstan@hand has started again" renewed

step "detach ends the unit, and with --persist it does not come back"
capstan detach hand || fail "detach"
wait_until 10 "capstan@hand has ended" state_is capstan@hand inactive
[ "$(property Result capstan@hand)" = success ] || fail "Result=$(property Result capstan@hand)"
capstan connect-all || fail "connect-all"
state_is capstan@hand active || fail "connect-all does not attach hand"
capstan detach --persist hand || fail "detach --persist"
! grep -q hand /etc/capstan/volumes.toml || fail "it is still in volumes.toml"
[ ! -L /dev/capstan/by-name/hand ] || fail "its name is left"

step "a volume that is not there fails alone, and is said"
cat >>/etc/capstan/volumes.toml <<VOLUMES

# Not there yet.
[[volume]]
name = "late"
nqn = "$nqn:late"
address = "$address"
transport = "rdma"
VOLUMES
systemctl stop srv-data.mount capstan@data
! capstan connect-all 2>/tmp/said || fail "connect-all does not fail"
grep -q '^late: connecting to .*late' /tmp/said || fail "it does not say why: $(cat /tmp/said)"
grep -qF '1 of 2 volumes are not attached (late)' /tmp/said || fail "it does not say which: $(cat /tmp/said)"
state_is capstan@data active || fail "data is not attached for it"
state_is capstan@late activating || fail "it is not tried again"
capstan detach --persist late || fail "detach --persist of what is not attached"
state_is capstan@late inactive || fail "it is still tried"

step "what is wrong in the file is said by line, and not tried again"
cp /etc/capstan/volumes.toml /tmp/volumes.toml
sed -i 's/^address = /adress = /' /etc/capstan/volumes.toml
systemctl stop capstan@data
! systemctl start capstan@data 2>/dev/null || fail "started"
# shellcheck disable=SC2016
property StatusText capstan@data | grep -q 'line [0-9]*: volume\[0\].adress: there is no such key; did you mean `address`?' ||
    fail "the status does not say what is wrong: $(property StatusText capstan@data)"
state_is capstan@data failed || fail "it is tried again"
cp /tmp/volumes.toml /etc/capstan/volumes.toml
systemctl reset-failed capstan@data

step "capstan-connect-all attaches what the file has"
systemctl start capstan-connect-all || fail "capstan-connect-all"
state_is capstan@data active || fail "data is not attached"

step "everything is mounted and written to, and the container shuts down"
systemctl start srv-direct.mount srv-data.mount || fail "the mounts do not start"
capstan attach "${remote[@]}" -n $nqn:hand --persist --name hand >/dev/null || fail "attach --persist"
mount /dev/capstan/by-name/hand /srv/hand
# As in a session, whose processes are in a scope of their own.
systemd-run --quiet --scope --slice=user.slice capstan mount "${remote[@]}" -n $nqn:shell /srv/shell >/dev/null || fail "mount"
for way in direct data hand shell; do
    is_mounted /srv/$way || fail "/srv/$way is not mounted"
    head -c 4M /dev/urandom >/srv/$way/unsynced
    echo "until the end" >/srv/$way/last
done
