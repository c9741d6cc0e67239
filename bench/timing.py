# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole commands timed from outside, and the table that they become."""

from __future__ import annotations

import ctypes
import os
import stat
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CLONE_NEWNS = 0x00020000
libc = ctypes.CDLL(None, use_errno=True)


class Nothing:
    """What commands read and write: no node of the host's once it has been made."""

    fd = subprocess.DEVNULL

    def make(self, path: Path) -> None:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)


nothing = Nothing()


class CommandFailedError(Exception):
    """A timed command did not do its work; a time for it would be a lie."""


def enter(namespace: int | None) -> Callable[[], None]:
    """What a child does before it becomes the command. All children do something, so that all pay the same fork."""

    def join() -> None:
        if namespace is not None and libc.setns(namespace, CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    return join


def run(
    argv: Sequence[str], *, env: dict[str, str] | None = None, namespace: int | None = None, check: bool = True
) -> str:
    """Run a command that is not timed and return its output."""
    done = subprocess.run(argv, env=env, stdin=nothing.fd, capture_output=True, text=True, preexec_fn=enter(namespace))
    if check and done.returncode != 0:
        raise CommandFailedError(f"{' '.join(argv)}: {done.returncode}: {' '.join(done.stderr.split())[-400:]}")
    return done.stdout


def milliseconds(argv: Sequence[str], *, env: dict[str, str] | None = None, namespace: int | None = None) -> float:
    """Wall time of one command, its output thrown away (a pipe would time the daemons that it leaves behind)."""
    begin = time.perf_counter()
    code = subprocess.run(
        argv,
        env=env,
        stdin=nothing.fd,
        stdout=nothing.fd,
        stderr=nothing.fd,
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

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def median(self, row: str, column: str) -> float | None:
        samples = self.samples.get(row, {}).get(column)
        return statistics.median(samples) if samples else None

    def markdown(self, reference: str) -> str:
        """Median [min..max] for each, and how many times `reference`'s median it is."""
        columns = list(dict.fromkeys(column for row in self.samples.values() for column in row))
        lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for row, cells in self.samples.items():
            base = None if row.startswith("python3") else self.median(row, reference)
            texts = [cell(cells.get(column), None if column == reference else base) for column in columns]
            lines.append(f"| {row} | " + " | ".join(texts) + " |")
        return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(samples: list[float] | None, base: float | None) -> str:
    if not samples:
        return "–"
    middle = statistics.median(samples)
    text = number(middle)
    if len(samples) > 1:
        text += f" [{number(min(samples))}..{number(max(samples))}]"
    return text if not base else f"{text} ×{middle / base:.2g}"
