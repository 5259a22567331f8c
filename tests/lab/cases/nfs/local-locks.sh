# shellcheck shell=bash
# Locks of a program on the server's machine and those of a client are in each other's way, by
# version 4.2.
lock() { # lock PATH SECONDS: bytes 5 to 14, without waiting, for so long
    /usr/bin/python3 -c 'import fcntl, sys, time
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
print("held", flush=True)
time.sleep(float(sys.argv[2]))' "$@"
}
held_by() { grep -q held "$WORK/$1.out"; }

mount_export 4.2
echo text >"$FIRST/file"
begin server lock "$NFS_EXPORT/file" 1000
within 20 "the lock of the server's machine is held" held_by server
refused 'Resource temporarily unavailable' lock "$FIRST/file" 0
kill "$(cat server.pid)"
within 20 "the client gets the lock" lock "$FIRST/file" 0
begin client lock "$FIRST/file" 1000
within 20 "the client's lock is held" held_by client
refused 'Resource temporarily unavailable' lock "$NFS_EXPORT/file" 0
refused 'Resource temporarily unavailable' lock "$SECOND/file" 0
kill "$(cat client.pid)"
within 20 "the server's machine gets the lock" lock "$NFS_EXPORT/file" 0
rm "$FIRST/file"
unmount_export
