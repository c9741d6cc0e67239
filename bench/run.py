#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure ctrmgr beside other systems, in one run, and say whether its promises are kept.

Run as root with `ctrmgr` on the PATH, after bench/prepare. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import image, lxc, many, oci, one, report, root
from bench.ours import Ctrmgr
from bench.peer import Peer, Place
from bench.report import Section
from bench.timing import CommandFailedError, Results, nothing
from bench.tiny import tiny_rootfs

PEERS: tuple[type[Peer], ...] = (oci.Crun, lxc.Lxc, oci.Podman, lxc.Lxd, lxc.Incus)
LIGHT = ("ctrmgr", "crun", "lxc")
"""What can start hundreds in seconds."""


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        print("error: this needs root", file=sys.stderr)
        return 5
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ctrmgr-bench-", dir="/var/tmp")))
        scratch.chmod(0o711)  # mapped ids pass through
        nothing.make(scratch / "null")
        ours, peers, reasons = set_up(stack, scratch, options.peers)
        everyone = [ours, *peers]
        sections = [Section("One instance", rounds(ours, everyone, options.rounds))]
        if options.count:
            light = [peer for peer in everyone if peer.name in LIGHT or options.count_all]
            sections.append(Section(f"{options.count} idle instances", counted(light, options.count)))
        if options.image:
            results = Results()
            for peer in everyone:
                attempt(results, peer, partial(image.real, peer, results, options.image))
            sections.append(
                Section("A real image", results, f"A Debian root filesystem: {image.described(options.image)}.")
            )
        versions = [peer.version() for peer in everyone]
    text = report.page(sections, versions, reasons, options.rounds)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=15)
    parser.add_argument(
        "--count", type=int, default=0, help=f"also so many idle instances at once, of {', '.join(LIGHT)}"
    )
    parser.add_argument("--count-all", action="store_true", help="… of every peer (takes many minutes)")
    parser.add_argument(
        "--image", nargs="?", type=Path, const=root.CACHE / "debian", help="also a real image, of this root directory"
    )
    parser.add_argument("--peers", help="only these, with commas", type=lambda text: text.split(","))
    parser.add_argument("--out", type=Path, help="write the page (Markdown) here too")
    return parser.parse_args()


def set_up(
    stack: contextlib.ExitStack, scratch: Path, wanted: list[str] | None
) -> tuple[Ctrmgr, list[Peer], list[str]]:
    """ctrmgr, the peers that can be measured, and the reasons why the others cannot."""
    reason = root.missing()
    place = Place(scratch, tiny_rootfs(scratch / "tiny"), root.host(scratch), None if reason else root.enter(scratch))
    ours = Ctrmgr(place)
    stack.callback(ours.tear_down)
    ours.set_up()
    peers, reasons = [], []
    for kind in PEERS:
        if wanted is not None and kind.name not in wanted:
            continue
        why = kind.missing(reason)
        if why is None:
            peer = kind(place)
            stack.callback(peer.tear_down)
            try:
                peer.set_up()
                peers.append(peer)
                continue
            except (CommandFailedError, subprocess.CalledProcessError, OSError) as failure:
                why = f"did not start: {failure}"
        reasons.append(f"{kind.name} was not measured: {why}")
        print(reasons[-1], file=sys.stderr)
    return ours, peers, reasons


def attempt(results: Results, peer: Peer, action: Callable[[], None]) -> None:
    """A peer that fails leaves a note and does not end the run."""
    try:
        action()
    except CommandFailedError as failure:
        results.note(f"{peer.name}: {failure}")
        print(results.notes[-1], file=sys.stderr)


def rounds(ours: Ctrmgr, peers: list[Peer], count: int) -> Results:
    results = Results()
    for number in range(count + 1):
        if number == 1:
            notes, results = results.notes, Results()
            results.notes = notes  # round 0 warms caches and daemons up
        one.bare(ours, results)
        for peer in peers:
            attempt(results, peer, partial(one.one_round, peer, results, f"bench{number}"))
    attempt(results, ours, partial(one.api, ours, results, count))
    return results


def counted(peers: list[Peer], count: int) -> Results:
    results = Results()
    for peer in peers:
        attempt(results, peer, partial(many.many, peer, results, count))
    return results


if __name__ == "__main__":
    sys.exit(main())
