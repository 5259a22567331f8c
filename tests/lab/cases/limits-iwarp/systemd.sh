# shellcheck shell=bash
# The unit with MemoryMax=, under a systemd that can enforce it: this machine's own, in a container
# with a control group of its own. A budget that does not fit is refused at the start; one that fits
# is no reason to be killed, whatever is written through the page cache.
# shellcheck disable=SC2034 # AT_THE_END is of case.sh
# shellcheck source=tests/lab/guest/limits.sh
. "$LAB/limits.sh"
BOX=/sys/fs/cgroup/box root=$PWD/root
undo() {
    ! mountpoint -q "$root/usr" || umount -l "$root/usr"
    find "$BOX" -depth -type d -exec rmdir {} +
    out_of_group_and_medium
}
in_group memory.max=max
make_medium
AT_THE_END=undo
truncate -s 192M medium/image

# This machine's programs and settings, without the services that are turned on there.
mkdir -p "$root"/{usr,etc,var,root,srv}
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done
mount --rbind /usr "$root/usr"
cp -a /etc/. "$root/etc/"
rm -rf "$root"/etc/systemd/system/*
: >"$root/etc/machine-id"

# The unit as it is, with the folder of its programs, and what this test does to it.
cp "$LAB"/capstan{,-target} "$root/srv/"
sed 's,/usr/bin/,/srv/,' "$LAB/systemd/capstan-target.service" >"$root/etc/systemd/system/capstan-target.service"
mkdir -p "$root"/etc/{capstan,sysusers.d,systemd/system/capstan-target.service.d}
cp "$LAB/systemd/capstan-target.sysusers.conf" "$root/etc/sysusers.d/capstan-target.conf"
cat >"$root/etc/capstan/target.toml" <<TOML
[target]
reactors = 2
memory_budget = "64MiB"
[[listener]]
address = "127.0.0.1"
[[subsystem]]
nqn = "$SUBSYSTEM"
allow_any_host = true
[[subsystem.namespace]]
path = "/var/lib/capstan/image"
direct = false
TOML
cat >"$root/etc/systemd/system/test.service" <<'UNIT'
[Service]
Type=oneshot
ExecStart=/srv/inside
StandardOutput=append:/srv/log
StandardError=append:/srv/log
ExecStopPost=/bin/sh -c 'echo "$SERVICE_RESULT $EXIT_STATUS" >/srv/status; systemctl --no-block poweroff'
UNIT
cat >"$root/etc/systemd/system/test.target" <<'UNIT'
[Unit]
Requires=basic.target
Wants=test.service
After=basic.target
UNIT
cat >"$root/srv/inside" <<INSIDE
#!/bin/bash
set -eu
NQN=$SUBSYSTEM
INSIDE
cat >>"$root/srv/inside" <<'INSIDE'
unit=capstan-target
fail() {
    echo "FAIL: $*"
    journalctl --no-pager -u $unit | tail -20
    exit 1
}
property() { systemctl show --property "$1" --value $unit; }
memory_max() { # memory_max BYTES
    printf '[Service]\nMemoryMax=%s\n' "$1" >/etc/systemd/system/$unit.service.d/memory.conf
    systemctl daemon-reload
}
chown capstan: /var/lib/capstan/image
memory_max 48M
! systemctl start $unit || fail "started with a budget of 64 MiB in MemoryMax=48M"
systemctl stop $unit
told=$(journalctl --no-pager --output=cat -u $unit)
for words in "the memory budget needs 64 MiB; " "expected at most 48 MiB" /$unit.service/memory.max MemoryMax= target.memory_budget; do
    grep -qF -- "$words" <<<"$told" || fail "the log does not say '$words'"
done
memory_max 80M
systemctl start $unit || fail "did not start with a budget of 64 MiB in MemoryMax=80M"
pid=$(property MainPID)
/srv/capstan bench -a 127.0.0.1 -n "$NQN" --queue-size 129 --rw randwrite --bs 64k --numjobs 2 --iodepth 128 --size 80m --verify crc32c ||
    fail "capstan bench: status $?"
events=/sys/fs/cgroup/system.slice/$unit.service/memory.events
cat $events
[ "$(awk '$1 == "max" { print $2 }' $events)" -gt 0 ] || fail "the page cache has not filled the group"
[ "$(awk '$1 == "oom_kill" { print $2 }' $events)" = 0 ] || fail "killed for memory"
[ "$(property MainPID)" = "$pid" ] || fail "it is another process"
systemctl stop $unit
[ "$(property Result)" = success ] || fail "Result=$(property Result)"
INSIDE
chmod 755 "$root/srv/inside"
mkdir -p "$root/var/lib/capstan"
touch "$root/var/lib/capstan/image"

mkdir "$BOX"
echo "+cpu" >/sys/fs/cgroup/cgroup.subtree_control
# systemd-nspawn hands on the group that it is in, where it is alone.
# shellcheck disable=SC2016 # of the inner shell
timeout -k 5 200 bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec systemd-nspawn "$@"' bash "$BOX" --quiet --register=no --keep-unit \
    --capability=all --private-network -D "$root" --bind="$PWD/medium/image:/var/lib/capstan/image" --boot -- --unit=test.target \
    </dev/null >console 2>&1 || fail "the container: $(tail -n 3 console)"
cat "$root/srv/log" || fail "the container did not get as far as the test: $(tail -n 3 console)"
equal "the test in the container" "$(cat "$root/srv/status")" "success 0"
undo
AT_THE_END=''
