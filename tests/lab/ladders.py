"""What the decoders of this folder have in common: the TCP connections of a capture, and how each is
printed as a ladder.

Standard library only. A connection has `number`, `active` and `passive` (address and port), `problems`
(anomalies in words) and, over TCP, `streams` and `closes`.
"""

import argparse
import sys


def address_text(address):
    host, port = address
    if len(host) == 4:
        return ".".join(map(str, host)) + f":{port}"
    return "[" + ":".join(host[i:i + 2].hex() for i in range(0, 16, 2)) + f"]:{port}"


def tcp_connections(segments, port, connection_of):
    """Connections with their streams, parsed. `connection_of(number, active, passive)` makes one."""
    connections, by_pair = [], {}
    for segment in segments:
        pair = frozenset((segment.source, segment.destination))
        if segment.flags & 0x12 == 0x02 or pair not in by_pair:  # a SYN without ACK opens a new one
            ends = (segment.source, segment.destination)
            if segment.source[1] == port:
                ends = ends[::-1]
            by_pair[pair] = connection_of(len(connections), *ends)
            connections.append(by_pair[pair])
        connection = by_pair[pair]
        from_active = segment.source == connection.active
        connection.streams[from_active].add(segment)
        for bit, name in ((1, "FIN"), (4, "RST")):
            if segment.flags & bit:
                connection.closes.append((segment.index, segment.time_s, from_active, name))
    for connection in connections:
        connection.parse()
    return connections


def tcp_ends(connection):
    return f"{address_text(connection.active)} -> {address_text(connection.passive)}"


def closes(connection):
    """How a TCP connection ended, as lines of its ladder."""
    return [(order, time_s, side, f"TCP {name}", b"") for order, time_s, side, name in connection.closes]


def argument_parser(description, port, data, **pcap):
    """`port` and `data`: what the options --port and --hex are about."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("pcap", **pcap)
    parser.add_argument("--port", type=int, default=4420, help=f"{port} of the passive side (default 4420)")
    parser.add_argument("--connection", type=int, help="only this connection, by number")
    parser.add_argument("--hex", type=int, default=0, metavar="BYTES", help=f"show so many {data}")
    return parser


def print_ladder(connection, ends, lines, hex_bytes):
    """Each line is (packet, seconds, from the active side, text, bytes); they are in order."""
    print(f"\n== connection {connection.number}: {ends}")
    for order, time_s, from_active, text, payload in lines:
        # What a virtual interface receives may have the time since the machine started.
        since = f"{time_s - lines[0][1]:11.6f}" if time_s >= lines[0][1] else f"{'-':>11}"
        print(f"{order:7} {since} {'->' if from_active else '<-'} {text}")
        if hex_bytes and payload:
            print(f"{'':23}{payload[:hex_bytes].hex(' ', 4)}")
    for problem in connection.problems:
        print(f"!! connection {connection.number}: {problem}")


def print_all(connections, arguments, ends_of, lines_of, counted):
    """Prints the connections that were asked for, and the sum, with what was `counted`. Returns the exit status."""
    problems = 0
    for connection in connections:
        if arguments.connection in (None, connection.number):
            lines = sorted(lines_of(connection), key=lambda line: line[0])
            print_ladder(connection, ends_of(connection), lines, arguments.hex)
            problems += len(connection.problems)
    print(f"\n{len(connections)} connections, {counted}, {problems} problems")
    return 1 if problems else 0


def run(main):
    """Ends the process with what `main` returns; that the reader of its output goes away is no mistake."""
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(0)
