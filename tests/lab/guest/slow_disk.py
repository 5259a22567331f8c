#!/usr/bin/env python3
"""A disk of 64 MiB in memory, /dev/nbd0, that can keep a write back: what a medium does that hangs for a while.

    slow_disk.py FOLDER

While FOLDER/hold exists, the next write takes the seconds that it says; the file goes as the write comes. Writes that come after it
pass it. FOLDER/log tells what happens: "ready", "held OFFSET", "landed OFFSET". Ends at SIGTERM.
"""

import fcntl
import os
import signal
import socket
import struct
import sys
import threading

SIZE_BYTES = 64 << 20
BLOCK_BYTES = 512
# include/uapi/linux/nbd.h
SET_SOCK, SET_BLKSIZE, DO_IT, CLEAR_SOCK, SET_SIZE_BLOCKS, DISCONNECT, SET_FLAGS = (
    0xAB00, 0xAB01, 0xAB03, 0xAB04, 0xAB07, 0xAB08, 0xAB0A)
FLAGS_OF_DEVICE = 0x1 | 0x4 | 0x8  # has flags, takes Flush, takes FUA
REQUEST = struct.Struct(">IIQQI")
REPLY = struct.Struct(">IIQ")
REQUEST_MAGIC, REPLY_MAGIC = 0x25609513, 0x67446698
READ, WRITE, END, FLUSH = 0, 1, 2, 3
EINVAL = 22


class Disk:
    def __init__(self, folder, stream):
        self.folder = folder
        self.stream = stream
        self.bytes = bytearray(SIZE_BYTES)
        self.lock = threading.Lock()

    def say(self, words):
        with open(os.path.join(self.folder, "log"), "a", encoding="ascii") as log:
            log.write(words + "\n")

    def receive(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.stream.recv(count - len(data))
            if not piece:
                sys.exit("the kernel has closed the connection")
            data += piece
        return bytes(data)

    def answer(self, handle, error=0, data=b""):
        with self.lock:
            self.stream.sendall(REPLY.pack(REPLY_MAGIC, error, handle) + data)

    def held_s(self):
        path = os.path.join(self.folder, "hold")
        try:
            with open(path, encoding="ascii") as hold:
                seconds = float(hold.read())
            os.unlink(path)
        except FileNotFoundError:
            return None
        return seconds

    def land(self, handle, offset, data):
        self.bytes[offset:offset + len(data)] = data
        self.answer(handle)

    def land_late(self, handle, offset, data):
        self.land(handle, offset, data)
        self.say(f"landed {offset}")

    def serve(self):
        while True:
            magic, kind, handle, offset, length = REQUEST.unpack(self.receive(REQUEST.size))
            if magic != REQUEST_MAGIC:
                sys.exit(f"a request begins with {magic:#x}")
            kind &= 0xFFFF
            if kind == END:
                # The kernel waits for the end of the connection.
                return self.stream.shutdown(socket.SHUT_RDWR)
            if kind == READ:
                self.answer(handle, data=bytes(self.bytes[offset:offset + length]))
            elif kind == WRITE:
                data = self.receive(length)
                seconds = self.held_s()
                if seconds is None:
                    self.land(handle, offset, data)
                else:
                    self.say(f"held {offset}")
                    threading.Timer(seconds, self.land_late, (handle, offset, data)).start()
            else:
                # A flush covers what was answered: that is in memory.
                self.answer(handle, 0 if kind == FLUSH else EINVAL)


def main():
    ours, kernels = socket.socketpair()
    device = os.open("/dev/nbd0", os.O_RDWR)
    fcntl.ioctl(device, CLEAR_SOCK)
    fcntl.ioctl(device, SET_BLKSIZE, BLOCK_BYTES)
    fcntl.ioctl(device, SET_SIZE_BLOCKS, SIZE_BYTES // BLOCK_BYTES)
    fcntl.ioctl(device, SET_FLAGS, FLAGS_OF_DEVICE)
    fcntl.ioctl(device, SET_SOCK, kernels.fileno())
    disk = Disk(sys.argv[1], ours)
    threading.Thread(target=disk.serve, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: fcntl.ioctl(device, DISCONNECT))
    # Waits until the device is disconnected.
    kernel = threading.Thread(target=fcntl.ioctl, args=(device, DO_IT))
    kernel.start()
    disk.say("ready")
    while kernel.is_alive():
        kernel.join(0.2)
    fcntl.ioctl(device, CLEAR_SOCK)


main()
