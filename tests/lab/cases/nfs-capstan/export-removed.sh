# shellcheck shell=bash
# An export that a reload takes out while clients have files of it open and locked, by version 4.2:
# a program on the server's machine has the lock at once, and when the export is there again the
# client that had it goes on with what it opens then, and is told of its loss no longer.
LOCK=(/usr/bin/python3 -c 'import fcntl, sys, time
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
print("held", flush=True)
time.sleep(float(sys.argv[2]))')
held_by() { grep -q held "$WORK/$1.out"; }
# With another path for clients the export is another one, and its clients are let in still.
exported_at() { # exported_at PATH
    target_configuration | sed "s|^pseudo = .*|pseudo = \"$1\"|" >"$RUN/target.toml"
    target_reload
}
exported_again() { exported_at "$NFS_PSEUDO"; }
# shellcheck disable=SC2034 # case.sh runs it.
AT_THE_END=exported_again
# How often a client has asked what has become of a stateid.
asked() { awk '/TEST_STATEID:/ { sum += $2 } END { print sum + 0 }' /proc/self/mountstats; }
asks_no_more() {
    local before
    before=$(asked)
    # A SEQUENCE that tells of revoked state has all stateids tested.
    stat "$FIRST" >/dev/null
    sleep 2
    [ "$(asked)" = "$before" ]
}

mount_export 4.2
echo text >"$FIRST/file"
begin client "${LOCK[@]}" "$FIRST/file" 1000
within 60 "the client's lock is held" held_by client
refused 'Resource temporarily unavailable' "${LOCK[@]}" "$NFS_EXPORT/file" 0
exported_at /elsewhere
within 60 "the server's machine gets the lock" "${LOCK[@]}" "$NFS_EXPORT/file" 0
refused 'Stale file handle' timeout 30 stat "$SECOND/file"
exported_again
within 60 "the second client goes on" timeout 30 "${LOCK[@]}" "$SECOND/file" 0
within 60 "the first client opens it anew" timeout 30 cat "$FIRST/file"
within 60 "the first client has acknowledged its loss" asks_no_more
kill "$(cat client.pid)"
rm "$NFS_EXPORT/file"
unmount_export
