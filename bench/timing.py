# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole commands timed from outside, and the table that they become."""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence

CLONE_NEWNS = 0x00020000
libc = ctypes.CDLL(None, use_errno=True)


class CommandFailedError(Exception):
    """A timed command did not do its work; a time for it would be a lie."""


def enter(namespace: int | None) -> Callable[[], None]:
    """What a child does before it becomes the command. All children do something, so that all pay the same fork."""

    def join() -> None:
        if namespace is not None and libc.setns(namespace, CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    return join


def v1_only() -> int:
    """A mount namespace in which the host's cgroup2 is not mounted: for tools that refuse a hybrid host."""
    script = "umount /sys/fs/cgroup/unified && echo ready && exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise CommandFailedError("no mount namespace without cgroup2")
        namespace = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        holder.kill()
    return namespace


def run(
    argv: Sequence[str], *, env: dict[str, str] | None = None, namespace: int | None = None, check: bool = True
) -> str:
    """Run a command that is not timed and return its output."""
    done = subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=enter(namespace)
    )
    if check and done.returncode != 0:
        raise CommandFailedError(f"{' '.join(argv)}: {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def milliseconds(argv: Sequence[str], *, env: dict[str, str] | None = None, namespace: int | None = None) -> float:
    """Wall time of one command, its output thrown away (a pipe would time the daemons that it leaves behind)."""
    begin = time.perf_counter()
    code = subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=enter(namespace),
    ).returncode
    took = (time.perf_counter() - begin) * 1e3
    if code != 0:
        run(argv, env=env, namespace=namespace)  # says what is wrong, if it is wrong again
        raise CommandFailedError(f"{' '.join(argv)}: {code}")
    return took


class Results:
    """Samples by (row, column), in the order in which they were first seen."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[str, list[float]]] = {}
        self.notes: list[str] = []

    def add(self, row: str, column: str, value: float) -> None:
        self.samples.setdefault(row, {}).setdefault(column, []).append(value)

    def timed(self, row: str, column: str, action: Callable[[], float]) -> None:
        """Add what `action` measured; a peer that cannot do it leaves a note instead of a number."""
        try:
            self.add(row, column, action())
        except CommandFailedError as failure:
            self.note(f"{column}, {row}: {failure}")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def markdown(self, reference: str, rows: Sequence[str] | None = None) -> str:
        """Median [min..max] for each, and how many times `reference` each peer takes."""
        chosen = [row for row in (rows or self.samples) if row in self.samples]
        columns: list[str] = []
        for row in chosen:
            columns.extend(column for column in self.samples[row] if column not in columns)
        lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for row in chosen:
            base = statistics.median(self.samples[row].get(reference, [float("nan")]))
            cells = [cell(self.samples[row].get(column), base, column == reference) for column in columns]
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def cell(samples: list[float] | None, base: float, is_reference: bool) -> str:
    if not samples:
        return "–"
    middle = statistics.median(samples)
    text = f"{middle:.1f}" if len(samples) == 1 else f"{middle:.1f} [{min(samples):.1f}..{max(samples):.1f}]"
    ratio = middle / base
    return text if is_reference or math.isnan(ratio) else f"{text} ×{ratio:.2g}"
