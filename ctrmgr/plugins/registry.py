# SPDX-License-Identifier: GPL-3.0-or-later
"""Which plugins there are and where each comes from. None of their code runs here."""

from __future__ import annotations

import os
import stat

from ctrmgr import state
from ctrmgr.devices import driver
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError

GROUP = "ctrmgr.devices.v1"
SUFFIX = ".py"
ANY = "any"
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
SIZE_MAX = 1 << 20


class Source:
    """A plugin's device type and where its code is: a file, or (`entry` is `module:Class`) a package.

    `problem` is why it cannot be used; its code was not looked at for that.
    """

    __slots__ = ("entry", "origin", "path", "problem", "type")

    def __init__(
        self, type: str, origin: str, *, path: str = "", entry: str = "", problem: CtrmgrError | None = None
    ) -> None:
        self.type, self.origin, self.path, self.entry, self.problem = type, origin, path, entry, problem

    def __repr__(self) -> str:
        return f"Source({self.type!r}, {self.origin!r})"


def folders() -> list[str]:
    """Where plugins of one file are, weakest first; a later one wins by name. As with profiles, CTRMGR_CONFIG_DIR stands for both."""
    own = state.config_dir() + "/devices.d"
    if os.environ.get("CTRMGR_CONFIG_DIR") or own == "/etc/ctrmgr/devices.d":
        return [own]
    return ["/etc/ctrmgr/devices.d", own]


def sources() -> dict[str, Source]:
    """All plugins by type. A file wins over a package, and two packages with one type make it unusable."""
    from importlib import metadata

    found: dict[str, Source] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        about = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package"
        source = Source(entry.name, about, entry=entry.value, problem=wrong_name(entry.name))
        other = found.get(entry.name)
        if other is not None and other.entry != source.entry:
            source.problem = ConflictError(
                f"plugin `{entry.name}` comes from two packages: {other.origin} and {about}", hint="uninstall one"
            )
        found[entry.name] = source
    for folder in folders():
        for source in _files(folder):
            found[source.type] = source
    return dict(sorted(found.items()))


def _files(folder: str) -> list[Source]:
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [Source(folder.rpartition("/")[2], folder, path=folder, problem=state.unreadable(folder, error))]
    found = []
    for name in names:
        if name.endswith(SUFFIX) and name[0] not in "._":
            path, kind = f"{folder}/{name}", name.removesuffix(SUFFIX)
            problem: CtrmgrError | None = wrong_name(kind)
            if problem is None:
                try:
                    read_trusted(path)
                except CtrmgrError as error:
                    problem = error
            found.append(Source(kind, path, path=path, problem=problem))
    return found


def wrong_name(kind: str) -> SpecError | None:
    """Why a plugin cannot bring this device type."""
    if kind in driver.DRIVERS or kind in driver.NOT_DONE or kind == ANY:
        return SpecError(f"plugin `{kind}`: that device type is ctrmgr's own", hint="call it `maker-thing`")
    if not 0 < len(kind) <= 63 or not LETTERS.issuperset(kind) or kind[0] in "-0123456789" or kind[-1] == "-":
        return SpecError(
            f"plugin `{kind}`: that cannot be a device type", hint="small letters, digits and hyphens: `maker-thing`"
        )
    return None


def read_trusted(path: str) -> bytes:
    """The text of a plugin that nobody but root and the caller could have written.

    What is returned is what was checked: it is read from the very file. Raises HostError.
    """
    own = (0, os.geteuid())
    folder = os.path.dirname(path)
    while True:
        found = os.lstat(folder)
        open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        _trust(folder, found.st_uid in own, not open_to_others, found.st_uid)
        if folder == "/":
            break
        folder = os.path.dirname(folder)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise HostError(f"`{path}` is not loaded: {error.strerror}", hint="a plugin is a file, no link") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > SIZE_MAX:
            raise HostError(f"`{path}` is not loaded: it is no file of at most 1 MiB")
        _trust(path, found.st_uid in own, not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH), found.st_uid)
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(SIZE_MAX)
    finally:
        os.close(fd)


def _trust(path: str, owned: bool, closed: bool, uid: int) -> None:
    """Plugins run with all that the caller may do."""
    if not owned:
        raise HostError(f"`{path}` belongs to user {uid} and is not trusted", hint=f"chown root {path}")
    if not closed:
        raise HostError(f"`{path}` can be written by others and is not trusted", hint=f"chmod go-w {path}")


def find(kind: str) -> Source:
    """The plugin that brings a device type. Raises NotFoundError, and whatever makes it unusable."""
    source = sources().get(kind)
    if source is None:
        raise NotFoundError(f"no plugin brings the device type `{kind}`", hint="`ctrmgr device plugins` lists them")
    if source.problem:
        raise source.problem
    return source


def known(kind: str) -> bool:
    """Whether a plugin brings this device type, usable or not."""
    return kind in sources()
