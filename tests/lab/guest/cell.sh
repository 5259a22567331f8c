# shellcheck shell=bash
# Sourced in the guest by each file of cells/, which says with these words what meets what, and then
# runs the cases:
#
#   use_link LINK      siw or rxe, over a link of its own (guest/link.sh)
#   use_target NAME    capstan iwarp | capstan verbs | nvmet | nvmet tcp: starts it with the volumes
#                      of guest/volumes.sh
#   use_host NAME      linux | linux tcp | capstan iwarp | capstan verbs | capstan tcp
#   use_nfs SERVER TRANSPORT [PROVIDER]
#                      in place of the two: knfsd or capstan-nfs, and Linux clients of it by tcp
#                      or rdma
#   run_cases NAME…    runs these cases, or all of the folders of cases/ whose names the cell's
#                      begins with
#
# Every case is a process of its own (guest/case.sh), and after each one nothing may be left behind:
# no controller, no RDMA object, no kernel warning. What happened goes to $OUT: `plan` (the cases
# there will be, and their files), `results` (one line each, as they end), NAME.log, for those that
# failed NAME.dmesg.log and NAME.target.log; of all `dmesg.log` and `target.log`.
set -euo pipefail

export CELL TARGET TARGET_PROVIDER=none HOST HOST_PROVIDER=none HOST_ADDRESS LINK
# What a Linux host connects by; and what the listener of a Capstan target has beside its address.
export HOST_TRANSPORT=rdma LISTENER_OPTIONS=''
CELL=$(basename "$0" .sh)
# How long one case may take. Emulation on a busy machine is slow: this is for what hangs.
CASE_SECONDS=${CASE_SECONDS:-360}
# As many times as there are twice the usual rounds.
if [ -r "$LAB/rounds" ]; then CASE_SECONDS=$((CASE_SECONDS * ($(cat "$LAB/rounds") + 1) / 2)); fi

# shellcheck source=tests/lab/guest/link.sh
. "$LAB/link.sh"
# shellcheck source=tests/lab/guest/volumes.sh
. "$LAB/volumes.sh"
# shellcheck source=tests/lab/guest/leftovers.sh
. "$LAB/leftovers.sh"

use_link() { # use_link siw|rxe
    LINK=$1
    "link_$1"
    # Before anything has opened the device.
    mkdir -p "$RUN"
    rdma_objects >"$RUN/objects-at-first"
}

use_target() { # use_target capstan PROVIDER | nvmet
    TARGET=$1
    TARGET_PROVIDER=${2:-none}
    # shellcheck source=/dev/null
    . "$LAB/target-$TARGET.sh"
    make_volumes
    target_set_up
    target_start
}

use_host() { # use_host linux | capstan PROVIDER
    HOST=$1
    HOST_PROVIDER=${2:-none}
    HOST_ADDRESS=$KERNEL_ADDRESS
    [ "$TARGET_ADDRESS" != "$KERNEL_ADDRESS" ] || HOST_ADDRESS=$CAPSTAN_ADDRESS
    if [ "$HOST" = linux ]; then
        HOST_TRANSPORT=${2:-rdma} HOST_PROVIDER=none
        modprobe "nvme-$HOST_TRANSPORT"
    fi
}

use_nfs() { # use_nfs knfsd|capstan-nfs tcp|rdma [PROVIDER]
    TARGET=$1
    HOST=nfs
    HOST_TRANSPORT=$2
    TARGET_PROVIDER=${3:-none}
    # shellcheck source=/dev/null
    . "$LAB/target-$TARGET.sh"
    link_second_client
    modprobe -a nfs nfsv4 nfsv3
    [ "$HOST_TRANSPORT" = tcp ] || modprobe rpcrdma
    # As much as the suite needs, and little enough to be filled up.
    nfs_backing ext4 192
    target_set_up
    target_start
}

run_cases() { # run_cases [NAME…]
    local folder file name
    # Of each folder whose name the cell's begins with.
    for folder in "$LAB"/cases/*/; do
        [[ $CELL- == "$(basename "$folder")"-* ]] || continue
        for file in "$folder"*.sh; do
            name=$(basename "$file" .sh)
            [ $# -eq 0 ] || grep -qxF "$name" <<<"$(printf '%s\n' "$@")" || continue
            echo "$name $file"
        done
    done | sort >"$OUT/plan"
    [ -s "$OUT/plan" ] || return 0
    # What a device keeps from its first use on is there before anything is counted.
    warm_up "$HOST"
    rdma_objects >"$RUN/objects"
    while read -r name file; do
        run_case "$name" "$file" </dev/null
    done <"$OUT/plan"
    echo "lab: case nothing-left" >/dev/kmsg
    result nothing-left "$SECONDS" nothing_left_at_the_end
    dmesg >"$OUT/dmesg.log"
    [ "$TARGET" = nvmet ] || cp "$TARGET_LOG" "$OUT/target.log"
}

# One connection for each reactor of a Capstan target.
warm_up() { # warm_up HOST
    if ! { "warm_up_$1" && "warm_up_$1"; }; then
        dmesg >"$OUT/dmesg.log"
        [ "$TARGET" = nvmet ] || cp "$TARGET_LOG" "$OUT/target.log"
        return 1
    fi
    sleep 0.5
}

warm_up_linux() {
    nvme discover -t "$HOST_TRANSPORT" -a "$TARGET_ADDRESS" -s 4420 -w "$HOST_ADDRESS" "--hostnqn=$HOSTNQN" "--hostid=$HOSTID" >/dev/null
}

warm_up_capstan() {
    # shellcheck source=tests/lab/guest/host-capstan.sh
    . "$LAB/host-capstan.sh"
    ${HOST_IN_NETNS-$IN_NETNS} "$LAB/capstan" discover "${PORTAL[@]}" "${AS_HOST[@]}" >/dev/null
}

warm_up_nfs() {
    # shellcheck source=tests/lab/guest/host-nfs.sh
    . "$LAB/host-nfs.sh"
    mkdir -p "$FIRST"
    mount -t nfs -o "$(options_of 4.2 "$HOST_TRANSPORT")" "$TARGET_ADDRESS:$(export_path 4.2)" "$FIRST" && umount "$FIRST"
}

run_case() { # run_case NAME FILE
    local name=$1 began=$SECONDS
    echo "lab: case $name" >/dev/kmsg
    target_log_mark
    result "$name" "$began" timeout -k 5 "$CASE_SECONDS" bash "$LAB/case.sh" "$2"
}

# Runs a command as the case NAME, then looks for what it left, and writes the line of the result.
result() { # result NAME BEGAN COMMAND…
    local name=$1 began=$2 status=0 verdict why=''
    shift 2
    rm -f "$RUN/why"
    "$@" >"$OUT/$name.log" 2>&1 || status=$?
    [ ! -s "$RUN/why" ] || why=$(head -1 "$RUN/why")
    case $status in
        0) verdict=PASS ;;
        77) verdict=SKIPPED ;;
        124 | 137) verdict=FAIL why="not over after $CASE_SECONDS s" ;;
        *) verdict=FAIL why=${why:-"it ended with status $status"} ;;
    esac
    # Before the cleaning up, which may hang.
    if [ $verdict = FAIL ]; then keep_logs "$name"; fi
    if [ "$name" != nothing-left ] && ! why_left=$(clean_up_after "$name" 2>>"$OUT/$name.log") && [ $verdict != FAIL ]; then
        verdict=FAIL why=$why_left
    fi
    if [ $verdict = FAIL ]; then
        printf 'reason: %s\n' "$why" >>"$OUT/$name.log"
        keep_logs "$name"
    fi
    case $verdict in
        PASS) echo "PASS $CELL/$name $((SECONDS - began)) s" ;;
        *) echo "$verdict $CELL/$name: $why" ;;
    esac >>"$OUT/results"
    sync "$OUT/results"
    [ $verdict != FAIL ] || [ "$name" = nothing-left ] || renew_target "$name"
}

# The next case is to meet a target that is well. When that cannot be had, the cell is over.
renew_target() { # renew_target NAME
    if bounded 40 target_stop && bounded 40 target_start; then return 0; fi
    echo "the target could not be started again after $1" >"$OUT/ended"
    exit 1
}

# The kernel's messages, with where it waits, if it does, and the target's.
keep_logs() { # keep_logs NAME
    echo w >/proc/sysrq-trigger
    dmesg >"$OUT/$1.dmesg.log"
    target_log_since >"$OUT/$1.target.log" 2>&1 || true
}

# Runs a command that may hang, in the kernel even.
bounded() { # bounded SECONDS COMMAND…
    local until=$((SECONDS + $1)) pid
    shift
    ("$@") &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.3
    done
    wait $pid
}

# Ends what a case left connected; says what is wrong on stdout and fails.
clean_up_after() {
    disconnect_all_hosts || { echo "a controller could not be deleted" && return 1; }
    target_is_well || return 1
    no_kernel_warning "$1" || return 1
    no_more_rdma_objects_than "$RUN/objects"
}

# The last case: with the target stopped, everything is as it was before anything ran, and the
# modules can go: none of them is in use, and a device that goes finds what the objects left behind
# (it warns).
nothing_left_at_the_end() {
    {
        disconnect_all_hosts && target_stop && no_more_rdma_objects_than "$RUN/objects-at-first" && modules_can_go &&
            no_kernel_warning nothing-left
    } >"$RUN/why" 2>&1 && return 0
    cat "$RUN/why"
    rdma resource show
    return 1
}

modules_can_go() {
    local module
    for module in nvme_rdma nvmet_rdma siw rdma_rxe; do
        [ ! -d "/sys/module/$module" ] || timeout 30 rmmod "$module" || return 1
    done
    [ -z "$(rdma link)" ] && return 0
    echo "RDMA devices are left: $(rdma link)"
    return 1
}
