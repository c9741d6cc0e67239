# SPDX-License-Identifier: GPL-3.0-or-later
"""Which host ids may be given to user namespaces: `/etc/subuid` and `/etc/subgid`."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT = ((0x70000000, 0x08000000),)
"""(first id, count) for root when the files give it nothing: above the 16-bit ids, the range that systemd hands to
containers (524288 … 1879048191) and what useradd gives to people; below 2**31, which some filesystems cannot pass.
Room for 2048 instances of 65536 ids."""


def allowed(user: str, uid: int, root: str = "/") -> tuple[tuple[int, int], ...]:
    """(first id, count) of each range that `user` may map as uid *and* gid; `DEFAULT` when root has none."""
    both = tuple(intersect(read(root + "/etc/subuid", user, uid), read(root + "/etc/subgid", user, uid)))
    if not both and uid == 0:
        return DEFAULT
    return both


def read(path: str, user: str, uid: int) -> list[tuple[int, int]]:
    """The ranges of one file, in its order; lines that make no sense are passed over, as newuidmap does."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    names = (user, str(uid))
    found = []
    for line in lines:
        fields = line.strip().split(":")
        if len(fields) == 3 and fields[0] in names and fields[1].isdecimal() and fields[2].isdecimal():
            first, count = int(fields[1]), int(fields[2])
            # Id 0 is the host's root and 2**32-1 means "no id": a line with either is a mistake or an attack.
            if first > 0 and 0 < count <= 0xFFFFFFFF - first:
                found.append((first, count))
    return found


def intersect(left: Iterable[tuple[int, int]], right: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ids that are in both lists of ranges."""
    others = list(right)
    for first, count in left:
        for other, other_count in others:
            begin, end = max(first, other), min(first + count, other + other_count)
            if begin < end:
                yield begin, end - begin


def free(ranges: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]], size: int) -> Iterator[int]:
    """First ids of free ranges of `size` ids, lowest first, that meet none of `taken`."""
    busy = sorted(taken)
    for first, count in ranges:
        base = first
        for used, used_count in busy:
            if used + used_count <= base:
                continue
            while base + size <= min(used, first + count):
                yield base
                base += size
            base = max(base, used + used_count)
        while base + size <= first + count:
            yield base
            base += size


def user_name(uid: int) -> str:
    """The name that `/etc/subuid` calls `uid` by."""
    if uid == 0:
        return "root"
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def mine() -> tuple[tuple[int, int], ...]:
    """The ranges of the caller."""
    uid = os.geteuid()
    return allowed(user_name(uid), uid)
