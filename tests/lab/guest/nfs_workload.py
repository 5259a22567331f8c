"""In the guest: uses every operation of NFS that a Linux client sends for system calls, once.

nfs_workload.py FOLDER VERSION: FOLDER is made on an NFS mount of VERSION (4.2, 4.1 or 3).
"""

import fcntl
import os
import struct
import sys


def pattern(length):
    """Bytes of which no two words are alike."""
    return b"".join(struct.pack(">I", 0x61000000 + n) for n in range(length // 4))


def locks(path):
    """LOCK, LOCKT, a LOCK that is denied, LOCKU: by open descriptions, so of two owners."""
    first = os.open(path, os.O_RDWR)
    second = os.open(path, os.O_RDWR)

    def lock(kind, start, length):
        return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)

    fcntl.fcntl(first, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK, 100, 50))
    os.close(second)
    child = os.fork()
    if child == 0:
        other = os.open(path, os.O_RDWR)
        asked = fcntl.fcntl(other, fcntl.F_GETLK, lock(fcntl.F_WRLCK, 120, 5))
        print("F_GETLK:", struct.unpack("hhqqi4x", asked))
        try:
            fcntl.fcntl(other, fcntl.F_SETLK, lock(fcntl.F_RDLCK, 110, 5))
        except OSError as error:
            print("F_SETLK:", error)
        os._exit(0)
    os.waitpid(child, 0)
    fcntl.fcntl(first, fcntl.F_OFD_SETLK, lock(fcntl.F_UNLCK, 0, 0))
    os.close(first)


def version_4_2(folder, path):
    """SEEK, ALLOCATE, DEALLOCATE, COPY, extended attributes."""
    sparse = os.open(f"{folder}/sparse", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(sparse, pattern(4096), 1 << 20)
    os.fsync(sparse)
    print("SEEK_DATA", os.lseek(sparse, 0, os.SEEK_DATA))
    print("SEEK_HOLE", os.lseek(sparse, 1 << 20, os.SEEK_HOLE))
    os.posix_fallocate(sparse, 0, 8192)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    print("punch", libc.fallocate(sparse, 3, 1 << 20, 4096))
    os.close(sparse)
    source = os.open(path, os.O_RDONLY)
    copy = os.open(f"{folder}/copy", os.O_RDWR | os.O_CREAT, 0o644)
    print("copied", os.copy_file_range(source, copy, 4096))
    os.close(source)
    os.close(copy)
    for what in (
        lambda: os.setxattr(path, "user.colour", b"blue"),
        lambda: print(os.getxattr(path, "user.colour")),
        lambda: print(os.listxattr(path)),
        lambda: os.removexattr(path, "user.colour"),
    ):
        try:
            what()
        except OSError as error:
            print("xattr:", error)


def main():
    folder, version = sys.argv[1:]
    os.mkdir(folder, 0o755)
    path = f"{folder}/file"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(file, pattern(6000))
    os.fsync(file)
    os.close(file)
    # Not out of the client's memory.
    with open("/proc/sys/vm/drop_caches", "w") as drop:
        drop.write("3")
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    import mmap

    room = mmap.mmap(-1, 8192)
    print("read", os.preadv(file, [room], 0), bytes(room[:6000]) == pattern(6000))
    os.close(file)
    # A write that is stable at once, and one whose data is more than a page.
    file = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_SYNC)
    room[:] = pattern(8192)
    os.pwritev(file, [room], 0)
    os.close(file)
    os.chmod(path, 0o640)
    os.chown(path, 1001, 1002)
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    os.truncate(path, 5000)
    os.link(path, f"{folder}/hard")
    os.symlink("file", f"{folder}/soft")
    print(os.readlink(f"{folder}/soft"))
    os.mkfifo(f"{folder}/fifo")
    os.mknod(f"{folder}/null", 0o20600, os.makedev(1, 3))
    os.rename(f"{folder}/hard", f"{folder}/renamed")
    for number in range(3):
        os.close(os.open(f"{folder}/entry{number}", os.O_CREAT | os.O_WRONLY, 0o600))
    print(sorted(os.listdir(folder)))
    for entry in os.scandir(folder):
        entry.stat(follow_symlinks=False)
    print(os.statvfs(folder).f_bsize)
    print(os.access(path, os.W_OK))
    try:
        os.stat(f"{folder}/missing")
    except OSError as error:
        print("stat:", error)
    try:
        os.rmdir(folder)
    except OSError as error:
        print("rmdir:", error)
    if version != "3":
        locks(path)
    if version == "4.2":
        version_4_2(folder, path)
    # Renamed by the client while it is open, in version 3.
    file = os.open(path, os.O_RDONLY)
    os.unlink(path)
    print(os.fstat(file).st_nlink)
    os.close(file)
    for name in os.listdir(folder):
        # What the client has renamed goes when it is closed.
        if not name.startswith(".nfs"):
            os.unlink(f"{folder}/{name}")
    os.rmdir(folder)


main()
