#!/usr/bin/env python3
"""Extract golden bytes from a capture of NFS, over TCP or over RPC-over-RDMA over iWARP.

    extract_golden_nfs.py FILE.pcap OUTPUT_FOLDER --version 4.2 [--rdma] [--source "how it was captured"]
                          [--match REGULAR_EXPRESSION]

Over TCP writes OUTPUT_FOLDER/nfs/*.hex: RPC messages without record marks, calls and replies of the operation or
procedure in their name. With --rdma writes OUTPUT_FOLDER/rpcrdma/*.hex: private data, and Sends by the chunks they
name. Of messages with one name the first of each length is kept, up to VARIANTS. Exit status 1 when a stream ends
within a record, or a reply has no call. Standard library only.
"""

import argparse
import os
import struct
import sys

sys.dont_write_bytecode = True  # leave no cache in the source tree
from decode_iwarp import SEND, SEND_INV, SEND_SE, SEND_SE_INV, Connection, Stream, read_connections, tcp_segments
from extract_golden import Folder, where
from ladders import tcp_connections

VARIANTS = 3
NFS, MOUNT = 100003, 100005
# Operations of version 4 whose arguments are as long as a look at them says: what follows them is
# found.
FIXED = {10: 0, 15: None, 16: 0, 22: None, 24: 0, 31: 0, 32: 0, 53: 32, 3: 4, 5: 12, 9: None, 69: None, 72: None}
OPERATIONS = {3: "access", 4: "close", 5: "commit", 6: "create", 9: "getattr", 10: "getfh", 11: "link", 12: "lock",
              13: "lockt", 14: "locku", 15: "lookup", 16: "lookupp", 18: "open", 21: "open-downgrade", 22: "putfh",
              24: "putrootfh", 25: "read", 26: "readdir", 27: "readlink", 28: "remove", 29: "rename", 31: "restorefh",
              32: "savefh", 33: "secinfo", 34: "setattr", 38: "write", 40: "backchannel-ctl", 41: "bind-conn-to-session",
              42: "exchange-id", 43: "create-session", 44: "destroy-session", 45: "free-stateid", 52: "secinfo-no-name",
              53: "sequence", 55: "test-stateid", 57: "destroy-clientid", 58: "reclaim-complete", 8: "delegreturn",
              59: "allocate", 60: "copy", 62: "deallocate", 63: "io-advise", 68: "read-plus", 69: "seek", 71: "clone",
              72: "getxattr", 73: "setxattr", 74: "listxattrs", 75: "removexattr"}
V3 = ["null", "getattr", "setattr", "lookup", "access", "readlink", "read", "write", "create", "mkdir", "symlink", "mknod",
      "remove", "rmdir", "rename", "link", "readdir", "readdirplus", "fsstat", "fsinfo", "pathconf", "commit"]
MOUNT_PROCEDURES = ["null", "mnt", "dump", "umnt", "umntall", "export"]


def word(data, at):
    return struct.unpack(">I", data[at:at + 4])[0]


def opaque_end(data, at):
    """Behind opaque data whose count is at `at`."""
    return at + 4 + (word(data, at) + 3) // 4 * 4


def operations(data, at):
    """Names of the operations of a COMPOUND's arguments, up to the first whose length is not known here."""
    at = opaque_end(data, at) + 4
    count, at, names = word(data, at), at + 4, []
    for _ in range(count):
        number = word(data, at)
        names.append(OPERATIONS.get(number, f"op{number}"))
        at += 4
        if number in (15, 22, 72):
            at = opaque_end(data, at)
        elif number == 9:
            at += 4 + 4 * word(data, at)
        elif FIXED.get(number) is not None:
            at += FIXED[number]
        else:
            break
    return names


def name_of_call(data):
    """The name of a call's procedure, and None of one that is of no program here."""
    program, version, procedure = struct.unpack(">III", data[12:24])
    at = opaque_end(data, 28)  # behind the credentials
    at = opaque_end(data, at + 4)  # behind the verifier
    if program == MOUNT:
        return "mount-" + MOUNT_PROCEDURES[procedure]
    if program != NFS:
        return None
    if version == 3:
        return "v3-" + V3[procedure]
    if procedure == 0:
        return "v4-null"
    names = operations(data, at)
    # What nearly every COMPOUND begins with names none of them.
    telling = [name for name in names if name not in ("sequence", "putfh", "getfh", "savefh", "restorefh")]
    return "v4-" + "-".join(telling or names)


class Messages(Folder):
    """Golden files, of which VARIANTS of different lengths may have one name."""

    def __init__(self, path, options):
        super().__init__(path, options)
        self.lengths = {}

    def put(self, name, data, *comments):
        lengths = self.lengths.setdefault(name, [])
        if len(data) in lengths or len(lengths) == VARIANTS:
            return
        lengths.append(len(data))
        super().put(name + (f"-{len(lengths)}" if len(lengths) > 1 else ""), data, *comments)


class Records(Connection):
    """A TCP connection of RPC records."""

    def parse(self):
        self.records = []
        for from_active in (True, False):
            data, at, record = bytes(self.streams[from_active].data), 0, b""
            while at + 4 <= len(data):
                mark = word(data, at)
                end = at + 4 + (mark & 0x7FFFFFFF)
                if end > len(data):
                    break
                record += data[at + 4:end]
                at = end
                if mark >> 31:
                    self.records.append((*self.streams[from_active].arrival(end), from_active, record))
                    record = b""
            if at != len(data) or record:
                self.problems.append(f"connection {self.number}: the stream ends within a record")
        self.records.sort(key=lambda record: (record[0], not record[2]))


def extract_tcp(options):
    folder, problems = Messages(os.path.join(options.output, "nfs"), options), []
    for port in (2049, 20048):
        connections = tcp_connections(tcp_segments(options.pcap, port), port, lambda number, active, passive: Records(
            number, active, passive, {True: Stream(), False: Stream()}))
        for connection in connections:
            calls = {}
            for order, _, from_active, record in connection.records:
                xid, kind = struct.unpack(">II", record[:8])
                # Calls of the back channel go the other way.
                if kind == 0 and from_active:
                    calls[xid] = name_of_call(record)
                elif kind == 0:
                    continue
                elif xid not in calls:
                    if not from_active:
                        problems.append(f"connection {connection.number}: a reply without a call, packet {order}")
                    continue
                name = calls[xid]
                if name is None:
                    continue
                version = options.version.replace(".", "")
                side = "client" if kind == 0 else "server"
                folder.put(f"{'call' if kind == 0 else 'reply'}-{name.replace('v4-', f'v{version}-')}", record,
                           f"from the {side}; port {port}, connection {connection.number}, packet {order}")
            problems += connection.problems
    return folder, problems


def chunks_of(data):
    """What chunks an RPC-over-RDMA message names, in words, and the RPC message behind them."""
    at, reads, words = 16, [], []
    while word(data, at):
        reads.append(word(data, at + 4))
        at += 24
    at += 4
    for position in sorted(set(reads)):
        words.append(f"read-{'at-0' if position == 0 else 'chunk'}-of-{reads.count(position)}")
    while word(data, at):
        segments = word(data, at + 4)
        words.append(f"write-chunk-of-{segments}")
        at += 8 + 16 * segments
    at += 4
    if word(data, at):
        segments = word(data, at + 4)
        words.append(f"reply-chunk-of-{segments}")
        at += 4 + 16 * segments
    return "-".join(words) or "plain", data[at + 4:]


def extract_rdma(options):
    folder, problems = Messages(os.path.join(options.output, "rpcrdma"), options), []
    connections = read_connections(options.pcap, 20049)
    for connection in connections:
        for frame, side in ((connection.request, "client"), (connection.reply, "server")):
            folder.put(f"private-linux-{side}", frame.private, where(connection, frame))
        calls = {}
        for message in connection.messages:
            if message.opcode not in (SEND, SEND_INV, SEND_SE, SEND_SE_INV):
                continue
            data, from_active = message.payload, message.from_active
            xid, procedure = word(data, 0), word(data, 12)
            if procedure > 1:
                folder.put(f"error-linux-{procedure}", data, where(connection, message))
                continue
            chunks, rpc = chunks_of(data)
            kind = "call" if from_active else "reply"
            # A call or a reply of the back channel.
            if procedure == 0 and word(rpc, 4) != (0 if from_active else 1):
                continue
            if procedure == 1:
                chunks = "nomsg-" + chunks
            version = options.version.replace(".", "")
            folder.put(f"{kind}-linux-v{version}-{chunks}", data, where(connection, message))
            calls[xid] = True
        problems += connection.problems
    if not connections:
        problems.append("there is no connection")
    return folder, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pcap")
    parser.add_argument("output")
    parser.add_argument("--version", required=True, help="of NFS: 4.2, 4.1 or 3")
    parser.add_argument("--rdma", action="store_true", help="RPC-over-RDMA over iWARP instead of TCP")
    parser.add_argument("--source", default="", help="a comment line that every file gets")
    parser.add_argument("--match", default="", metavar="REGEX", help="only files whose name matches")
    options = parser.parse_args()
    options.keep, options.suffix = False, ""
    folder, problems = (extract_rdma if options.rdma else extract_tcp)(options)
    print(f"{folder.path}: {len(folder.names)} files")
    for name in sorted(folder.names):
        print(f"  {name}.hex")
    for problem in problems:
        print(f"!! {problem}")
    return 1 if problems or not folder.names else 0


if __name__ == "__main__":
    sys.exit(main())
