# SPDX-License-Identifier: GPL-3.0-or-later
"""The only way to the kernel: native helpers (`spawn`), the monitors' protocol (`control`), a few syscalls (cold)."""

from __future__ import annotations

import sys

debug = False
"""Say on stderr what is asked of helpers and monitors (`--debug`)."""


def say(line: str) -> None:
    if debug:
        print(f"ctrmgr: {line}", file=sys.stderr)
