#!/usr/bin/env python3
"""Decode RoCEv2 (InfiniBand transport in UDP) from a pcap file and print a ladder, with NVMe over RDMA named on top.

    decode_roce.py FILE.pcap [--port 4420] [--connection N] [--hex BYTES]

Standard library only. The connection manager's messages tell which queue pairs belong together; packets are put together
to messages, invariant CRC, packet sequence numbers and lengths are checked, and every anomaly is printed as a line that
begins with "!!" (exit status 1). One line per message, as in the ladder of decode_iwarp.py; packets that came again, and
packets of connections whose beginning is not in the file, are counted at the end.

InfiniBand Architecture Specification 1.x: chapter 9 (BTH, RETH, AETH, IETH, DETH), chapter 12 (CM), annex A11 (private
data of RDMA IP CM), annex A17 (RoCEv2).
"""

import struct
import sys
import zlib
from dataclasses import dataclass, field

sys.dont_write_bytecode = True  # leave no cache in the source tree
from decode_iwarp import RDMAP_OPCODES, READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, WRITE, nvme_notes, read_packets
from ladders import address_text, argument_parser, print_all, run

ROCE_PORT = 4791
BTH_BYTES = 12
ICRC_BYTES = 4
LINK_BYTES = {1: 14, 101: 0, 113: 16, 276: 20}
RELIABLE, DATAGRAM_SEND = 0x00, 0x64
ACKNOWLEDGE = 0x11

# Opcode of a reliable connection: (message, whether it begins one, whether it ends one, extended
# headers).
PACKETS = {
    0x00: (SEND, True, False, ""), 0x01: (SEND, False, False, ""), 0x02: (SEND, False, True, ""),
    0x04: (SEND, True, True, ""),
    0x06: (WRITE, True, False, "RETH"), 0x07: (WRITE, False, False, ""), 0x08: (WRITE, False, True, ""),
    0x0A: (WRITE, True, True, "RETH"),
    0x0C: (READ_REQUEST, True, True, "RETH"),
    0x0D: (READ_RESPONSE, True, False, "AETH"), 0x0E: (READ_RESPONSE, False, False, ""),
    0x0F: (READ_RESPONSE, False, True, "AETH"), 0x10: (READ_RESPONSE, True, True, "AETH"),
    0x16: (SEND_INV, False, True, "IETH"), 0x17: (SEND_INV, True, True, "IETH"),
}
HEADER_BYTES = {"": 0, "RETH": 16, "AETH": 4, "IETH": 4}
CM_CLASS = 0x07
CM_MESSAGES = {0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP"}


@dataclass
class Packet:
    index: int
    time_s: float
    source: tuple
    destination: tuple
    opcode: int
    pad_bytes: int
    qp: int  # of the destination
    psn: int
    body: bytes  # behind the BTH, without padding and invariant CRC
    icrc_good: bool


def icrc(ip, transport):
    """Invariant CRC: what routers change counts as ones (annex A17)."""
    ip, transport = bytearray(ip), bytearray(transport)
    if ip[0] >> 4 == 4:
        ip[1] = ip[8] = ip[10] = ip[11] = 0xFF  # type of service, time to live, header checksum
    else:
        ip[0] |= 0x0F
        ip[1] = ip[2] = ip[3] = ip[7] = 0xFF  # traffic class, flow label, hop limit
    transport[6] = transport[7] = 0xFF  # UDP checksum
    transport[12] = 0xFF  # reserved byte of the BTH
    return struct.pack("<I", zlib.crc32(bytes(8 * b"\xff" + ip + transport)))


def packets_of(path):
    for index, time_s, link_type, data in read_packets(path):
        if link_type not in LINK_BYTES:
            raise SystemExit(f"{path}: link type {link_type} is not known")
        ip = data[LINK_BYTES[link_type]:]
        if ip[0] >> 4 == 4 and ip[9] == 17:
            header, addresses = (ip[0] & 15) * 4, (ip[12:16], ip[16:20])
        elif ip[0] >> 4 == 6 and ip[6] == 17:
            header, addresses = 40, (ip[8:24], ip[24:40])
        else:
            continue
        source_port, destination_port, length = struct.unpack(">HHH", ip[header:header + 6])
        if destination_port != ROCE_PORT:
            continue
        datagram = ip[header:header + length]
        bth = datagram[8:8 + BTH_BYTES]
        pad_bytes = bth[1] >> 4 & 3
        yield Packet(index, time_s, (addresses[0], source_port), (addresses[1], destination_port), bth[0], pad_bytes,
                     int.from_bytes(bth[5:8], "big"), int.from_bytes(bth[9:12], "big"),
                     bytes(datagram[8 + BTH_BYTES:len(datagram) - ICRC_BYTES - pad_bytes]),
                     icrc(ip[:header], datagram[:-ICRC_BYTES]) == datagram[-ICRC_BYTES:])


@dataclass
class Message:
    """A whole message; it answers to the names that decode_iwarp.py uses for one."""
    opcode: int
    from_active: bool
    psn: int
    order: int = 0
    time_s: float = 0.0
    payload: bytes = b""
    packets: int = 0
    stag: object = None  # RETH: the key; of a READ_RESPONSE: the request it answers
    address: int = 0
    read_bytes: int = 0
    invalidates: int = None

    @property
    def head(self):
        return self

    @property
    def fpdus(self):
        return [self]

    @property
    def source_stag(self):
        return self.stag

    @property
    def sink_stag(self):
        return self.psn

    def text(self):
        text = f"{RDMAP_OPCODES[self.opcode]} packets {self.packets} psn {self.psn} "
        if self.opcode == READ_REQUEST:
            return text + f"{self.read_bytes} bytes from key {self.stag:08x} address {self.address:x}"
        if self.opcode == WRITE:
            text += f"key {self.stag:08x} address {self.address:x} "
        text += f"payload {len(self.payload)}"
        return text + (f" invalidate {self.invalidates:08x}" if self.opcode == SEND_INV else "")


@dataclass
class CmMessage:
    order: int
    time_s: float
    from_active: bool
    text: str
    private: bytes


class Direction:
    """What one side sends: requests by its own sequence numbers, answers by those of the other side's READs."""

    def __init__(self, psn):
        self.psn = psn  # of the next request
        self.open = None
        self.answering = None  # READ_RESPONSE that is not over
        self.reads = {}  # psn -> the READ_REQUESTs without an answer


@dataclass
class Connection:
    number: int
    active: tuple
    passive: tuple
    qps: dict  # True: of the active side
    mtu_bytes: int
    request: CmMessage
    directions: dict = field(default_factory=dict)
    cm: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    problems: list = field(default_factory=list)
    acknowledges: list = field(default_factory=list)
    again: int = 0

    def add(self, packet, from_active):
        side = "active" if from_active else "passive"
        if not packet.icrc_good:
            self.problems.append(f"{side}: packet {packet.index} has a wrong invariant CRC")
        if packet.opcode == ACKNOWLEDGE:
            return self.acknowledge(packet, from_active)
        if packet.opcode not in PACKETS:
            self.problems.append(f"{side}: packet {packet.index} has opcode {packet.opcode:#04x}")
            return None
        opcode, begins, ends, extended = PACKETS[packet.opcode]
        header = packet.body[:HEADER_BYTES[extended]]
        payload = packet.body[HEADER_BYTES[extended]:]
        if not ends and len(payload) != self.mtu_bytes:
            self.problems.append(f"{side}: packet {packet.index} has {len(payload)} bytes, the MTU is {self.mtu_bytes}")
        if opcode == READ_RESPONSE:
            return self.answer(packet, from_active, begins, ends, payload)
        return self.ask(packet, from_active, (opcode, begins, ends), (extended, header), payload)

    def acknowledge(self, packet, from_active):
        syndrome = packet.body[0]
        kind = {0: "ACK", 1: "RNR_NAK", 3: "NAK"}.get(syndrome >> 5, "ACK?")
        if kind != "ACK":
            self.problems.append(f"{'active' if from_active else 'passive'}: {kind} {syndrome & 31} for psn {packet.psn}")
        self.acknowledges.append(CmMessage(packet.index, packet.time_s, from_active, f"{kind} psn {packet.psn}", b""))

    def ask(self, packet, from_active, kind, extended, payload):
        opcode, begins, ends = kind
        side, direction = "active" if from_active else "passive", self.directions[from_active]
        if packet.psn != direction.psn:
            if packet.psn - direction.psn & 0xFFFFFF < 0x800000:
                self.problems.append(f"{side}: packet {packet.index} has psn {packet.psn} instead of {direction.psn}")
            else:
                self.again += 1
            return
        if begins:
            direction.open = Message(opcode, from_active, packet.psn)
        message = direction.open
        if message is None:
            self.problems.append(f"{side}: packet {packet.index} goes on with a message that did not begin")
            return
        name, header = extended
        if name == "RETH":
            message.address, message.stag, message.read_bytes = struct.unpack(">QII", header)
        elif name == "IETH":
            message.opcode, message.invalidates = SEND_INV, int.from_bytes(header, "big")
        message.payload += payload
        message.packets += 1
        taken = 1
        if opcode == READ_REQUEST:
            # Its answer has these numbers.
            taken = max(1, -(-message.read_bytes // self.mtu_bytes))
            direction.reads[packet.psn] = message
        direction.psn = packet.psn + taken & 0xFFFFFF
        if ends:
            self.finish(packet, from_active)

    def finish(self, packet, from_active):
        direction = self.directions[from_active]
        message, direction.open = direction.open, None
        message.order, message.time_s = packet.index, packet.time_s
        self.messages.append(message)
        if message.opcode == WRITE and len(message.payload) != message.read_bytes:
            self.problems.append(f"RDMA WRITE of {message.read_bytes} bytes carries {len(message.payload)}")

    def answer(self, packet, from_active, begins, ends, payload):
        side, direction = "active" if from_active else "passive", self.directions[from_active]
        reads = self.directions[not from_active].reads
        if begins and packet.psn in reads:
            direction.answering = Message(READ_RESPONSE, from_active, packet.psn, stag=packet.psn)
        message = direction.answering
        if message is None or packet.psn != message.psn + message.packets & 0xFFFFFF:
            # A requester that lost an answer asks for the rest of it again.
            self.again += 1
            return
        message.payload += payload
        message.packets += 1
        if not ends:
            return
        message.order, message.time_s = packet.index, packet.time_s
        direction.answering = None
        asked = reads.pop(message.psn).read_bytes
        if len(message.payload) != asked:
            self.problems.append(f"{side}: READ_RESPONSE of {len(message.payload)} bytes, {asked} were asked for")
        self.messages.append(message)


class Capture:
    """The connections of a file, as the connection manager's messages made them."""

    def __init__(self, port):
        self.port = port
        self.connections = []
        self.requests = {}  # communication id of the active side -> (packet, its REQ)
        self.of_qp = {}  # address and queue pair -> (connection, whether it is the active side's)
        self.unknown = 0  # packets

    def add(self, packet):
        if packet.qp == 1:
            if packet.opcode == DATAGRAM_SEND:
                self.manage(packet, packet.body[8:])
            return
        connection, to_active = self.of_qp.get((packet.destination[0], packet.qp), (None, None))
        if connection is None:
            self.unknown += 1
            return
        connection.add(packet, not to_active)

    def manage(self, packet, mad):
        name = CM_MESSAGES.get(int.from_bytes(mad[16:18], "big"))
        if mad[1] != CM_CLASS or name is None:
            return
        message = mad[24:]
        local, remote = message[:4], message[4:8]
        if name == "REQ":
            # The service id of the RDMA IP CM ends with the port.
            if int.from_bytes(message[14:16], "big") == self.port:
                self.requests.setdefault(local, (packet, message))
            return
        if name == "REP" and remote in self.requests:
            return self.established(packet, message, self.requests.pop(remote))
        for connection in self.connections:
            if remote in connection.ids:
                connection.cm.append(CmMessage(packet.index, packet.time_s, remote == connection.ids[1], f"CM {name}", b""))
                return

    def established(self, reply_packet, reply, asked):
        request_packet, request = asked
        number = lambda field_: int.from_bytes(field_, "big")
        qps = {True: number(request[32:35]), False: number(reply[12:15])}
        # Behind the 36 bytes of the IP CM: what the program said.
        private = request[140 + 36:140 + 36 + 32]
        mtu_bytes = 128 << (request[50] >> 4)
        text = (f"CM REQ qp {qps[True]:#x} psn {number(request[44:47])} MTU {mtu_bytes} responder resources {request[35]} "
                f"initiator depth {request[39]}")
        asks = CmMessage(request_packet.index, request_packet.time_s, True, text, private)
        text = (f"CM REP qp {qps[False]:#x} psn {number(reply[20:23])} responder resources {reply[24]} "
                f"initiator depth {reply[25]}")
        connection = Connection(len(self.connections), request_packet.source, request_packet.destination, qps, mtu_bytes,
                                asks)
        connection.ids = (request[:4], reply[:4])
        # Each side says with which number the other one is to begin.
        connection.directions = {True: Direction(number(reply[20:23])), False: Direction(number(request[44:47]))}
        connection.cm = [asks, CmMessage(reply_packet.index, reply_packet.time_s, False, text, reply[36:36 + 32])]
        self.connections.append(connection)
        self.of_qp[connection.active[0], qps[True]] = (connection, True)
        self.of_qp[connection.passive[0], qps[False]] = (connection, False)


def ends(connection):
    active, passive = ((address[0], connection.qps[is_active])
                       for address, is_active in ((connection.active, True), (connection.passive, False)))
    return f"{address_text(active)} -> {address_text(passive)} (address and queue pair)"


def ladder(connection):
    """Lines of (packet, seconds, from the active side, text, bytes)."""
    notes = nvme_notes(connection)
    lines = [(message.order, message.time_s, message.from_active,
              message.text() + (f"  | {notes[id(message)]}" if id(message) in notes else ""), message.payload)
             for message in connection.messages]
    return lines + [(cm.order, cm.time_s, cm.from_active, cm.text, cm.private)
                    for cm in connection.cm + connection.acknowledges]


def main():
    arguments = argument_parser(__doc__, "port", "payload bytes of each message").parse_args()
    capture = Capture(arguments.port)
    for packet in packets_of(arguments.pcap):
        capture.add(packet)
    connections = capture.connections
    counted = (f"{sum(len(connection.messages) for connection in connections)} messages, "
               f"{sum(connection.again for connection in connections)} packets that came again, "
               f"{capture.unknown} packets of other queue pairs")
    return print_all(connections, arguments, ends, ladder, counted)


if __name__ == "__main__":
    run(main)
