#!/usr/bin/env python3
"""Decode NVMe/TCP from a pcap file and print a ladder, with the commands named.

    decode_tcp.py FILE.pcap [--port 4420] [--connection N] [--hex BYTES]
    decode_tcp.py --self-test [FOLDER]    PDUs of Linux's host and target, from their golden bytes

Standard library only. TCP streams are put together again and PDUs are cut from them; lengths, digests, the range of data
and what must come before what is checked, and every anomaly is printed as a line that begins with "!!" (exit status 1).
One line per PDU, as in the ladder of decode_iwarp.py.

NVM Express TCP Transport Specification 1.1, section 3.6 (PDUs), 3.3 (data transfer), 3.4.1 (digests).
"""

import os
import struct
import sys
from dataclasses import dataclass, field

sys.dont_write_bytecode = True  # leave no cache in the source tree
from decode_iwarp import Command, Stream, TcpSegment, crc32c, tcp_segments
from ladders import argument_parser, closes, print_all, run, tcp_connections, tcp_ends

ICREQ, ICRESP, H2C_TERM_REQ, C2H_TERM_REQ, CAPSULE_CMD, CAPSULE_RESP, H2C_DATA, C2H_DATA, R2T = 0, 1, 2, 3, 4, 5, 6, 7, 9
# Name, whether the host sends it, and bytes of its header (HLEN).
PDUS = {ICREQ: ("ICREQ", True, 128), ICRESP: ("ICRESP", False, 128), H2C_TERM_REQ: ("H2C_TERM_REQ", True, 24),
        C2H_TERM_REQ: ("C2H_TERM_REQ", False, 24), CAPSULE_CMD: ("CAPSULE_CMD", True, 72),
        CAPSULE_RESP: ("CAPSULE_RESP", False, 24), H2C_DATA: ("H2C_DATA", True, 24), C2H_DATA: ("C2H_DATA", False, 24),
        R2T: ("R2T", False, 24)}
WITH_DATA = (CAPSULE_CMD, H2C_DATA, C2H_DATA)
UNSIGNED = (ICREQ, ICRESP, H2C_TERM_REQ, C2H_TERM_REQ)  # never with a digest
HDGSTF, DDGSTF, LAST, SUCCESS = 1, 2, 4, 8
DISABLE_SQ_FLOW_CONTROL = 4  # of CATTR
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../nvme-proto/tests/tcp/golden")


@dataclass
class Pdu:
    raw: bytes
    from_active: bool
    order: int
    time_s: float
    note: str = ""

    def __post_init__(self):
        self.type, self.flags, self.header_bytes, self.data_at, self.bytes = struct.unpack("<BBBBI", self.raw[:8])
        end = len(self.raw) - 4 if self.flags & DDGSTF else len(self.raw)
        has_data = self.type in WITH_DATA and self.data_at
        self.data = self.raw[self.data_at:end] if has_data else b""

    @property
    def name(self):
        return PDUS[self.type][0]

    @property
    def cid(self):
        at = {CAPSULE_CMD: 10, CAPSULE_RESP: 20}.get(self.type, 8)
        return struct.unpack("<H", self.raw[at:at + 2])[0]

    @property
    def tag(self):
        return struct.unpack("<H", self.raw[10:12])[0]

    @property
    def range(self):
        """Offset and length of the data that a PDU of data, or R2T, is about."""
        return struct.unpack("<II", self.raw[12:20])

    def text(self):
        text = f"{self.name} pdu {len(self.raw)}"
        if self.type in (ICREQ, ICRESP):
            version, alignment, digests, limit = struct.unpack("<HBBI", self.raw[8:16])
            alignment = f"{'HPDA' if self.type == ICREQ else 'CPDA'} {alignment}"
            limit = f"{'MAXR2T' if self.type == ICREQ else 'MAXH2CDATA'} {limit}"
            return text + f" PFV {version} {alignment} digests {digests} {limit}"
        if self.type in (H2C_TERM_REQ, C2H_TERM_REQ):
            status, information = struct.unpack("<HI", self.raw[8:14])
            return text + f" FES {status:#04x} FEI {information:#x}"
        if self.type == CAPSULE_CMD:
            return text + f" payload {64 + len(self.data)}"
        if self.type == CAPSULE_RESP:
            return text + " payload 16"
        offset, length = self.range
        if self.type == R2T:
            return text + f" asks {length} at {offset} ttag {self.tag}"
        text += f" payload {len(self.data)} at {offset}"
        if self.type == H2C_DATA:
            text += f" ttag {self.tag}"
        return text + "".join(f" {name}" for name, bit in (("LAST", LAST), ("SUCCESS", SUCCESS)) if self.flags & bit)


@dataclass
class Connection:
    number: int
    active: tuple
    passive: tuple
    streams: dict = field(default_factory=lambda: {True: Stream(), False: Stream()})  # True: from the active side
    closes: list = field(default_factory=list)  # (packet index, seconds, from active, "FIN" or "RST")
    pdus: list = field(default_factory=list)
    commands: list = field(default_factory=list)
    problems: list = field(default_factory=list)
    queue_id: int = 0
    flow_control: bool = True
    digests: int = 0

    def parse(self):
        for from_active in (True, False):
            self.cut(from_active)
        self.pdus.sort(key=lambda pdu: (pdu.order, not pdu.from_active))
        self.follow()

    def problem(self, pdu, words):
        self.problems.append(f"{pdu.name} at packet {pdu.order}: {words}")

    def cut(self, from_active):
        stream, at = self.streams[from_active], 0
        side = "active" if from_active else "passive"
        while at < len(stream.data):
            head = stream.data[at:at + 8]
            length = struct.unpack("<I", head[4:8])[0] if len(head) == 8 else 0
            if length < 8 or head[0] not in PDUS:
                self.problems.append(f"{side}: no PDU at stream offset {at} but {bytes(head).hex()}")
                return
            end = at + length
            if end > len(stream.data):
                self.problems.append(f"{side}: {len(stream.data) - at} bytes of an unfinished PDU at the end")
                return
            pdu = Pdu(bytes(stream.data[at:end]), from_active, *stream.arrival(end))
            self.check(pdu)
            self.pdus.append(pdu)
            at = end

    def check(self, pdu):
        """What each PDU has to have, whatever came before it."""
        name, from_host, header_bytes = PDUS[pdu.type]
        if pdu.from_active != from_host:
            self.problem(pdu, "from the wrong side")
        if pdu.header_bytes != header_bytes:
            self.problem(pdu, f"HLEN {pdu.header_bytes} instead of {header_bytes}")
        header_end = header_bytes
        if pdu.flags & HDGSTF:
            header_end += 4
            if crc32c(pdu.raw[:header_bytes]) != pdu.raw[header_bytes:header_end]:
                self.problem(pdu, f"header digest {pdu.raw[header_bytes:header_end].hex()}")
        if pdu.flags & DDGSTF and crc32c(pdu.data) != pdu.raw[-4:]:
            self.problem(pdu, f"data digest {pdu.raw[-4:].hex()} instead of {crc32c(pdu.data).hex()}")
        if pdu.type in WITH_DATA and pdu.data_at and pdu.data_at < header_end:
            self.problem(pdu, f"PDO {pdu.data_at} inside of the header")
        if not pdu.data and pdu.type not in (H2C_TERM_REQ, C2H_TERM_REQ) and len(pdu.raw) != header_end:
            self.problem(pdu, f"PLEN {len(pdu.raw)} instead of {header_end}")
        if pdu.type in (H2C_DATA, C2H_DATA) and pdu.range[1] != len(pdu.data):
            self.problem(pdu, f"DATAL {pdu.range[1]} with {len(pdu.data)} bytes of data")

    def follow(self):
        """What came before what: the set-up, and the data and response of each command."""
        open_commands, asked = {}, {}
        for at, pdu in enumerate(self.pdus):
            first = {0: ICREQ, 1: ICRESP}.get(at)
            if first is not None and pdu.type != first:
                self.problem(pdu, f"instead of {PDUS[first][0]}")
            if pdu.type == ICRESP:
                self.digests = pdu.raw[11]
            if pdu.type not in UNSIGNED:
                has = bool(pdu.flags & HDGSTF) + 2 * bool(pdu.flags & DDGSTF)
                wanted = self.digests & (3 if pdu.data else 1)
                if has != wanted:
                    self.problem(pdu, f"digests {has} instead of {wanted}")
            if pdu.type == CAPSULE_CMD:
                self.capsule(pdu, open_commands)
            elif pdu.type not in UNSIGNED:
                command = open_commands.get(pdu.cid)
                if command is None:
                    self.problem(pdu, f"no command has the CID {pdu.cid:#06x}")
                    continue
                self.step(pdu, command, asked)
                if command.cqe:
                    del open_commands[pdu.cid]
                    if len(command.pulled) != command.asked_bytes:
                        self.problem(pdu, f"{len(command.pulled)} of {command.asked_bytes} bytes came of what was asked for")

    def capsule(self, pdu, open_commands):
        sqe = pdu.raw[8:72]
        if sqe[0] == 0x7F and sqe[4] == 1:
            self.queue_id = struct.unpack("<H", sqe[42:44])[0]
            self.flow_control = not sqe[46] & DISABLE_SQ_FLOW_CONTROL
        command = Command(self, self.queue_id, sqe, pdu.data, pdu)
        command.asked_bytes = 0
        if command.cid in open_commands:
            self.problem(pdu, f"the CID {command.cid:#06x} is outstanding")
        open_commands[command.cid] = command
        self.commands.append(command)
        pdu.note = command.text()

    def step(self, pdu, command, asked):
        """Data of a command, an R2T for it, or its response."""
        if pdu.type == R2T:
            offset, length = pdu.range
            if offset != command.asked_bytes:
                self.problem(pdu, f"R2TO {offset} instead of {command.asked_bytes}")
            if pdu.tag in asked:
                self.problem(pdu, f"TTAG {pdu.tag} is outstanding")
            command.asked_bytes = offset + length
            asked[pdu.tag] = (command, offset, offset + length)
        elif pdu.type == H2C_DATA:
            of, at, end = asked.get(pdu.tag, (None, 0, 0))
            offset, length = pdu.range
            if of is not command or offset != at or offset + length > end:
                self.problem(pdu, f"bytes {offset} to {offset + length} of TTAG {pdu.tag} instead of {at} to {end}")
            if bool(pdu.flags & LAST) != (offset + length == end):
                self.problem(pdu, f"LAST_PDU {bool(pdu.flags & LAST)} at {offset + length} of {end}")
            command.pulled += pdu.data
            if offset + length < end:
                asked[pdu.tag] = (command, offset + length, end)
            else:
                asked.pop(pdu.tag, None)
        elif pdu.type == C2H_DATA:
            offset, _ = pdu.range
            if offset != len(command.pushed):
                self.problem(pdu, f"DATAO {offset} instead of {len(command.pushed)}")
            command.pushed += pdu.data
            if pdu.flags & SUCCESS:
                if self.flow_control or not pdu.flags & LAST:
                    self.problem(pdu, f"SUCCESS with LAST_PDU {bool(pdu.flags & LAST)}, SQ flow control {self.flow_control}")
                command.cqe = struct.pack("<QHHHH", 0, 0xFFFF, 0, command.cid, 0)
                pdu.note = f"completes cid {command.cid:#06x} {command.name()}"
        else:
            command.cqe = pdu.raw[8:24]
            sq_head = struct.unpack("<H", command.cqe[8:10])[0]
            pdu.note = (f"completes cid {command.cid:#06x} {command.name()} status {command.status:#06x} "
                        f"dw0 {command.cqe[:4].hex()} dw1 {command.cqe[4:8].hex()} sqhd {sq_head}")


def read_connections(path, port):
    return tcp_connections(tcp_segments(path, port), port, Connection)


def ladder(connection):
    """Lines of (packet, seconds, from the active side, text, bytes)."""
    lines = []
    for pdu in connection.pdus:
        text = pdu.text() + (f"  | {pdu.note}" if pdu.note else "")
        lines.append((pdu.order, pdu.time_s, pdu.from_active, text, pdu.data))
    return sorted(lines + closes(connection), key=lambda line: line[0])


# ----------------------------------------------------------------------------------------------
# self-test

def golden(folder, name):
    with open(os.path.join(folder, name + ".hex"), encoding="ascii") as file:
        return bytes.fromhex("".join(line for line in file if not line.startswith("#")))


def connection_of(pdus):
    """A connection whose packets are these PDUs, as they are."""
    ends = ((b"\x0a\x00\x00\x01", 50000), (b"\x0a\x00\x00\x02", 4420))
    connection, sequences = Connection(0, *ends), {True: 1, False: 1}
    for index, pdu in enumerate(pdus):
        from_host = PDUS.get(pdu[0], PDUS[CAPSULE_CMD])[1]
        source, destination = ends if from_host else ends[::-1]
        connection.streams[from_host].add(
            TcpSegment(index, index / 1000, source, destination, sequences[from_host], 0x18, pdu))
        sequences[from_host] += len(pdu)
    connection.parse()
    return connection


def with_byte(pdu, at, value):
    return pdu[:at] + bytes([value]) + pdu[at + 1:]


def association(folder, combination):
    """What a queue of Linux has sent and got, one command after the other."""
    names = ["icreq", "icresp", "capsule-cmd-connect-admin", "capsule-resp-connect-admin", "capsule-cmd-property-get-cap",
             "capsule-resp-property-get-cap", "capsule-cmd-write-incapsule", "capsule-resp-write-incapsule",
             "capsule-cmd-write-r2t", "r2t-write-r2t", "h2c-data-write-r2t", "capsule-resp-write-r2t",
             "capsule-cmd-read", "c2h-data-read", "capsule-cmd-flush", "capsule-resp-flush"]
    return [golden(folder, f"{name}-{combination}") for name in names]


STEPS = """-> ICREQ
<- ICRESP
-> CAPSULE_CMD payload 1088
<- CAPSULE_RESP payload 16
-> CAPSULE_CMD payload 64
<- CAPSULE_RESP payload 16
-> CAPSULE_CMD payload 4160
<- CAPSULE_RESP payload 16
-> CAPSULE_CMD payload 64
<- R2T asks 8192
-> H2C_DATA payload 8192
<- CAPSULE_RESP payload 16
-> CAPSULE_CMD payload 64
<- C2H_DATA payload 4096
-> CAPSULE_CMD payload 64
<- CAPSULE_RESP payload 16"""


def self_test(folder):
    """Failures in words."""
    failures = []

    def expect(what, is_so):
        if not is_so:
            failures.append(what)

    for combination in ("none", "hdgst", "ddgst", "hdgst-ddgst"):
        pdus = association(folder, combination)
        connection = connection_of(pdus)
        expect(f"{combination}: {connection.problems}", not connection.problems)
        steps = []
        for _, _, from_active, text, _ in ladder(connection):
            words = text.split()
            kept = words[3:5] if len(words) > 3 and words[3] in ("payload", "asks") else []
            steps.append(" ".join(["->" if from_active else "<-", words[0], *kept]))
        expect(f"{combination}: {steps}", "\n".join(steps) == STEPS)
        expect(f"{combination}: a read is complete with SUCCESS", connection.commands[4].status == 0)
        # Each of these is found: what is wrong, which PDU, and its bytes.
        wrong = [
            ("HLEN", 4, with_byte(pdus[4], 2, 71)),
            ("no PDU", 4, with_byte(pdus[4], 0, 8)),
            ("no command has the CID", 5, with_byte(pdus[5], 20, 0x7E)),
            ("R2TO 1 instead", 9, with_byte(pdus[9], 12, 1)),
            ("TTAG", 10, with_byte(pdus[10], 10, pdus[10][10] ^ 1)),
            ("LAST_PDU False", 10, with_byte(pdus[10], 1, pdus[10][1] & ~LAST)),
            ("DATAO 1 instead", 13, with_byte(pdus[13], 12, 1)),
            ("DATAL", 13, with_byte(pdus[13], 16, 1)),
            ("SUCCESS with LAST_PDU False", 13, with_byte(pdus[13], 1, pdus[13][1] & ~LAST)),
            ("SQ flow control True", 2, with_byte(pdus[2], 8 + 46, 0)),
            ("instead of ICREQ", 0, pdus[4]),
            ("unfinished", 15, pdus[15][:-1]),
        ]
        if "hdgst" in combination:
            wrong.append(("header digest", 5, with_byte(pdus[5], 24, pdus[5][24] ^ 1)))
        if "ddgst" in combination:
            wrong.append(("data digest", 13, with_byte(pdus[13], 100, pdus[13][100] ^ 1)))
        for words, at, pdu in wrong:
            problems = connection_of(pdus[:at] + [pdu] + pdus[at + 1:]).problems
            expect(f"{combination}: {words}: {problems}", any(words in problem for problem in problems))
        # A response stands behind the data where SQ flow control is in use.
        if combination == "none":
            data, response = (golden(folder, f"{name}-read-flow-control") for name in ("c2h-data", "capsule-resp"))
            cid = pdus[12][10:12]
            read = [data[:8] + cid + data[10:], response[:20] + cid + response[22:]]
            problems = connection_of(pdus[:13] + read + pdus[14:]).problems
            expect(f"data and a response: {problems}", not problems)
    return failures


def main():
    parser = argument_parser(__doc__, "TCP port", "bytes of the data of each PDU", nargs="?")
    parser.add_argument("--self-test", nargs="?", const=GOLDEN, metavar="FOLDER", help="decode golden bytes instead")
    arguments = parser.parse_args()
    if arguments.self_test:
        failures = self_test(arguments.self_test)
        for failure in failures:
            print(f"!! {failure}")
        return 1 if failures else 0
    if not arguments.pcap:
        parser.error("no FILE.pcap")
    connections = read_connections(arguments.pcap, arguments.port)
    pdus = sum(len(connection.pdus) for connection in connections)
    return print_all(connections, arguments, tcp_ends, ladder, f"{pdus} PDUs")


if __name__ == "__main__":
    run(main)
