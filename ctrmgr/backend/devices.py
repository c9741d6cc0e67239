# SPDX-License-Identifier: GPL-3.0-or-later
"""Attach and detach on this machine: recorded first, then asked of the monitor, then put in place. Hot."""

from __future__ import annotations

import errno
import os
import stat

from ctrmgr.backend import leases, record, repair, start
from ctrmgr.backend.device_limits import Limited, lift
from ctrmgr.backend.repair import crash
from ctrmgr.devices import driver
from ctrmgr.devices import rows as parts
from ctrmgr.errors import ConflictError, HostError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.backend.held import Held


def check(name: str, values: Mapping[str, str]) -> tuple[dict[str, str], list[list[str]]]:
    """The canonical keys of one device and its plan rows.

    Raises SpecError for a wrong name, type, key or value, UnsupportedError for what cannot be attached.
    """
    if not name or len(name.encode()) > 63 or any(letter in "/\t\n\0" or letter.isspace() for letter in name):
        raise SpecError(f"`{name}` cannot be the name of a device", hint="no spaces or slashes, at most 63 bytes")
    kind = values.get("type", "")
    if kind not in driver.DRIVERS and kind in driver.NOT_DONE:
        raise UnsupportedError(f"device `{name}`: {driver.NOT_DONE[kind]}")
    if not driver.is_live(kind) and not _is_plugins(kind):
        if kind in driver.DRIVERS:
            raise UnsupportedError(
                f"device `{name}`: type `{kind}` cannot be attached live", hint="put it in a profile"
            )
        known = [other for other in driver.DRIVERS if driver.is_live(other)]
        if not kind:
            raise SpecError(f"device `{name}` has no `type`", hint=f"type={' or type='.join(known)}")
        raise SpecError(f"device `{name}`: type `{kind}` is unknown", hint=_near(kind, known))
    module = driver.load(kind)
    canonical = {"type": kind}
    for key, value in values.items():
        if key == "type":
            continue
        field = module.FIELDS.get(key)
        if field is None:
            raise SpecError(f"device `{name}`: unknown key `{key}`", hint=_near(key, sorted(module.FIELDS)))
        try:
            canonical[key] = field.parse(value)
        except ValueError as error:
            raise SpecError(f"device `{name}`: `{key}`: `{value}` {error}", hint=field.description) from None
        if field.refused and canonical[key] != field.default:
            raise UnsupportedError(f"device `{name}`: `{key}`: {field.refused}")
    canonical = parts.remembered(canonical)
    return canonical, _limited(parts.rows(name, canonical))


def _limited(rows: list[list[str]]) -> list[list[str]]:
    if not any(row[0] == "@io" for row in rows):
        return rows
    from ctrmgr.host.machine import Host
    from ctrmgr.plan import device_limits

    return device_limits.resolve(rows, Host())


def _is_plugins(kind: str) -> bool:
    """Whether a plugin brings a device type that ctrmgr does not have itself."""
    if not kind or kind in driver.DRIVERS:
        return False
    from ctrmgr.plugins import adopt

    return adopt.adopt(kind)


def _only_part(name: str, rows: Sequence[list[str]]) -> list[str]:
    """The one node that the device is made of. Raises UnsupportedError when it is more."""
    found = [row for row in rows if row[0] in parts.PARTS]
    if len(found) != 1 or found[0][0] != "device":
        what = f"{len(found)} parts" if found else "nothing on this host now"
        raise UnsupportedError(
            f"device `{name}` is made of {what}: attaching that is not done yet", hint="put it in a profile"
        )
    return found[0]


def _near(word: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    return f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"


def short_form(source: str) -> tuple[str, dict[str, str]]:
    """A device's name and keys from nothing but the host's node or the name of a CDI device. Raises NotFoundError, SpecError."""
    if source[:1] != "/":
        return source.partition("/")[2].replace("=", "-"), {"type": "cdi", "id": source}
    fd = open_node(source, source)
    try:
        kind = "unix-block" if stat.S_ISBLK(os.fstat(fd).st_mode) else "unix-char"
    finally:
        os.close(fd)
    return source.removeprefix("/dev/").replace("/", "-"), {"type": kind, "source": source}


def open_node(name: str, source: str) -> int:
    """An `O_PATH` descriptor of a device node of the host. Raises NotFoundError, SpecError, HostError."""
    try:
        fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        hint = "`required=false` starts the instance without it"
        raise NotFoundError(f"device `{name}`: `{source}` does not exist on this host", hint=hint) from None
    except OSError as error:
        raise HostError(f"device `{name}`: `{source}`: {error.strerror}") from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode):
        os.close(fd)
        what = "a directory" if stat.S_ISDIR(mode) else "a regular file" if stat.S_ISREG(mode) else "no device node"
        raise SpecError(f"device `{name}`: `{source}` is {what}", hint="name a node such as /dev/fuse")
    return fd


def _open_checked(name: str, row: list[str]) -> int:
    fd = open_node(name, row[3])
    is_block = stat.S_ISBLK(os.fstat(fd).st_mode)
    if is_block != (row[2] == "block"):
        os.close(fd)
        found, wanted = ("block", "unix-block") if is_block else ("character", "unix-char")
        raise SpecError(f"device `{name}`: `{row[3]}` is a {found} device", hint=f"say type={wanted}")
    return fd


def attach(name: str, device: str, values: Mapping[str, str], *, volatile: bool = False) -> bool:
    """Give the instance a device. True: it is there now; False: it is configured and comes with the next start.

    Raises NotFoundError, SpecError, ConflictError, HostError, UnsupportedError, HelperError; then nothing has changed.
    """
    canonical, rows = check(device, values)
    asks = any(row[0] == "request" for row in rows)
    with record.lock(name):
        repair.instance(name)
        own = record.Record(name)
        plan = own.plan()
        running = record.is_running(name)
        if volatile and not running:
            raise ConflictError(
                f"`{name}` is not running", hint="without --volatile the device comes with its next start"
            )
        _check_new(name, device, own, plan)
        fd = -1
        row: list[str] = []
        given = _given(name, rows, running, volatile) if asks else None
        try:
            rows = [*rows, *(given.rows if given else ())]
            if given or not asks:
                row = _only_part(device, rows)
                _check_free(device, row, plan)
                try:
                    fd = _open_checked(device, row)
                except NotFoundError:
                    if row[9] == "required" or running:
                        raise
            if running:
                _hold(name, device, rows)
            if not volatile:
                own.devices[device] = canonical
                record.stage(own, [*plan, *rows])
                crash("attach-recorded")
            if running:
                with Limited(name, rows):
                    _ask_attach(name, device, row, fd)
                crash("attach-done")
        except BaseException:
            record.drop(own.path)
            leases.release(name, device)
            if given:
                _take_back(given)
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        record.finish(own.path)
    return running


def _hold(name: str, device: str, rows: list[list[str]]) -> None:
    """Take the device's leases, and look once more, now that its nodes are open, whether it is still the one that was found."""
    leases.take(name, rows)
    crash("attach-leased")
    if start.changed([row for row in rows if row[0] == "identity" and row[2] != parts.ALWAYS]):
        raise ConflictError(f"device `{device}` changed while it was being attached", hint="try again")


def _given(name: str, rows: list[list[str]], running: bool, volatile: bool) -> Held | None:
    """What is chosen for a device that is asked for by what it can do."""
    from ctrmgr.backend import allocations

    return allocations.attach(name, rows, running=running, volatile=volatile)


def _take_back(given: Held) -> None:
    from ctrmgr.backend import allocations

    allocations.drop(given)


def _check_new(name: str, device: str, own: record.Record, plan: list[list[str]]) -> None:
    if device in own.devices or any(other[0] in parts.WORDS and other[1] == device for other in plan):
        raise ConflictError(f"`{name}` has a device `{device}` already", hint="detach it first, or choose another name")


def _check_free(device: str, row: list[str], plan: list[list[str]]) -> None:
    for other in plan:
        if other[0] == "device" and other[4] == row[4]:
            raise ConflictError(
                f"device `{device}`: `{row[4]}` is where device `{other[1]}` is", hint="choose a `path`"
            )


def _ask_attach(name: str, device: str, row: list[str], fd: int) -> None:
    host = os.fstat(fd)
    asked = control.Device(
        device,
        row[2],
        row[4],
        (os.major(host.st_rdev), os.minor(host.st_rdev)),
        user=row[5],
        group=row[6],
        mode=int(row[7], 8),
        access=row[8],
    )
    reply = control.ask(record.run_home(name), control.ATTACH, device=asked.pack(), fd=fd)
    if reply.error:
        raise control.failure(device, reply.step, reply.detail, reply.error)


class Detached:
    """What a detach did: `live` if it was taken from a running instance, and who still holds it open or mapped.

    `revoked`: the kernel refuses to use what they hold, except for mappings.
    """

    __slots__ = ("holders", "live", "revoked", "total")

    def __init__(self, live: bool, holders: list[control.Holder], total: int, revoked: bool = False) -> None:
        self.live, self.holders, self.total, self.revoked = live, holders, total, revoked


def detach(name: str, device: str, *, holders: str = "report", volatile: bool = False) -> Detached:
    """Take a device away.

    `holders` says what to do about processes that have it open: `report` them; `refuse` to detach; `freeze` the instance
    with them in it; `kill` them. Raises NotFoundError when there is no such device, ConflictError when refused.
    """
    if holders not in control.HOLDERS:
        raise SpecError(f"`{holders}` is not one of {', '.join(control.HOLDERS)}")
    with record.lock(name):
        repair.instance(name)
        own = record.Record(name)
        plan = own.plan()
        running = record.is_running(name)
        planned = any(row[0] in parts.WORDS and row[1] == device for row in plan)
        attached = running and any(
            found.name == device for found in control.ask(record.run_home(name), control.DEVICES).devices()
        )
        if not attached and (volatile or (device not in own.devices and not planned)):
            raise NotFoundError(f"`{name}` has no device `{device}`", hint=f"`ctrmgr info {name}` lists them")
        result = Detached(attached, [], 0)
        try:
            if not volatile and (planned or device in own.devices):
                if own.devices.pop(device, None) is None:
                    own.devices[device] = {"type": "none"}  # it is a profile's: mask it, as LXD does
                record.stage(own, [row for row in plan if row[0] not in parts.WORDS or row[1] != device])
                crash("detach-recorded")
            if attached:
                result = _ask_detach(name, device, holders)
                lift(name, [row for row in plan if row[1] == device])
                leases.release(name, device)
                crash("detach-done")
        except BaseException:
            record.drop(own.path)
            raise
        record.finish(own.path)
        if repair.has_allocations(name):
            from ctrmgr.backend import allocations

            allocations.detach(name, device)
    return result


def _ask_detach(name: str, device: str, holders: str) -> Detached:
    reply = control.ask(record.run_home(name), control.DETACH, name=device, arg=control.HOLDERS.index(holders))
    if reply.error == errno.EBUSY and holders == "refuse":
        found = ", ".join(f"{holder.comm} (pid {holder.inner_pid})" for holder in reply.holders())
        raise ConflictError(
            f"device `{device}` of `{name}` is in use: {found}",
            hint="end them, or detach with --holders=report, freeze or kill",
        )
    if reply.error:
        raise control.failure(device, reply.step, reply.detail, reply.error)
    revoked = reply.value > 0 and control.ask(record.run_home(name), control.STATUS).open_fds()[0] == "revoked"
    return Detached(True, reply.holders(), reply.value, revoked)
