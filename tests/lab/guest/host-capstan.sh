# shellcheck shell=bash
# Sourced in the guest by case.sh: capstan, without any kernel module; over NVMe/TCP where the
# provider is called `tcp`.
#
#   capstan_to COMMAND [OPTION…]   on $SUBSYSTEM as $HOSTNQN

# shellcheck disable=SC2034 # for the cases
case $HOST_PROVIDER in
    tcp) WAY=(-t tcp) ;;
    *) WAY=(--provider "$HOST_PROVIDER") ;;
esac
# shellcheck disable=SC2034 # for the cases
PORTAL=(-a "$TARGET_ADDRESS" -w "$HOST_ADDRESS" "${WAY[@]}")
AS_HOST=(-q "$HOSTNQN" -I "$HOSTID")

# shellcheck disable=SC2086 # $IN_NETNS is a command and its arguments, or nothing
capstan() { ${HOST_IN_NETNS-$IN_NETNS} "$LAB/capstan" "$@"; }

capstan_to() { # capstan_to COMMAND OPTION…
    local command=$1
    shift
    capstan "$command" "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM" "$@"
}

# Writes with checksums, then reads everything back and compares.
verify() { # verify OPTION…
    local began=$SECONDS
    capstan_to bench --rw randwrite --force --verify crc32c "$@" >bench.out || fail "capstan bench $*: $(tail -1 bench.out)"
    cat bench.out
    echo "$((SECONDS - began)) s: $*"
    matches "what bench says" "$(grep verify: bench.out)" 'verify: [1-9][0-9]* blocks? checked, 0 wrong'
}

# Random writes in the background, all read back and compared at the end; returns when it is under
# way. The association is lost for at most a minute. `finish NAME` says how it went.
# shellcheck disable=SC2086
load() { # load NAME SECONDS [OPTION…]
    local name=$1 seconds=$2
    shift 2
    [[ " $* " == *" --bs "* ]] || set -- "$@" --bs 16k
    begin "$name" ${HOST_IN_NETNS-$IN_NETNS} "$LAB/capstan" -v bench "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM" -N 1 -i 2 -c 1 -l 60 \
        --rw randwrite --force --iodepth 8 --size 8m --runtime "$seconds" --verify crc32c "$@"
    within 15 "capstan bench writes" moves /dev/lab1
}

# Seconds until I/O goes on after a loss, amply. Writes that were not answered wait until the target
# says that the old controller is gone; a Linux target says nothing, so for 30 s and twice a Keep
# Alive Timeout of at most 15 s (docs/replay.md).
# shellcheck disable=SC2034 # of cases
case $TARGET in nvmet) GOES_ON_WITHIN=100 ;; *) GOES_ON_WITHIN=30 ;; esac

# finish NAME, and everything it wrote was read back
finish_load() {
    finish "$1"
    matches "what bench says" "$(grep verify: "$1.out")" 'verify: [1-9][0-9]* blocks? checked, 0 wrong'
}

# Makes namespace 1 a disk of this machine: sets $DISK.
attach() { # attach [OPTION…]
    attach_nsid 1 -i 2 "$@"
    equal "bytes of $DISK" "$(blockdev --getsize64 "$DISK")" $((LBAS_1 * 512))
}

attach_nsid() { # attach_nsid NSID [OPTION…]
    local nsid=$1
    shift
    modprobe -a fuse loop
    DISK=$(capstan_to attach -N "$nsid" "$@")
    [ -b "$DISK" ] || fail "attach says '$DISK', which is no disk"
    ATTACHED=$DISK
}

detach() {
    capstan detach "$ATTACHED"
    ATTACHED=''
}

ATTACHED=''
host_clean_up() {
    [ -z "$ATTACHED" ] || capstan detach --force "$ATTACHED"
}
