# shellcheck shell=bash
# Two users of one machine and one namespace: the second that wants to write is refused with the
# first one's attachment named, and a file that the first has left behind does not hinder the
# second, also where the kernel protects files in world-writable folders (fs.protected_regular).
# shellcheck disable=SC2034 # AT_THE_END is of case.sh
LOCKS=/run/lock
as_found=$(sysctl -n fs.protected_regular)
undo() {
    sysctl -qw "fs.protected_regular=$as_found"
    umount -l "$LOCKS"
}
AT_THE_END=undo
# As a distribution has it.
mount -t tmpfs -o mode=1777 locks "$LOCKS"
chmod 755 "$WORK"
random data 4096
chmod 644 data

# A command of a user, by its number, on NSID 3.
user() { # user NUMBER COMMAND OPTION…
    local number=$1 command=$2
    shift 2
    exec setpriv --reuid="$number" --regid="$number" --clear-groups "$LAB/capstan" "$command" "${PORTAL[@]}" "${AS_HOST[@]}" \
        -n "$SUBSYSTEM" -N 3 "$@"
}

claim() { find "$LOCKS" -name 'capstan-*.lock' -size +0; }
is_claimed() { [ -n "$(claim)" ]; }

for protected in 1 2; do
    sysctl -qw "fs.protected_regular=$protected"
    for pair in "0 65534" "65534 0" "65534 1"; do
        read -r first second <<<"$pair"
        echo "fs.protected_regular = $protected: user $first, then user $second"
        begin first user "$first" bench --rw write --bs 4k --runtime 60
        within 15 "user $first has the namespace" is_claimed
        pid=$(cat first.pid)
        (user "$second" write --data data) >said 2>&1 && fail "user $second writes as well"
        cat said
        matches "what user $second is told" "$(cat said)" "is in use on this machine: .*\`capstan bench\` \(process $pid of user $first, through "
        # As a crash does, so that the file stays.
        kill -KILL "$pid"
        wait "$pid" || true
        rm first.pid
        equal "the owner of what is left" "$(stat -c %u "$(claim)")" "$first"
        (user "$second" write --data data) >said 2>&1 || fail "user $second does not get by: $(cat said)"
        # In the way of its owner neither.
        (user "$first" write --data data) >said 2>&1 || fail "user $first does not get by: $(cat said)"
        dd if=/dev/lab3 of=back bs=4096 count=1 iflag=direct status=none
        same "what was written" back data
        rm -f "$LOCKS"/capstan-*
    done
done
undo
AT_THE_END=''
