# SPDX-License-Identifier: GPL-3.0-or-later
"""What is only on the way between machines. Whatever kills a command, the next one of this kind takes away what it left.

`STATE/passing/MARK` is a folder with a lock for as long as the command lives: its files, and `record`, which names what servers have by
that mark, written before they get it. The folder without a lock is what a killed command left.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from ctrmgr import state
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError
from ctrmgr.remote import registry
from ctrmgr.remote.making import INSTANCE, folder
from ctrmgr.remote.server import Server, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Say = Callable[[str], None]

KEY = "ctrmgr.passing"
"""The property of such images; it makes their hash their own."""
IMAGE, BACKUP, HERE, MOVED = "image", "backup", "here", "moved"

Side = tuple[str, str, str]
"""URL, project and name of an instance; the first two are empty for one of this machine."""


def side(server: Server | None, name: str) -> Side:
    return (server.target.url, server.project, name) if server else ("", "", name)


def backup_name(mark: str) -> str:
    return f"ctrmgr-{mark}"


class Passage:
    """`with Passage() as passage`: `path` is for files, `mark` for what servers get."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []

    def __enter__(self) -> Passage:
        state.make_dir(folder(), 0o700)
        while True:
            self.mark = os.urandom(8).hex()
            self.path = f"{folder()}/{self.mark}"
            state.make_dir(self.path, 0o700)
            self.lock = state.Lock(self.path)
            try:
                self.lock.__enter__()
            except FileNotFoundError:  # before it was locked, somebody took it for a left-over
                continue
            return self

    def __exit__(self, *_: object) -> None:
        """What could not be taken away is left to the next command."""
        try:
            _clear(self.path, self.rows)
        finally:
            self.lock.__exit__(None, None, None)

    def note(self, kind: str, server: Server | None, name: str = "") -> str:
        """Something is about to be made; returns the mark."""
        self.rows.append(_row(kind, server, name))
        state.write_flat(f"{self.path}/record", self.rows)
        return self.mark

    def gone(self, kind: str, server: Server | None, name: str = "") -> None:
        """It is not there any more, or is to stay."""
        row = _row(kind, server, name)
        if row in self.rows:
            self.rows.remove(row)
            state.write_flat(f"{self.path}/record", self.rows)

    def arrived(self, target: Side, source: Side, identity: str, stamp: str) -> None:
        """The instance is there and whole; what is left of a move is that its source goes, if that still has this stamp."""
        self.rows = [row for row in self.rows if row[0] != INSTANCE]
        self.rows.append([MOVED, *target, *source, identity, stamp])
        state.write_flat(f"{self.path}/record", self.rows)

    def ended(self) -> None:
        """The source is gone, too."""
        self.rows = [row for row in self.rows if row[0] != MOVED]
        state.write_flat(f"{self.path}/record", self.rows)

    @contextlib.contextmanager
    def making(self, server: Server, name: str) -> Iterator[None]:
        """An instance. Whatever ends the block says what is left; who is killed cannot."""
        self.note(INSTANCE, server, name)
        try:
            yield
        finally:
            self.gone(INSTANCE, server, name)


def _row(kind: str, server: Server | None, name: str) -> list[str]:
    return [kind, *side(server, name)]


def _clear(path: str, rows: list[list[str]]) -> None:
    """Away with a folder, but for the record while that is of use."""
    if not rows:
        shutil.rmtree(path)
        return
    state.write_flat(f"{path}/record", rows)
    for name in os.listdir(path):
        if name != "record":
            os.unlink(f"{path}/{name}")


def _rows(path: str) -> list[list[str]]:
    try:
        return state.read_flat(f"{path}/record")
    except FileNotFoundError:
        return []


class Left:
    """What a killed move left to do: the `identity` of what it made, and the `stamp` of its source. `over`: nothing, by now."""

    def __init__(self, identity: str, stamp: str) -> None:
        self.identity, self.stamp, self.over = identity, stamp, False


@contextlib.contextmanager
def left_of_move(target: Side, source: Side) -> Iterator[Left | None]:
    """Of the same move."""
    for mark in state.entries(folder()):
        path = f"{folder()}/{mark}"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(state.Lock(path, wait=False))
            except (ConflictError, FileNotFoundError):
                continue
            rows = _rows(path)
            for row in rows:
                if row[0] == MOVED and tuple(row[1:7]) == (*target, *source):
                    left = Left(row[7], row[8])
                    try:
                        yield left
                    finally:
                        if left.over:
                            _clear(path, [each for each in rows if each is not row])
                    return
    yield None


def was_being_made(server: Server, name: str, *, forget: bool = False) -> bool:
    """Whether a killed command was making this instance. `forget`: another one has made it since."""
    wanted, found = _row(INSTANCE, server, name), False
    for mark in state.entries(folder()):
        path = f"{folder()}/{mark}"
        with contextlib.suppress(ConflictError, FileNotFoundError), state.Lock(path, wait=False):
            rows = _rows(path)
            if wanted in rows:
                found = True
                if forget:
                    _clear(path, [row for row in rows if row != wanted])
    return found


def sweep(servers: Iterable[Server], say: Say, forget: Callable[[str], None], here: Callable[[str], bool]) -> None:
    """Take away what killed commands left: files of ours, what these servers have, and (`forget`) images of this machine's. An instance
    is told, and stays: servers finish what they have begun, and somebody may count on it by now. A move is left to its own next command, as
    long as both sides are there (`here`: on this machine)."""
    asked = {(server.target.url, server.project): server for server in servers}
    for mark in state.entries(folder()):
        path = f"{folder()}/{mark}"
        with contextlib.suppress(ConflictError, FileNotFoundError), state.Lock(path, wait=False):
            rows = _rows(path)
            _clear(path, [row for row in rows if not _settled(mark, row, asked, say, forget, here)])


def _settled(
    mark: str,
    row: list[str],
    asked: dict[tuple[str, str], Server],
    say: Say,
    forget: Callable[[str], None],
    here: Callable[[str], bool],
) -> bool:
    """Whether it is gone. What nobody knows the server of any more is as good as gone."""
    kind, url, project, name = row[:4]
    if kind == MOVED:
        return any(_is_gone(each, asked, here) for each in (row[1:4], row[4:7]))
    if kind == HERE:
        forget(name)
        return True
    server = asked.get((url, project))
    if server is None:
        return _is_forgotten(url, project)
    if kind == INSTANCE:
        return _told(server, name, say)
    busy = False
    try:
        # Asked first: a server that is still making it has it later, and then the next command looks again.
        busy = _works(server)
        found = _image(server, mark) if kind == IMAGE else f"/instances/{quoted(name)}/backups/{backup_name(mark)}"
        if not found:
            return not busy
        server.change("DELETE", found)
    except NotFoundError:
        return not busy
    except CtrmgrError as error:
        say(f"a killed command left its {kind} `{mark}` on `{server.name}`: {error.message}")
        return False
    say(f"the {kind} that a killed command left on `{server.name}` was deleted")
    return True


def _is_forgotten(url: str, project: str) -> bool:
    return all((each.url, each.project) != (url, project) for each in registry.load().by_name.values())


def _is_gone(where: list[str], asked: dict[tuple[str, str], Server], here: Callable[[str], bool]) -> bool:
    """Whether an instance is certainly not there."""
    url, project, name = where
    if not url:
        return not here(name)
    if (server := asked.get((url, project))) is None:
        return _is_forgotten(url, project)
    try:
        server.get(f"/instances/{quoted(name)}")
    except NotFoundError:
        return True
    except CtrmgrError:
        return False
    return False


def _image(server: Server, mark: str) -> str:
    """One with an alias has arrived."""
    for each in server.get("/images", query={"recursion": "1"}):
        if each["properties"].get(KEY) == mark and not each["aliases"]:
            return f"/images/{quoted(str(each['fingerprint']))}"
    return ""


def _works(server: Server) -> bool:
    found = server.get("/operations", query={"recursion": "1"})
    return any(each["class"] == "task" for each in found.get("running") or ())


def _told(server: Server, name: str, say: Say) -> bool:
    label = f"{server.name}:{name}"
    busy = False
    try:
        busy = _works_on(server, name)
        server.get(f"/instances/{quoted(name)}")
    except NotFoundError:
        return not busy
    except CtrmgrError as error:
        say(f"whether a killed command left `{label}` is not known: {error.message}")
        return False
    if busy:
        say(f"`{label}` is still being made, for a command that was killed")
    else:
        say(f"`{label}` was made for a command that was killed before it looked whether all of it is there")
    return not busy


def _works_on(server: Server, name: str) -> bool:
    found = server.get("/operations", query={"recursion": "1"})
    urls = [url for each in found.get("running") or () for url in (each.get("resources") or {}).get("instances") or ()]
    return any(str(url).partition("?")[0].rpartition("/")[2] == quoted(name) for url in urls)
