# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python API in one warm process: prints `row<TAB>milliseconds`. Run by run.py with ctrmgr's own interpreter."""

from __future__ import annotations

import itertools
import sys
import time

import ctrmgr

TIMES = 10
"""How often each new instance is given the device: the first time, too, when its monitor has never done it."""


def main(rounds: int) -> None:
    for number in range(rounds + 1):
        found = one(f"api{number}")
        for row, took in found if number else ():  # round 0 is the imports
            print(f"{row}\t{took * 1e3:.3f}")


def one(name: str) -> list[tuple[str, float]]:
    marks = [("", time.perf_counter())]
    instance = ctrmgr.launch("builtin:busybox", name, profiles=["offline"])
    marks.append(("launch", time.perf_counter()))
    for _ in range(TIMES):
        instance.attach("fuse", type="unix-char", source="/dev/fuse")
        marks.append(("attach", time.perf_counter()))
        instance.detach("fuse")
        marks.append(("detach", time.perf_counter()))
    instance.delete(force=True)
    marks.append(("delete", time.perf_counter()))
    return [(row, end - begin) for (_, begin), (row, end) in itertools.pairwise(marks)]


if __name__ == "__main__":
    main(int(sys.argv[1]))
