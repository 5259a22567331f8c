"""In the guest: what two NFS servers do a second, in turn, so that both find the same machine.

compare_nfs.py MOUNTS ROUND TURNS TURN_SECONDS SETTLE_SECONDS ROWS: MOUNTS has a mount of each
server and file system, as capstan-tmpfs; each has a folder of the server's name with a file `data`,
and a folder `many`. Prints a line for each turn of both, ROW CAPSTAN KNFSD: operations a second, or
directories of 10,000 entries a second. Only rows are measured whose names match ROWS.
"""

import fnmatch
import os
import signal
import subprocess
import sys
import time

SERVERS = ("capstan", "knfsd")
FILE_SYSTEMS = ("tmpfs", "ext4")
KIB = 1024
# Name, fio's word for it, bytes of an operation, depth.
DATA_ROWS = [
    ("read-128k-qd1", "read", 128 * KIB, 1),
    ("read-128k-qd8", "read", 128 * KIB, 8),
    ("write-128k-qd1", "write", 128 * KIB, 1),
    ("write-128k-qd8", "write", 128 * KIB, 8),
    ("randread-4k-qd16", "randread", 4 * KIB, 16),
    ("randwrite-4k-qd16", "randwrite", 4 * KIB, 16),
]
# Files that a turn of metadata makes, asks for and removes.
FILES = 100
ENTRIES = 10_000
# For fio to start, on an emulated machine that is busy.
BEGIN_SECONDS = 60


def bytes_of(mount):
    """Bytes that were read from the server and written to it, of all that was on this mount."""
    with open("/proc/self/mountstats") as stats:
        for line in stats:
            if f" mounted on {mount} " in line:
                break
        for line in stats:
            if line.startswith("\tbytes:"):
                words = line.split()
                return int(words[5]) + int(words[6])
    raise SystemExit(f"/proc/self/mountstats has no bytes of {mount}")


class Fio:
    """A fio on one server's file, which is stopped unless it is its turn."""

    def __init__(self, mount, server, kind, block_bytes, depth):
        self.mount, self.block_bytes = mount, block_bytes
        self.process = subprocess.Popen(
            ["fio", "--name=job", f"--filename={mount}/{server}/data", "--size=64m", "--direct=1"]
            + ["--ioengine=libaio", "--thread", "--time_based", "--runtime=10m", f"--rw={kind}"]
            + [f"--bs={block_bytes}", f"--iodepth={depth}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.begin()

    def begin(self):
        """Lets it begin, and end what it has begun, before its first turn."""
        before, deadline = bytes_of(self.mount), time.monotonic() + BEGIN_SECONDS
        while bytes_of(self.mount) == before and time.monotonic() < deadline:
            time.sleep(0.1)
        self.process.send_signal(signal.SIGSTOP)

    def turn(self, settle_seconds, seconds):
        """Operations a second."""
        self.process.send_signal(signal.SIGCONT)
        time.sleep(settle_seconds)
        start, before = time.monotonic(), bytes_of(self.mount)
        time.sleep(seconds)
        after, end = bytes_of(self.mount), time.monotonic()
        self.process.send_signal(signal.SIGSTOP)
        return (after - before) / self.block_bytes / (end - start)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.send_signal(signal.SIGCONT)
        return self.process.communicate()[0]


def data(row, kind, block_bytes, depth, mounts, order, options):
    turns, seconds, settle_seconds = options
    jobs = {}
    for server in order:
        jobs[server] = Fio(mounts[server], server, kind, block_bytes, depth)
    for _ in range(turns):
        told = {server: jobs[server].turn(settle_seconds, seconds) for server in order}
        tell(row, told)
    for server in order:
        said = jobs[server].end()
        if told[server] <= 0:
            raise SystemExit(f"{row} on {server} did nothing in its last turn:\n{said}")


def tell(row, told):
    print(row, *(f"{told[server]:.2f}" for server in SERVERS), flush=True)


def timed(count, work):
    start = time.monotonic()
    work()
    return count / (time.monotonic() - start)


def metadata(fs, mounts, order, wanted, turns):
    """Files are made, looked at and removed, and a directory is read that has just changed."""
    if not any(wanted(f"{fs}-{row}") for row in ("create", "stat", "unlink", "readdir-10k")):
        return
    for turn in range(turns + 1):
        told = {row: {} for row in ("create", "stat", "unlink", "readdir-10k")}
        for server in order:
            folder = f"{mounts[server]}/{server}"
            names = [f"{folder}/{turn}-{number}" for number in range(FILES)]

            def create():
                for name in names:
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

            def list_all():
                found = len(os.listdir(f"{mounts[server]}/many"))
                if found != ENTRIES:
                    raise SystemExit(f"{found} entries on {server}, expected {ENTRIES}")

            told["create"][server] = timed(FILES, create)
            told["stat"][server] = timed(FILES, lambda: [os.stat(name) for name in names])
            told["unlink"][server] = timed(FILES, lambda: [os.unlink(name) for name in names])
            # The client has to read all of it again.
            os.close(os.open(f"{mounts[server]}/many/new", os.O_CREAT | os.O_EXCL, 0o644))
            os.unlink(f"{mounts[server]}/many/new")
            told["readdir-10k"][server] = timed(1, list_all)
        # The first turn makes the servers and the client find what they keep.
        for row, of_row in told.items():
            if turn > 0 and wanted(f"{fs}-{row}"):
                tell(f"{fs}-{row}", of_row)


def main():
    folder, number, turns, seconds, settle_seconds, rows = sys.argv[1:]
    options = int(turns), float(seconds), float(settle_seconds)
    order = SERVERS if int(number) % 2 == 0 else SERVERS[::-1]

    def wanted(row):
        return fnmatch.fnmatch(row, rows)

    for fs in FILE_SYSTEMS:
        mounts = {server: f"{folder}/{server}-{fs}" for server in SERVERS}
        for name, kind, block_bytes, depth in DATA_ROWS:
            if wanted(f"{fs}-{name}"):
                data(f"{fs}-{name}", kind, block_bytes, depth, mounts, order, options)
        metadata(fs, mounts, order, wanted, options[0])


main()
