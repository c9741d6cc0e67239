# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr move` from, to and between servers: a copy, and then the source goes if it is what was copied.

When the copy is there and whole that is written down, and with it what the source was: whatever kills the command after that, the same
words again end it, or say what does.
"""

from __future__ import annotations

import hashlib
import json
import os

from ctrmgr.cli import distant, distant_copy
from ctrmgr.cli.copy import profiles
from ctrmgr.cli.distant_copy import End
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError
from ctrmgr.remote import instances, migration, passing, snapshots
from ctrmgr.remote.wire import GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ctrmgr.cli.command import Args
    from ctrmgr.remote.passing import Passage
    from ctrmgr.remote.server import Server


def run_move(args: Args) -> None:
    source = End(args.positional[0])
    target = End(args.positional[1], source.name)
    if source.server and target.server and _one_place(source.server, target.server):
        if profiles(args) is not None:
            raise ConflictError("a move on one server keeps the profiles", hint="`ctrmgr copy` can change them")
        if args.flag("dry-run"):
            print(f"move {source.label} {target.label}")
            return
        instances.rename(source.server, source.name, target.name)
    elif args.flag("dry-run") or not _ended(args, source, target):
        distant_copy.copy(args, source, target, Move(source, target))
        if args.flag("dry-run"):
            return
    print(target.label)


def _one_place(source: Server, target: Server) -> bool:
    """Where a move is a new name."""
    return migration.same(source, target) and (source.project or "default") == (target.project or "default")


class Move:
    """What a move is more than a copy."""

    def __init__(self, source: End, target: End) -> None:
        self.source, self.target = source, target
        self.stamp = ""

    def begins(self) -> None:
        self.stamp = _stamp(self.source)

    def arrived(self, passage: Passage) -> None:
        """The copy is there and whole."""
        passage.arrived(_side(self.target), _side(self.source), _identity(self.target), self.stamp)

    def ends(self, passage: Passage) -> None:
        """Raises ConflictError when the source is not what was copied, and what its deletion does; then both are there."""
        from ctrmgr.backend.record import crash

        crash("move-arrived")
        if _stamp(self.source) != self.stamp:
            raise _changed(self.source, self.target)
        try:
            _delete(self.source)
        except CtrmgrError as error:
            if isinstance(error, GoneError):
                error.hint = (
                    f"`{self.target.label}` is there and whole; the same command ends it when the server is back"
                )
            else:
                error.hint = f"`{self.target.label}` is there and whole, and so is the source: delete one of them"
            raise
        passage.ended()


def _delete(end: End) -> None:
    from ctrmgr.backend import local

    if end.server:
        instances.delete(end.server, end.name)
    else:
        local.delete(end.name)


def _ended(args: Args, source: End, target: End) -> bool:
    """Whether all that was left to do of the same move was what a killed command had not done. Raises ConflictError when its user has to say."""
    with passing.left_of_move(_side(target), _side(source)) as left:
        if left is None:
            return False
        try:
            known = _identity(target)
        except NotFoundError:
            known = ""
        if known != left.identity:  # it is gone, or another one
            left.over = True
            return False
        try:
            now = _stamp(source)
        except NotFoundError:
            left.over = True
            distant.talk(args, f"note: `{source.label}` was moved by a command that was killed then")
            return True
        if now != left.stamp:
            raise _changed(source, target)
        if source.server or not now:
            # Files that were pushed into it while it is stopped show nowhere.
            raise ConflictError(
                f"`{target.label}` is the whole copy that a killed move made of `{source.label}`, which is still there",
                hint=f"`ctrmgr delete {source.label}` ends the move, if no files were pushed into it since",
            )
        _delete(source)
        left.over = True
        distant.talk(
            args, f"note: `{target.label}` was made by a command that was killed then; `{source.label}` is gone now"
        )
        return True


def _changed(source: End, target: End) -> ConflictError:
    return ConflictError(
        f"`{target.label}` is a whole copy of `{source.label}`, which has changed since it was made: both are there",
        hint=f"`ctrmgr delete {target.label}` and move it again, or keep both",
    )


def _side(end: End) -> passing.Side:
    return passing.side(end.server, end.name)


def _asked(end: End, ask: Callable[[Server], str]) -> str:
    """Over a connection that ends with the answer: what comes next may take long."""
    assert end.server
    with end.server as server:
        return ask(server)


def _identity(end: End) -> str:
    """What another instance of the name would not have. Raises NotFoundError."""
    from ctrmgr.backend import record

    if not end.server:
        return f"{record.Record(end.name).image} {os.stat(record.home(end.name)).st_ino}"

    def ask(server: Server) -> str:
        found = instances.get(server, end.name)
        return f"{found['created_at']} {found['config'].get('volatile.uuid', '')}"

    return _asked(end, ask)


def _stamp(end: End) -> str:
    """What changes with a stopped instance; "" for what cannot be known. Raises NotFoundError."""
    from ctrmgr.backend import copying as local

    if not end.server:
        return local.stamp(end.name)

    def ask(server: Server) -> str:
        found = instances.get(server, end.name)
        config = {key: value for key, value in found["config"].items() if not key.startswith("volatile.")}
        kept = [row["name"] for row in snapshots.listing(server, end.name)]
        state = [found[key] for key in ("created_at", "last_used_at", "status", "devices", "profiles")]
        return hashlib.sha256(json.dumps([config, kept, state], sort_keys=True).encode()).hexdigest()

    return _asked(end, ask)


RUN: dict[str, Callable[[Args], int | None]] = {"move": run_move}
