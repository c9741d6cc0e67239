# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled plans of (image, profiles), kept until a file that they came from changes. Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import CtrmgrError
from ctrmgr.plan import folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ctrmgr.images.store import Image

NAME_MAX = 255


def cached(image: Image, profiles: Sequence[str]) -> list[list[str]] | None:
    """The rows for this image and these profiles, or None when they must be compiled (again).

    They hold as long as every `@stamp` does: each file that was read and each that did not exist in a later, stronger,
    folder is the same by time, size and inode; ctrmgr itself is; and so are the boot and the parent cgroup.
    """
    place = path(image, profiles)
    if place is None:
        return None
    try:
        rows = state.read_flat(place)
    except FileNotFoundError:
        return None
    except CtrmgrError:  # a damaged one is only made again
        return None
    if not rows or rows[0] != head(image, profiles):
        return None
    for row in rows:
        if row[0] == "@stamp" and row != stamp(row[1]):
            return None
    return rows


def store(image: Image, profiles: Sequence[str], rows: Iterable[Sequence[str]], files: Iterable[str]) -> None:
    """Keep compiled rows. `files` are stamped beside the profiles and ctrmgr's own."""
    place = path(image, profiles)
    if place is None:
        return
    state.make_dir(os.path.dirname(place), 0o700)
    read = [candidate for name in profiles for candidate in folders.candidates(name)]
    stamps = [stamp(file) for file in (*read, *files, __file__)]
    state.write_flat(place, [head(image, profiles), *stamps, *rows])


def head(image: Image, profiles: Sequence[str]) -> list[str]:
    """What must be equal before any file is looked at. The hierarchies and the modules of a kernel change with the boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        boot = file.read().strip()
    return ["@template", "1", image.fingerprint, image.rootfs, ",".join(profiles), boot, str(os.geteuid())]


def stamp(file: str) -> list[str]:
    """`@stamp PATH MTIME_NS SIZE INODE`, or `@stamp PATH -` for a file that is not there."""
    try:
        found = os.stat(file)
    except OSError:
        return ["@stamp", file, "-"]
    return ["@stamp", file, str(found.st_mtime_ns), str(found.st_size), str(found.st_ino)]


def path(image: Image, profiles: Sequence[str]) -> str | None:
    """Where the rows are kept; None when the profiles' names do not fit in a file name (never for people's own)."""
    name = f"{image.fingerprint}-{'+'.join(profiles)}"
    if len(name.encode()) > NAME_MAX or "/" in name:
        return None
    return f"{state.state_dir()}/templates/{name}"
