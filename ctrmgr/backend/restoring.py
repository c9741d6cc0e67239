# SPDX-License-Identifier: GPL-3.0-or-later
"""What a restore has copied beside an instance's files, put in their place (`backend/snapshots.py`). Cold."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.backend.record import crash

RESTORED = ".restored"
TREES = ("upper", "tpm")
"""Of an instance, in the order in which they are put back; the first is always there."""


def finish(path: str) -> None:
    """Move what a restore has copied to its place; each step can be repeated. The caller holds the instance's lock."""
    for tree in TREES:
        if os.path.exists(f"{path}/{tree}{RESTORED}"):
            if os.path.exists(f"{path}/{tree}"):
                os.rename(f"{path}/{tree}", f"{path}/{tree}.old")
            crash("restore-half")
            os.rename(f"{path}/{tree}{RESTORED}", f"{path}/{tree}")
    for each in ("plan", "config"):
        if os.path.exists(f"{path}/{each}{RESTORED}"):
            os.rename(f"{path}/{each}{RESTORED}", f"{path}/{each}")
    crash("restore-moved")
    for tree in TREES:
        record.remove_tree(f"{path}/{tree}.old")
    state.unlink(f"{path}/restore")
