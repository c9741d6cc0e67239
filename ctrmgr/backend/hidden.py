# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts of a device that the instance has another one of its own over: they are there, and nobody inside sees them.

What the instance mounts is its own affair, and it may take it away again; whoever attached the device must hear of it.
"""

from __future__ import annotations

import re

from ctrmgr.backend import record
from ctrmgr.kernel import control

KINDS = ("bind", "filesystem")


def places(name: str, device: str) -> list[tuple[str, str]]:
    """Where a device of a running instance is mounted out of sight, and where the mount is that hides it."""
    run = record.run_home(name)
    mine = [
        part.path for part in control.ask(run, control.DEVICES).devices() if part.name == device and part.kind in KINDS
    ]
    if not mine:
        return []
    _, init, *_ = control.ask(run, control.STATUS).status()
    try:
        with open(f"/proc/{init}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split(" ", 5)[:5] for line in file]
    except OSError:
        return []  # it has just ended
    return covered(mine, [(number, above, _plain(place)) for number, above, _, _, place in mounts])


def covered(paths: list[str], mounts: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """`mounts` are numbers, the number of what each is mounted on, and where."""
    on = {(above, place): number for number, above, place in mounts}
    where = {number: place for number, _, place in mounts}
    top = next((number for number, above, place in mounts if place == "/" and above not in where), "")
    found = []
    for path in paths:
        if path not in where.values():
            continue  # a symlink has led elsewhere
        seen, at, parts = top, "", path.split("/")[1:]
        for part in ("", *parts):
            at = f"{at.rstrip('/')}/{part}"
            while (below := on.get((seen, at))) is not None:
                seen = below
        if where.get(seen) != path:
            found.append((path, where.get(seen, "/")))
    return found


def _plain(place: str) -> str:
    """Blanks and backslashes are written as octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place)
