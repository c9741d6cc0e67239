# SPDX-License-Identifier: GPL-3.0-or-later
"""Which cgroup controller this host has where: pure v2, hybrid, or v1."""

from __future__ import annotations

import os

UNIFIED = "unified"


class Cgroups:
    """The hierarchies that an instance's limits can be written to.

    `unified` is the mount point of cgroup2 ("" without one) and `controllers` what it can enforce below `base`;
    `v1` has the mount point of each v1 controller. `base` is the cgroup, relative to the cgroup2 mount, below which we may
    make ours: `/`, or the one that systemd delegated to an ordinary user.
    """

    __slots__ = ("base", "controllers", "unified", "v1")

    def __init__(self, unified: str, controllers: frozenset[str], v1: dict[str, str], base: str = "/") -> None:
        self.unified, self.controllers, self.v1, self.base = unified, controllers, v1, base

    @property
    def layout(self) -> str:
        """`v2`, `hybrid` (v1 controllers beside a cgroup2 mount), `v1` or `none`."""
        if self.unified:
            return "hybrid" if self.v1 else "v2"
        return "v1" if self.v1 else "none"

    def where(self, controller: str) -> str:
        """`unified`, the v1 hierarchy's name, or "" when no hierarchy has the controller.

        The kernel binds a controller to one hierarchy at a time, so there is never a choice.
        """
        if controller in self.v1:
            return controller
        return UNIFIED if controller in self.controllers else ""


def read(root: str = "/", *, privileged: bool = True) -> Cgroups:
    """Look at `/proc/self/mountinfo` and `cgroup.controllers` under `root`.

    Unprivileged callers own only what was delegated to them: the controllers of the cgroup that they are in.
    """
    prefix = root.rstrip("/")
    unified = ""
    v1: dict[str, str] = {}
    for line in _lines(prefix + "/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(tail) < 3:
            continue
        if tail[0] == "cgroup2" and not unified:
            unified = _unescape(fields[4])
        elif tail[0] == "cgroup":
            # The superblock's options name the controllers; `rw`, `xattr` and `name=systemd` are none.
            for word in tail[2].split(","):
                if word in V1_CONTROLLERS:
                    v1.setdefault(word, _unescape(fields[4]))
    base = "/" if privileged else _own(prefix)
    controllers: frozenset[str] = frozenset()
    if unified:
        path = os.path.normpath(f"{prefix}{unified}{base}/cgroup.controllers")
        controllers = frozenset(" ".join(_lines(path)).split())
    return Cgroups(unified, controllers, v1, base)


V1_CONTROLLERS = frozenset(("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "net_cls",
                            "net_prio", "perf_event", "pids", "rdma", "misc", "gpu"))  # fmt: skip


def guaranteed(folder: str, file: str, subject: str) -> float:
    """What a cgroup has of a guarantee, of a region of device memory or of what has none (""); infinity for `max`."""
    said = [line.rpartition(" ")[2] for line in _lines(f"{folder}/{file}") if line.rpartition(" ")[0] == subject]
    return float("inf") if said == ["max"] else int(said[0]) if said and said[0].isdecimal() else 0


def least_guaranteed(mount: str, path: str, file: str, subject: str) -> tuple[float, str]:
    """Of the cgroups from `path` below a mount upwards the one that has the least of a guarantee, and how much that is: the kernel keeps
    no more than that for those below. The host's top-most one, which has no such file, keeps everything."""
    found = float("inf"), ""
    while True:
        folder = os.path.normpath(f"{mount}/{path}")
        is_top = folder == os.path.normpath(mount)
        if not is_top or os.path.exists(f"{folder}/{file}"):
            found = min(found, (guaranteed(folder, file, subject), folder))
        if is_top:
            return found
        path = os.path.dirname(path)


def _own(prefix: str) -> str:
    for line in _lines(prefix + "/proc/self/cgroup"):
        if line.startswith("0::"):
            return line[3:]
    return "/"


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def _unescape(path: str) -> str:
    # mountinfo writes blanks and backslashes as octal.
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, letter)
    return path
