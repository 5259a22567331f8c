#!/usr/bin/env bash
# In the guest: capstan-target and the kernel's NFS server in turn, with the Linux client of version
# 4.2: over TCP of the loopback interface, or over Soft-RoCE. Both export the same tmpfs and the
# same ext4 (on a disk of memory), each with a data file of its own in it. The user is an ordinary
# one.
#
#   scripts/bench.sh nfs-tcp      tests/lab/boot.sh -p -f CAPSTAN_TARGET compare-nfs.sh tcp
#   scripts/bench.sh nfs-rdma     the same with rdma in place of tcp
#   scripts/bench.sh nfs-counted  both with -i in place of -p, and 1 3 1 0.3 at the end
#
# Arguments: tcp or rdma; number of the round, which says which server begins; turns of each;
# seconds of a turn; seconds before that in which requests end that were in progress when fio was
# stopped; rows to measure, as fnmatch(3) has it (all).
#
# Writes $OUT/samples, a line for each turn of both: ROW CAPSTAN KNFSD, in operations a second
# (compare_nfs.py).
set -euo pipefail
TRANSPORT=$1
ROUND=${2:-1}
TURNS=${3:-7}
TURN_SECONDS=${4:-0.5}
SETTLE_SECONDS=${5:-0.1}
ROWS=${6:-*}

case $TRANSPORT in
    rdma)
        # shellcheck source=tests/lab/guest/rdma-rxe.sh
        . "$LAB/rdma-rxe.sh"
        modprobe rpcrdma
        ADDRESS=10.9.0.1
        NFS_TRANSPORT='transports = ["rdma"]
rdma_port = 20050
provider = "verbs"'
        KNFSD_OPTIONS=(--rdma=20049)
        declare -A port=([knfsd]=20049 [capstan]=20050)
        ;;
    tcp)
        ip link set lo up
        ADDRESS=127.0.0.1
        NFS_TRANSPORT='transports = ["tcp"]
port = 2050'
        KNFSD_OPTIONS=()
        declare -A port=([knfsd]=2049 [capstan]=2050)
        # The sockets of both servers and of the client have the same.
        echo cubic >/proc/sys/net/ipv4/tcp_congestion_control
        ;;
esac
ulimit -l unlimited
hostname lab
# shellcheck source=tests/lab/guest/nfs-knfsd.sh
. "$LAB/nfs-knfsd.sh"
modprobe -a nfs nfsv4

# The same file systems, which the kernel's server has below its root.
mkdir -p "$NFS_ROOT"
mount -t tmpfs -o size=1m,mode=755 nfs-root "$NFS_ROOT"
nfs_file_system tmpfs 320 "$NFS_ROOT/tmpfs"
nfs_file_system ext4 320 "$NFS_ROOT/ext4"
for fs in tmpfs ext4; do
    for server in capstan knfsd; do
        mkdir "$NFS_ROOT/$fs/$server"
        head -c 64M /dev/urandom >"$NFS_ROOT/$fs/$server/data"
    done
    mkdir "$NFS_ROOT/$fs/many"
    (cd "$NFS_ROOT/$fs/many" && seq -f 'entry-%05g' 10000 | xargs touch)
    chown -R 1000:1000 "$NFS_ROOT/$fs"
done
sync

NFS_EXPORT=$NFS_ROOT/tmpfs NFS_EXPORT_OPTIONS=rw,insecure,no_subtree_check,sync,fsid=1
knfsd_start "${KNFSD_OPTIONS[@]}"
exportfs -i -o rw,insecure,no_subtree_check,sync,fsid=2 "*:$NFS_ROOT/ext4"

export STATE_DIRECTORY=/run/capstan-state
mkdir -m 700 "$STATE_DIRECTORY"
cat >"$OUT/target.toml" <<TOML
[nfs]
addresses = ["$ADDRESS"]
$NFS_TRANSPORT
grace_time = "10s"
lease_time = "10s"
${NFS_OPTIONS:-}
$(for fs in tmpfs ext4; do
    printf '\n[[export]]\npath = "%s"\npseudo = "/%s"\naccess = "read-write"\nclients = ["%s"]\n' "$NFS_ROOT/$fs" "$fs" "$ADDRESS"
done)
TOML
"$LAB/capstan-target" serve --config "$OUT/target.toml" >"$OUT/target.log" 2>&1 &
target=$!
trap 'kill $target; wait $target; cat "$OUT/target.log"' EXIT
for _ in $(seq 100); do
    grep -q 'listening for NFS at' "$OUT/target.log" && break
    kill -0 $target
    sleep 0.2
done

for fs in tmpfs ext4; do
    for server in capstan knfsd; do
        folder=/run/mnt/$server-$fs
        mkdir -p "$folder"
        # What a program asks for goes to the server each time.
        mount -t nfs -o "vers=4.2,proto=$TRANSPORT,port=${port[$server]},actimeo=0" "$ADDRESS:/$fs" "$folder"
    done
done
grep ' nfs4 ' /proc/mounts
# No `if`: a failure has to end this.
setpriv --reuid 1000 --regid 1000 --clear-groups \
    python3 "$LAB/compare_nfs.py" /run/mnt "$ROUND" "$TURNS" "$TURN_SECONDS" "$SETTLE_SECONDS" "$ROWS" | tee "$OUT/samples"
umount /run/mnt/*
knfsd_stop
