# SPDX-License-Identifier: GPL-3.0-or-later
"""resctrl: what of its caches and memory bandwidth this machine can share out and count (Intel RDT, AMD QoS). Hot."""

from __future__ import annotations

import os

from ctrmgr.errors import UnsupportedError
from ctrmgr.host import sysfs

FLAGS = {"rdt_a", "cqm"}
"""Of a CPU that can."""


class Resctrl:
    """`resources` can be shared out (`L3`, `MB`, …), `features` be counted (`llc_occupancy`, `mbm_total_bytes`, …)."""

    __slots__ = ("features", "path", "resources")

    def __init__(self, path: str, root: str = "/") -> None:
        self.path = path
        here = root.rstrip("/") + path
        lines = sysfs.text(f"{here}/schemata").splitlines()
        self.resources = [line.partition(":")[0].strip() for line in lines]
        counted = [name for name in sysfs.names(f"{here}/info") if name.endswith("_MON")]
        self.features = [word for name in counted for word in sysfs.text(f"{here}/info/{name}/mon_features").split()]


def find(root: str = "/") -> Resctrl:
    """Where it is mounted. Raises UnsupportedError, which says why it is not."""
    top = root.rstrip("/")
    for line in sysfs.rows(f"{top}/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        if right.startswith("resctrl "):
            return Resctrl(sysfs.unescape(left.split()[4]), root)
    if "resctrl" in sysfs.text(f"{top}/proc/filesystems").split():
        raise UnsupportedError(
            "no resctrl is mounted on this host", hint="`mount -t resctrl resctrl /sys/fs/resctrl` on the host"
        )
    if FLAGS & set(sysfs.text(f"{top}/proc/cpuinfo").split()):
        raise UnsupportedError("this kernel has no resctrl", hint="it is built without CONFIG_X86_CPU_RESCTRL")
    raise UnsupportedError("no resctrl is mounted on this host, whose CPU cannot, or may not, share out its caches")


def check(path: str) -> None:
    """Raises UnsupportedError when it is not mounted there any more."""
    if not os.path.exists(f"{path}/tasks"):
        raise UnsupportedError(f"no resctrl is mounted on `{path}` any more")
