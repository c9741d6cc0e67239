# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of a device that comes or goes while its instance runs: set before it is there, taken back after it has gone. Hot."""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.errors import ConflictError, HostError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Rows = Sequence[Sequence[str]]


LIMITS = ("device-limit", "gpu-limit")
UNLIMITED = {"dmem.max": "max", "gpu.memory": "max", "gpu.shares": "100"}


class Limited:
    """`with Limited(…)`: the limits of a device hold before the instance can open it, and not at all when that fails.

    Raises HostError when the kernel refuses one, ConflictError when the instance is not in the v1 hierarchy that could.
    """

    __slots__ = ("name", "rows")

    def __init__(self, name: str, rows: Rows) -> None:
        self.name, self.rows = name, [row for row in rows if row[0] in LIMITS]

    def __enter__(self) -> None:
        try:
            for row in self.rows:
                if row[0] == "device-limit":
                    _set(self.name, row, row[4])
            _gpu(self.name, [], self.rows)
        except BaseException:
            lift(self.name, self.rows)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            lift(self.name, self.rows)


class Noted:
    """Written down: the limits of a device that is about to be there for this run only, and is in no plan.

    Raises ConflictError when one of its name is there, HostError.
    """

    __slots__ = ("device", "name")

    def __init__(self, name: str, device: str, rows: Rows) -> None:
        self.name, self.device = name, device
        there = noted(name)
        if any(row[1] == device for row in there):
            raise ConflictError(
                f"`{name}` has a device `{device}` already", hint="detach it first, or choose another name"
            )
        state.make_dir(os.path.dirname(record.notes(name)), 0o700)
        state.write_flat(record.notes(name), [*there, *(row for row in rows if row[0] in LIMITS)])

    def drop(self) -> None:
        forget(self.name, self.device)

    def finish(self) -> None:
        """It stays."""


def noted(name: str) -> list[list[str]]:
    try:
        return state.read_flat(record.notes(name))
    except FileNotFoundError:
        return []


def forget(name: str, device: str) -> None:
    """A device that was there for this run only is gone."""
    others = [row for row in noted(name) if row[1] != device]
    if others:
        state.write_flat(record.notes(name), others)
    else:
        state.unlink(record.notes(name))


def mend(name: str, plan: Rows) -> None:
    """Take back the limits of devices that are not there: a killed command did not bring them any more, or took them away."""
    rows = noted(name)
    there = {part.name for part in control.ask(record.run_home(name), control.DEVICES).devices()}
    for device in {row[1] for row in rows} - there:
        lift(name, alone([*plan, *rows], device))
        forget(name, device)


def lift(name: str, rows: Rows) -> None:
    """Take back the limits of a device. Nobody minds when its disk is gone altogether."""
    for row in rows:
        if row[0] == "device-limit":
            try:
                _set(name, row, unlimited(row[4], row[3]))
            except (HostError, ConflictError):
                pass
    try:
        _gpu(name, rows, [])
    except HostError:
        pass


def alone(plan: Rows, device: str) -> Rows:
    """The limits of a device that no other one of the plan wants, too."""
    others = [row[2:] for row in plan if row[0] in LIMITS and row[1] != device]
    return [row for row in plan if row[0] in LIMITS and row[1] == device and row[2:] not in others]


def _gpu(name: str, old: Rows, new: Rows) -> None:
    if any(row[0] == "gpu-limit" for row in (*old, *new)):
        from ctrmgr.backend import gpu_limits

        place = [["cgroup", f"{state.cgroup_parent()}/{name}"]]
        gpu_limits.change(name, [*place, *old], [*place, *new])


def unlimited(value: str, file: str = "") -> str:
    """What takes a limit back: on a disk `8:0 rbps=max`, on v1 `8:0 0`; on a GPU's memory `REGION max`."""
    if file.startswith("gpu."):
        return UNLIMITED.get(file, "0")
    if file in UNLIMITED:
        return f"{value.partition(' ')[0]} {UNLIMITED[file]}"
    setting, equals, _ = value.partition("=")
    return f"{setting}=max" if equals else f"{value.partition(' ')[0]} 0"


def _set(name: str, row: Sequence[str], value: str) -> None:
    _, device, hierarchy, file, _ = row
    reply = control.ask(record.run_home(name), control.LIMIT, name=hierarchy, path=file, value=value)
    if reply.error == errno.ENOENT:
        from ctrmgr.backend import live

        reply = live.ask(name, hierarchy, file, value)
    if reply.error == errno.ENOENT:
        raise ConflictError(
            f"device `{device}`: `{name}` has no cgroup in the v1 hierarchy `{hierarchy}`, and does not get one while it runs: {reply.detail}",
            hint=f"stop `{name}`, attach it, and start it again; or attach it without limits",
        )
    if reply.error:
        raise HostError(f"device `{device}`: the kernel refuses `{file}` = `{value}`: {os.strerror(reply.error)}")
    if file == "dmem.max":
        from ctrmgr.backend.limits import ignored

        ignored(name, hierarchy, file, value)
