# SPDX-License-Identifier: GPL-3.0-or-later
"""The page that a run becomes."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from bench import targets
from bench.timing import Results

HEAD = """<!-- made by bench/run.py --out: run it again instead of changing it -->

# Benchmarks

ctrmgr beside what Debian ships, in one run. Every round does every peer in turn, so that a change of the machine's speed hits all of
them alike; only the ratios mean anything. A number is the median of whole commands, as a shell sees them, in milliseconds where nothing else
is said, then [minimum..maximum]; × is how many times ctrmgr's median the peer takes (less than 1: the peer is faster).
[How it is measured, and how to repeat it](../bench/README.md).
"""


class Section:
    def __init__(self, title: str, results: Results, text: str = "") -> None:
        self.title, self.results, self.text = title, results, text


def page(
    sections: list[Section],
    versions: list[str],
    reasons: list[str],
    rounds: int,
    *,
    head: str = HEAD,
    verdicts: list[targets.Verdict] | None = None,
) -> str:
    """`verdicts`: others than those of `targets`."""
    parts = [head, f"{time.strftime('%Y-%m-%d')}, {rounds} rounds, {machine()}.\n"]
    if verdicts is None:
        verdicts = targets.verdicts([section.results for section in sections])
    kept = sum(verdict.kept for verdict in verdicts)
    for section in sections:
        if section.results.samples:
            parts.append(f"## {section.title}\n")
            if section.text:
                parts.append(section.text + "\n")
            parts.append(section.results.markdown(targets.OURS) + "\n")
        parts += [f"* {note}\n" for note in section.results.notes]
    parts.append(f"## Promises: {kept} of {len(verdicts)} kept\n\n{targets.markdown(verdicts)}\n")
    parts.append("## Versions\n\n" + "".join(f"* {line}\n" for line in [*versions, *reasons]))
    return "\n".join(parts)


def machine() -> str:
    """In words, without names of its own."""
    model = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text(), re.MULTILINE)
    virtual = (
        ", a virtual machine"
        if re.search(r"^flags.* hypervisor", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        else ""
    )
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return (
        f"{os.cpu_count()} cores ({model[1] if model else os.uname().machine}){virtual}, "
        f"{int(memory[1]) / 1024**2 if memory else 0:.0f} GiB, {system[1] if system else 'Linux'}, "
        f"Linux {os.uname().release.split('-')[0]}, {'cgroup v2' if unified else 'cgroup v1 and v2'}, "
        f"load {os.getloadavg()[1]:.1f} in the last 5 minutes"
    )
