# shellcheck shell=bash
# Sourced in the guest: capstan-target with an export for NFS clients, and no namespaces. What
# starts and ends it is in target-capstan.sh.

# shellcheck source=tests/lab/guest/target-capstan.sh
. "$LAB/target-capstan.sh"
# shellcheck source=tests/lab/guest/nfs-export.sh
. "$LAB/nfs-export.sh"
# What it keeps when it ends: the key of file handles, and what clients may reclaim.
export STATE_DIRECTORY=$RUN/nfs-state
# shellcheck disable=SC2034 # for host-nfs.sh
NFS_TCP_PORT=2049 NFS_RDMA_PORT=20049 NFS_MOUNT_PORT=2049 NFS_V3_PATH=$NFS_PSEUDO

# Both transports, as the second client comes over TCP in every cell. The lines of $NFS_OPTIONS are
# in [nfs], and those of $EXPORT_OPTIONS in [[export]].
target_configuration() {
    cat <<TOML
[target]
reactors = 2
memory_budget = "128MiB"

[nfs]
addresses = ["$TARGET_ADDRESS"]
port = $NFS_TCP_PORT
$(case $HOST_TRANSPORT in tcp) echo 'transports = ["tcp"]' ;; *) printf 'rdma_port = %s\nprovider = "%s"\n' "$NFS_RDMA_PORT" "$TARGET_PROVIDER" ;; esac)
lease_time = "10s"
grace_time = "10s"
${NFS_OPTIONS:-}

[[export]]
path = "$NFS_EXPORT"
pseudo = "$NFS_PSEUDO"
access = "read-write"
squash = "none"
names = "raw"
clients = ["10.9.0.0/24", "10.10.0.0/24"]
${EXPORT_OPTIONS:-}
TOML
}

target_set_up() {
    mkdir -p "$STATE_DIRECTORY"
    chmod 700 "$STATE_DIRECTORY"
    target_configuration >"$RUN/target.toml"
    : >"$TARGET_LOG"
}
