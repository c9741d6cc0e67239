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
from ctrmgr.remote.server import Server, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Say = Callable[[str], None]

KEY = "ctrmgr.passing"
"""The property of such images; it makes their hash their own."""
IMAGE, BACKUP, HERE, INSTANCE = "image", "backup", "here", "instance"


def folder() -> str:
    return f"{state.state_dir()}/passing"


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
        with contextlib.suppress(ValueError):
            self.rows.remove(_row(kind, server, name))
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
    return [kind, server.target.url if server else "", server.project if server else "", name]


def _clear(path: str, rows: list[list[str]]) -> None:
    """Away with a folder, but for the record while that is of use."""
    if not rows:
        shutil.rmtree(path)
        return
    state.write_flat(f"{path}/record", rows)
    for name in os.listdir(path):
        if name != "record":
            os.unlink(f"{path}/{name}")


def sweep(servers: Iterable[Server], say: Say, forget: Callable[[str], None]) -> None:
    """Take away what killed commands left: files of ours, what these servers have, and (`forget`) images of this machine's. An instance
    is told, and stays: servers finish what they have begun, and somebody may count on it by now."""
    asked = {(server.target.url, server.project): server for server in servers}
    for mark in state.entries(folder()):
        path = f"{folder()}/{mark}"
        with contextlib.suppress(ConflictError, FileNotFoundError), state.Lock(path, wait=False):
            try:
                rows = state.read_flat(f"{path}/record")
            except FileNotFoundError:
                rows = []
            _clear(path, [row for row in rows if not _settled(mark, row, asked, say, forget)])


def _settled(
    mark: str, row: list[str], asked: dict[tuple[str, str], Server], say: Say, forget: Callable[[str], None]
) -> bool:
    """Whether it is gone. What nobody knows the server of any more is as good as gone."""
    kind, url, project, name = row
    if kind == HERE:
        forget(name)
        return True
    server = asked.get((url, project))
    if server is None:
        return all((each.url, each.project) != (url, project) for each in registry.load().by_name.values())
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
