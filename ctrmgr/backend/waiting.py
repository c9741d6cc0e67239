# SPDX-License-Identifier: GPL-3.0-or-later
"""Attach, and wait until the device can be opened inside: it may come later, and its driver may need a while. Cold."""

from __future__ import annotations

import time

from ctrmgr.backend import detach, record
from ctrmgr.backend.attach import attach as give
from ctrmgr.errors import ConflictError, CtrmgrError, HelperError, HostError, SpecError
from ctrmgr.kernel import control, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PAUSE = 0.1
PLACES = ("char", "block", "share")
"""Parts that are nodes, or another device's that this one needs, too."""


def seconds(text: str) -> float:
    """Raises SpecError."""
    try:
        found = float(text)
    except ValueError:
        found = 0
    if not 0 < found < 1e6:
        raise SpecError(f"`--wait={text}` is not a number of seconds")
    return found


def attach(name: str, device: str, values: Mapping[str, str], seconds: float, *, volatile: bool = False) -> None:
    """Attach, and return when every node that it has opens inside, and there is one if it is to have any.

    Raises what `attach` raises, ConflictError when the instance does not run, HostError when the time is over; then nothing
    has changed.
    """
    deadline = time.monotonic() + seconds
    if not record.is_running(name):
        record.Record(name)
        raise ConflictError(f"`{name}` is not running", hint="without --wait the device comes with its next start")
    give(name, device, values, volatile=volatile)
    try:
        wrong = _opens(name, device, deadline)
    except CtrmgrError:
        _undo(name, device, volatile)
        raise
    if wrong:
        _undo(name, device, volatile)
        raise HostError(
            f"device `{device}` could not be opened in `{name}` within {seconds:g} s: {wrong}",
            hint="it was taken out again; without --wait it stays, and comes when it is there",
        )


def _opens(name: str, device: str, deadline: float) -> str:
    """Nothing, or why not."""
    run = record.run_home(name)
    while True:
        parts = [part for part in control.ask(run, control.DEVICES).devices() if part.name == device]
        if not parts:
            raise ConflictError(f"device `{device}` of `{name}` was taken away meanwhile")
        places = [part.path for part in parts if part.kind in PLACES and part.path.startswith("/dev/")]
        wrong = "nothing that fits is there"
        if not places and all(part.kind != "rule" for part in parts):
            return ""
        if places:
            try:
                spawn.inside(run, ["open", *places], max(deadline - time.monotonic(), PAUSE))
                return ""
            except HelperError as error:
                wrong = error.message
        if time.monotonic() >= deadline:
            return wrong
        time.sleep(PAUSE)


def _undo(name: str, device: str, volatile: bool) -> None:
    try:
        detach.detach(name, device, volatile=volatile)
    except CtrmgrError:
        pass  # somebody has, or the instance is gone
