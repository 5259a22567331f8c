#!/usr/bin/env python3
"""A minimal user-space iWARP peer that asks the kernel's siw how it behaves, one connection per question.

    probe_siw.py ADDRESS PORT HOSTNQN SUBNQN [QUESTION…]

It connects to an NVMe over RDMA target (nvmet-rdma over siw) on an ordinary TCP socket, speaks MPA, DDP and RDMAP by
hand, right and wrong on purpose, and prints what came back. Standard library only. The answers are documented in the
lab's README; a difference on another kernel is worth knowing, so nothing here asserts siw's mistakes.
"""

import socket
import struct
import sys
import time
import uuid

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, SEND_SE, SEND_SE_INV, TERMINATE = range(8)
MARKERS, CRC, REJECT, ENHANCED = 0x8000, 0x4000, 0x2000, 0x1000

TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = (_n >> 1) ^ (0x82F63B78 if _n & 1 else 0)
    TABLE.append(_n)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def nvme_private(queue_id=0, record_format=0, receive=32, send=31, controller_id=0):
    return struct.pack("<HHHHH", record_format, queue_id, receive, send, controller_id) + bytes(22)


class Closed(Exception):
    """The peer closed the connection."""


class Peer:
    """One TCP connection to the target."""

    def __init__(self, address, port):
        self.socket = socket.create_connection((address, port), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.crc = False
        self.next_msn = {0: 1, 1: 1, 2: 1}
        self.next_cid = 0
        self.memory = {}  # STag: bytearray, offsets from 0

    def receive(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                raise Closed("RST") from None
            except TimeoutError:
                raise Closed(f"silence (timeout) after {len(data)} bytes") from None
            if not more:
                raise Closed("FIN" + (f" after {len(data)} bytes" if data else ""))
            data += more
        return data

    def mpa(self, private, revision=2, flags=ENHANCED, control=(4, 0), key=b"MPA ID Req Frame"):
        """Sends the request; returns (bits, control words or None, private data) of the reply."""
        if control is not None and revision == 2 and flags & ENHANCED:
            private = struct.pack(">HH", *control) + private
        self.socket.sendall(key + struct.pack(">HH", flags | revision, len(private)) + private)
        return self.mpa_reply()

    def mpa_reply(self):
        header = self.receive(20)
        bits, count = struct.unpack(">HH", header[16:])
        if header[:16] != b"MPA ID Rep Frame":
            raise Closed(f"not an MPA reply: {header.hex()}")
        private = self.receive(count)
        self.crc = bool(bits & CRC)
        if bits & ENHANCED and len(private) >= 4:
            return bits, struct.unpack(">HH", private[:4]), private[4:]
        return bits, None, private

    def fpdu(self, body, spoil_crc=False):
        """Length, padding and CRC around a ULPDU."""
        frame = struct.pack(">H", len(body)) + body
        frame += bytes(-len(frame) % 4)
        tail = crc32c(frame) if self.crc else bytes(4)
        if spoil_crc:
            tail = bytes(byte ^ 0xFF for byte in tail)
        return frame + tail

    def untagged(self, opcode, payload=b"", queue=0, msn=None, offset=0, word=0, last=True, versions=0x0140):
        if msn is None:
            msn = self.next_msn[queue]
            if last:
                self.next_msn[queue] += 1
        return struct.pack(">HIIII", (0x4000 if last else 0) | versions | opcode, word, queue, msn, offset) + payload

    def tagged(self, opcode, stag, offset, payload=b"", last=True):
        return struct.pack(">HIQ", 0x8000 | (0x4000 if last else 0) | 0x0140 | opcode, stag, offset) + payload

    def send_fpdu(self, body, **options):
        self.socket.sendall(self.fpdu(body, **options))

    def read_fpdu(self):
        """(opcode, raw FPDU) of the next one."""
        length = self.receive(2)
        ulpdu_bytes = struct.unpack(">H", length)[0]
        rest = self.receive(((2 + ulpdu_bytes + 3) & ~3) - 2 + 4)
        raw = length + rest
        if self.crc and crc32c(raw[:-4]) != raw[-4:]:
            print(f"   CRC of siw is wrong: {raw[-4:].hex()} instead of {crc32c(raw[:-4]).hex()}")
        return raw[3] & 15, raw

    # -- NVMe

    def capsule(self, opcode, fabrics_type=None, nsid=0, sgl=None, dwords=None, in_capsule=b""):
        sqe = bytearray(64)
        sqe[0], sqe[1] = opcode, 0x40
        struct.pack_into("<H", sqe, 2, self.next_cid)
        self.next_cid += 1
        struct.pack_into("<I", sqe, 4, nsid if fabrics_type is None else fabrics_type)
        sqe[24:40] = sgl or bytes(15) + b"\x40"
        for number, value in (dwords or {}).items():
            struct.pack_into("<I", sqe, number * 4, value)
        return bytes(sqe) + in_capsule

    def keyed(self, stag, count, invalidate=False):
        return struct.pack("<Q", 0) + count.to_bytes(3, "little") + struct.pack("<I", stag) + \
            (b"\x4f" if invalidate else b"\x40")

    def serve(self, fpdu_bytes=16384):
        """Answers READ REQUESTs and takes WRITEs until a completion comes; returns (opcode, CQE, key)."""
        while True:
            opcode, raw = self.read_fpdu()
            if opcode == READ_REQUEST:
                sink, sink_to, count, source, source_to = struct.unpack(">IQIIQ", raw[20:48])
                data = bytes(self.memory[source][source_to:source_to + count])
                position = 0
                while True:
                    part = data[position:position + fpdu_bytes]
                    last = position + len(part) >= len(data)
                    self.send_fpdu(self.tagged(READ_RESPONSE, sink, sink_to + position, part, last))
                    position += len(part)
                    if last:
                        break
            elif opcode == WRITE:
                stag, offset = struct.unpack(">IQ", raw[4:16])
                payload = raw[16:2 + struct.unpack(">H", raw[:2])[0]]
                self.memory[stag][offset:offset + len(payload)] = payload
            elif opcode in (SEND, SEND_INV):
                return opcode, raw[20:36], struct.unpack(">I", raw[4:8])[0]
            else:
                raise Closed(describe(raw))

    def connect(self, host, subsystem, queue_id=0, controller_id=0xFFFF, entries=32, **options):
        """Fabrics Connect with its data pulled by RDMA READ; returns the controller identifier."""
        data = bytearray(1024)
        data[0:16] = HOST_IDENTIFIER.bytes
        struct.pack_into("<H", data, 16, controller_id)
        data[256:256 + len(subsystem)] = subsystem.encode()
        data[512:512 + len(host)] = host.encode()
        self.memory[0x1001] = data
        self.send_fpdu(self.untagged(SEND, self.capsule(
            0x7F, 1, sgl=self.keyed(0x1001, 1024), dwords={10: queue_id << 16, 11: entries - 1})), **options)
        _, cqe, _ = self.serve()
        status = struct.unpack("<H", cqe[14:16])[0] >> 1
        if status:
            raise Closed(f"Connect status {status:#x}")
        return struct.unpack("<H", cqe[0:2])[0]

    def property_get(self, offset, size_is_8):
        self.send_fpdu(self.untagged(SEND, self.capsule(0x7F, 4, dwords={10: size_is_8, 11: offset})))
        return struct.unpack("<Q", self.serve()[1][:8])[0]

    def enable(self):
        sqe = bytearray(self.capsule(0x7F, 0, dwords={11: 0x14}))
        struct.pack_into("<Q", sqe, 48, 0x460001)
        self.send_fpdu(self.untagged(SEND, bytes(sqe)))
        return self.serve()

    def last_words(self):
        """Whatever the peer still says until it closes."""
        heard = []
        try:
            while True:
                heard.append(describe(self.read_fpdu()[1]))
        except Closed as reason:
            heard.append(str(reason))
        return "; ".join(heard)


def describe(raw):
    opcode = raw[3] & 15
    if opcode == TERMINATE:
        ulpdu_bytes = struct.unpack(">H", raw[:2])[0]
        return (f"TERMINATE layer {raw[20] >> 4} type {raw[20] & 15} code {raw[21]:#04x} flags {raw[22] >> 5:03b} "
                f"header {raw[24:2 + ulpdu_bytes].hex()}")
    return f"FPDU opcode {opcode} of {len(raw)} bytes"


HOST_IDENTIFIER = uuid.UUID("6f0c1c1e-2b5a-4c0e-9d3f-0a1b2c3d4eff")
QUESTIONS = []


def question(function):
    QUESTIONS.append(function)
    return function


def bits_text(bits):
    return f"rev {bits & 0xFF} flags {''.join(n for n, b in zip('MCRS', (MARKERS, CRC, REJECT, ENHANCED)) if bits & b)}"


# -- MPA: what it accepts and answers

def mpa_question(name, **options):
    def ask(new, host, subsystem):
        del host, subsystem
        peer = new()
        private = options.pop("private", nvme_private())
        bits, control, data = peer.mpa(private, **options)
        words = f" IRD {control[0]:#06x} ORD {control[1]:#06x}" if control else ""
        print(f"   reply {bits_text(bits)}{words} private {data.hex() or '-'}")
        if bits & REJECT:
            print(f"   then {peer.last_words()}")
    ask.__name__ = name
    QUESTIONS.append(ask)


mpa_question("mpa_v1", revision=1, flags=0)
mpa_question("mpa_v1_crc", revision=1, flags=CRC)
mpa_question("mpa_v0", revision=0, flags=0)
mpa_question("mpa_v2_not_enhanced", flags=0)
mpa_question("mpa_v2_ird_0", control=(0, 0))
mpa_question("mpa_v2_ird_255_ord_200", control=(255, 200))
mpa_question("mpa_v2_ird_max", control=(0x3FFF, 0x3FFF))
mpa_question("mpa_v2_crc", flags=ENHANCED | CRC)
mpa_question("mpa_v2_markers", flags=ENHANCED | MARKERS)
mpa_question("mpa_v2_reserved_flags", flags=ENHANCED | 0x0F00)
mpa_question("mpa_v3", revision=3)
mpa_question("mpa_wrong_key", key=b"MPA ID Req Fram\0")
mpa_question("mpa_v2_short_control", control=None, private=b"\0\4")
mpa_question("mpa_private_data_257", control=None, private=bytes(257))
mpa_question("mpa_p2p_none", control=(0x8004, 0x0001))
mpa_question("mpa_p2p_send", control=(0xC004, 0x0001))
mpa_question("mpa_p2p_read", control=(0x8004, 0x4001))
mpa_question("mpa_p2p_write", control=(0x8004, 0x8001))
mpa_question("mpa_p2p_both", control=(0x8004, 0xC001))
mpa_question("nvme_private_short", private=bytes(16))
mpa_question("nvme_private_none", private=b"")
mpa_question("nvme_record_format_1", private=nvme_private(record_format=1))
mpa_question("nvme_admin_hsqsize_100", private=nvme_private(send=100))
mpa_question("nvme_hsqsize_0_hrqsize_0", private=nvme_private(send=0, receive=0))
mpa_question("nvme_record_format_1_mpa_v1", private=nvme_private(record_format=1), revision=1, flags=0)


@question
def silence_after_tcp_connect(new, host, subsystem):
    peer = new()
    start_s = time.monotonic()
    peer.socket.settimeout(20)
    try:
        peer.receive(1)
    except Closed as reason:
        print(f"   {reason} after {time.monotonic() - start_s:.1f} s")


@question
def request_in_two_segments(new, host, subsystem):
    peer = new()
    frame = b"MPA ID Req Frame" + struct.pack(">HH", ENHANCED | 2, 36) + struct.pack(">HH", 4, 0) + nvme_private()
    for piece in (frame[:10], frame[10:20], frame[20:30], frame[30:]):
        peer.socket.sendall(piece)
        time.sleep(0.2)
    print(f"   reply {bits_text(peer.mpa_reply()[0])}")


@question
def fpdu_right_behind_the_request(new, host, subsystem):
    peer = new()
    frame = b"MPA ID Req Frame" + struct.pack(">HH", ENHANCED | 2, 36) + struct.pack(">HH", 4, 0) + nvme_private()
    peer.socket.sendall(frame + peer.fpdu(peer.untagged(SEND, peer.capsule(0x7F, 4))))
    print(f"   reply {bits_text(peer.mpa_reply()[0])}")


# -- a whole NVMe connect

def connected(new, host, subsystem, flags=ENHANCED, revision=2, control=(4, 0)):
    peer = new()
    bits, _, _ = peer.mpa(nvme_private(), flags=flags, revision=revision, control=control)
    print(f"   reply {bits_text(bits)}")
    controller_id = peer.connect(host, subsystem)
    print(f"   connected, controller {controller_id}, VS {peer.property_get(8, 0):#x}")
    return peer, controller_id


@question
def connect_v2(new, host, subsystem):
    connected(new, host, subsystem)


@question
def connect_v2_crc(new, host, subsystem):
    connected(new, host, subsystem, flags=ENHANCED | CRC)


@question
def connect_v1(new, host, subsystem):
    connected(new, host, subsystem, flags=0, revision=1)


@question
def connect_v2_ird_0(new, host, subsystem):
    connected(new, host, subsystem, control=(0, 0))


@question
def connect_after_rtr_write(new, host, subsystem):
    peer = new()
    peer.mpa(nvme_private(), control=(0x8004, 0xC001))
    peer.send_fpdu(peer.tagged(WRITE, 1, 0))
    print(f"   connected, controller {peer.connect(host, subsystem)}")


@question
def connect_after_rtr_read(new, host, subsystem):
    peer = new()
    peer.mpa(nvme_private(), control=(0x8004, 0x4001))
    peer.send_fpdu(peer.untagged(READ_REQUEST, struct.pack(">IQIIQ", 1, 0, 0, 1, 0), queue=1))
    print(f"   RTR answered by {describe(peer.read_fpdu()[1])}")
    print(f"   connected, controller {peer.connect(host, subsystem)}")


@question
def connect_without_the_promised_rtr(new, host, subsystem):
    peer = new()
    peer.mpa(nvme_private(), control=(0x8004, 0x8001))
    print(f"   connected, controller {peer.connect(host, subsystem)}")


def write_64k(new, host, subsystem, flags, fpdu_bytes, mangle=None):
    """Admin connect, enable, I/O queue, one 64 KiB write whose READ RESPONSE comes in FPDUs of fpdu_bytes."""
    admin, controller_id = connected(new, host, subsystem, flags=flags)
    admin.enable()
    peer = new()
    peer.mpa(nvme_private(1, receive=32, send=31, controller_id=controller_id), flags=flags, control=(4, 0))
    peer.connect(host, subsystem, queue_id=1, controller_id=controller_id)
    peer.memory[0x2002] = bytearray(bytes(range(256)) * 256)
    if mangle:
        mangle(peer)
    peer.send_fpdu(peer.untagged(SEND, peer.capsule(0x01, nsid=1, sgl=peer.keyed(0x2002, 65536, True),
                                                    dwords={12: 127})))
    try:
        opcode, cqe, key = peer.serve(fpdu_bytes)
        print(f"   completion by {'SEND_INV' if opcode == SEND_INV else 'SEND'} key {key:#x} "
              f"status {struct.unpack('<H', cqe[14:16])[0] >> 1:#x}")
    except Closed as reason:
        print(f"   FAILED: {reason}; {peer.last_words()}")


@question
def fpdu_of_65535_bytes(new, host, subsystem):
    write_64k(new, host, subsystem, ENHANCED, 65535 - 14)


@question
def fpdu_of_65535_bytes_crc(new, host, subsystem):
    write_64k(new, host, subsystem, ENHANCED | CRC, 65535 - 14)


def in_pieces(cut_text, cut):
    """Makes the peer send every FPDU in pieces, with a pause so that each is a segment of its own."""
    def mangle(peer):
        whole = peer.socket.sendall

        class Pieces:
            def __getattr__(self, name):
                return getattr(socket_of, name)

            def sendall(self, data):
                position = 0
                for end in [*cut(len(data)), len(data)]:
                    whole(data[position:end])
                    position = end
                    time.sleep(0.1)
        socket_of = peer.socket
        peer.socket = Pieces()
    mangle.__doc__ = cut_text
    return mangle


@question
def fpdu_split_inside_the_header(new, host, subsystem):
    write_64k(new, host, subsystem, ENHANCED, 16384, in_pieces("", lambda n: [1, 3, 9, 17]))


@question
def fpdu_split_inside_the_header_crc(new, host, subsystem):
    write_64k(new, host, subsystem, ENHANCED | CRC, 16384, in_pieces("", lambda n: [1, 3, 9, 17]))


@question
def fpdu_split_before_the_crc(new, host, subsystem):
    write_64k(new, host, subsystem, ENHANCED | CRC, 16384, in_pieces("", lambda n: [n - 4]))


@question
def fpdu_split_inside_the_trailer_no_crc(new, host, subsystem):
    write_64k(new, host, subsystem, ENHANCED, 16384, in_pieces("", lambda n: [n - 2]))


@question
def fpdu_split_inside_the_trailer_crc(new, host, subsystem):
    write_64k(new, host, subsystem, ENHANCED | CRC, 16384, in_pieces("", lambda n: [n - 2]))


# -- protocol errors: what comes back

def wrong(name, build, flags=ENHANCED, control=(4, 4), **options):
    def ask(new, host, subsystem):
        peer, _ = connected(new, host, subsystem, flags=flags, control=control)
        for body in build(peer):
            peer.send_fpdu(body, **options)
        print(f"   {peer.last_words()}")
    ask.__name__ = name
    QUESTIONS.append(ask)


SQE = bytes(64)
wrong("write_to_unknown_stag", lambda p: [p.tagged(WRITE, 0x12345678, 0, bytes(8))])
wrong("read_from_unknown_stag", lambda p: [p.untagged(
    READ_REQUEST, struct.pack(">IQIIQ", 0x1001, 0, 8, 0x12345678, 0), queue=1)])
wrong("read_when_ord_0", lambda p: [p.untagged(
    READ_REQUEST, struct.pack(">IQIIQ", 0x1001, 0, 8, 0x12345678, 0), queue=1)], control=(4, 0))
wrong("read_request_msn_9", lambda p: [p.untagged(
    READ_REQUEST, struct.pack(">IQIIQ", 0x1001, 0, 8, 0x12345678, 0), queue=1, msn=9)])
wrong("read_response_not_asked_for", lambda p: [p.tagged(READ_RESPONSE, 0x1001, 0, bytes(8))])
wrong("send_msn_9", lambda p: [p.untagged(SEND, SQE, msn=9)])
wrong("send_queue_1", lambda p: [p.untagged(SEND, SQE, queue=1, msn=p.next_msn[0])])
wrong("send_offset_4", lambda p: [p.untagged(SEND, SQE, offset=4)])
wrong("send_too_long", lambda p: [p.untagged(SEND, bytes(65))])
wrong("send_inv_unknown_stag", lambda p: [p.untagged(SEND_INV, p.capsule(0x7F, 4), word=0x12345678)])
wrong("ddp_version_2", lambda p: [p.untagged(SEND, SQE, versions=0x0240)])
wrong("rdmap_version_2", lambda p: [p.untagged(SEND, SQE, versions=0x0180)])
wrong("opcode_9", lambda p: [p.untagged(9, SQE)])
wrong("ulpdu_of_8_bytes", lambda p: [p.untagged(SEND)[:8], p.untagged(SEND, SQE)])
wrong("crc_spoiled", lambda p: [p.untagged(SEND, SQE)], flags=ENHANCED | CRC, spoil_crc=True)
wrong("write_interleaved_with_read_response", lambda p: [
    p.tagged(WRITE, 1, 0, b"", last=False), p.tagged(READ_RESPONSE, 0x1001, 0, bytes(8))])
wrong("terminate", lambda p: [p.untagged(TERMINATE, struct.pack(">BBH", 0x11, 0x00, 0), queue=2)])


def main():
    address, port, host, subsystem = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    chosen = sys.argv[5:]
    for ask in QUESTIONS:
        if chosen and ask.__name__ not in chosen:
            continue
        print(f"{ask.__name__}:", flush=True)
        peers = []

        def new():
            peers.append(Peer(address, port))
            return peers[-1]
        try:
            ask(new, host, subsystem)
        except Closed as reason:
            print(f"   closed: {reason}")
        except (BrokenPipeError, ConnectionResetError) as error:
            print(f"   closed while sending: {error}")
        for peer in peers:
            peer.socket.close()
        time.sleep(0.3)


main()
