# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on GPUs that no file of the instance's cgroup carries out (`ctrmgr.plan.gpu_limits`): set, taken back, read. Cold.

What is changed outside of the instance is noted first, in `RUN/.gpu/NAME`: whoever finds that the run is over puts it back.
"""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import CtrmgrError, HostError, UnsupportedError
from ctrmgr.host import cgroup, sysfs
from ctrmgr.host.machine import Host
from ctrmgr.kernel import nvml
from ctrmgr.plan import gpu_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Rows = Sequence[Sequence[str]]
    Wanted = dict[tuple[str, str], dict[str, str]]

ALIGNED = 2 << 20
"""The memory of a virtual function is rounded up to this."""


def resolved(rows: list[list[str]], plan: Rows) -> list[list[str]]:
    """The rows of a device that is attached to an instance with this plan, with the limits on its GPUs."""
    given = {row[1]: row[2] for row in plan if row[0] == "gpu-default"}
    if not given and not any(row[0] == "@gpu" for row in rows):
        return rows
    best_effort = given.pop("enforcement", "") == "best-effort"
    found = gpu_limits.resolve(rows, given, Host(), best_effort=best_effort)
    names = {row[1] for row in found}
    gpu_limits.unique([*(list(row) for row in plan if row[0] in gpu_limits.LIMITS and row[1] not in names), *found])
    return found


def prepare(name: str, plan: Rows) -> None:
    """Before a start: the limits hold before the instance runs. Raises HostError, UnsupportedError."""
    try:
        _apply(name, {}, _wanted(plan), plan)
    except BaseException:
        restore(name)
        raise


def change(name: str, old: Rows, new: Rows) -> None:
    """Take a running instance from the limits of one plan to those of another. Raises HostError; then it has the old ones."""
    before, after = _wanted(old), _wanted(new)
    if before == after:
        return
    try:
        _apply(name, before, after, new)
    except BaseException:
        _apply(name, after, before, new)
        raise


def ending(name: str) -> None:
    """Before an instance's cgroup goes: NVIDIA's driver does not hear of that, and would keep for it what was kept."""
    for kind, address, folder in _noted(name):
        if kind == "nvml" and os.path.isdir(folder):
            try:
                with nvml.Library() as library:
                    now = library.limits(address, folder)
                    if now:
                        library.set_limits(address, folder, 0, now.hard)
            except CtrmgrError:
                pass  # the driver is gone, and with it what it kept


def restore(name: str) -> None:
    """After a run: the files of drivers say again what they did before, and a cgroup that no monitor has taken over is gone."""
    ending(name)
    for kind, path, value in reversed(_noted(name)):
        if kind == "nvml":
            _remove(value)
            continue
        try:
            _write(path, value)
        except HostError:
            pass  # the function is gone, and its profile with it
    state.unlink(_note(name))


def read(plan: Rows) -> list[dict[str, object]]:
    """Each limit that is no file of a cgroup: its key, what carries it out, what that says, and whether it holds."""
    found: list[dict[str, object]] = []
    for _, name, key, mechanism, subject, value in (row for row in plan if row[0] == "gpu-limit"):
        actual, holds = value, mechanism == "slice"
        if mechanism == "sysfs":
            actual = _current(subject)
            holds = _holds(subject, value, actual)
        elif mechanism == "nvml":
            now = _limits(subject, _folder(plan))
            number = (now.soft if key == gpu_limits.RESERVE else now.hard) if now else None
            actual, holds = "" if number is None else str(number), str(number) == value
        states = {"environment": "advisory", "none": "unsupported"}
        found.append({
            "key": f"{name}.{key}", "file": subject, "value": actual, "hierarchy": "", "enforced": holds,
            "mechanism": mechanism, "state": states.get(mechanism, "enforced" if holds else "not in force"),
        })  # fmt: skip
    return found


def used(plan: Rows) -> dict[str, nvml.Limits]:
    """PCI address → what NVIDIA's driver says that the instance uses of it, and may."""
    addresses = {row[4] for row in plan if row[0] == "gpu-limit" and row[3] == "nvml"}
    given = {address: _limits(address, _folder(plan)) for address in sorted(addresses)}
    return {address: now for address, now in given.items() if now}


def _limits(address: str, folder: str) -> nvml.Limits | None:
    try:
        with nvml.Library() as library:
            return library.limits(address, folder)
    except UnsupportedError:
        return None


def _wanted(plan: Rows) -> Wanted:
    """(mechanism, subject) → key → value, of what has to be done."""
    found: Wanted = {}
    for row in plan:
        if row[0] == "gpu-limit" and row[3] in ("nvml", "sysfs"):
            found.setdefault((row[3], row[4]), {})[row[2]] = row[5]
    return found


def _apply(name: str, before: Wanted, after: Wanted, plan: Rows) -> None:
    folder = _folder(plan) if any(mechanism == "nvml" for mechanism, _ in (*before, *after)) else ""
    noted = _noted(name)
    known = {path: value for kind, path, value in noted if kind == "sysfs"}
    for mechanism, subject in after:
        if mechanism == "sysfs" and subject not in known:
            noted.append(["sysfs", subject, _current(subject)])
        elif mechanism == "nvml" and ["nvml", subject, folder] not in noted:
            noted.append(["nvml", subject, folder])
    if noted:
        state.make_dir(os.path.dirname(_note(name)), 0o700)
        state.write_flat(_note(name), noted)
    if folder and not os.path.isdir(folder):
        _make(folder)
    for place in dict.fromkeys((*before, *after)):
        if before.get(place) == after.get(place):
            continue
        mechanism, subject = place
        given = after.get(place, {})
        if mechanism == "nvml":
            _set(subject, folder, given)
        else:
            value = next(iter(given.values()), known.get(subject, ""))
            _write(subject, value)
            if given and not _holds(subject, value, _current(subject)):
                raise HostError(f"`{name}`: `{subject}` = `{value}` is not taken: it says `{_current(subject)}`")


def _set(address: str, folder: str, given: Mapping[str, str]) -> None:
    hard = int(given[gpu_limits.MEMORY]) if gpu_limits.MEMORY in given else None
    with nvml.Library() as library:
        now = library.limits(address, folder)
        if now and hard is not None and now.used > hard:
            raise HostError(f"the limit on `{address}` would be below what is in use now: {now.used} bytes", hint="end what uses it first")  # fmt: skip
        library.set_limits(address, folder, int(given.get(gpu_limits.RESERVE, "0")), hard)


def _write(path: str, value: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise HostError(f"the driver refuses `{path}` = `{value}`: {error.strerror}", hint="is its virtual function in use?") from None  # fmt: skip


def _current(path: str) -> str:
    """What a file says; of several words (`low [normal] high`) the one that is chosen."""
    text = sysfs.line(path)
    return text.partition("[")[2].partition("]")[0] if "[" in text else text


def _holds(path: str, wanted: str, actual: str) -> bool:
    if path.endswith("/vram_quota") and actual.isdecimal():
        return 0 <= int(actual) - int(wanted) < ALIGNED
    return actual == wanted


def _folder(plan: Rows) -> str:
    """The instance's cgroup in cgroup2."""
    (path,) = (row[1] for row in plan if row[0] == "cgroup")
    return f"{cgroup.read().unified}/{path}"


def _make(folder: str) -> None:
    """Make the cgroup before its monitor does, so that it has limits before anything is in it."""
    top = cgroup.read().unified
    path = top
    for part in folder.removeprefix(f"{top}/").split("/"):
        try:
            if "dmem" in sysfs.text(f"{path}/cgroup.controllers").split():
                _write(f"{path}/cgroup.subtree_control", "+dmem")
            path = f"{path}/{part}"
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass
        except OSError as error:
            raise state.unwritable(path, error) from None


def _remove(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        pass  # something is in it: then it is not what we made


def _note(name: str) -> str:
    return f"{state.run_dir()}/.gpu/{name}"


def _noted(name: str) -> list[list[str]]:
    try:
        return [row for row in state.read_flat(_note(name)) if len(row) == 3]
    except (FileNotFoundError, CtrmgrError):
        return []
