# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded machines: `tests/fixtures/trees/*.tree`, one entry a line, unpacked below a root for the readers of `ctrmgr.host`.

`path<TAB>kind<TAB>content`: `f` is a file and `l` a link, with `\\n`, `\\t` and `\\\\` escaped; `x` is a file in
hexadecimal; `d` is a folder; `c` and `b` are device nodes as `major:minor`, unpacked as files with that text, because making
nodes takes root.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent / "fixtures/trees"
NAMES = sorted(path.stem for path in FOLDER.glob("*.tree"))
ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def rows(name: str) -> list[tuple[str, str, str]]:
    """The entries of a tree."""
    found = []
    for line in (FOLDER / f"{name}.tree").read_text().split("\n"):
        if line and not line.startswith("#"):
            path, kind, content = f"{line}\t".split("\t")[:3]
            found.append((path, kind, re.sub(r"\\.", lambda match: ESCAPES[match[0]], content)))
    return found


def unpack(folder: Path, *names: str, change: Callable[[str], str] = str) -> str:
    """Lay the trees over each other below `folder`; `change` is applied to every path and content. Returns the root."""
    for name in names:
        for path, kind, content in rows(name):
            target = folder / change(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == "d":
                target.mkdir(exist_ok=True)
            elif kind == "l":
                if not target.is_symlink():
                    target.symlink_to(change(content))
            elif kind == "x":
                target.write_bytes(bytes.fromhex(content))
            else:
                target.write_text(change(content))
    return str(folder)


def swap(one: str, other: str) -> Callable[[str], str]:
    """A `change` that gives each of two names to the other, as whole words."""
    names = {one: other, other: one}
    pattern = re.compile(rf"\b(?:{re.escape(one)}|{re.escape(other)})\b")
    return lambda text: pattern.sub(lambda match: names[match[0]], text)
