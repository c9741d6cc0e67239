# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded machines: `tests/fixtures/trees/*.tree`, one entry a line, unpacked below a root for the readers of `ctrmgr.host`.

`path<TAB>kind<TAB>content`: `f` is a file and `l` a link, with `\\n`, `\\t` and `\\\\` escaped; `x` is a file in
hexadecimal; `d` is a folder; `c` and `b` are device nodes as `major:minor`, unpacked as files with that text, because making
nodes takes root.

`python3 -m tests.trees 'what it is' > tests/fixtures/trees/NAME.tree` records the machine that it runs on: exactly what the
readers look at. Look for serial numbers in it before you give it away.
"""

from __future__ import annotations

import builtins
import os
import re
import stat
import sys
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
            put(folder / change(path), kind, change(content))
    return str(folder)


def put(target: Path, kind: str, content: str) -> None:
    """Make one entry."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "d":
        target.mkdir(exist_ok=True)
    elif kind == "x":
        target.write_bytes(bytes.fromhex(content))
    elif kind != "l":
        target.write_text(content)
    elif not target.is_symlink():
        target.symlink_to(content)


def swap(one: str, other: str) -> Callable[[str], str]:
    """A `change` that gives each of two names to the other, as whole words."""
    names = {one: other, other: one}
    pattern = re.compile(rf"\b(?:{re.escape(one)}|{re.escape(other)})\b")
    return lambda text: pattern.sub(lambda match: names[match[0]], text)


def record() -> dict[str, tuple[str, str]]:
    """Path → kind and content of all that the readers look at on this machine."""
    from ctrmgr.host import accel, amd, block, char, gpu, nvidia, pci, rdma, usb

    seen: set[str] = set()

    def watched(function: Callable[..., object]) -> Callable[..., object]:
        def watch(path: object, *arguments: object, **named: object) -> object:
            if isinstance(path, str | os.PathLike):
                seen.add(os.fspath(path))
            return function(path, *arguments, **named)

        return watch

    places = [(os, name) for name in ("open", "readlink", "listdir", "scandir", "stat", "lstat")]
    before = [(place, name, getattr(place, name)) for place, name in [*places, (builtins, "open")]]
    for place, name, function in before:
        setattr(place, name, watched(function))
    try:
        for reader in (pci.functions, gpu.gpus, accel.accelerators, rdma.hcas, block.disks, usb.devices, char.devices,
                       nvidia.cards, nvidia.version, amd.agents):  # fmt: skip
            reader("/")
    finally:
        for place, name, function in before:
            setattr(place, name, function)
    return dict(entry for path in sorted(seen) for entry in entries(path))


def entries(path: str) -> list[tuple[str, tuple[str, str]]]:
    """The entries of a path and of the links on the way to it; none when there is nothing."""
    folder, _, name = path.rpartition("/")
    way = entries(folder) if folder and path[0] == "/" and os.path.realpath(folder) != folder else []
    path = f"{os.path.realpath(folder)}/{name}"
    if not path.startswith(("/sys/", "/proc/", "/dev/")) or not os.path.lexists(path):
        return []
    return way + entry(path)


def entry(path: str) -> list[tuple[str, tuple[str, str]]]:
    """The entry of a path in folders that are not links, and if it is a link that of what it leads to."""
    short = re.sub(r"^proc/\d+/", "proc/self/", path[1:])
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return [(short, ("l", os.readlink(path))), *entries(os.path.realpath(path))]
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        kind = "c" if stat.S_ISCHR(status.st_mode) else "b"
        return [(short, (kind, f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"))]
    if stat.S_ISDIR(status.st_mode):
        return [(short, ("d", ""))]
    try:
        data = Path(path).read_bytes()
    except OSError:
        return []
    try:
        return [(short, ("f", data.decode()))]
    except UnicodeDecodeError:
        return [(short, ("x", data.hex()))]


if __name__ == "__main__":
    print(
        f"# SPDX-License-Identifier: GPL-3.0-or-later\n# {sys.argv[1]}\n# Origin: recorded on Linux {os.uname().release}."
    )
    for name, (kind, content) in record().items():
        for escape, letter in reversed(ESCAPES.items()):
            content = content.replace(letter, escape)
        print(f"{name}\t{kind}\t{content}".rstrip("\t"))
