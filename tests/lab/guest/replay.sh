# shellcheck shell=bash
# Sourced in the guest by cases: an old copy of a write never lands after a newer one. Three ways to
# make one: a medium that hangs, a network that keeps what was sent, a target that is stopped. In
# each, the host gives up waiting for write A, connects again, issues A again, then writes B to the
# same place and flushes; whatever becomes of the old copy of A, B is what is there at the end.
#
#   slow_disk            NSID 5 is a disk of which a write can be held      slow_disk_away
#   delay_old SECONDS    what goes to the target on the connections there are now takes so long,
#                        what comes later does not
#   rounds COMMAND…      with a block for A and B, another one in each round: twice, or as often as
#                        `scripts/lab.sh --rounds` says

# shellcheck disable=SC2034 # of case.sh
AT_THE_END=undo_all
undo_all() {
    kill -CONT "$(cat "$RUN/target.pid")"
    ! tc qdisc show dev "$(out_interface)" | grep -q netem || delay_none
    # Without the slow disk, and as other cases expect it.
    target_configuration >"$RUN/target.toml"
}

rounds() {
    local round
    for round in $(seq "$(cat "$LAB/rounds" 2>/dev/null || echo 2)"); do
        echo "round $round"
        "$@" $((8 * round))
    done
}

slow_disk() {
    modprobe nbd nbds_max=1
    mkdir -p slow
    begin slow-disk python3 "$LAB/slow_disk.py" slow
    within 20 "the slow disk is ready" slow_disk_said ready
    DISK_5=/dev/nbd0 target_add_namespace
}

slow_disk_away() {
    target_remove_namespace
    kill -TERM "$(cat slow-disk.pid)"
    finish slow-disk
}

slow_disk_said() { grep -qx "$1" slow/log; }

# Writes a file to a block of $DISK, past the page cache.
put() { dd if="$1" of="$DISK" bs=4k count=1 seek="$2" oflag=direct conv=notrunc status=none; } # put FILE BLOCK

# What a block of $DISK holds is what this file does.
holds() { # holds WHAT FILE BLOCK
    dd if="$DISK" of=back bs=4k count=1 skip="$3" iflag=direct status=none
    same "$1" back "$2"
}

newer_write() { # newer_write BLOCK: B, behind which A must not come
    random b 4096
    put b "$1"
    sync "$DISK"
    holds "the block right after B" b "$1"
}

# The medium takes six seconds for A, the host waits two.
slow_write() {
    local block=$1
    random a 4096
    : >slow/log
    echo 6 >slow/hold
    begin first put a "$block"
    within 10 "A is on its way to the medium" grep -q '^held' slow/log
    finish first
    grep -q '^landed' slow/log || fail "A was answered while its old copy could still land"
    newer_write "$block"
    sleep 1
    holds "the block a second later" b "$block"
}

# The network takes eight seconds for A, the host waits two, and the target does not know until
# then that the host has given up.
delayed_write() {
    local block=$1 sent until
    random a 4096
    delay_old 8
    sent=$SECONDS
    begin first put a "$block"
    finish first
    # With time as its only rule a host would wait for longer than the network does, and nothing
    # would be tried. No host here has only that.
    until=$((sent + 8))
    [ $SECONDS -lt $until ] ||
        fail "A was answered after $((SECONDS - sent)) s, when its old copy had come; expected before the 8 s of the network"
    newer_write "$block"
    until=$((sent + 10))
    while [ $SECONDS -lt $until ]; do
        sleep 0.2
    done
    holds "the block after the old connections have delivered all" b "$block"
    delay_none
}

# The same of capstan, attached anew each time, which has the target reset its old controller
# (Cross-Controller Reset) before it issues A again.
delayed_write_behind_a_reset() { # delayed_write_behind_a_reset BLOCK
    attach_nsid 1 --io-timeout 2 -k 10 -c 1 -l 120
    delayed_write "$1"
    # Over Soft-RoCE the target has heard of the end by then, and answers that there is nothing to
    # reset.
    [ "$LINK" = rxe ] || resets=$((resets + 1))
    target_said "reset by its host through controller" "$resets" ||
        fail "the target tells of fewer than $resets controllers that were reset by Cross-Controller Reset"
    detach
}
resets=0

# The same of a Linux host, whose target ends what the host had when it connects again
# (`end_older_association`).
delayed_write_behind_an_end() { # delayed_write_behind_an_end BLOCK
    delayed_write "$1"
    # Over Soft-RoCE the target has heard of the end by then, and has nothing to end.
    [ "$LINK" = rxe ] || ends=$((ends + 1))
    target_said "end_older_association is set" "$ends" ||
        fail "the target tells of fewer than $ends associations that it ended because end_older_association is set"
}
ends=0

# How many associations the target has told of since the case began.
associations() { target_log_since | grep -c 'host connected' || true; }

# The target is stopped with A in its sockets, the host gives up and connects again, and then the
# target goes on.
stopped_target() {
    local block=$1 pid before
    before=$(associations)
    pid=$(cat "$RUN/target.pid")
    random a 4096
    kill -STOP "$pid"
    begin first put a "$block"
    sleep 4
    kill -CONT "$pid"
    finish first
    [ "$(associations)" -gt "$before" ] ||
        fail "the host has not connected again: A was answered on its old connections, and was there once"
    newer_write "$block"
    sleep 1
    holds "the block a second later" b "$block"
}

# The interface by which the host's packets leave.
out_interface() {
    case $LINK in
        siw_shared) echo lo ;;
        *) echo "$LINK_INTERFACE" ;;
    esac
}

# The source ports of what the host sends to the target now. Soft-RoCE has one for each queue pair,
# which is seen on the wire only.
old_ports() {
    if [ "$LINK" = rxe ]; then
        tcpdump -n -l -i "$LINK_INTERFACE" "udp dst port 4791 and src host $HOST_ADDRESS" >old.dump 2>old.listening &
        echo $! >tcpdump.pid
        within 10 "tcpdump listens" grep -q listening old.listening
        dd if="$DISK" of=/dev/null bs=4k count=32 skip=4096 iflag=direct status=none
        within 10 "tcpdump sees the host's packets" [ -s old.dump ]
        kill -INT "$(cat tcpdump.pid)"
        wait "$(cat tcpdump.pid)" || true
        rm tcpdump.pid
        sed -n "s/.* $HOST_ADDRESS\.\([0-9]*\) > .*/\1/p" old.dump | sort -u
        return
    fi
    # shellcheck disable=SC2086 # a command and its arguments, or nothing
    $IN_NETNS ss -Htn state established "sport = :4420" | awk '{ sub(/.*:/, "", $4); print $4 }'
}

delay_old() { # delay_old SECONDS
    local interface port count=0
    interface=$(out_interface)
    modprobe -a sch_prio sch_netem cls_u32
    tc qdisc add dev "$interface" root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
    tc qdisc add dev "$interface" parent 1:2 handle 2: netem delay "${1}s" limit 100000
    for port in $(old_ports); do
        tc filter add dev "$interface" parent 1: protocol ip prio 1 u32 match ip sport "$port" 0xffff flowid 1:2
        count=$((count + 1))
    done
    echo "delaying $count flows"
    # Of Soft-RoCE the I/O queue only; what ends a connection there goes by a queue pair that all
    # have in common.
    [ $count -ge "$([ "$LINK" = rxe ] && echo 1 || echo 2)" ] || fail "the host has $count connections, expected its admin queue and an I/O queue"
}

delay_none() { tc qdisc del dev "$(out_interface)" root; }
