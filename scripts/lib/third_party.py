#!/usr/bin/env python3
"""Prints the licences of the crates of others that the programs are linked with: each text once, with
the crates that it is of. Those licences ask for that. Run in the root of the repository."""
import json
import pathlib
import subprocess
import sys

NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def linked():
    """Crates that the programs are linked with, by name and version."""
    crates = set()
    for program in ("capstan-target", "capstan-cli"):
        tree = subprocess.run(
            ["cargo", "tree", "--locked", "-p", program, "-e", "normal", "--prefix", "none", "--format", "{p}"],
            check=True, capture_output=True, text=True).stdout
        crates |= {tuple(line.split()[:2]) for line in tree.splitlines()}
    return crates


def main():
    metadata = json.loads(subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1"],
        check=True, capture_output=True, text=True).stdout)
    wanted, texts, lines = linked(), {}, []
    for package in metadata["packages"]:
        of = (package["name"], "v" + package["version"])
        if package["source"] is None or of not in wanted:
            continue
        name = f"{package['name']} {package['version']}"
        lines.append(f"{name}: {package['license'] or 'see below'}; {package['repository'] or ''}".rstrip("; "))
        folder = pathlib.Path(package["manifest_path"]).parent
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name.lower().startswith(NAMES):
                text = path.read_text(encoding="utf-8", errors="replace").strip()
                texts.setdefault(text, []).append(name)
    if not lines:
        sys.exit("no crates of others: is this the root of the repository?")
    print("Capstan's programs are linked with these crates:\n")
    print("\n".join(sorted(lines)))
    for text, names in sorted(texts.items(), key=lambda each: each[1]):
        print("\n" + "-" * 80 + "\n" + ", ".join(names) + ":\n\n" + text)


main()
