# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on single devices: what a disk may be asked for in a second. Hot: an attach with limits comes here."""

from __future__ import annotations

import os
import stat

from ctrmgr.errors import SpecError, UnsupportedError
from ctrmgr.host.cgroup import UNIFIED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.host.machine import Host

V2 = {("read", "bytes"): "rbps", ("read", "iops"): "riops", ("write", "bytes"): "wbps", ("write", "iops"): "wiops"}
V1 = {key: f"blkio.throttle.{key[0]}_{'bps' if key[1] == 'bytes' else 'iops'}_device" for key in V2}


def resolve(rows: Sequence[list[str]], host: Host, *, best_effort: bool = False) -> list[list[str]]:
    """The rows with `device-limit NAME HIERARCHY FILE VALUE` in place of `@io`, and the identity of the disk that they are about.

    Raises UnsupportedError when no controller can enforce them (with `best_effort` they become `left-out`), SpecError when two
    partitions of one disk want different limits.
    """
    found: list[list[str]] = []
    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row[0] != "@io":
            found.append(row)
            continue
        _, name, source, direction, rate = row
        try:
            hierarchy = _where(name, direction, host)
        except UnsupportedError as error:
            if not best_effort:
                raise
            found.append(["left-out", name, f"{name}.limits.{direction}", error.message])
            continue
        try:
            disk, number = _disk(host.root, source)
        except OSError:
            continue  # a device that is not there: its own row says whether that matters
        unit = "iops" if rate.endswith("iops") else "bytes"
        amount, word = rate.removesuffix("iops"), V2[direction, unit]
        if hierarchy == UNIFIED:
            limit = ["device-limit", name, hierarchy, "io.max", f"{number} {word}={amount}"]
        else:
            limit = ["device-limit", name, hierarchy, V1[direction, unit], f"{number} {amount}"]
        other = said.setdefault((number, word), limit)
        if other[4] != limit[4]:
            raise SpecError(
                f"devices `{other[1]}` and `{name}` are one disk, {number}, with two limits",
                hint="the kernel limits whole disks: give their partitions the same",
            )
        found.append(limit)
        identity = ["identity", name, disk, number]
        if identity not in found:
            found.append(identity)
    return found


def _where(name: str, direction: str, host: Host) -> str:
    hierarchy = host.cgroups.where("io") or host.cgroups.where("blkio")
    if hierarchy == UNIFIED or (hierarchy and host.has_file(host.cgroups.v1[hierarchy], V1[direction, "bytes"])):
        return hierarchy
    why = "the `io` controller is in no hierarchy of this host" if host.privileged else "`io` was not delegated to you"
    raise UnsupportedError(
        f"device `{name}`: `limits.{direction}` cannot be enforced here: {why}",
        hint="`limits.enforcement: best-effort` goes on without it",
    )


def _disk(root: str, source: str) -> tuple[str, str]:
    """sysfs's file with the number of the disk that a node is, or is a partition of, and that number. Raises OSError."""
    status = os.stat(root.rstrip("/") + source)
    if not stat.S_ISBLK(status.st_mode):
        raise OSError(source)
    top = root.rstrip("/")
    folder = os.path.realpath(f"{top}/sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    if os.path.exists(f"{folder}/partition"):
        folder = os.path.dirname(folder)
    with open(f"{folder}/dev", encoding="ascii") as file:
        return f"{folder.removeprefix(top)}/dev", file.read().strip()
