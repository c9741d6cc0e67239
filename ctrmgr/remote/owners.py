# SPDX-License-Identifier: GPL-3.0-or-later
"""Users and groups of an instance on a server by their names, out of its own /etc/passwd and /etc/group."""

from __future__ import annotations

from ctrmgr.errors import NotFoundError
from ctrmgr.remote.server import Server, quoted

FILES = {"uid": "/etc/passwd", "gid": "/etc/group"}


class User:
    """A line of /etc/passwd."""

    __slots__ = ("gid", "home", "name", "shell", "uid")

    def __init__(self, name: str, uid: int, gid: int, home: str = "", shell: str = "") -> None:
        self.name, self.uid, self.gid, self.home, self.shell = name, uid, gid, home, shell


def rows(server: Server, name: str, path: str) -> list[list[str]]:
    """The lines of one of these files; none when the image has no such file."""
    try:
        answer = server.send("GET", f"/instances/{quoted(name)}/files", query={"path": path})
    except NotFoundError:
        return []
    return [line.split(":") for line in answer.body.decode(errors="replace").splitlines() if ":" in line]


def number(server: Server, name: str, kind: str, word: str) -> int:
    """The number of a user (`uid`) or group (`gid`). Raises NotFoundError."""
    if word.isdecimal():
        return int(word)
    for row in rows(server, name, FILES[kind]):
        if row[0] == word and len(row) > 2 and row[2].isdecimal():
            return int(row[2])
    what = "user" if kind == "uid" else "group"
    raise NotFoundError(f"`{server.name}:{name}` has no {what} `{word}`", hint=f"its {FILES[kind]} does not have it")


def user(server: Server, name: str, word: str) -> User:
    """A user by name or number; a number that nobody has is one without a home. Raises NotFoundError."""
    for row in rows(server, name, FILES["uid"]):
        if len(row) >= 7 and word in (row[0], row[2]) and row[2].isdecimal() and row[3].isdecimal():
            return User(row[0], int(row[2]), int(row[3]), row[5], row[6])
    if word.isdecimal():
        return User("root" if word == "0" else "", int(word), 0, "/root" if word == "0" else "/")
    raise NotFoundError(f"`{server.name}:{name}` has no user `{word}`")
