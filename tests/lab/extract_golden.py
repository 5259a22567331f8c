#!/usr/bin/env python3
"""Extract golden bytes from a capture of NVMe over RDMA over iWARP.

    extract_golden.py FILE.pcap OUTPUT_FOLDER [--source "how it was captured"] [--port 4420] [--suffix=-qemu]
                      [--keep] [--match REGULAR_EXPRESSION] [--passive-only]

Writes OUTPUT_FOLDER/rdma/*.hex (MPA frames and whole FPDUs) and OUTPUT_FOLDER/nvme/*.hex (private data, capsules,
data, completions). Each file is the first message of the capture that fits its name: lines that begin with # say what
it is and where it was, then hex, 32 bytes a line. What a capture does not hold is not written; the names written are
printed. Standard library only.
"""

import argparse
import os
import re
import struct
import sys

sys.dont_write_bytecode = True  # leave no cache in the source tree
from decode_iwarp import (READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, TERMINATE, WRITE, nvme_commands,
                          read_connections)


class Folder:
    """Golden files of one folder; the first message that fits a name keeps it."""

    def __init__(self, path, options):
        self.path, self.options, self.names = path, options, []
        os.makedirs(path, exist_ok=True)

    def put(self, name, data, *comments):
        name += self.options.suffix
        if name in self.names or not data or not re.search(self.options.match, name):
            return
        if self.options.keep and os.path.exists(os.path.join(self.path, name + ".hex")):
            return
        self.names.append(name)
        with open(os.path.join(self.path, name + ".hex"), "w", encoding="ascii") as file:
            for comment in (*comments, f"{len(data)} bytes", self.options.source):
                if comment:
                    file.write(f"# {comment}\n")
            for start in range(0, len(data), 32):
                file.write(data[start:start + 32].hex() + "\n")


# ----------------------------------------------------------------------------------------------
# RDMA level

def where(connection, item):
    order = item.order if hasattr(item, "order") else item.fpdus[-1].order
    side = "active (connecting) side" if item.from_active else "passive (listening) side"
    return f"from the {side}; connection {connection.number}, packet {order}"


def extract_mpa(folder, connection):
    for frame in (connection.request, connection.reply):
        if frame is None or frame.kind is None or frame.from_active and folder.options.passive_only:
            continue
        name = f"mpa-{frame.kind}-v{frame.revision}"
        if frame.enhanced:
            name += "-enhanced"
        if frame.control and frame.control[0] & 0x8000:
            rtr = frame.control[1] & 0xC000
            name += {0: "-p2p", 0x4000: "-p2p-read", 0x8000: "-p2p-write", 0xC000: "-p2p-read-write"}[rtr]
        name += "-crc" if frame.crc else ""
        name += "-markers" if frame.markers else ""
        name += "-reject" if frame.reject else ""
        folder.put(name, frame.raw, frame.text(), where(connection, frame))


def fpdu_names(message, fpdu):
    """Names under which an FPDU may be kept, the most telling first."""
    payload_bytes = len(fpdu.payload)
    pad = "-padded" if payload_bytes % 4 else ""
    whole = len(message.fpdus) == 1
    part = "" if whole else "-first" if fpdu is message.fpdus[0] else "-last" if fpdu.last else "-middle"
    if fpdu.opcode == SEND:
        kind = {16: "-cqe", 64: "-sqe"}.get(payload_bytes, "-capsule" if whole and payload_bytes <= 1088 else "")
        if whole and payload_bytes == 0:
            kind = "-zero-length"
        return [f"fpdu-send{kind}{pad}{part}"]
    if fpdu.opcode == SEND_INV:
        return [f"fpdu-send-inv{pad}{part}"]
    if fpdu.opcode == WRITE:
        if whole and payload_bytes == 0:
            return ["fpdu-write-zero-length"]
        return [f"fpdu-write{pad}{part}"]
    if fpdu.opcode == READ_REQUEST:
        return ["fpdu-read-request" + ("-zero-length" if fpdu.read_bytes == 0 else "")]
    if fpdu.opcode == READ_RESPONSE:
        if whole and payload_bytes == 0:
            return ["fpdu-read-response-zero-length"]
        return [f"fpdu-read-response{pad}{part}"]
    if fpdu.opcode == TERMINATE:
        return [f"fpdu-terminate-{fpdu.terminate_control[:2].hex()}"]
    return [f"fpdu-opcode-{fpdu.opcode}{pad}{part}"]


def extract_fpdus(folder, connections):
    """FPDUs by kind; of whole tagged messages the smallest is taken, because a golden file should be read by people."""
    found = []
    for connection in connections:
        crc = connection.request and connection.reply and (connection.request.crc or connection.reply.crc)
        for message in connection.messages:
            if message.from_active and folder.options.passive_only:
                continue
            for fpdu in message.fpdus:
                for name in fpdu_names(message, fpdu):
                    found.append((name + ("-crc" if crc else ""), connection, fpdu))
    sizes = {}
    for name, _, fpdu in found:
        sizes[name] = min(sizes.get(name, 1 << 30), len(fpdu.raw))
    for name, connection, fpdu in found:
        if len(fpdu.raw) == sizes[name]:
            folder.put(name, fpdu.raw, fpdu.text(), where(connection, fpdu))


# ----------------------------------------------------------------------------------------------
# NVMe level

IDENTIFY_NAMES = {0x00: "namespace", 0x01: "controller", 0x02: "active-ns-list", 0x03: "ns-descs",
                  0x05: "csi-namespace", 0x06: "csi-controller", 0x08: "cs-independent-ns", 0x1C: "command-set-list"}
LOG_NAMES = {0x00: "supported-pages", 0x01: "error-information", 0x02: "smart", 0x03: "firmware-slot",
             0x04: "changed-ns-list", 0x05: "effects", 0x0C: "ana", 0x12: "fid-effects", 0x70: "discovery"}
FEATURE_NAMES = {0x01: "arbitration", 0x02: "power-management", 0x04: "temperature-threshold",
                 0x05: "error-recovery", 0x0A: "write-atomicity", 0x0E: "timestamp", 0x16: "host-behavior-support",
                 0x07: "number-of-queues", 0x0B: "async-event-configuration", 0x0F: "keep-alive-timer",
                 0x06: "volatile-write-cache", 0x81: "host-identifier", 0x84: "write-protect"}
PROPERTY_NAMES = {0x00: "cap", 0x08: "vs", 0x14: "cc", 0x1C: "csts", 0x20: "nssr"}
IO_NAMES = {0x00: "flush", 0x01: "write", 0x02: "read", 0x04: "write-uncorrectable", 0x05: "compare",
            0x08: "write-zeroes", 0x09: "dsm", 0x0C: "verify", 0x0D: "reservation-register", 0x0E: "reservation-report",
            0x11: "reservation-acquire", 0x15: "reservation-release", 0x19: "copy"}
# DH-HMAC-CHAP messages (NVMe Base 2.0, section 8.13.5) by AUTH_ID, the second byte.
AUTHENTICATION_NAMES = {0x00: "negotiate", 0x01: "challenge", 0x02: "reply", 0x03: "success1", 0x04: "success2",
                        0xF0: "failure2", 0xF1: "failure1"}
ADMIN_NAMES = {0x08: "abort", 0x0C: "async-event-request", 0x18: "keep-alive"}


def command_name(command):
    """Name of a command and of its data ('' when the data has no name of its own)."""
    opcode = command.opcode
    if opcode == 0x7F:
        fabrics_type = command.fabrics_type
        if fabrics_type == 0x01:
            kind = "io" if command.queue_id else "admin"
            if not command.queue_id and b"nqn.2014-08.org.nvmexpress.discovery\0" in command.data:
                kind = "discovery"
            # AUTHREQ of a Connect response (NVMe Base 2.1, section 6.3): ATR and ASCR.
            if command.cqe and not command.status & 0x7FF and command.cqe[2] & 6:
                kind += "-authentication-required"
            return f"connect-{kind}", f"connect-data-{kind}"
        if fabrics_type in (0x00, 0x04):
            offset = command.dword(11)
            name = PROPERTY_NAMES.get(offset, f"offset-{offset:02x}")
            if fabrics_type == 0x04:
                return f"property-get-{name}", ""
            value = struct.unpack("<Q", command.sqe[48:56])[0]
            if offset == 0x14:
                action = "shutdown" if value & 0xC000 else "enable" if value & 1 else "disable"
                return f"property-set-cc-{action}", ""
            return f"property-set-{name}", ""
        if fabrics_type in (0x05, 0x06):
            way = "send" if fabrics_type == 0x05 else "receive"
            message = AUTHENTICATION_NAMES.get(command.data[1] if len(command.data) > 1 else -1, "message")
            return f"authentication-{way}-{message}", ""
        if fabrics_type == 0x08:
            return "disconnect", ""
        return f"fabrics-{fabrics_type:02x}", ""
    if command.queue_id:
        return io_name(command)
    low = command.dword(10) & 0xFF
    if opcode == 0x06:
        name = IDENTIFY_NAMES.get(low, f"cns-{low:02x}")
        return f"identify-{name}", f"identify-{name}"
    if opcode == 0x02:
        name = LOG_NAMES.get(low, f"lid-{low:02x}")
        if low == 0x70 and (command.dword(10) >> 16) + 1 > 1024 // 4:
            name += "-records"  # the host asks for the 1024-byte header first
        return f"get-log-{name}", f"log-{name}"
    if opcode in (0x09, 0x0A):
        verb = "set" if opcode == 0x09 else "get"
        name = FEATURE_NAMES.get(low, f"fid-{low:02x}")
        return f"{verb}-feature-{name}", f"feature-{name}"
    name = ADMIN_NAMES.get(opcode, f"admin-opcode-{opcode:02x}")
    return name, name + "-data"


def io_name(command):
    name = IO_NAMES.get(command.opcode, f"io-opcode-{command.opcode:02x}")
    if command.opcode == 0x01:
        name += "-incapsule" if command.in_capsule else "-keyed"
        name += "-fua" if command.dword(12) & 1 << 30 else ""
    if command.opcode == 0x09:
        ranges = (command.dword(10) & 0xFF) + 1  # NR is 0's based
        count = f"-{ranges}-ranges" if ranges > 1 else ""
        return name + count, f"dsm-ranges{count and f'-{ranges}'}"
    if command.opcode == 0x08:
        name += "-deac" if command.dword(12) & 1 << 25 else ""
    return name, ""


def status_suffix(command):
    """Empty for success, else -sct0-sc80: the parts of the status by number, so that names do not hide the value."""
    status = command.status
    if not status or status & 0x7FF == 0:
        return ""
    return f"-sct{status >> 8 & 7}-sc{status & 0xFF:02x}"


def describe(command):
    text = command.text()
    if command.cqe:
        text += f"; status {command.status:#06x}"
    return text


def extract_command(folder, command):
    connection = command.connection
    name, data_name = command_name(command)
    failed = status_suffix(command)
    at = where(connection, command.capsule)
    folder.put(f"sqe-{name}{failed}", command.sqe, describe(command), at)
    if command.in_capsule:
        folder.put(f"capsule-{name}{failed}", command.sqe + command.in_capsule,
                   "whole command capsule: SQE and in-capsule data", describe(command), at)
    if command.cqe:
        kind = "SEND with Invalidate" if command.response.opcode == SEND_INV else "SEND"
        folder.put(f"cqe-{name}{failed}", command.cqe, f"completion, by {kind}; of {describe(command)}",
                   where(connection, command.response))
    if data_name and command.data and not failed:
        way = "in the capsule" if command.in_capsule else \
            "pulled by RDMA READ" if command.pulled else "pushed by RDMA WRITE"
        identity = f"-nsid{command.nsid:x}" if data_name in ("identify-namespace", "identify-ns-descs") else ""
        folder.put(data_name + identity, command.data, f"data of {describe(command)}, {way}", f"of the command {at}")
    if data_name and failed and command.opcode == 0x7F:
        folder.put(data_name + failed, command.data, f"data of {describe(command)}", at)


def extract_private(folder, connection):
    request, reply = connection.request, connection.reply
    if not request or not reply:
        return
    if len(request.private) == 32 and not folder.options.passive_only:
        queue_id, host_receive, host_send = struct.unpack("<HHH", request.private[2:8])
        kind = "io" if queue_id else "admin"
        if queue_id and host_receive != 128:
            kind += f"-depth{host_receive}"
        suffix = "-rejected" if reply.reject else ""
        folder.put(f"cm-request-{kind}{suffix}", request.private,
                   f"RDMA_CM_REQUEST private data: qid {queue_id} hrqsize {host_receive} hsqsize {host_send}",
                   where(connection, request))
    if reply.reject and len(reply.private) == 4:
        status = struct.unpack("<H", reply.private[2:4])[0]
        folder.put(f"cm-reject-{status}", reply.private, f"RDMA_CM_REJECT private data: sts {status}",
                   where(connection, reply))
    elif len(reply.private) == 32:
        size = struct.unpack("<H", reply.private[2:4])[0]
        folder.put(f"cm-accept-crqsize{size}", reply.private, f"RDMA_CM_ACCEPT private data: crqsize {size}",
                   where(connection, reply))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pcap")
    parser.add_argument("output")
    parser.add_argument("--source", default="", help="a comment line that every file gets")
    parser.add_argument("--port", type=int, default=4420)
    parser.add_argument("--suffix", default="", help="put at the end of every name, before .hex")
    parser.add_argument("--match", default="", metavar="REGEX", help="only files whose name matches")
    parser.add_argument("--keep", action="store_true", help="leave files that are there already alone")
    parser.add_argument("--passive-only", action="store_true",
                        help="only what the listening side sent (the connecting side is a script of ours)")
    options = parser.parse_args()
    connections = read_connections(options.pcap, options.port)
    rdma = Folder(os.path.join(options.output, "rdma"), options)
    nvme = Folder(os.path.join(options.output, "nvme"), options)
    for connection in connections:
        extract_mpa(rdma, connection)
        extract_private(nvme, connection)
    extract_fpdus(rdma, connections)
    if not options.passive_only:
        for connection in connections:
            for command in nvme_commands(connection):
                extract_command(nvme, command)
    for folder in (rdma, nvme):
        print(f"{folder.path}: {len(folder.names)} files")
        for name in sorted(folder.names):
            print(f"  {name}.hex")
    problems = [problem for connection in connections for problem in connection.problems]
    for problem in problems:
        print(f"!! {problem}")
    # A script of ours does wrong on purpose, so its problems say nothing about the capture.
    return 1 if problems and not options.passive_only else 0


if __name__ == "__main__":
    sys.exit(main())
