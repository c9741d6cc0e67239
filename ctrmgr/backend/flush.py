# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks that were taken away: what was written to them is on them. Loaded only when a disk was taken."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ctrmgr.kernel.control import Device


def flush(parts: Iterable[Device]) -> list[str]:
    """Have the kernel write out what it keeps for these block devices, which their last close does only once nobody has them open.
    Returns what went wrong. A disk that is gone has nothing to be flushed to, and neither has a drive without a medium."""
    found = []
    for part in parts:
        if part.kind != "block" or "w" not in part.access:
            continue
        node = _node(part.major, part.minor)
        if not node:
            continue
        try:
            fd = os.open(node, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_rdev == os.makedev(part.major, part.minor):
                    os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            found.append(f"`{node}` cannot be flushed: {error.strerror}")
    return found


def _node(major: int, minor: int) -> str:
    """The host's node of a block device, as the kernel names it; "" when it is gone or of no size."""
    try:
        with open(f"/sys/dev/block/{major}:{minor}/size", encoding="utf-8") as file:
            if file.read() == "0\n":
                return ""
        with open(f"/sys/dev/block/{major}:{minor}/uevent", encoding="utf-8") as file:
            return next(
                (f"/dev/{line[8:].rstrip()}" for line in file if line.startswith("DEVNAME=") and ".." not in line), ""
            )
    except OSError:
        return ""
