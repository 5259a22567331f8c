#!/usr/bin/env python3
"""In the guest: steers a target by its control socket, with operations chosen at random.

    control_operations.py OPERATIONS SEED FOLDER SUBNQN LISTENER

Adds, removes and resizes namespaces (files of FOLDER, RAM), allows and denies hosts, adds and
removes subsystems and listeners, writes its configuration and reloads it; also asks for what has
to be refused. NSIDs below 10 of SUBNQN are others'. After each operation, what the target says
that it serves has to be what was asked for. At the end all of it is taken away again.

Prints what it did, and at the end `operations N, refused M`. Ends with status 1 and the first
difference.
"""

import json
import os
import random
import socket
import subprocess
import sys

SOCKET = "/run/capstan-target/control.sock"
FIRST_NSID = 10
NAMESPACES = 6
MIB = 1 << 20


class Refused(Exception):
    """The target's words, with the kind of its failure."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.kind = error["data"]["kind"]


class Target:
    """One connection to the control socket."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(SOCKET)
        self.lines = self.socket.makefile("r")
        self.last = 0

    def ask(self, method, **parameters):
        self.last += 1
        request = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": parameters}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(self.lines.readline())
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]


class Wanted:
    """What the target is to serve beside what was there."""

    def __init__(self, target, folder, subnqn, listener):
        self.target = target
        self.folder = folder
        self.subnqn = subnqn
        self.listener = listener
        self.namespaces = {}
        self.hosts = {}
        self.listens = set()
        self.files = 0
        self.refused = 0
        self.program = os.path.join(os.environ["LAB"], "capstan-target")

    def file(self, mib):
        self.files += 1
        path = os.path.join(self.folder, f"{self.files}.img")
        with open(path, "wb") as file:
            file.truncate(mib * MIB)
        return path

    def add_namespace(self):
        if len(self.namespaces) == NAMESPACES:
            return self.remove_namespace()
        nsid = random.choice([n for n in range(FIRST_NSID, FIRST_NSID + 32) if n not in self.namespaces])
        mib = random.randint(1, 4)
        on = {"ram": f"{mib}MiB"} if random.random() < 0.3 else {"path": self.file(mib)}
        self.target.ask("namespace.add", subsystem=self.subnqn, nsid=nsid, **on)
        self.namespaces[nsid] = (on.get("path"), mib * MIB)
        return f"add {nsid} {on}"

    def remove_namespace(self):
        if not self.namespaces:
            return self.add_namespace()
        nsid = random.choice(sorted(self.namespaces))
        self.target.ask("namespace.remove", subsystem=self.subnqn, nsid=nsid)
        path, _ = self.namespaces.pop(nsid)
        if path:
            os.unlink(path)
        return f"remove {nsid}"

    def resize_namespace(self):
        on_files = [nsid for nsid, (path, _) in self.namespaces.items() if path]
        if not on_files:
            return self.add_namespace()
        nsid = random.choice(sorted(on_files))
        path, size = self.namespaces[nsid]
        size += random.randint(1, 2) * MIB
        self.target.ask("namespace.resize", subsystem=self.subnqn, nsid=nsid, size=str(size))
        self.namespaces[nsid] = (path, size)
        return f"resize {nsid} to {size}"

    def subsystem(self):
        name = f"nqn.2026-11.org.example:random-{random.randint(1, 3)}"
        if name in self.hosts:
            self.target.ask("subsystem.remove", nqn=name)
            del self.hosts[name]
            return f"remove {name}"
        self.target.ask("subsystem.add", nqn=name)
        self.hosts[name] = set()
        return f"add {name}"

    def host(self):
        if not self.hosts:
            return self.subsystem()
        name = random.choice(sorted(self.hosts))
        host = f"nqn.2014-08.org.example:host-{random.randint(1, 4)}"
        is_in = host in self.hosts[name]
        self.target.ask("host.deny" if is_in else "host.allow", subsystem=name, host=host)
        self.hosts[name] ^= {host}
        return f"{'deny' if is_in else 'allow'} {host} at {name}"

    def listeners(self):
        port = random.randint(4501, 4503)
        address = f"{self.listener}:{port}"
        if address in self.listens:
            self.target.ask("listener.remove", address=address)
            self.listens.remove(address)
            return f"remove listener {address}"
        self.target.ask("listener.add", address=self.listener, port=port, transports=["tcp"])
        self.listens.add(address)
        return f"add listener {address}"

    def save_and_reload(self):
        for command in (["config", "save"], ["reload"]):
            subprocess.run([self.program, *command], check=True, capture_output=True)
        diff = self.target.ask("config.diff")
        if diff["unsaved"] or diff["diff"]:
            sys.exit(f"after config save and reload something is in no file: {diff}")
        return "save and reload"

    def ask_what_is_refused(self):
        wrong = random.choice(
            [
                ("namespace.remove", {"subsystem": self.subnqn, "nsid": 999}, "not-found"),
                ("namespace.add", {"subsystem": self.subnqn, "path": "/absent/disk"}, "refused"),
                ("namespace.add", {"subsystem": self.subnqn, "nsid": 1, "ram": "1MiB"}, "exists"),
                ("namespace.add", {"subsystem": self.subnqn, "nsid": 5000, "ram": "1MiB"}, "invalid"),
                ("host.allow", {"subsystem": "nqn.2026-11.org.example:absent", "host": "x"}, "not-found"),
                ("listener.remove", {"address": "192.0.2.77:1"}, "not-found"),
                ("log.level", {"level": "loud"}, "invalid"),
                ("no.such.method", {}, "unknown-method"),
            ]
        )
        method, parameters, kind = wrong
        try:
            self.target.ask(method, **parameters)
        except Refused as refused:
            if refused.kind != kind:
                sys.exit(f"{method} {parameters} is refused as {refused.kind}, expected {kind}: {refused}")
            self.refused += 1
            return f"refused: {method}"
        sys.exit(f"{method} {parameters} was carried out, expected {kind}")

    def check(self):
        status = self.target.ask("status")
        of = {subsystem["nqn"]: subsystem for subsystem in status["subsystems"]}
        shown = {
            namespace["nsid"]: namespace["size_bytes"]
            for namespace in of[self.subnqn]["namespaces"]
            if namespace["nsid"] >= FIRST_NSID
        }
        same("namespaces", shown, {nsid: size for nsid, (_, size) in self.namespaces.items()})
        hosts = {nqn: set(one["allowed_hosts"]) for nqn, one in of.items() if ":random-" in nqn}
        same("hosts", hosts, self.hosts)
        listens = {one["address"] for one in status["listeners"] if ":450" in one["address"]}
        same("listeners", listens, self.listens)
        same("trouble", status["trouble"], [])

    def take_away(self):
        for nsid in sorted(self.namespaces):
            self.target.ask("namespace.remove", subsystem=self.subnqn, nsid=nsid)
            path, _ = self.namespaces.pop(nsid)
            if path:
                os.unlink(path)
        for name in sorted(self.hosts):
            self.target.ask("subsystem.remove", nqn=name)
        for address in sorted(self.listens):
            self.target.ask("listener.remove", address=address)
        self.hosts, self.listens = {}, set()
        self.check()
        self.save_and_reload()


def same(what, is_so, wanted):
    if is_so != wanted:
        sys.exit(f"{what}: the target says {is_so}, expected {wanted}")


def main():
    operations, seed, folder, subnqn, listener = sys.argv[1:]
    random.seed(int(seed))
    wanted = Wanted(Target(), folder, subnqn, listener)
    kinds = {
        wanted.add_namespace: 30,
        wanted.remove_namespace: 25,
        wanted.resize_namespace: 15,
        wanted.subsystem: 8,
        wanted.host: 10,
        wanted.listeners: 4,
        wanted.save_and_reload: 2,
        wanted.ask_what_is_refused: 6,
    }
    for number in range(int(operations)):
        (operation,) = random.choices(list(kinds), weights=kinds.values())
        print(f"{number}: {operation()}", flush=True)
        wanted.check()
    wanted.take_away()
    print(f"operations {operations}, refused {wanted.refused}")


main()
