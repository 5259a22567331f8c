# shellcheck shell=bash
# Sourced in the guest by case.sh: Linux clients of the NFS server of the cell.
#
#   mount_export VERSION [OPTION,…]   mounts the export by the cell's transport at $FIRST, and, as
#                                     another client, over TCP from the namespace `second` of
#                                     networks at $SECOND
#   unmount_export
#
# The second client looks at the server for each attribute and name (actimeo=0), so that what the
# first has done can be asked for at once. Both have a host name of their own, which is what a
# client of version 4 is told apart by.

FIRST=/run/mnt/first SECOND=/run/mnt/second
# shellcheck disable=SC2034 # for the cases, whose host has to have it
PORTAL=()

# What to mount by VERSION.
export_path() { # export_path VERSION
    if [ "$1" = 3 ]; then echo "$NFS_V3_PATH"; else echo "$NFS_PSEUDO"; fi
}

options_of() { # options_of VERSION tcp|rdma
    local options="vers=$1,proto=$2"
    if [ "$2" = rdma ]; then options+=",port=$NFS_RDMA_PORT"; else options+=",port=$NFS_TCP_PORT"; fi
    [ "$1" != 3 ] || options+=",nolock,mountproto=tcp,mountport=$NFS_MOUNT_PORT"
    echo "$options"
}

mount_export() { # mount_export VERSION [OPTION,…]
    local source
    source=$TARGET_ADDRESS:$(export_path "$1")
    mkdir -p "$FIRST" "$SECOND"
    mount -t nfs -o "$(options_of "$1" "$HOST_TRANSPORT")${2:+,$2}" "$source" "$FIRST" || fail "mounting $source by $HOST_TRANSPORT, version $1"
    # shellcheck disable=SC2016 # for the other shell
    nsenter --net=/run/netns/second unshare --uts bash -c 'hostname second && mount -t nfs -o "$1" "$2" "$3"' mount \
        "$(options_of "$1" tcp),actimeo=0${2:+,$2}" "$source" "$SECOND" || fail "mounting $source by another client, version $1"
}

unmount_export() {
    umount "$SECOND"
    umount "$FIRST"
}

# What each version of NFS lacks, in the words of nfs_suite.
lacks() { # lacks VERSION
    case $1 in
        4.2) ;;
        4.1) echo --lacks xattrs --lacks seek --lacks fallocate ;;
        3) echo --lacks xattrs --lacks seek --lacks fallocate --lacks locks --lacks late-times ;;
    esac
}

# Runs the suite with both clients, in a folder that is new. Its lines are kept in $OUT, so that
# those of two servers can be compared, and a case fails with the first that failed.
suite() { # suite VERSION [OPTION…]
    local version=$1 failed='' said=$OUT/suite-$1.said
    shift
    # What a case left that failed.
    rm -rf "$NFS_EXPORT/suite"
    mkdir "$FIRST/suite"
    # shellcheck disable=SC2046 # words
    "$LAB/nfs_suite" "$FIRST/suite" "$SECOND/suite" --times --operations 300 --entries 1000 $(lacks "$version") "$@" >"$said" 2>&1 || failed=1
    sed 's/ ([0-9]* ms)//' "$said" >"$OUT/verdicts-$version"
    [ -z "$failed" ] || fail "$(grep -c '^FAIL' "$said") cases failed, the first: $(grep -m1 '^FAIL' "$said" || tail -1 "$said")"
    rmdir "$FIRST/suite" || fail "something is left in the suite's folder: $(find "$FIRST/suite" | head -3)"
}

host_clean_up() {
    local folder
    for folder in "$SECOND" "$FIRST"; do
        mountpoint -q "$folder" || continue
        # A connection of one that goes by force stays until what it waits for is over.
        timeout 20 umount "$folder" || umount -f -l "$folder"
    done
}
