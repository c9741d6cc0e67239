# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the kernel or filesystem cannot idmap a mount: the instance gets a copy of its layers that already has its host
ids. Slower and larger, and said so. Cold."""

from __future__ import annotations

import os
import shutil
import stat
import sys

from ctrmgr import state
from ctrmgr.backend import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def shift(path: str, plan: Sequence[Sequence[str]]) -> None:
    """Copy every layer to `shifted/N` with mapped owners, shift `upper`, and make the plan use them. Raises HostError."""
    maps = {
        kind: [(int(row[1]), int(row[2]), int(row[3])) for row in plan if row[0] == f"{kind}map"]
        for kind in ("uid", "gid")
    }
    layers = [row[1] for row in plan if row[0] == "layer"]
    print(f"note: this host cannot idmap `{layers[0]}`: copying it with shifted owners instead", file=sys.stderr)
    copies = f"{path}/shifted"
    record.remove_tree(copies)
    try:
        os.mkdir(copies, 0o711)
        for index, layer in enumerate(layers):
            # hard links become copies; everything else stays what it was
            shutil.copytree(layer, f"{copies}/{index}", symlinks=True)
            _owners(layer, f"{copies}/{index}", maps)
        _owners(f"{path}/upper", f"{path}/upper", maps)
    except OSError as error:
        record.remove_tree(copies)
        raise state.unwritable(copies, error) from error
    rows = [list(row) for row in plan if row[0] != "layer"]
    rows += [["layer", f"{copies}/{index}"] for index in range(len(layers))] + [["shifted", "1"]]
    state.write_flat(f"{path}/plan", rows)


def _owners(source: str, target: str, maps: dict[str, list[tuple[int, int, int]]]) -> None:
    """Give everything below `target` the owner that `source` has, mapped; set-id bits survive the chown."""
    pairs = [(source, target)]
    while pairs:
        here, there = pairs.pop()
        found = os.lstat(here)
        uid, gid = _mapped(found.st_uid, maps["uid"]), _mapped(found.st_gid, maps["gid"])
        if stat.S_ISDIR(found.st_mode):
            pairs += [(f"{here}/{name}", f"{there}/{name}") for name in os.listdir(here)]
        os.chown(there, uid, gid, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            os.chmod(there, stat.S_IMODE(found.st_mode))


def _mapped(number: int, rows: Sequence[tuple[int, int, int]]) -> int:
    for inside, outside, count in rows:
        if inside <= number < inside + count:
            return outside + number - inside
    return number if any(outside <= number < outside + count for _, outside, count in rows) else rows[0][1] + 65534
