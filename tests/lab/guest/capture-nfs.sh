#!/usr/bin/env bash
# In the guest: the Linux NFS client and the kernel's NFS server over lo, with tcpdump running: one
# mount of each of versions 4.2, 4.1 and 3 by TCP, and by RPC-over-RDMA over siw. Leaves
# nfs-tcp-VERSION.pcap, nfs-siw-VERSION.pcap, nfs.commands.log and nfs.dmesg.log in $OUT.
set -euo pipefail
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
ip link set lo mtu 65536
# shellcheck source=tests/lab/guest/capture.sh
. "$LAB/capture.sh"
# shellcheck source=tests/lab/guest/nfs-knfsd.sh
. "$LAB/nfs-knfsd.sh"
hostname lab
exec 3>&1 >"$OUT/nfs.commands.log" 2>&1
modprobe -a nfs nfsv4 nfsv3 nfsd rpcrdma lockd
nfs_backing ext4 128
knfsd_start --rdma=20049
mkdir -p /run/mnt

mounted() { # mounted TRANSPORT VERSION: what a client does, of which some is captured
    local options="vers=$2" path=$NFS_PSEUDO
    case $1 in
        tcp) options+=",proto=tcp" port=2049 ;;
        siw) options+=",proto=rdma,port=20049" port=20049 ;;
    esac
    # MOUNT's port is another one.
    if [ "$2" = 3 ]; then options+=",nolock,mountproto=tcp,mountport=20048" path=$NFS_EXPORT; fi
    start_capture "$OUT/nfs-$1-$2.pcap" "$port or tcp port 20048"
    run mount -t nfs -o "$options" "10.9.0.1:$path" /run/mnt
    mountpoint /run/mnt
    python3 "$LAB/nfs_workload.py" /run/mnt/work "$2"
    umount /run/mnt
    end_capture
}
for transport in tcp siw; do
    for version in 4.2 4.1 3; do mounted "$transport" "$version"; done
done
exec >&3 2>&3
dmesg >"$OUT/nfs.dmesg.log"
