# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python API in one warm process: prints `row<TAB>milliseconds`. Run by run.py with ctrmgr's own interpreter."""

from __future__ import annotations

import sys
import time

import ctrmgr


def main(rounds: int) -> None:
    for number in range(rounds + 1):
        marks = [time.perf_counter()]
        instance = ctrmgr.launch("builtin:busybox", f"api{number}", profiles=["offline"])
        marks.append(time.perf_counter())
        instance.attach("fuse", type="unix-char", source="/dev/fuse")
        marks.append(time.perf_counter())
        instance.detach("fuse")
        marks.append(time.perf_counter())
        instance.delete(force=True)
        marks.append(time.perf_counter())
        if number == 0:
            continue  # the imports
        for row, begin, end in zip(("launch", "attach", "detach", "delete"), marks, marks[1:], strict=False):
            print(f"{row}\t{(end - begin) * 1e3:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
