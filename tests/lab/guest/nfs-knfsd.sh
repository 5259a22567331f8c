# shellcheck shell=bash
# Sourced in the guest: the kernel's NFS server, which exports $NFS_EXPORT: what our server is
# compared with.
#
#   knfsd_start [OPTION…]   rpc.nfsd with these options, as --rdma=20049
#   knfsd_stop
#
# A client of version 4 mounts ADDRESS:$NFS_PSEUDO, and one of version 3 ADDRESS:$NFS_EXPORT.

# shellcheck source=tests/lab/guest/nfs-export.sh
. "$LAB/nfs-export.sh"
# A suite that changes owners as root needs no_root_squash, and a tmpfs an fsid.
NFS_EXPORT_OPTIONS=rw,no_root_squash,insecure,no_subtree_check,sync,fsid=1

knfsd_start() { # knfsd_start [OPTION…]
    local try
    # Its state is kept in a folder that the guest cannot write to.
    mountpoint -q /var/lib/nfs || mount -t tmpfs nfs-state /var/lib/nfs
    mkdir -p /var/lib/nfs/{v4recovery,sm,sm.bak,rpc_pipefs,nfsdcld} /run/rpcbind
    touch /var/lib/nfs/{etab,rmtab}
    modprobe nfsd
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    rpcbind -w
    mountpoint -q "$NFS_ROOT" || { echo "$NFS_ROOT is no mount: call nfs_backing first" >&2 && return 1; }
    exportfs -i -o ro,fsid=0,crossmnt,insecure,no_subtree_check "*:$NFS_ROOT"
    exportfs -i -o "$NFS_EXPORT_OPTIONS" "*:$NFS_EXPORT"
    rpc.mountd -p 20048
    rpc.nfsd "$@" 4
    # No client has state to reclaim: what would be refused for 90 s is not.
    for try in $(seq 50); do
        echo Y >/proc/fs/nfsd/v4_end_grace 2>/dev/null && return 0
        sleep 0.1
    done
    echo "knfsd's grace period has not ended after $((try / 10)) s" >&2
    return 1
}

knfsd_stop() {
    exportfs -ua
    rpc.nfsd 0
    kill "$(pidof rpc.mountd)" "$(pidof rpcbind)"
}
