# shellcheck shell=bash
# Sourced in the guest: the kernel's NFS server, which exports $NFS_EXPORT: what our server is
# compared with.
#
#   knfsd_start [OPTION…]   rpc.nfsd with these options, as --rdma=20049
#   knfsd_stop
#
# A client of version 4 mounts ADDRESS:$NFS_PSEUDO, and one of version 3 ADDRESS:$NFS_EXPORT. Of $NFS_EXPORT_OPTIONS, no_root_squash is what a suite that
# changes owners as root needs.

# The folder above is the root that version 4 starts from: that of the guest cannot be exported.
NFS_ROOT=/run/nfs NFS_PSEUDO=/export
NFS_EXPORT=$NFS_ROOT$NFS_PSEUDO
NFS_EXPORT_OPTIONS=rw,no_root_squash,insecure,no_subtree_check,sync

# A file system for the export, from memory: TYPE of MIB.
nfs_backing() { # nfs_backing ext4|tmpfs MIB
    mkdir -p "$NFS_ROOT"
    mount -t tmpfs -o size=1m,mode=755 nfs-root "$NFS_ROOT"
    mkdir -p "$NFS_EXPORT"
    case $1 in
        tmpfs) mount -t tmpfs -o "size=$2m,mode=755" export "$NFS_EXPORT" && NFS_EXPORT_OPTIONS+=,fsid=1 ;;
        ext4)
            modprobe configfs
            mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
            modprobe null_blk nr_devices=0
            mkdir /sys/kernel/config/nullb/nfs
            (
                cd /sys/kernel/config/nullb/nfs
                echo "$2" >size
                echo 4096 >blocksize
                echo 1 >memory_backed
                echo 1 >discard
                echo 1 >power
            )
            # What a file system has for nfsd to tell changes apart by: large inodes.
            mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/nfs
            mount -t ext4 /dev/nfs "$NFS_EXPORT"
            ;;
        *) echo "a backing file system is ext4 or tmpfs, not $1" >&2 && return 1 ;;
    esac
    chmod 755 "$NFS_EXPORT"
}

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
