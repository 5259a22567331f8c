#!/usr/bin/env python3
"""Writes and reads back 4 KiB of a disk, one after another, for some seconds, and says what the
longest time between two that were done was:

    io_gap.py DISK SECONDS

Prints `gap_ms N` and `done N`; exit status 1 when one fails or reads something else.
"""
import mmap
import os
import sys
import time

BYTES = 4096
PLACES = 256

disk, seconds = sys.argv[1], float(sys.argv[2])
file = os.open(disk, os.O_RDWR | os.O_DIRECT)
# Direct I/O needs aligned memory, which a mapping is.
out, back = mmap.mmap(-1, BYTES), mmap.mmap(-1, BYTES)
start = last = time.monotonic()
longest, done = 0.0, 0
while last - start < seconds:
    place = done % PLACES * BYTES
    out[:8] = done.to_bytes(8, "little")
    out[8:16] = place.to_bytes(8, "little")
    if os.pwritev(file, [out], place) != BYTES or os.preadv(file, [back], place) != BYTES:
        sys.exit(f"a short write or read at {place}")
    if back[:16] != out[:16]:
        sys.exit(f"read something else at {place} than write {done} has written")
    now = time.monotonic()
    longest, last, done = max(longest, now - last), now, done + 1
print(f"gap_ms {longest * 1000:.0f}\ndone {done}")
