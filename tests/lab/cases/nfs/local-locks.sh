# shellcheck shell=bash
# Locks of a program on the server's machine and those of a client are in each other's way, by
# version 4.2.
# "${LOCK[@]}" PATH SECONDS locks ten bytes from 5 on for so long, and does not wait for them.
LOCK=(/usr/bin/python3 -c 'import fcntl, sys, time
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
print("held", flush=True)
time.sleep(float(sys.argv[2]))')
held_by() { grep -q held "$WORK/$1.out"; }

mount_export 4.2
echo text >"$FIRST/file"
begin server "${LOCK[@]}" "$NFS_EXPORT/file" 1000
within 20 "the lock of the server's machine is held" held_by server
refused 'Resource temporarily unavailable' "${LOCK[@]}" "$FIRST/file" 0
kill "$(cat server.pid)"
within 20 "the client gets the lock" "${LOCK[@]}" "$FIRST/file" 0
begin client "${LOCK[@]}" "$FIRST/file" 1000
within 20 "the client's lock is held" held_by client
refused 'Resource temporarily unavailable' "${LOCK[@]}" "$NFS_EXPORT/file" 0
refused 'Resource temporarily unavailable' "${LOCK[@]}" "$SECOND/file" 0
kill "$(cat client.pid)"
within 20 "the server's machine gets the lock" "${LOCK[@]}" "$NFS_EXPORT/file" 0
rm "$FIRST/file"
unmount_export
