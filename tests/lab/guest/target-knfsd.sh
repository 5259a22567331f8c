# shellcheck shell=bash
# Sourced in the guest: the kernel's NFS server as the server of a cell. It is what ours is compared
# with, so a case that it fails is wrong, or tells of the client.

# shellcheck source=tests/lab/guest/nfs-knfsd.sh
. "$LAB/nfs-knfsd.sh"
# shellcheck disable=SC2034 # for the cases
TARGET_ADDRESS=$KERNEL_ADDRESS
TARGET_LOG=$RUN/target.log
# shellcheck disable=SC2034 # for host-nfs.sh
NFS_TCP_PORT=2049 NFS_RDMA_PORT=20049 NFS_MOUNT_PORT=20048 NFS_V3_PATH=$NFS_EXPORT

target_set_up() { : >"$TARGET_LOG"; }

target_start() {
    local options=()
    [ "$HOST_TRANSPORT" = tcp ] || options=("--rdma=$NFS_RDMA_PORT")
    knfsd_start "${options[@]}"
}

target_stop() { knfsd_stop; }

# It has no log of its own.
target_log_mark() { :; }
target_log_since() { :; }

target_is_well() {
    [ "$(cat /proc/fs/nfsd/threads)" -gt 0 ] && return 0
    echo "knfsd has no threads any more"
    return 1
}
