# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks of CDI specifications that an administrator allows, run on the host as who runs ctrmgr, or (`createContainer`) beside the
instance as its root. Cold.

RUN/.hooks/INSTANCE    flat: which devices' hooks have begun to run, whether they came to their end, and what is run when it is over

The `poststop` hooks of a device are run when it has gone: detached, with its instance, or because it could not be given. A command
that is killed leaves that to the next one on the instance.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile

from ctrmgr import state
from ctrmgr.backend import hook_room, record
from ctrmgr.backend.record import crash
from ctrmgr.devices import cdi_hooks
from ctrmgr.errors import CtrmgrError, HelperError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from ctrmgr.edits import Hook
    from ctrmgr.kernel.spawn import Report

    Rows = Sequence[Sequence[str]]
    Spawn = Callable[[Callable[[int], None]], Report]

BEFORE = ("prestart", "createRuntime")
"""Run when all is made and init, or the device, is not there yet."""
MADE = ("createContainer",)
"""Run when the device is there, and init, or what is run inside, is not yet."""


def check(rows: Rows) -> None:
    """Look once more whether the programs that rows have run are allowed: the list may be another one by now. Raises what it says."""
    for device, hook in _hooks(rows):
        try:
            cdi_hooks.check(hook)
        except CtrmgrError as error:
            raise type(error)(f"device `{device}`: {error.message}", hint=error.hint) from None


def start(name: str, rows: Rows, spawn: Spawn) -> Report:
    """Start an instance, with the hooks of its devices. Raises HelperError when one fails; then it does not run."""
    check(rows)
    _note(name, _journal(name) + _begun(rows, "preparing"))
    crash("start-hooks-noted")
    try:
        report = spawn(lambda pid: _run(name, rows, (*BEFORE, *MADE), pid, "creating"))
        if not report.error:
            try:
                _run(name, rows, ("poststart",), report.init_pid, "running")
            except BaseException:
                control.ask(record.run_home(name), control.KILL)
                raise
    except BaseException:
        ended(name)
        raise
    if report.error:
        ended(name)
    else:
        crash("start-hooks-run")
        _note(name, _begun(rows, "given"))
    return report


class Attached:
    """`with Attached(…) as around`: a device is given to a running instance, between its hooks. `around.made()` is called when it is
    there. When a later one fails `back` takes the device away."""

    __slots__ = ("back", "device", "monitor", "name", "pid", "rows")

    def __init__(self, name: str, device: str, rows: Rows, back: Callable[[], None]) -> None:
        self.name, self.device, self.rows, self.back, self.pid, self.monitor = name, device, rows, back, 0, 0

    def __enter__(self) -> Attached:
        check(self.rows)
        _note(self.name, [*_journal(self.name), *_begun(self.rows, "preparing")])
        crash("attach-hooks-noted")
        self.monitor, self.pid, *_ = control.ask(record.run_home(self.name), control.STATUS).status()
        try:
            _run(self.name, self.rows, BEFORE, self.pid, "running")
        except BaseException:
            ended(self.name, self.device)
            raise
        return self

    def made(self) -> None:
        _run(self.name, self.rows, MADE, self.pid, "running", self.monitor)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                _run(self.name, self.rows, ("poststart",), self.pid, "running")
            except BaseException:
                self.back()
                ended(self.name, self.device)
                raise
            crash("attach-hooks-run")
            others = [row for row in _journal(self.name) if row[1] != self.device]
            _note(self.name, [*others, *_begun(self.rows, "given")])
        else:
            ended(self.name, self.device)


def mend(name: str, *, running: bool) -> None:
    """Finish what a killed command left: a device whose hooks did not come to their end goes again, one that has gone is over."""
    if not running:
        ended(name)
        return
    there = {part.name for part in control.ask(record.run_home(name), control.DEVICES).devices()}
    for how, device, *_ in _journal(name):
        if how == "preparing" and device in there:
            control.ask(record.run_home(name), control.DETACH, name=device)
        if how == "preparing" or (how == "given" and device not in there):
            ended(name, device)


def ended(name: str, device: str = "") -> list[str]:
    """Run what is to be run when a device, or (without one) the whole instance, has gone. Each that fails is told, and is over, too."""
    failed = []
    for row in _journal(name):
        if row[0] != "host-hook" or (device and row[1] != device):
            continue
        hook = cdi_hooks.hook_of(row)
        if hook is None:
            continue
        try:
            check([row])
            _execute(name, row[1], hook, 0, "stopped")
        except CtrmgrError as error:
            failed.append(error.message)
    _note(name, [row for row in _journal(name) if device and row[1] != device])
    return failed


def _hooks(rows: Rows) -> Iterable[tuple[str, Hook]]:
    for row in rows:
        hook = cdi_hooks.hook_of(row) if row[0] in ("host-hook", "hook") else None
        if hook is not None:
            yield row[1], hook


def _begun(rows: Rows, how: str) -> list[list[str]]:
    """What is noted down of the devices that have hooks on the host."""
    mine = [row for row in rows if row[0] == "host-hook"]
    return [[how, device] for device in dict.fromkeys(row[1] for row in mine)] + [
        list(row) for row in mine if row[2] == "poststop"
    ]


def _run(name: str, rows: Rows, stages: Sequence[str], pid: int, status: str, tree: int = 0) -> None:
    for stage in stages:
        for device, hook in _hooks(rows):
            if hook.hook_name == stage:
                if stage in MADE:
                    _execute_as_root_inside(name, device, hook, pid, status, tree or pid)
                else:
                    _execute(name, device, hook, pid, status)


def _execute_as_root_inside(name: str, device: str, hook: Hook, pid: int, status: str, tree: int) -> None:
    """`tree` is a process whose root is the instance's; before init runs, that is the one that will be init. Raises HelperError."""
    try:
        room = hook_room.Room(tree, pid)
    except OSError as error:
        raise HelperError(f"device `{device}`: `{name}` cannot be entered: {error.strerror}") from None
    with room:
        _execute(name, device, hook, 1, status, hook_room.BUNDLE, room.enter)


def _execute(
    name: str,
    device: str,
    hook: Hook,
    pid: int,
    status: str,
    bundle: str = "",
    enter: Callable[[], None] | None = None,
) -> None:
    """Raises HelperError when it fails or takes too long; then everything that it has started is killed."""
    said = {
        "ociVersion": "1.0.2",
        "id": name,
        "status": status,
        **({"pid": pid} if pid else {}),
        "bundle": bundle or record.home(name),
        "annotations": {"ctrmgr.device": device},
    }
    what = f"device `{device}`: the {hook.hook_name} hook `{hook.path}`"
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [os.fsencode(word) for word in hook.args or (hook.path,)],
                executable=hook.path,
                env=dict(word.partition("=")[::2] for word in hook.env),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                preexec_fn=enter,  # noqa: PLW1509 - as safe as the fork of the images' sandbox
            )
        except OSError as error:
            raise HelperError(f"{what} cannot be run: {error.strerror}", operation=hook.hook_name) from None
        try:
            process.communicate(json.dumps(said).encode() + b"\n", timeout=hook.timeout)
        except BaseException as error:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            text = f"{what} has not ended within {hook.timeout} seconds"
            raise HelperError(text, operation=hook.hook_name) from None
        if process.returncode:
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
            line = output.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            line = "".join(letter if letter.isprintable() else "?" for letter in line)
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"{process.returncode}"
            raise HelperError(f"{what} failed with {how}{': ' if line else ''}{line}", operation=hook.hook_name)


def _place(name: str) -> str:
    return f"{state.run_dir()}/.hooks/{name}"


def _journal(name: str) -> list[list[str]]:
    try:
        return state.read_flat(_place(name))
    except (FileNotFoundError, CtrmgrError):
        return []


def _note(name: str, rows: list[list[str]]) -> None:
    if rows:
        state.make_dir(os.path.dirname(_place(name)), 0o700)
        state.write_flat(_place(name), rows)
    else:
        state.unlink(_place(name))
