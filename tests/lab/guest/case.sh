#!/usr/bin/env bash
# In the guest: runs one case file in a shell that has the words below, those of the cell's target
# (target-*.sh) and those of its host (host-*.sh). Exit status 0, 77 when it was skipped, or another
# when it failed; the reason goes to $RUN/why.
#
#   case.sh FILE
set -euo pipefail
# shellcheck source=tests/lab/guest/link.sh
. "$LAB/link.sh"
# shellcheck source=tests/lab/guest/volumes.sh
. "$LAB/volumes.sh"
# shellcheck source=/dev/null
. "$LAB/target-$TARGET.sh"
MOUNTED=''
WORK=$(mktemp -d /tmp/case.XXXXXX)
cd "$WORK"

# Writes down the reason of the first failure only.
because() { [ -s "$RUN/why" ] || printf '%s\n' "$*" >"$RUN/why"; }

fail() {
    because "$*"
    printf 'FAIL: %s\n' "$*" >&2
    exit 1
}

# What the case tries cannot be tried here: `SKIPPED cell/case: REASON`.
skip() { # skip REASON
    because "$*"
    exit 77
}

# equal WHAT ACTUAL EXPECTED
equal() {
    if [ "$2" != "$3" ]; then fail "$1 is '$2', expected '$3'"; fi
}

# matches WHAT TEXT EXTENDED_REGULAR_EXPRESSION
matches() {
    if ! grep -qE -- "$3" <<<"$2"; then fail "$1 has no '$3' in '$(tail -c 300 <<<"$2")'"; fi
}

# same WHAT FILE FILE: the same bytes
same() {
    local difference
    if ! difference=$(cmp "$2" "$3" 2>&1); then fail "$1: $difference"; fi
}

# refused EXTENDED_REGULAR_EXPRESSION COMMAND…: it fails, and says this.
refused() {
    local pattern=$1 said
    shift
    if said=$("$@" 2>&1); then fail "'$*' succeeded, expected '$pattern'"; fi
    matches "what '$*' says" "$said" "$pattern"
}

# within SECONDS WHAT COMMAND…: tries it until it succeeds.
within() {
    local until=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $until ]; then fail "$what: not so in time ($*)"; fi
        sleep 0.2
    done
}

# The value of the first line "name : value" of a file, with single spaces.
value() { # value NAME FILE
    awk -v name="$1" '{
        at = index($0, ":")
        left = substr($0, 1, at - 1); right = substr($0, at + 1)
        gsub(/[ \t]+/, " ", left); gsub(/^ | $/, "", left)
        if (at && left == name) { gsub(/[ \t]+/, " ", right); gsub(/^ | $/, "", right); print right; exit }
    }' "$2"
}

# Compares lines of a file, `name : value`, with those expected on stdin, written alike.
values() { # values FILE
    local name expected
    while IFS=: read -r name expected; do
        name=$(squeeze "$name")
        [ -z "$name" ] || equal "$name" "$(value "$name" "$1")" "$(squeeze "$expected")"
    done
}

squeeze() { # squeeze TEXT: without spaces around it, and single ones in it
    local words
    read -ra words <<<"$1"
    printf '%s\n' "${words[*]}"
}

# A tree of 94 files in 7 folders, with links, modes and a hole.
make_tree() { # make_tree FOLDER
    local folder
    for folder in a b/c d/e/f g; do
        mkdir -p "$1/$folder"
        head -c 600000 /dev/urandom | (cd "$1/$folder" && split -a 2 -b 27001 - part.)
    done
    ln -s ../b/c/part.aa "$1/a/link"
    ln "$1/g/part.ab" "$1/g/hard"
    chmod 640 "$1/a/part.ab"
    truncate -s 3M "$1/d/hole"
    printf tail >>"$1/d/hole"
}

files_of() { (cd "$1" && find . ! -type d -printf '%P %m %s %n %l\n' | sort); }

# I/Os completed on a disk.
completed() { awk '{ print $1 + $5 }' "/sys/block/${1#/dev/}/stat"; }

# Whether I/Os complete on a disk now.
moves() { # moves DEVICE
    local before
    before=$(completed "$1")
    sleep 0.3
    [ "$(completed "$1")" -gt "$before" ]
}

# Whether the background command NAME, which works on a disk and could not end while its I/O was
# held up, has got on: it works again, or it has ended.
goes_on() { ! running "$1" || moves "$2"; } # goes_on NAME DEVICE

# Random writes to a disk and reads in the background, with every write read back and compared soon
# after; returns when it is under way. `finish NAME` says how it went.
disk_load() { # disk_load NAME DEVICE SECONDS
    begin "$1" fio --filename="$2" --direct=1 --ioengine=libaio --thread --randrepeat=0 --rw=randwrite --bsrange=4k-64k \
        --iodepth=8 --size=8m --time_based --runtime="$3" --verify=crc32c --verify_fatal=1 --verify_backlog=16 \
        --verify_state_save=0 --output-format=terse --terse-version=3 --name=load
    within 15 "fio works on $2" moves "$2"
}

# A file system on a volume: make it, copy a tree, unmount, check, mount again: every file is what
# it was.
file_system_keeps_a_tree() { # file_system_keeps_a_tree TYPE 'MKFS OPTIONS' 'CHECK OPTIONS'
    local type=$1
    # shellcheck disable=SC2086
    $2 "$DISK"
    mkdir mnt tree
    make_tree tree
    MOUNTED=$PWD/mnt
    mount -t "$type" "$DISK" mnt
    equal "the file system at mnt" "$(stat -f -c %T mnt | sed 's,ext2/ext3,ext4,')" "$type"
    cp -a tree mnt/
    rm -r mnt/tree/b
    cp -a tree/b mnt/tree/b
    umount mnt
    # shellcheck disable=SC2086
    $3 "$DISK" || fail "$3 finds damage"
    mount -t "$type" -o ro "$DISK" mnt
    diff -r --no-dereference tree mnt/tree || fail "files are not what was written"
    equal "modes and links" "$(files_of mnt/tree)" "$(files_of tree)"
    umount mnt
    MOUNTED=''
}

# Whether the host connects over NVMe/TCP.
over_tcp() { [ "${HOST_TRANSPORT-}" = tcp ] || [ "$HOST_PROVIDER" = tcp ]; }

# What goes over the wire: capture, then stop_capture, which leaves the ladder in the file `ladder`.
# Both are kept in $OUT.
capture() {
    local filter="tcp port 4420 or udp port 9"
    [ "$LINK" != rxe ] || filter="udp port 4791 or udp port 9"
    # shellcheck disable=SC2086 # words of a filter
    tcpdump -i "$WIRE" -s 0 -B 16384 -U -Z root -w packets.pcap $filter 2>tcpdump.log &
    echo $! >tcpdump.pid
    within 10 "tcpdump listens" [ -s packets.pcap ]
}

stop_capture() {
    local decoder=decode_iwarp.py
    [ "$LINK" != rxe ] || decoder=decode_roce.py
    ! over_tcp || decoder=decode_tcp.py
    # What tcpdump has not read when it ends is lost: it has read all that came before this.
    echo "the end of the capture" >"/dev/udp/$MARK_ADDRESS/9"
    within 20 "tcpdump has written the last packet" grep -qa "the end of the capture" packets.pcap
    kill -INT "$(cat tcpdump.pid)"
    wait "$(cat tcpdump.pid)" || true
    rm tcpdump.pid
    matches "what tcpdump says" "$(cat tcpdump.log)" '^0 packets dropped by kernel'
    PYTHONDONTWRITEBYTECODE=1 python3 "$LAB/$decoder" packets.pcap >ladder || fail "the decoder finds: $(tail -3 ladder)"
    cp packets.pcap ladder "$OUT/"
}

# The ladder of the command whose capsule is described by an extended regular expression, which is
# to be alone on its queue; each step as its direction, its operation and its bytes of payload: "->
# SEND 64", and SUCCESS where that stands for a response. Acknowledgements are no steps.
steps() { # steps EXPRESSION
    awk -v command="$1" '$0 ~ command && / -> (SEND|CAPSULE_CMD) / { on = 1 } on {
            print >"/dev/stderr"
            payload = ""
            for (i = 4; i < NF && $i != "|"; i++) if ($i == "payload" || $i == "asks") payload = " " $(i + 1)
            if (/ SUCCESS /) payload = payload " SUCCESS"
            if ($4 == "READ_REQUEST") payload = " " $9
            if ($4 != "ACK") print $3, $4 payload
        } on && /completes cid/ { exit }' ladder | sed 's/SEND_INV/SEND/'
}

# What doctor says in FILE of NAME: "ok: what it saw".
diagnosis() { awk -F '  +' -v name="$2" '$2 == name { print $1 ": " $3; exit }' "$1"; } # diagnosis FILE NAME

# random FILE BYTES
random() { head -c "$2" /dev/urandom >"$1"; }

# A command in the background, and its end: its status and output are checked.
begin() { # begin NAME COMMAND…
    local name=$1
    shift
    "$@" >"$WORK/$name.out" 2>&1 &
    echo $! >"$WORK/$name.pid"
}

running() { kill -0 "$(cat "$WORK/$1.pid")" 2>/dev/null; } # running NAME

finish() { # finish NAME: fails when it failed
    local status=0
    wait "$(cat "$WORK/$1.pid")" || status=$?
    cat "$WORK/$1.out"
    [ $status = 0 ] || fail "$1 ended with status $status: $(grep -v '^$' "$WORK/$1.out" | tail -1)"
}

# shellcheck source=/dev/null
. "$LAB/host-$HOST.sh"

# What a case has set up that is to go however it ends: a command.
AT_THE_END=''

trap 'because "line $LINENO of $(basename "${BASH_SOURCE[0]}"): $BASH_COMMAND"' ERR
at_the_end() {
    local status=$? job
    trap - ERR
    set +e
    for job in "$WORK"/*.pid; do
        [ -r "$job" ] && kill -KILL "$(cat "$job")" 2>/dev/null
    done
    [ -z "$MOUNTED" ] || umount -l "$MOUNTED"
    $AT_THE_END
    host_clean_up
    cd / && rm -rf "$WORK"
    exit $status
}
trap at_the_end EXIT
set -E

# shellcheck source=/dev/null
. "$1"
