#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure ctrmgr as a client of LXD and Incus beside their own clients, by the socket and by https, in one run.

Run as root with `ctrmgr` on the PATH, after bench/prepare. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import lxc, report, root
from bench.one import ATTACH, BARE, DETACH, EXEC, LAUNCH, LIST
from bench.ours import Ctrmgr
from bench.peer import Peer, Place
from bench.report import Section
from bench.targets import Verdict
from bench.timing import CommandFailedError, Results, nothing
from bench.tiny import tiny_rootfs

DELETE = "kill + delete"
WAYS = ("by its socket", "by https")
FUSE = ("fuse", "unix-char", "source=/dev/fuse", "path=/dev/fuse")

HEAD = """<!-- made by bench/remote.py --out: run it again instead of changing it -->

# Benchmarks of servers

`ctrmgr` on LXD and Incus servers of this machine beside the clients that come with them, in one run. Every round does every verb with the one and
then with the other, in turns first, so that a change of the machine's speed hits both. A number is the median of whole commands, as a shell
sees them, in milliseconds, then [minimum..maximum]; × is how many times ctrmgr's median the server's client takes (less than 1: it is faster).
ctrmgr looks into the instance before it says that a device is attached or detached; the others do not.
[How it is measured, and how to repeat it](../bench/README.md).
"""


class Client:
    """One client's commands for one server, reached in one way: row → command."""

    def __init__(self, peer: Peer, name: str, commands: dict[str, list[str]]) -> None:
        self.peer, self.name, self.commands = peer, name, commands


def ours(peer: Ctrmgr, remote: str) -> Client:
    c1 = f"{remote}:ours"
    return Client(peer, "ctrmgr", {
        LAUNCH: ["ctrmgr", "launch", "tiny", c1],
        EXEC: ["ctrmgr", "exec", c1, "--", "/bin/true"],
        ATTACH: ["ctrmgr", "attach-device", c1, "fuse", "type=unix-char", "source=/dev/fuse"],
        DETACH: ["ctrmgr", "detach-device", c1, "fuse"],
        LIST: ["ctrmgr", "list", f"{remote}:"],
        DELETE: ["ctrmgr", "delete", "--force", c1],
    })  # fmt: skip


def theirs(peer: lxc.Daemon, prefix: str) -> Client:
    tool, c1 = peer.binary, f"{prefix}theirs"
    return Client(peer, tool, {
        LAUNCH: [tool, "launch", f"{prefix}tiny", c1],
        EXEC: [tool, "exec", c1, "--", "/bin/true"],
        ATTACH: [tool, "config", "device", "add", c1, *FUSE],
        DETACH: [tool, "config", "device", "remove", c1, "fuse"],
        LIST: [tool, "list", prefix],
        DELETE: [tool, "delete", "--force", c1],
    })  # fmt: skip


def listen(daemon: lxc.Daemon) -> None:
    """On a port of this machine that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon.run(daemon.binary, "config", "set", "core.https_address", f"127.0.0.1:{port}")


def token(daemon: lxc.Daemon, name: str) -> str:
    words = ["--name", name] if daemon.name == "lxd" else [name]
    return daemon.run(daemon.binary, "config", "trust", "add", *words).split()[-1]


def introduced(peer: Ctrmgr, daemon: lxc.Daemon) -> Iterator[tuple[str, Client, Client]]:
    """Both clients know the server in both ways."""
    peer.run("ctrmgr", "remote", "add", daemon.name, str(Path(daemon.env[f"{daemon.variable}_DIR"]) / "unix.socket"))
    yield WAYS[0], ours(peer, daemon.name), theirs(daemon, "")
    listen(daemon)
    peer.run("ctrmgr", "remote", "add", f"{daemon.name}-https", "--token", token(daemon, "ours"))
    daemon.run(daemon.binary, "remote", "add", "self", token(daemon, "theirs"))
    yield WAYS[1], ours(peer, f"{daemon.name}-https"), theirs(daemon, "self:")


def measure(one: Client, other: Client, rounds: int) -> Results:
    """Round 0 warms up. A command that fails ends it with a note."""
    results = Results()
    try:
        for number in range(rounds + 1):
            for row in one.commands:
                for client in (one, other) if number % 2 else (other, one):
                    took = client.peer.milliseconds(client.commands[row])
                    if number:
                        results.add(row, client.name, took)
    except CommandFailedError as failure:
        results.note(str(failure))
        print(results.notes[-1], file=sys.stderr)
        for client in (one, other):
            client.peer.run(*client.commands[DELETE], check=False)
    return results


def verdicts(sections: list[Section]) -> Iterator[Verdict]:
    """Of what goes over a network. By a socket most of the time is the start of an interpreter, and the look into the instance."""
    for section in (each for each in sections if each.title.endswith("https")):
        for row, cells in section.results.samples.items():
            for client in cells:
                mine, yours = section.results.median(row, "ctrmgr"), section.results.median(row, client)
                if client != "ctrmgr" and mine and yours:
                    promise = f"{section.title}: {row} takes at most as long as with {client}"
                    yield Verdict(promise, f"{mine / yours:.2f}", mine <= yours)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=15)
    parser.add_argument("--peers", default="lxd,incus", help="only these, with commas")
    parser.add_argument("--out", type=Path, help="write the page (Markdown) here too")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("error: this needs root", file=sys.stderr)
        return 5
    sections: list[Section] = []
    versions, reasons = [], []
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ctrmgr-bench-", dir="/var/tmp")))
        scratch.chmod(0o711)  # mapped ids pass through
        nothing.make(scratch / "null")
        reason = root.missing()
        place = Place(
            scratch, tiny_rootfs(scratch / "tiny"), root.host(scratch), None if reason else root.enter(scratch)
        )
        peer = Ctrmgr(place)
        peer.set_up()
        versions.append(peer.version())
        bare = Results()
        for _ in range(options.rounds):
            bare.add(BARE, peer.name, peer.milliseconds([peer.interpreter(), "-I", "-c", "pass"]))
        for kind in (lxc.Lxd, lxc.Incus):
            if kind.name not in options.peers.split(","):
                continue
            why = kind.missing(reason)
            try:
                if why is None:
                    daemon = kind(place)
                    stack.callback(daemon.tear_down)
                    daemon.set_up()
                    versions.append(daemon.version())
                    for way, one, other in introduced(peer, daemon):
                        sections.append(Section(f"{daemon.name} {way}", measure(one, other, options.rounds)))
            except (CommandFailedError, subprocess.CalledProcessError, OSError) as failure:
                why = f"did not start: {failure}"
            if why:
                reasons.append(f"{kind.name} was not measured: {why}")
                print(reasons[-1], file=sys.stderr)
    kept = list(verdicts(sections))
    text = report.page(
        [Section("The interpreter", bare), *sections], versions, reasons, options.rounds, head=HEAD, verdicts=kept
    )
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
