# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of a device that an instance has already: looked up, and changed now as far as that can be. Cold."""

from __future__ import annotations

from ctrmgr import state
from ctrmgr.backend import attach, configure, detach, devices, record, repair, unfinished
from ctrmgr.backend.record import Record, crash
from ctrmgr.devices import driver
from ctrmgr.errors import ConflictError, NotFoundError
from ctrmgr.kernel import control
from ctrmgr.plan import profiled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ctrmgr.plan.profiled import Known

    Keys = dict[str, str]


class Changed:
    """What became of a change: `waits` for the next start; or the device was taken and given anew, which `taken` tells of."""

    __slots__ = ("taken", "waits")

    def __init__(self, waits: bool, taken: detach.Detached | None = None) -> None:
        self.waits, self.taken = waits, taken


def known(own: Record) -> dict[str, Known]:
    """All devices, those of profiles too, by name. Raises NotFoundError for a profile that is gone, SpecError."""
    return profiled.devices(own.profiles, own.devices)


def one(own: Record, device: str) -> Known:
    """Raises NotFoundError."""
    found = known(own).get(device)
    if found is None:
        hint = f"`ctrmgr config device list {own.name}` shows those that it has"
        raise NotFoundError(f"`{own.name}` has no device `{device}`", hint=hint)
    return found


def check_key(device: str, kind: str, key: str) -> None:
    """Raises SpecError for what is no key of a device of this type."""
    if kind not in driver.NOT_DONE and key not in driver.load(kind).FIELDS:
        profiled.check(device, {"type": kind, key: "x"})  # it knows the words


def changed(own: Record, device: str, values: Mapping[str, str | None], *, override: bool = False) -> Keys:
    """The device's keys, each as it was written, with some set and others (None) taken away.

    Raises NotFoundError for a device or key that is not there, ConflictError for a device of a profile (with `override`: for one
    that is not), SpecError.
    """
    there = one(own, device)
    if there.profile and not override:
        raise ConflictError(
            f"device `{device}` of `{own.name}` is profile `{there.profile}`'s",
            hint=f"`ctrmgr config device override {own.name} {device} KEY=VALUE` makes it the instance's own",
        )
    if override and not there.profile:
        raise ConflictError(f"device `{device}` is `{own.name}`'s own already", hint="`config device set` changes it")
    keys = dict(there.keys)
    for key, value in values.items():
        if value is not None:
            keys[key] = value
        elif key == "type" or keys.pop(key, None) is None:
            raise NotFoundError(f"`{key}` is not set on device `{device}`")
    return profiled.written(device, keys)


def change(
    name: str,
    device: str,
    values: Mapping[str, str | None],
    *,
    override: bool = False,
    holders: str = "report",
    say: Callable[[str], None] = lambda text: None,
) -> Changed:
    """Set keys of a device, or (None) take them away. Limits reach a running instance at once; for other keys an attached device of
    its own is taken and given anew. When that fails, it is given as it was.

    Raises what `changed` does, HostError, UnsupportedError, and ConflictError when `holders` is `refuse` and there are any.
    """
    with configure.opened(name) as own:
        before = one(own, device).keys
        after = changed(own, device, values, override=override)
        if before == after and not override:
            return Changed(False)
        old, new = profiled.check(device, before), profiled.check(device, after)
        differs = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        anew = (
            any(not key.startswith("limits.") for key in differs)
            and not override
            and _is_attached(name, before, device)
        )
        if not anew:
            own.devices[device] = after
            return Changed(configure.apply(own, say))
        kept, rows = devices.check(device, after)
        devices.limited(rows, own.plan())  # refused before it is taken
        path = f"{own.path}/{record.ANEW}"
        state.write_flat(path, [["device", device, key, value] for key, value in before.items()])
        try:
            result, taken = detach.take(name, device, True, holders=holders)
            crash("change-taken")
            devices.give(name, device, kept, rows, True, repair.instance)
        except BaseException:
            unfinished.change_of_device(name, repair.instance)
            raise
        state.unlink(path)
    detach.flushed(result, taken)
    return Changed(False, result)


def _is_attached(name: str, keys: Keys, device: str) -> bool:
    if not driver.is_live(keys["type"], keys) or not record.is_running(name):
        return False
    return any(found.name == device for found in control.ask(record.run_home(name), control.DEVICES).devices())


def add(name: str, device: str, keys: Mapping[str, str], *, say: Callable[[str], None] = lambda text: None) -> bool:
    """Give an instance a device. True: it waits for the next start. Raises what `attach.attach` does."""
    if driver.is_live(keys["type"], keys) or keys["type"] not in driver.DRIVERS:
        return not attach.attach(name, device, keys, say=say) and record.is_running(name)
    written = profiled.written(device, keys)
    with configure.opened(name) as own:
        if device in own.devices:
            raise ConflictError(f"`{name}` has a device `{device}` already", hint="`config device set` changes it")
        own.devices[device] = written
        return configure.apply(own, say)


def remove(name: str, device: str, *, holders: str = "report") -> Changed:
    """Take a device away. Raises NotFoundError, ConflictError."""
    with configure.opened(name) as own:
        there = one(own, device)
        if not driver.is_live(there.keys["type"], there.keys) and there.keys["type"] in driver.DRIVERS:
            own.devices.pop(device, None)
            if there.profile or device in known(own):
                own.devices[device] = {"type": "none"}
            return Changed(configure.apply(own))
    return Changed(False, detach.detach(name, device, holders=holders))
