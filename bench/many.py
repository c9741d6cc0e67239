# SPDX-License-Identifier: GPL-3.0-or-later
"""Many idle instances at once."""

from __future__ import annotations

import os
import re
import statistics
import time
from pathlib import Path

from bench.peer import Peer
from bench.timing import Results

LIST = "list 500"
PRIVATE = "… private memory of its monitor, kB"


def many(peer: Peer, results: Results, count: int) -> None:
    """Launch `count`, one after the other; list them; what memory each takes; kill and remove them."""
    names = [f"many{index}" for index in range(count)]
    for name in names:
        peer.prepare(name)
    before = available()
    results.add(
        f"launch {count}, one after the other", peer.name, total(peer, [peer.launch_idle(name) for name in names])
    )
    time.sleep(2)
    column = peer.name
    results.add("memory of each, all in all, kB", column, (before - available()) / count)
    charges, monitors = observed(names)
    for path in charges:
        results.add("… charged to its cgroup, kB", column, int(path.read_text()) / 1024)
    for pid in monitors:
        private, proportional = resident(pid)
        results.add(PRIVATE, column, private)
        results.add("… proportional set size of its monitor, kB", column, proportional)
    for _ in range(11):
        results.add(f"list {count}", column, peer.milliseconds(peer.listing()))
    results.add(
        f"kill and remove {count}, one after the other", column, total(peer, [peer.delete(name) for name in names])
    )


def total(peer: Peer, commands: list[list[str]]) -> float:
    return sum(peer.milliseconds(argv) for argv in commands)


def available() -> float:
    """kB. The median of a few: others live on this machine."""
    seen = []
    for _ in range(5):
        found = re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
        assert found
        seen.append(int(found[1]))
        time.sleep(0.1)
    return statistics.median(seen)


def observed(names: list[str]) -> tuple[list[Path], list[int]]:
    """The files that say how much memory each instance's cgroup uses, and the pids of its monitors.

    An instance's cgroup is called like it, with any peer; a monitor is init's parent, unless that is pid 1.
    """
    wanted = set(names)
    inside: set[int] = set()
    files: set[Path] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        for controllers, path in cgroups(entry.path):
            if wanted & set(re.split(r"[/.]", path)) and "monitor" not in path:
                inside.add(int(entry.name))
                if "memory" in controllers:
                    files.add(Path(f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes"))
                elif not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
                    files.add(Path(f"/sys/fs/cgroup{path}/memory.current"))
    monitors = {parent(pid) for pid in inside} - inside - {0, 1, os.getpid()}
    return sorted(files), sorted(monitors)


def cgroups(process: str) -> list[tuple[list[str], str]]:
    """(controllers, path) of a process in each hierarchy; none when it has ended."""
    try:
        lines = Path(process, "cgroup").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split(":", 2) for line in lines]
    return [(list(filter(None, controllers.split(","))), path) for _, controllers, path in rows]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def resident(pid: int) -> tuple[float, float]:
    """Private and proportional kB."""
    private = proportional = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        word, _, rest = line.partition(":")
        if word in ("Private_Clean", "Private_Dirty"):
            private += int(rest.split()[0])
        elif word == "Pss":
            proportional = int(rest.split()[0])
    return private, proportional
