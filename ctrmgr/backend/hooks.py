# SPDX-License-Identifier: GPL-3.0-or-later
"""What a device wants done inside an instance while it runs: by a program of ours that enters it like any command."""

from __future__ import annotations

from ctrmgr.backend import record
from ctrmgr.errors import HelperError
from ctrmgr.kernel import control, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECONDS = 90.0
"""More than `ctrmgr-hook` gives itself; for one that the instance's root has stopped."""


def of(rows: Iterable[Sequence[str]], device: str) -> list[list[str]]:
    """Kind and arguments of each hook that the rows of a device ask for."""
    return [list(row[2:]) for row in rows if row[0] == "hook" and row[1] == device]


def attached(name: str, device: str) -> list[list[str]]:
    """Those that the monitor keeps for a device."""
    return control.ask(record.run_home(name), control.TEXT, name=device).hooks()


def do(name: str, device: str, hooks: Sequence[Sequence[str]]) -> None:
    """Doing it again changes nothing, but programs are run again. Raises HelperError; then nothing of it is left."""
    if not hooks:
        return
    try:
        ours = SECONDS + sum(int(hook[1]) for hook in hooks if hook[0] == "run")
        spawn.inside(record.run_home(name), _words("do", device, [["instance", name], *hooks]), ours)
    except HelperError as error:
        undo(name, device, hooks)
        raise HelperError(f"device `{device}`: {error.message}", operation=error.operation) from None


def undo(name: str, device: str, hooks: Sequence[Sequence[str]]) -> None:
    """Take away what was made. What the instance has changed since is its own; so is what cannot be reached now."""
    if not hooks:
        return
    try:
        spawn.inside(record.run_home(name), _words("undo", device, hooks), SECONDS)
    except HelperError:
        pass


def _words(verb: str, device: str, hooks: Sequence[Sequence[str]]) -> list[str]:
    words = [verb]
    for hook in hooks:
        words += [device, str(len(hook)), *hook]
    return words
