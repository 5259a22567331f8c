#!/bin/bash
# Runs inside the container that documents.sh boots, as root, after multi-user.target.
set -eu

unit=capstan-target
source=/root/source
cd $source
: >/tmp/done
: >/tmp/serving

step() { printf '  * %s\n' "$*"; }
fail() {
    printf '  FAIL: %s\n' "$*"
    tail -30 /tmp/serve.log 2>/dev/null || true
    journalctl --no-pager --output=short-precise -u $unit | tail -30
    exit 1
}
elsewhere() { step "SKIPPED: $1 is run by $2"; }
# wait_until WHAT COMMAND…
wait_until() {
    local tenths=100 what=$1
    shift
    until "$@"; do
        tenths=$((tenths - 1))
        [ $tenths -gt 0 ] || fail "not after a while: $what"
        sleep 0.1
    done
}

# block DOCUMENT TEXT: the file of the one block of the document that has the text.
block() {
    local found
    found=$(grep -lF -- "$2" blocks/"$1"-*) || fail "$1 has no block with: $2"
    [ "$(wc -l <<<"$found")" = 1 ] || fail "$1 has several blocks with: $2"
    echo "$found" >>/tmp/done
    echo "$found"
}
# run DOCUMENT TEXT: runs the commands of that block, each of which has to succeed.
run() {
    local file status
    file=$(block "$1" "$2")
    step "$1: $2 …"
    set +e
    # shellcheck disable=SC1090
    (set -e && . "./$file") >/tmp/out 2>&1
    status=$?
    set -e
    [ $status = 0 ] || fail "exit $status: $(cat /tmp/out)"
}

# What these do in the documents is done elsewhere.
cargo() { :; }
nvme() { :; }
# Those that serve until they are told to end go on behind their block.
capstan-target() {
    case $1 in
        serve) serve "$@" ;;
        *) command capstan-target "$@" ;;
    esac
}
serve() {
    $source/build/real/capstan-target "$@" >>/tmp/serve.log 2>&1 &
    echo $! >>/tmp/serving
}
stop_serving() {
    local pid
    while read -r pid; do
        [ -d "/proc/$pid" ] || fail "a target has ended by itself: $pid"
        kill "$pid"
        wait_until "$pid ends" test ! -d "/proc/$pid"
    done </tmp/serving
    : >/tmp/serving
}
listens() { ss -Hltn "sport = :$1" | grep -q "$2"; }
configure() {
    systemctl stop $unit
    cat >/etc/capstan/target.toml
    systemctl start $unit || fail "it does not start"
}
disk() {
    cat <<TOML
listener = [{ address = "127.0.0.1" }]
[[subsystem]]
nqn = "nqn.2026-11.org.example:disk"
allowed_hosts = []
[[subsystem.namespace]]
ram = "16MiB"
TOML
}

for number in $(seq 0 63); do
    [ -e "/dev/loop$number" ] || mknod -m 660 "/dev/loop$number" b 7 "$number"
done
ip link set lo up
ip link add one type veth peer name other
ip address add 192.0.2.10/24 dev one
ip link set one up
ip link set other up
mkdir -p /srv/projects /etc/nvme
mount -o loop /result/projects.img /srv/projects
echo nqn.2014-08.org.nvmexpress:uuid:0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1 >/etc/nvme/hostnqn

elsewhere "scripts/demo.sh, scripts/test.sh, cargo build" "the checks of a change"
block README.md scripts/demo.sh >/dev/null
elsewhere "apt install" "tests/systemd/packages.sh"
block README.md 'apt install' >/dev/null
elsewhere "nvme connect" "the lab"

# The programs of the source, in the background where they serve.
mv build/release build/real
mkdir build/release
ln -s ../real/capstan build/release
cat >build/release/capstan-target <<'SCRIPT'
#!/bin/bash
if [ "$1" = serve ]; then
    /root/source/build/real/capstan-target "$@" >>/tmp/serve.log 2>&1 &
    echo $! >>/tmp/serving
else
    exec /root/source/build/real/capstan-target "$@"
fi
SCRIPT
chmod 755 build/release/capstan-target

run README.md 'serve --export ram:1GiB'
wait_until "it listens" listens 4420 127.0.0.1
run README.md 'bench    -a 127.0.0.1'
run README.md 'serve --export /tmp/disk.img'
wait_until "it listens" listens 4421 127.0.0.1
run README.md 'mount -a 127.0.0.1'
run README.md 'doctor --config config/samples/ram-benchmark.toml'
stop_serving
cp "$(block README.md '[[export]]')" FILE
PATH=$source/build/real:$PATH run README.md 'serve --config FILE'
wait_until "it listens" listens 20049 192.0.2.10
stop_serving
run README.md 'serve --export-dir /srv/projects'
wait_until "it listens" listens 20049 192.0.2.10
stop_serving
rm -r build/release /var/lib/capstan
mv build/real build/release

run operations.md 'install -m 755 build/release/capstan-target build/release/capstan'
cp "$(grep -lF 'path = "/dev/vdb"' blocks/operations.md-*.toml | head -1)" /etc/capstan/target.toml
run operations.md 'systemctl enable --now'
systemctl is-active --quiet $unit || fail "the service does not run"
run operations.md 'capstan attach -a 192.0.2.10'
[ -b "$(tail -1 /tmp/out)" ] || [ -b "$(grep -o '/dev/loop[0-9]*' /tmp/out | head -1)" ] || fail "no disk: $(cat /tmp/out)"
capstan detach "$(grep -o '/dev/loop[0-9]*' /tmp/out | head -1)" >/dev/null || fail "detach"
run operations.md 'namespace add nqn.2026-11.com.example:disk /dev/vdc'
grep -qF /dev/vdc /etc/capstan/target.toml || fail "the change is not saved"
run operations.md device-access
systemctl restart $unit || fail "it does not start with its devices alone"
run operations.md 'upgrade --check'
cmp build/release/capstan-target /usr/bin/capstan-target.old || fail "the old program is not kept"
run operations.md 'tar -C /var/lib/capstan -cf'
run operations.md 'journalctl -u capstan-target HOSTNQN='
cp "$(block operations.md '"ana_groups"')" saved.json
rm /etc/capstan/target.toml
run operations.md 'import saved.json'
cmp "$(block operations.md 'Made by')" /etc/capstan/target.toml || fail "what is imported is not what the guide shows"
systemctl stop $unit
rm -r /etc/systemd/system/capstan-target.service.d
systemctl daemon-reload
configure <<<'listener = [{ address = "127.0.0.1" }]
[[subsystem]]
nqn = "nqn.2026-11.com.example:first"
allowed_hosts = []'
run operations.md 'listener add 192.0.2.10'
systemctl stop $unit
cp "$(block operations.md 'serial = "SPDK0001"')" /tmp/spdk.toml
capstan-target check --config /tmp/spdk.toml >/tmp/out 2>&1 || fail "what the guide has for users of SPDK: $(cat /tmp/out)"

disk | configure
run README.md 'capstan-target status'
disk | configure
run control-protocol.md 'ask() {'
grep -q '^namespace 2 of\|/dev/vdb' /tmp/out || fail "the namespace is not added: $(cat /tmp/out)"

step "each block of commands was run"
left=$(printf '%s\n' blocks/*.sh | grep -vxFf /tmp/done || true)
[ -z "$left" ] || fail "not run: $left"
