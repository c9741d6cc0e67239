# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading sysfs, procfs and what looks like them. Whatever is missing or makes no sense is empty, never an error. Hot."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 1 << 16
"""No attribute that is read here is longer."""


class Node:
    """A device node as the kernel announces it: `role` says what it is for within its device."""

    __slots__ = ("kind", "major", "minor", "path", "present", "role")

    def __init__(self, path: str, kind: str, major: int, minor: int, role: str, *, present: bool) -> None:
        self.path, self.kind, self.major, self.minor, self.role = path, kind, major, minor, role
        self.present = present
        """Whether `/dev` has it: some drivers make theirs when a program first asks."""

    def __repr__(self) -> str:
        return f"Node({self.path!r}, {self.kind[0]} {self.major}:{self.minor}, {self.role!r})"


def text(path: str) -> str:
    """A file's text in one piece, without what no terminal should be sent: device names come from the devices."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return ""
    try:
        data = os.read(fd, LIMIT)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return clean(data.decode("utf-8", "replace"))


def known(path: str) -> str:
    """What a device is known again by: a file's text, or with a slash at the end of the path the names in a folder."""
    return " ".join(names(path)) if path.endswith("/") else text(path)


def clean(words: str) -> str:
    """Printable letters, newlines and blanks; everything else is a `?`."""
    words = words.strip("\0 \t\r\n")
    if words.isprintable() or words.replace("\n", "").replace("\t", "").isprintable():
        return words
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in words)


def line(path: str) -> str:
    """The words of a file's first line, with one blank between them."""
    return " ".join(text(path).partition("\n")[0].split())


def rows(path: str) -> list[str]:
    """All lines of a file that may be long, with single blanks."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [" ".join(clean(row).split()) for row in file]
    except OSError:
        return []


def unescape(path: str) -> str:
    """A path as procfs writes it: blanks and backslashes in octal."""
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, letter)
    return path


def number(path: str, default: int = -1) -> int:
    """A decimal number, or `default`."""
    return integer(text(path), default)


def integer(word: str, default: int = -1) -> int:
    """`12`, `-1`, or `default` for anything else."""
    digits = word[1:] if word[:1] == "-" else word
    return int(word) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else default


def hexa(path: str) -> str:
    """`0x10de` as `10de`; "" when it is no number."""
    word = text(path).lower().removeprefix("0x")
    return word if word and not word.strip("0123456789abcdef") and len(word) <= 16 else ""


def names(path: str) -> list[str]:
    """What is in a directory, in the order in which people count: `card2` before `card10`."""
    try:
        return sorted(filter(str.isprintable, os.listdir(path)), key=natural)
    except OSError:
        return []


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key under which numbers inside of names count as numbers."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for letter in name + "\0":
        if letter in "0123456789":
            digits += letter
            continue
        if digits:
            parts.append((int(digits[-18:]), ""))
            digits = ""
        parts.append((1 << 60, letter))
    return parts


def base(path: str) -> str:
    """The last part of what a symbolic link leads to: a device's driver, subsystem or group."""
    try:
        return os.readlink(path).rpartition("/")[2]
    except OSError:
        return ""


def real(path: str) -> str:
    """The path without symbolic links; the links of sysfs are relative, so that this works below any root."""
    return os.path.realpath(path)


def follow(path: str) -> str:
    """The same where only the last part may be a link, as in the folders of `/sys/class`: a tenth of the time."""
    try:
        return os.path.normpath(f"{path.rpartition('/')[0]}/{os.readlink(path)}")
    except OSError:
        return path


def uevent(path: str) -> dict[str, str]:
    """The `KEY=value` lines of a device directory's `uevent`."""
    found = {}
    for row in text(f"{path}/uevent").split("\n"):
        key, equals, value = row.partition("=")
        if equals:
            found[key] = value
    return found


def numbers(word: str) -> tuple[int, int] | None:
    """`226:128` as major and minor."""
    major, _, minor = word.partition(":")
    found = (integer(major), integer(minor))
    return found if min(found) >= 0 else None


def node(root: str, path: str, role: str, *, kind: str = "char") -> Node | None:
    """The node of a device directory of sysfs, or None when the device has none."""
    found = numbers(text(f"{path}/dev"))
    name = uevent(path).get("DEVNAME", "")
    if found is None or not name or ".." in name.split("/"):
        return None
    return plain_node(root, "/dev/" + name.removeprefix("/dev/"), role, *found, kind=kind)


def plain_node(root: str, path: str, role: str, major: int, minor: int, *, kind: str = "char") -> Node:
    """A node whose number is known from elsewhere."""
    return Node(path, kind, major, minor, role, present=os.path.lexists(root.rstrip("/") + path))


def majors(root: str = "/") -> dict[str, int]:
    """Character device drivers by name, as `/proc/devices` has them."""
    found: dict[str, int] = {}
    for row in text(root.rstrip("/") + "/proc/devices").partition("Block devices")[0].split("\n"):
        major, _, name = row.strip().partition(" ")
        if major.isascii() and major.isdecimal() and name:
            found.setdefault(name.strip(), int(major))
    return found


def fields(rows: Iterable[str], separator: str) -> dict[str, str]:
    """`Key: value` lines."""
    found = {}
    for row in rows:
        key, middle, value = row.partition(separator)
        if middle:
            found[key.strip()] = value.strip()
    return found
