#!/usr/bin/env python3
"""Extract golden bytes from a capture of NVMe/TCP.

    extract_golden_tcp.py FILE.pcap OUTPUT_FOLDER --suffix=-none [--source "how it was captured"] [--match REGULAR_EXPRESSION]

Writes OUTPUT_FOLDER/tcp/*.hex: one PDU each, the first of the capture that fits its name, in the form of
extract_golden.py. The names written are printed. Exit status 1 when a PDU's digest is wrong or a stream ends within one.
Standard library only.
"""

import argparse
import os
import struct
import sys

sys.dont_write_bytecode = True  # leave no cache in the source tree
from decode_iwarp import Command, Stream, crc32c, tcp_segments
from extract_golden import Folder, command_name, status_suffix

PDU_NAMES = {0: "icreq", 1: "icresp", 2: "h2c-term-req", 3: "c2h-term-req", 4: "capsule-cmd", 5: "capsule-resp",
             6: "h2c-data", 7: "c2h-data", 9: "r2t"}
# What is kept besides the setup: by the name of the command.
COMMANDS = ("connect-admin", "property-get-cap", "get-log-discovery-records", "read", "write-incapsule", "write-r2t", "flush")
# Reads of the block layer come first, of a disk that holds nothing; the one to keep starts at this
# LBA.
READ_LBA = 128


class Connection:
    """Both directions of one TCP connection, and the commands whose capsules were seen."""

    def __init__(self, number):
        self.number, self.streams, self.commands, self.queue_id = number, {True: Stream(), False: Stream()}, {}, 0
        self.problems = []

    def pdus(self):
        """(from the host, PDU, packet) in the order in which they were complete."""
        found = []
        for from_host, stream in self.streams.items():
            data, at = bytes(stream.data), 0
            while at < len(data):
                length = struct.unpack("<I", data[at + 4:at + 8])[0] if at + 8 <= len(data) else 0
                if length < 8 or at + length > len(data):
                    self.problems.append(f"connection {self.number}: the stream ends within a PDU")
                    break
                at += length
                packet = next(index for end, index, _ in stream.arrivals if end >= at)
                found.append((packet, from_host, data[at - length:at]))
        return [(from_host, pdu, packet) for packet, from_host, pdu in sorted(found, key=lambda pdu: pdu[0])]

    def check_digests(self, pdu):
        flags, header_bytes, data_at = pdu[1:4]
        if flags & 1 and crc32c(pdu[:header_bytes]) != pdu[header_bytes:header_bytes + 4]:
            self.problems.append(f"connection {self.number}: header digest of {pdu[:8].hex()}")
        if flags & 2 and crc32c(pdu[data_at:-4]) != pdu[-4:]:
            self.problems.append(f"connection {self.number}: data digest of {pdu[:8].hex()}")

    def name(self, pdu):
        """The name of a PDU, and what command it belongs to."""
        kind = PDU_NAMES.get(pdu[0], f"type-{pdu[0]:02x}")
        if pdu[0] < 4:
            return kind, None
        if pdu[0] == 4:
            sqe, data = pdu[8:72], pdu[pdu[3]:] if pdu[3] else b""
            if pdu[1] & 2 and data:
                data = data[:-4]
            if sqe[0] == 0x7F and sqe[4] == 1:
                self.queue_id = struct.unpack("<H", sqe[42:44])[0]
            command = Command(self, self.queue_id, sqe, data, None)
            self.commands[command.cid] = command
        elif pdu[0] == 5:
            command = self.commands.pop(struct.unpack("<H", pdu[20:22])[0])
            command.cqe = pdu[8:24]
        else:
            command = self.commands[struct.unpack("<H", pdu[8:10])[0]]
        name = command_name(command)[0].replace("write-keyed", "write-r2t")
        return f"{kind}-{name}{status_suffix(command)}", command


def read_connections(path, port):
    connections, by_ends = [], {}
    for segment in tcp_segments(path, port):
        from_host = segment.destination[1] == port
        ends = (segment.source, segment.destination) if from_host else (segment.destination, segment.source)
        if ends not in by_ends:
            by_ends[ends] = Connection(len(connections))
            connections.append(by_ends[ends])
        by_ends[ends].streams[from_host].add(segment)
    return connections


def wanted(name, command):
    if name == "read":
        return command.dword(10) == READ_LBA
    return name.startswith(COMMANDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pcap")
    parser.add_argument("output")
    parser.add_argument("--source", default="", help="a comment line that every file gets")
    parser.add_argument("--port", type=int, default=4420)
    parser.add_argument("--suffix", default="", help="put at the end of every name, before .hex")
    parser.add_argument("--match", default="", metavar="REGEX", help="only files whose name matches")
    options = parser.parse_args()
    options.keep = False
    folder = Folder(os.path.join(options.output, "tcp"), options)
    connections = read_connections(options.pcap, options.port)
    for connection in connections:
        for from_host, pdu, packet in connection.pdus():
            connection.check_digests(pdu)
            name, command = connection.name(pdu)
            if command and not wanted(name.split("-", 1 if pdu[0] == 9 else 2)[-1], command):
                continue
            side = "host" if from_host else "controller"
            folder.put(name, pdu, command.text() if command else "",
                       f"from the {side}; connection {connection.number}, packet {packet}")
    print(f"{folder.path}: {len(folder.names)} files")
    for name in sorted(folder.names):
        print(f"  {name}.hex")
    problems = [problem for connection in connections for problem in connection.problems]
    for problem in problems:
        print(f"!! {problem}")
    return 1 if problems or not connections else 0


if __name__ == "__main__":
    sys.exit(main())
