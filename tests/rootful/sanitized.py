# SPDX-License-Identifier: GPL-3.0-or-later
"""The C programs built with sanitizers, and the file into which those report (`native_helpers/sanitize.c`)."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT, build

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


class Sanitized:
    """`libexec` is for CTRMGR_LIBEXEC."""

    def __init__(self, libexec: Path) -> None:
        self.libexec = libexec
        self.report = libexec / "sanitizer-report"
        self.forget()

    def forget(self) -> None:
        """What runs already keeps the old file."""
        self.report.unlink(missing_ok=True)

    def said(self) -> str:
        """All that was reported since; fails when no program was there to report."""
        return reported(self.report)


def reported(file: Path) -> str:
    data = file.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")].decode(errors="replace")


def programs() -> Path:
    """Not optimised: they are built in a third of the time, and nothing undefined is optimised away before it is seen."""
    return build(ROOT / "build" / "sanitized", "-Db_sanitize=address,undefined", "-Doptimization=0")


@contextlib.contextmanager
def sanitized() -> Iterator[Sanitized]:
    """One test at a time: all share the file."""
    libexec = programs()
    with (ROOT / "build" / ".sanitized.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Sanitized(libexec)
