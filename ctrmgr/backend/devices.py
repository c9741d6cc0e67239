# SPDX-License-Identifier: GPL-3.0-or-later
"""What a device is checked and given by: recorded first, then asked of the monitor, then put in place. Hot."""

from __future__ import annotations

import os
import stat

from ctrmgr.backend import ended, leases, record
from ctrmgr.backend.record import crash
from ctrmgr.devices import driver
from ctrmgr.devices import rows as parts
from ctrmgr.errors import ConflictError, HostError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ctrmgr.backend import placement
    from ctrmgr.backend.asked import Mend
    from ctrmgr.backend.device_limits import Noted
    from ctrmgr.backend.held import Held

    Say = Callable[[str], None] | None


def check(name: str, values: Mapping[str, str]) -> tuple[dict[str, str], list[list[str]]]:
    """The keys of one device as they are kept, which is as they were written, and its plan rows, with its disk's limits as they are asked for (`limited`).

    Raises SpecError for a wrong name, type, key or value, UnsupportedError for what cannot be attached.
    """
    if (
        not name
        or any(letter == "/" or letter.isspace() for letter in name)
        or not name.isprintable()
        or len(name.encode()) > 63
    ):
        raise SpecError(f"`{name}` cannot be the name of a device", hint="no spaces or slashes, at most 63 bytes")
    kind = values.get("type", "")
    if kind not in driver.DRIVERS and kind in driver.NOT_DONE:
        raise UnsupportedError(f"device `{name}`: {driver.NOT_DONE[kind]}")
    if not driver.is_live(kind, values) and not _is_plugins(kind):
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
    for key, field in module.FIELDS.items():
        if field.required and key not in canonical:
            raise SpecError(f"device `{name}`: `{key}` is missing", hint=field.description)
    canonical = parts.remembered(canonical)
    if "count" in canonical or kind == "gpudirect":
        leases.tell()
    return {**canonical, **values}, leases.found(name, canonical)


def limited(rows: list[list[str]], plan: list[list[str]]) -> list[list[str]]:
    """The rows of a device for an instance with this plan, with what carries out its disk's limits here. Raises UnsupportedError."""
    if not any(row[0] == "@io" for row in rows):
        return rows
    from ctrmgr.host.machine import Host
    from ctrmgr.plan import device_limits

    return device_limits.resolve(rows, Host(), best_effort=["gpu-default", "enforcement", "best-effort"] in plan)


def _is_plugins(kind: str) -> bool:
    """Whether a plugin brings a device type that ctrmgr does not have itself."""
    if not kind or kind in driver.DRIVERS:
        return False
    from ctrmgr.plugins import adopt

    return adopt.adopt(kind)


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
        hint = "`ctrmgr device list` shows what there is; `required=false` goes on without it"
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


def give(
    name: str,
    device: str,
    kept: dict[str, str],
    rows: list[list[str]],
    running: bool,
    mend: Mend,
    *,
    volatile: bool = False,
    say: Say = None,
) -> bool:
    """`attach.attach_rows`; the caller holds the instance's lock. `mend` puts another in order that has what it needs."""
    own = record.Record(name)
    plan = own.plan()
    if volatile and not running:
        raise ConflictError(f"`{name}` is not running", hint="without --volatile the device comes with its next start")
    there = _others(name, device, own, plan, running)
    rows = limited(rows, plan)
    words = {row[0] for row in plan}
    opened: list[tuple[list[str], int]] = []
    asks = any(row[0] == "request" for row in rows)
    given = _given(name, rows, mend, running=running, volatile=volatile) if asks else None
    added: record.Added | placement.Added | Noted | None = None
    try:
        rows = [*rows, *(given.rows if given else ())]
        if not words.union(row[0] for row in rows).isdisjoint(("gpu-default", "@gpu")):
            from ctrmgr.backend import gpu_limits

            rows = gpu_limits.resolved(rows, plan)
        rows = _beside(name, rows, there, running)
        if any(row[0] == "netdev" for row in rows):
            from ctrmgr.backend import limits

            rows = [*rows, *limits.moved_past(own, plan, rows)]
        if given or not asks:
            _open_all(device, rows, opened, running)
        added = _noted(name, device, rows) if volatile else _recorded(own, device, kept, plan, rows)
        crash("attach-recorded")
        if running:
            _come(name, device, rows, opened)
            if "follows-devices" in words:
                from ctrmgr.backend import placement

                placement.follow(own, added, lambda: _take_away(name, device, rows))
    except BaseException:
        if added:
            added.drop()
        ended.guids(name, running=running)
        leases.release(name, device)
        if given:
            from ctrmgr.backend import allocations

            allocations.quietly(given)
        raise
    finally:
        for _, fd in opened:
            if fd >= 0:
                os.close(fd)
    if added:
        added.finish()
    if say and any(row[0] in ("left-out", "gpu-limit") for row in rows):
        from ctrmgr.backend import limits

        for reason in limits.left_out(rows):
            say(reason)
    return running


def _come(name: str, device: str, rows: list[list[str]], opened: list[tuple[list[str], int]]) -> None:
    if any(row[0] == "lease" and row[3].startswith(leases.KEEPS) for row in rows):
        from ctrmgr.backend import machine_lock

        with machine_lock.taken():  # until it is written where others see it what is kept for this instance
            _hold(name, device, rows)
            _bring(name, device, rows, opened)
    else:
        _hold(name, device, rows)
        _bring(name, device, rows, opened)


def _bring(name: str, device: str, rows: list[list[str]], opened: list[tuple[list[str], int]]) -> None:
    """`_put`, between what the host's hooks do."""
    if any(row[0] == "host-hook" for row in rows):
        from ctrmgr.backend import host_hooks

        with host_hooks.Attached(name, device, rows, lambda: _take_away(name, device, rows)) as around:
            _put(name, device, rows, opened, around.made)
    else:
        _put(name, device, rows, opened)


def _put(
    name: str,
    device: str,
    rows: list[list[str]],
    opened: list[tuple[list[str], int]],
    made: Callable[[], None] | None = None,
) -> None:
    """`made` is called when it is there, and nothing of it was done inside yet."""
    if any(row[0] in ("device-limit", "gpu-limit") for row in rows):
        from ctrmgr.backend.device_limits import Limited

        with Limited(name, rows):
            _ask_attach(name, device, rows, opened)
    else:
        _ask_attach(name, device, rows, opened)
    crash("attach-done")
    if made or any(row[0] == "hook" for row in rows):
        _do_hooks(name, device, rows, made)
        crash("attach-hooked")


def _recorded(
    own: record.Record, device: str, kept: dict[str, str], plan: list[list[str]], rows: list[list[str]]
) -> record.Added | placement.Added:
    if not any(row[0] == "follows-devices" for row in plan):
        return record.Added(own, device, kept, rows)
    from ctrmgr.backend import placement

    return placement.Added(own, device, kept, plan, rows)


def _noted(name: str, device: str, rows: list[list[str]]) -> Noted | None:
    """What is known of a device that is there for this run only."""
    if not any(row[0] in ("device-limit", "gpu-limit") for row in rows):
        return None
    from ctrmgr.backend import device_limits

    return device_limits.Noted(name, device, rows)


def _take_away(name: str, device: str, rows: list[list[str]]) -> None:
    from ctrmgr.backend import hooks

    hooks.undo(name, device, hooks.of(rows, device))
    control.ask(record.run_home(name), control.DETACH, name=device)
    ended.lift(name, rows, device)


def _do_hooks(name: str, device: str, rows: list[list[str]], made: Callable[[], None] | None) -> None:
    from ctrmgr.backend import hooks

    try:
        if made:
            made()
            crash("attach-made")
        hooks.do(name, device, hooks.of(rows, device))
    except BaseException:
        control.ask(record.run_home(name), control.DETACH, name=device)
        ended.lift(name, rows, device)
        raise


def _hold(name: str, device: str, rows: list[list[str]]) -> None:
    """Take the device's leases, and look once more, now that its nodes are open, whether it is still the one that was found."""
    leases.take(name, rows)
    crash("attach-leased")
    if any(row[0] == "vf-guid" for row in rows):
        from ctrmgr.backend import guids

        guids.prepare(name, rows)
    if parts.changed([row for row in rows if row[0] == "identity" and row[2] != parts.ALWAYS]):
        raise ConflictError(f"device `{device}` changed while it was being attached", hint="try again")


def _given(name: str, rows: list[list[str]], mend: Mend, *, running: bool, volatile: bool) -> Held | None:
    """What is chosen for a device that is asked for by what it can do."""
    from ctrmgr.backend import giving

    return giving.attach(name, rows, mend, running=running, volatile=volatile)


def _others(name: str, device: str, own: record.Record, plan: list[list[str]], running: bool) -> list[list[str]]:
    """The plan's rows of devices. Raises ConflictError when `device` is among them, or is there for this run only."""
    rows = [row for row in plan if row[0] in parts.WORDS]
    if device in own.devices or any(row[1] == device for row in rows) or (running and leases.attached(name, device)):
        raise ConflictError(f"`{name}` has a device `{device}` already", hint="detach it first, or choose another name")
    return rows


def _beside(name: str, rows: list[list[str]], there: list[list[str]], running: bool) -> list[list[str]]:
    """The device's rows, without the parts that others, which are `there`, bring already. Raises ConflictError."""
    if running and len([row for row in rows if row[0] in parts.PARTS]) > 1:
        # Those that are there for this run only are in no plan; they are compared by what they are inside.
        for part in control.ask(record.run_home(name), control.DEVICES).devices():
            same = [row for row in rows if row[0] == "device" and row[4] == part.path and _is(row, part)]
            if same and not any(row[0] == "device" and row[4] == part.path for row in there):
                there = [*there, ["device", part.name, *same[0][2:]]]
    try:
        return parts.shared([*there, *rows])[len(there) :]
    except SpecError as error:
        raise ConflictError(error.message, hint="choose a `path`") from None


def _is(row: list[str], part: control.Device) -> bool:
    try:
        number = os.stat(row[3]).st_rdev
    except OSError:
        return False
    return part.kind == row[2] and (part.major, part.minor) == (os.major(number), os.minor(number))


def _open_all(device: str, rows: list[list[str]], opened: list[tuple[list[str], int]], running: bool) -> None:
    """Open what the rows name on the host. Raises NotFoundError when an attach would bring none of it."""
    missing: NotFoundError | None = None
    for row in rows:
        try:
            if row[0] == "device":
                opened.append((row, _open_checked(device, row)))
            elif row[0] == "bind":
                opened.append((row, _open_file(device, row[2])))
            elif row[0] == "filesystem":
                opened.append((row, _open_file(device, row[3]) if row[3][:1] == "/" else -1))
            elif row[0] == "resctrl":
                from ctrmgr.host import resctrl

                resctrl.check(row[3])
                opened.append((row, _open_file(device, row[3])))
        except NotFoundError as error:
            needed = row[9] == "required" if row[0] == "device" else "optional" not in _options(row)
            if needed:
                raise
            missing = error
    if missing and running and not opened and not any(row[0] == "hotplug" for row in rows):
        raise missing


def _open_file(device: str, source: str) -> int:
    try:
        return os.open(source, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFoundError(f"device `{device}`: `{source}` does not exist on this host") from None
    except OSError as error:
        raise HostError(f"device `{device}`: `{source}`: {error.strerror}") from error


def _ask_attach(name: str, device: str, rows: list[list[str]], opened: list[tuple[list[str], int]]) -> None:
    run = record.run_home(name)
    asked = [control.Part(_part(row, fd).pack(), fd, _text(row)) for row, fd in opened]
    for row in rows:
        if row[0] == "device-env":
            text = f"{row[2]}={row[3]}\0".encode(errors="surrogateescape")
            asked.append(control.Part(control.Device(device, "env", "").pack(), text=text))
        elif row[0] == "device-group":
            asked.append(control.Part(control.Device(device, "group", "").pack(), text=f"={row[2]}\0".encode()))
        elif row[0] in ("hook", "hotplug"):
            made = control.Device(device, "hook", "")
            if row[0] == "hotplug":
                made = control.Device(device, "rule", "", user=row[2], group=row[3], mode=int(row[4], 8), access=row[5])
            words = "".join(word + "\0" for word in row[2 if row[0] == "hook" else 6 :])
            asked.append(control.Part(made.pack(), text=words.encode(errors="surrogateescape")))
        elif row[0] in ("netdev", "rdma"):
            asked.append(control.link(row))
        elif row[0] == "shares":
            asked.append(control.Part(control.Device(device, "share", row[2]).pack()))
    if not asked:
        raise NotFoundError(f"device `{device}` is made of nothing on this host now")
    if len(asked) == 1 and opened[:1] and opened[0][0][0] == "device":
        reply = control.ask(run, control.ATTACH, device=asked[0].device, fd=asked[0].fd)
    else:
        reply = control.commit(run, asked, lambda: crash("attach-prepared"))
    if reply.error:
        raise control.failure(device, reply.step, reply.detail, reply.error)


def _options(row: list[str]) -> list[str]:
    """Of a mount."""
    return row[4 if row[0] == "bind" else 5].split(",")


def _text(row: list[str]) -> bytes:
    words = (row[2], row[6], row[3]) if row[0] == "filesystem" else row[2:] if row[0] == "resctrl" else ()
    return "".join(word + "\0" for word in words).encode(errors="surrogateescape")


def _part(row: list[str], fd: int) -> control.Device:
    if row[0] == "resctrl":
        return control.Device(row[1], "resctrl", "")
    if row[0] != "device":
        options = _options(row)
        letters = {"rw": "w", "shift": "s", "recursive": "R"}
        access = "".join(letters.get(option, "") for option in options)
        access += "r" + ("" if "noexec" in options else "x")
        return control.Device(row[1], row[0], parts.place(row), access=access)
    host = os.fstat(fd)
    return control.Device(
        row[1],
        row[2],
        row[4],
        (os.major(host.st_rdev), os.minor(host.st_rdev)),
        user=row[5],
        group=row[6],
        mode=int(row[7], 8),
        access=row[8],
    )
