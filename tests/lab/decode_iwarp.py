#!/usr/bin/env python3
"""Decode iWARP (MPA, DDP, RDMAP) from a pcap file and print a ladder, with NVMe over RDMA named on top.

    decode_iwarp.py FILE.pcap [--port 4420] [--connection N] [--hex BYTES]

Standard library only. TCP streams are put together again, MPA frames and FPDUs are cut from them, lengths, CRC32c and
message sequence numbers are checked, and every anomaly is printed as a line that begins with "!!" (exit status 1).

RFC 5044 (MPA), RFC 6581 (MPA revision 2), RFC 5041 (DDP), RFC 5040 (RDMAP); NVMe over RDMA: NVMe RDMA Transport 1.x.
"""

import struct
import sys
from dataclasses import dataclass, field

sys.dont_write_bytecode = True  # leave no cache in the source tree
from ladders import argument_parser, closes, print_all, run, tcp_connections, tcp_ends

RDMAP_OPCODES = ["RDMA_WRITE", "READ_REQUEST", "READ_RESPONSE", "SEND", "SEND_INV", "SEND_SE", "SEND_SE_INV",
                 "TERMINATE"]
WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, SEND_SE, SEND_SE_INV, TERMINATE = range(8)
TAGGED = (WRITE, READ_RESPONSE)
MPA_KEYS = {b"MPA ID Req Frame": "request", b"MPA ID Rep Frame": "reply"}
MPA_HEADER_BYTES = 20

CRC_TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = (_n >> 1) ^ (0x82F63B78 if _n & 1 else 0)
    CRC_TABLE.append(_n)


def crc32c(data):
    """CRC32c of the bytes, as the four bytes that stand on the wire (RFC 5044 section 4.4: the order of RFC 3720)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


# ----------------------------------------------------------------------------------------------
# pcap and TCP

@dataclass
class TcpSegment:
    index: int  # number of the packet in the file
    time_s: float
    source: tuple
    destination: tuple
    sequence: int
    flags: int
    payload: bytes


def read_packets(path):
    """Yields (index, seconds, link type, bytes) of each packet of a classic pcap file."""
    with open(path, "rb") as file:
        header = file.read(24)
        magic = header[:4]
        orders = {b"\xd4\xc3\xb2\xa1": ("<", 1e-6), b"\xa1\xb2\xc3\xd4": (">", 1e-6),
                  b"\x4d\x3c\xb2\xa1": ("<", 1e-9), b"\xa1\xb2\x3c\x4d": (">", 1e-9)}
        if magic not in orders:
            raise SystemExit(f"{path}: not a classic pcap file (magic {magic.hex()}); capture with tcpdump -w")
        order, unit_s = orders[magic]
        link_type = struct.unpack(order + "I", header[20:24])[0] & 0xFFFF
        index = 0
        while len(record := file.read(16)) == 16:
            seconds, fraction, captured, original = struct.unpack(order + "IIII", record)
            data = file.read(captured)
            if len(data) < captured:
                break
            if captured < original:
                raise SystemExit(f"{path}: packet {index} is cut ({captured} of {original} bytes); use -s 0")
            yield index, seconds + fraction * unit_s, link_type, data
            index += 1


def tcp_segments(path, port):
    link_bytes = {1: 14, 101: 0, 113: 16, 276: 20}
    for index, time_s, link_type, data in read_packets(path):
        if link_type not in link_bytes:
            raise SystemExit(f"{path}: link type {link_type} is not known")
        ip = data[link_bytes[link_type]:]
        version = ip[0] >> 4
        if version == 4:
            if ip[9] != 6:
                continue
            total = struct.unpack(">H", ip[2:4])[0] or len(ip)  # 0: larger than 64 KiB (BIG TCP)
            tcp = ip[(ip[0] & 15) * 4:total]
            addresses = ip[12:16], ip[16:20]
        elif version == 6 and ip[6] == 6:
            tcp = ip[40:40 + (struct.unpack(">H", ip[4:6])[0] or len(ip))]
            addresses = ip[8:24], ip[24:40]
        else:
            continue
        source_port, destination_port, sequence = struct.unpack(">HHI", tcp[:8])
        if port not in (source_port, destination_port):
            continue
        yield TcpSegment(index, time_s, (addresses[0], source_port), (addresses[1], destination_port), sequence,
                         tcp[13], bytes(tcp[(tcp[12] >> 4) * 4:]))


class Stream:
    """One direction of a TCP connection: bytes in order, and which packet brought each of them."""

    def __init__(self):
        self.data = bytearray()
        self.arrivals = []  # (stream offset behind the segment, packet index, seconds)
        self.base = None
        self.waiting = {}
        self.retransmitted = 0

    def add(self, segment):
        if segment.flags & 2:
            self.base = (segment.sequence + 1) & 0xFFFFFFFF
            return
        if self.base is None:
            self.base = segment.sequence
        if not segment.payload:
            return
        # Offsets relative to the end of what we have, modulo 2^32.
        ahead = (segment.sequence - self.base - len(self.data)) & 0xFFFFFFFF
        if ahead >= 0x80000000:
            ahead -= 0x100000000
        if ahead > 0:
            self.waiting[segment.sequence] = segment
            return
        fresh = segment.payload[-ahead:] if ahead else segment.payload
        if not fresh:
            self.retransmitted += 1
            return
        self.data += fresh
        self.arrivals.append((len(self.data), segment.index, segment.time_s))
        self.drain()

    def drain(self):
        progress = True
        while progress:
            progress = False
            for sequence, segment in list(self.waiting.items()):
                ahead = (sequence - self.base - len(self.data)) & 0xFFFFFFFF
                if ahead == 0 or ahead >= 0x80000000:
                    del self.waiting[sequence]
                    self.add(segment)
                    progress = True

    def arrival(self, end_offset):
        """(packet index, seconds) of the packet that brought the byte before end_offset."""
        low, high = 0, len(self.arrivals) - 1
        while low < high:
            middle = (low + high) // 2
            if self.arrivals[middle][0] >= end_offset:
                high = middle
            else:
                low = middle + 1
        return self.arrivals[low][1:]


# ----------------------------------------------------------------------------------------------
# MPA, DDP, RDMAP

@dataclass
class MpaFrame:
    """An MPA request or reply (RFC 5044 figure 9, RFC 6581 figure 2)."""
    raw: bytes
    from_active: bool
    order: int
    time_s: float

    def __post_init__(self):
        self.kind = MPA_KEYS.get(self.raw[:16])
        self.bits, self.private_bytes = struct.unpack(">HH", self.raw[16:20])
        self.revision = self.bits & 0xFF
        self.markers, self.crc, self.reject, self.enhanced = (bool(self.bits & b) for b in
                                                              (0x8000, 0x4000, 0x2000, 0x1000))
        self.private = self.raw[20:]
        self.control = None
        if self.enhanced and self.revision == 2 and len(self.private) >= 4:
            self.control = struct.unpack(">HH", self.private[:4])
            self.private = self.private[4:]

    def text(self):
        flags = "".join(name for name, on in (("M", self.markers), ("C", self.crc), ("R", self.reject),
                                              ("S", self.enhanced)) if on) or "-"
        text = f"MPA {self.kind} rev {self.revision} flags {flags} private {self.private_bytes}"
        if self.control:
            ird, ord_ = self.control
            rtr = "".join(n for n, on in (("A", ird & 0x8000), ("B", ird & 0x4000), ("C", ord_ & 0x8000),
                                          ("D", ord_ & 0x4000)) if on) or "-"
            text += f" [IRD {ird & 0x3FFF} ORD {ord_ & 0x3FFF} RTR {rtr}]"
        return text


@dataclass
class Fpdu:
    raw: bytes
    from_active: bool
    order: int
    time_s: float
    crc_state: str  # "ok", "bad", "zero", "unchecked"

    def __post_init__(self):
        self.ulpdu_bytes, control = struct.unpack(">HH", self.raw[:4])
        self.tagged, self.last = bool(control & 0x8000), bool(control & 0x4000)
        self.ddp_version, self.rdmap_version, self.opcode = (control >> 8) & 3, (control >> 6) & 3, control & 15
        self.header_bytes = {READ_REQUEST: 48, TERMINATE: 24}.get(self.opcode, 16 if self.tagged else 20)
        self.payload = self.raw[self.header_bytes:2 + self.ulpdu_bytes]
        if self.tagged:
            self.stag, self.offset = struct.unpack(">IQ", self.raw[4:16])
        else:
            self.ulp_word, self.queue, self.msn, self.offset = struct.unpack(">IIII", self.raw[4:20])
        if self.opcode == READ_REQUEST:
            (self.sink_stag, self.sink_offset, self.read_bytes, self.source_stag,
             self.source_offset) = struct.unpack(">IQIIQ", self.raw[20:48])
        if self.opcode == TERMINATE:
            self.terminate_control = self.raw[20:24]
            self.terminated_header = self.raw[24:2 + self.ulpdu_bytes]

    def text(self):
        name = RDMAP_OPCODES[self.opcode] if self.opcode < 8 else f"opcode {self.opcode}"
        text = f"{name} fpdu {len(self.raw)} "
        if self.tagged:
            text += f"STag {self.stag:08x} TO {self.offset:x} payload {len(self.payload)}"
        elif self.opcode == READ_REQUEST:
            text += (f"msn {self.msn} {self.read_bytes} bytes from STag {self.source_stag:08x} TO "
                     f"{self.source_offset:x} to STag {self.sink_stag:08x} TO {self.sink_offset:x}")
        elif self.opcode == TERMINATE:
            # RFC 5040 section 4.8 puts the layer in the high half of the first byte; siw on
            # little-endian machines puts it in the low half, so both readings are shown.
            control = self.terminate_control
            text += (f"control {control.hex()} (code {control[1]:#04x}; layer {control[0] >> 4} type {control[0] & 15} "
                     f"by RFC 5040, layer {control[0] & 15} type {control[0] >> 4} from siw) "
                     f"header {self.terminated_header.hex() or '-'}")
        else:
            text += f"qn {self.queue} msn {self.msn} mo {self.offset} payload {len(self.payload)}"
            if self.opcode in (SEND_INV, SEND_SE_INV):
                text += f" invalidate {self.ulp_word:08x}"
        return text + ("" if self.last else " (more)") + (f" crc {self.crc_state}" if self.crc_state != "zero" else "")


@dataclass
class Message:
    """A whole RDMAP message: its FPDUs and its payload put together."""
    fpdus: list
    payload: bytes = b""

    @property
    def head(self):
        return self.fpdus[0]

    @property
    def opcode(self):
        return self.head.opcode

    @property
    def from_active(self):
        return self.head.from_active

    @property
    def order(self):
        return self.fpdus[-1].order


@dataclass
class Connection:
    number: int
    active: tuple
    passive: tuple
    streams: dict = field(default_factory=dict)  # True: from the active side
    closes: list = field(default_factory=list)  # (packet index, seconds, from active, "FIN" or "RST")
    request: MpaFrame = None
    reply: MpaFrame = None
    fpdus: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    problems: list = field(default_factory=list)

    def parse(self):
        crc = self.parse_mpa()
        if self.reply and not self.reply.reject:
            for from_active in (True, False):
                self.parse_fpdus(from_active, crc)
        self.fpdus.sort(key=lambda fpdu: (fpdu.order, not fpdu.from_active))
        self.build_messages()

    def parse_mpa(self):
        frames = []
        for from_active in (True, False):
            data = self.streams[from_active].data
            if len(data) < MPA_HEADER_BYTES:
                return False
            end = MPA_HEADER_BYTES + struct.unpack(">H", data[18:20])[0]
            if bytes(data[:16]) not in MPA_KEYS:
                self.problems.append(f"no MPA key but {bytes(data[:16])!r}")
                return False
            frames.append(MpaFrame(bytes(data[:end]), from_active, *self.streams[from_active].arrival(end)))
        self.request, self.reply = frames
        if self.request.kind != "request" or self.reply.kind != "reply":
            self.problems.append("MPA keys of the wrong kind")
        return self.request.crc or self.reply.crc

    def parse_fpdus(self, from_active, crc):
        stream = self.streams[from_active]
        position = len((self.request if from_active else self.reply).raw)
        side = "active" if from_active else "passive"
        while position + 2 <= len(stream.data):
            ulpdu_bytes = struct.unpack(">H", stream.data[position:position + 2])[0]
            covered = (2 + ulpdu_bytes + 3) & ~3
            end = position + covered + 4
            if ulpdu_bytes < 14:
                self.problems.append(f"{side}: ULPDU length {ulpdu_bytes} at stream offset {position}")
                return
            if end > len(stream.data):
                self.problems.append(f"{side}: {len(stream.data) - position} bytes of an unfinished FPDU at the end")
                return
            raw = bytes(stream.data[position:end])
            state = "zero"
            if crc:
                state = "ok" if crc32c(raw[:-4]) == raw[-4:] else "bad"
                if state == "bad":
                    self.problems.append(f"{side}: CRC {raw[-4:].hex()} instead of {crc32c(raw[:-4]).hex()}")
            elif raw[-4:] != b"\0\0\0\0":
                state = "unchecked"
            self.fpdus.append(Fpdu(raw, from_active, *stream.arrival(end), state))
            position = end

    def build_messages(self):
        open_messages, next_msn = {}, {}
        for fpdu in self.fpdus:
            side = "active" if fpdu.from_active else "passive"
            if (fpdu.ddp_version, fpdu.rdmap_version) != (1, 1):
                self.problems.append(f"{side}: DDP version {fpdu.ddp_version}, RDMAP version {fpdu.rdmap_version}")
            if fpdu.tagged != (fpdu.opcode in TAGGED):
                self.problems.append(f"{side}: T bit {fpdu.tagged} with opcode {fpdu.opcode}")
            key = (fpdu.from_active, fpdu.tagged)
            message = open_messages.pop(key, None)
            if message is None:
                message = Message([fpdu])
                if not fpdu.tagged:
                    expected = next_msn.get((fpdu.from_active, fpdu.queue), 1)
                    if fpdu.msn != expected:
                        self.problems.append(f"{side}: queue {fpdu.queue} MSN {fpdu.msn} instead of {expected}")
                    next_msn[fpdu.from_active, fpdu.queue] = fpdu.msn + 1
            else:
                expected = len(message.payload) + (message.head.offset if fpdu.tagged else 0)
                if fpdu.offset != expected or fpdu.opcode != message.opcode:
                    self.problems.append(f"{side}: segment at {fpdu.offset:x} instead of {expected:x}, "
                                         f"opcode {fpdu.opcode} in a message of opcode {message.opcode}")
                message.fpdus.append(fpdu)
            message.payload += fpdu.payload
            if fpdu.last:
                self.messages.append(message)
            else:
                open_messages[key] = message


def read_connections(path, port):
    def connection_of(number, active, passive):
        return Connection(number, active, passive, {True: Stream(), False: Stream()})

    return tcp_connections(tcp_segments(path, port), port, connection_of)


# ----------------------------------------------------------------------------------------------
# NVMe over RDMA

ADMIN_OPCODES = {0x02: "Get Log Page", 0x06: "Identify", 0x08: "Abort", 0x09: "Set Features", 0x0A: "Get Features",
                 0x0C: "Async Event Request", 0x18: "Keep Alive"}
IO_OPCODES = {0x00: "Flush", 0x01: "Write", 0x02: "Read", 0x04: "Write Uncorrectable", 0x05: "Compare",
              0x08: "Write Zeroes", 0x09: "Dataset Management", 0x0C: "Verify", 0x0E: "Reservation Report"}
FABRICS_TYPES = {0x00: "Property Set", 0x01: "Connect", 0x04: "Property Get", 0x05: "Authentication Send",
                 0x06: "Authentication Receive", 0x08: "Disconnect"}


@dataclass
class Command:
    """One NVMe command over RDMA: capsule, what was pulled or pushed, and the completion."""
    connection: Connection
    queue_id: int
    sqe: bytes
    in_capsule: bytes
    capsule: Message
    pulled: bytes = b""  # host memory the controller read by RDMA READ
    pushed: bytes = b""  # what the controller wrote by RDMA WRITE
    pushes: list = field(default_factory=list)
    pulls: list = field(default_factory=list)
    cqe: bytes = b""
    response: Message = None

    @property
    def opcode(self):
        return self.sqe[0]

    @property
    def cid(self):
        return struct.unpack("<H", self.sqe[2:4])[0]

    @property
    def nsid(self):
        return struct.unpack("<I", self.sqe[4:8])[0]

    @property
    def key(self):
        return struct.unpack("<I", self.sqe[35:39])[0]

    def dword(self, number):
        return struct.unpack("<I", self.sqe[number * 4:number * 4 + 4])[0]

    @property
    def fabrics_type(self):
        return self.sqe[4] if self.opcode == 0x7F else None

    @property
    def status(self):
        """Status Field of the completion without the phase tag: SC bits 7:0, SCT 10:8, DNR 14; None while open."""
        return struct.unpack("<H", self.cqe[14:16])[0] >> 1 if self.cqe else None

    @property
    def data(self):
        return self.in_capsule or self.pulled or self.pushed

    def name(self):
        if self.opcode == 0x7F:
            return FABRICS_TYPES.get(self.fabrics_type, f"fabrics {self.fabrics_type:#x}")
        names = IO_OPCODES if self.queue_id else ADMIN_OPCODES
        return names.get(self.opcode, f"opcode {self.opcode:#x}")

    def text(self):
        text = f"qid {self.queue_id} cid {self.cid:#06x} {self.name()}"
        if self.opcode == 0x7F:
            if self.fabrics_type in (0x00, 0x04):
                text += f" offset {self.dword(11):#x} attrib {self.sqe[40]}"
                if self.fabrics_type == 0:
                    text += f" value {struct.unpack('<Q', self.sqe[48:56])[0]:#x}"
        else:
            text += f" nsid {self.nsid:#x} cdw10 {self.dword(10):#x} cdw11 {self.dword(11):#x} cdw12 {self.dword(12):#x}"
        return text + f" SGL {self.sqe[39]:#04x}"


def nvme_commands(connection):
    """The commands of a connection, in the order their capsules were sent. Empty when it is not NVMe over RDMA."""
    if not connection.request or len(connection.request.private) != 32:
        return []
    queue_id = struct.unpack("<H", connection.request.private[2:4])[0]
    commands, by_cid, by_key, by_sink = [], {}, {}, {}
    for message in connection.messages:
        if message.from_active and message.opcode == SEND and len(message.payload) >= 64:
            command = Command(connection, queue_id, message.payload[:64], message.payload[64:], message)
            commands.append(command)
            by_cid[command.cid] = command
            if command.sqe[39] & 0xF0 == 0x40 and command.key:
                by_key[command.key] = command
        elif not message.from_active and message.opcode == WRITE and message.head.stag in by_key:
            command = by_key[message.head.stag]
            command.pushed += message.payload
            command.pushes.append(message)
        elif not message.from_active and message.opcode == READ_REQUEST and message.head.source_stag in by_key:
            by_sink[message.head.sink_stag] = by_key[message.head.source_stag]
            by_key[message.head.source_stag].pulls.append(message)
        elif message.from_active and message.opcode == READ_RESPONSE and message.head.stag in by_sink:
            command = by_sink[message.head.stag]
            command.pulled += message.payload
            command.pulls.append(message)
        elif not message.from_active and message.opcode in (SEND, SEND_INV) and len(message.payload) == 16:
            command = by_cid.pop(struct.unpack("<H", message.payload[12:14])[0], None)
            if command:
                command.cqe, command.response = message.payload, message
            else:
                connection.problems.append(f"completion without a command: {message.payload.hex()}")
    return commands


# ----------------------------------------------------------------------------------------------
# ladder

def nvme_notes(connection):
    """What the capsules of a connection say, by the id of the last FPDU of each."""
    notes = {}
    for command in nvme_commands(connection):
        notes[id(command.capsule.fpdus[-1])] = command.text()
        if command.response:
            sq_head = struct.unpack("<H", command.cqe[8:10])[0]
            notes[id(command.response.fpdus[-1])] = (f"completes cid {command.cid:#06x} {command.name()} status "
                                                     f"{command.status:#06x} dw0 {command.cqe[:4].hex()} "
                                                     f"dw1 {command.cqe[4:8].hex()} sqhd {sq_head}")
    return notes


def ladder(connection):
    """Lines of (packet, seconds, from the active side, text, bytes)."""
    lines = []
    for frame in (connection.request, connection.reply):
        if frame:
            lines.append((frame.order, frame.time_s, frame.from_active, frame.text(), frame.private))
    notes = nvme_notes(connection)
    for fpdu in connection.fpdus:
        text = fpdu.text() + (f"  | {notes[id(fpdu)]}" if id(fpdu) in notes else "")
        lines.append((fpdu.order, fpdu.time_s, fpdu.from_active, text, fpdu.payload))
    return lines + closes(connection)


def main():
    arguments = argument_parser(__doc__, "TCP port", "payload bytes of each FPDU").parse_args()
    connections = read_connections(arguments.pcap, arguments.port)
    fpdus = sum(len(connection.fpdus) for connection in connections)
    return print_all(connections, arguments, tcp_ends, ladder, f"{fpdus} FPDUs")


if __name__ == "__main__":
    run(main)
