# SPDX-License-Identifier: GPL-3.0-or-later
"""Character devices of all kinds: `/dev/fuse`, `/dev/kvm`, serial ports, cameras, … Hot."""

from __future__ import annotations

import os
import stat

from ctrmgr.host import pci, sysfs

EVERYWHERE = frozenset(("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"))
"""Every instance has these of its own."""
SKIPPED = ("pts", "shm", "mqueue", "fd", "hugepages")
DEPTH = 4


class CharDevice:
    """One character device. `id` is its node's path; `address` is the PCI function that it belongs to, or "".

    `plain` says that people pass it: consoles and the kernel's memory are not.
    """

    __slots__ = ("address", "driver", "id", "name", "node", "path", "plain", "subsystem")

    def __init__(self, node: sysfs.Node, path: str, subsystem: str) -> None:
        self.node, self.path, self.subsystem = node, path, subsystem
        self.id = node.path
        self.name = node.path.removeprefix("/dev/")
        self.address = pci.above(path) if path else ""
        self.driver = sysfs.base(f"{path}/device/driver") if path else ""
        hidden = subsystem in ("mem", "vc", "vtconsole", "cpuid", "msr")
        if subsystem == "tty":
            hidden = not _is_port(path)
        self.plain = not hidden


def _is_port(path: str) -> bool:
    """A serial port with something behind it: not a virtual terminal, not one of the four that every PC reserves."""
    kind = sysfs.number(f"{path}/type")
    return os.path.lexists(f"{path}/device") and kind != 0


def devices(root: str = "/") -> list[CharDevice]:
    """All with a node that instances do not have anyway, by path.

    Those that the kernel announces come from sysfs; some drivers announce none, and only `/dev` has theirs.
    """
    prefix = root.rstrip("/")
    folder = prefix + "/sys/dev/char"
    found: dict[str, CharDevice] = {}
    numbers = set()
    for name in sysfs.names(folder):
        path = sysfs.follow(f"{folder}/{name}")
        node = sysfs.node(root, path, "char")
        if node is None:
            continue
        numbers.add((node.major, node.minor))
        if node.path.removeprefix("/dev/") not in EVERYWHERE:
            found[node.path] = CharDevice(node, path, sysfs.base(f"{path}/subsystem"))
    for node in _unannounced(prefix, prefix + "/dev", DEPTH):
        if (node.major, node.minor) not in numbers:
            found.setdefault(node.path, CharDevice(node, "", ""))
    return sorted(found.values(), key=lambda device: sysfs.natural(device.id))


def _unannounced(prefix: str, folder: str, depth: int) -> list[sysfs.Node]:
    found = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth > 0 and not (folder == prefix + "/dev" and entry.name in SKIPPED):
                    found += _unannounced(prefix, entry.path, depth - 1)
                continue
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) and entry.name.isprintable():
            path = entry.path[len(prefix) :]
            number = os.major(status.st_rdev), os.minor(status.st_rdev)
            if number != (0, 0):  # a whiteout of an overlay
                found.append(sysfs.Node(path, "char", *number, "char", present=True))
    return found
