# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with this host and with what runs on it, and mending what can be mended. Cold."""

from __future__ import annotations

import os
import stat
from functools import partial

from ctrmgr import state
from ctrmgr.backend import checkup, ended, placement, record, repair, upgrades
from ctrmgr.backend.checkup import NOTE, OK, WRONG, Finding
from ctrmgr.errors import ConflictError, CtrmgrError, HostError
from ctrmgr.host import cgroup
from ctrmgr.kernel import bpf, control, helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROGRAM = "ctrmgr_devices"
PATIENCE = 5.0
"""Seconds that a monitor has to answer."""


def examine(names: Sequence[str] = ()) -> list[Finding]:
    """Look at the host and all instances, or at the named instances alone. Raises NotFoundError."""
    found = [] if names else list(checkup.host())
    for name in names or record.names():
        try:
            with record.lock(name):
                findings = list(_instance(name))
        except HostError as error:
            findings = [Finding(name, "state", WRONG, error.message, hint=error.hint or "")]
        found += findings or [Finding(name, "all", OK, "runs well" if record.is_running(name) else "is stopped")]
    return found


def mend(names: Sequence[str] = ()) -> list[Finding]:
    """Mend what can be mended, and look again: what is well now is `mended`, what is not has the reason."""
    tried: dict[tuple[str, str, str], str] = {}
    before = [finding for finding in examine(names) if finding.mend]
    for finding in before:
        assert finding.mend is not None
        try:
            finding.mend()
            tried[finding.key] = ""
        except (CtrmgrError, OSError) as error:
            tried[finding.key] = str(error)
    after = examine(names)
    still = {finding.key for finding in after}
    for finding in after:
        if tried.get(finding.key):
            finding.hint = f"cannot be mended: {tried[finding.key]}"
    mended = [finding for finding in before if finding.key not in still]
    for finding in mended:
        finding.status = checkup.MENDED
    return mended + after


def _instance(name: str) -> Iterator[Finding]:
    """The caller holds its lock."""
    path = record.home(name)
    half = [file for file in ("config.new", "plan.new", "rename", record.ANEW) if os.path.exists(f"{path}/{file}")]
    half += ["config"] if state.has_tail(f"{path}/config") else []
    if half:
        text = f"a command was killed while it changed it ({', '.join(half)})"
        yield Finding(name, "state", WRONG, text, mend=partial(_locked, name))
    try:
        record.Record(name)
        plan = record.read_plan(path)
    except CtrmgrError as error:
        yield Finding(name, "state", WRONG, error.message, hint=error.hint or "")
        return
    if record.is_running(name):
        yield from _running(name, plan)


def _locked(name: str) -> None:
    with record.lock(name):
        repair.instance(name)


def _running(name: str, plan: Sequence[Sequence[str]]) -> Iterator[Finding]:
    run = record.run_home(name)
    try:
        monitor, init, _, _ = control.ask(run, control.STATUS, timeout=PATIENCE).status()
        attached = control.ask(run, control.DEVICES, timeout=PATIENCE).devices()
    except ConflictError as error:
        yield Finding(name, "monitor", WRONG, error.message, hint=f"`ctrmgr kill {name}`, or its processes by hand")
        return
    if not _same_file(f"/proc/{monitor}/exe", helper.find("ctrmgr-monitor")):
        yield Finding(
            name, "monitor", NOTE, "is of another build than the one installed", hint=f"`ctrmgr restart {name}`"
        )
    yield from _programs(name, plan)
    yield from upgrades.findings(name, plan)
    yield from _tpms(name)
    if any(row[0] == "follows-devices" for row in plan) and (text := placement.behind(name, plan)):
        yield Finding(name, "placement", WRONG, text, mend=partial(_catch_up, name))
    for device in attached:
        if device.kind in ("char", "block") and not device.suspended:
            wrong = _node(init, device, plan)
            if wrong:
                again = partial(_remake, name, device)
                yield Finding(name, "device", WRONG, f"`{device.name}`: `{device.path}` {wrong}", mend=again)


def _tpms(name: str) -> Iterator[Finding]:
    if not ended.has_allocations(name):
        return
    from ctrmgr.backend import tpms

    for device, found in tpms.of_instance(name).items():
        if found["state"] == "ended":
            text = f"`{device}`: its emulator has ended, and its nodes give errors"
            yield Finding(name, "tpm", WRONG, text, hint=f"`ctrmgr restart {name}`, or detach it and attach it again")


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _programs(name: str, plan: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """The device program must be there, and the only one: all that are on a cgroup's path must agree."""
    top = cgroup.read().unified
    if not top:
        return
    (relative,) = (row[1] for row in plan if row[0] == "cgroup")
    folder = f"{top}/{relative}"
    try:
        found = bpf.device_programs(folder)
        above = []
        while len(os.path.dirname(folder)) >= len(top):
            folder = os.path.dirname(folder)
            above += [program for _, program in bpf.device_programs(folder)]
    except OSError as error:
        yield Finding(name, "program", NOTE, f"its device program cannot be looked at: {error.strerror}")
        return
    folder = f"{top}/{relative}"
    for number, program in found:
        if program != PROGRAM:
            text = f"a device program of somebody else (`{program}`, {number}) is on its cgroup, too, and may refuse its devices"
            yield Finding(name, "program", WRONG, text, mend=partial(bpf.take_off, folder, number))
    if not any(program == PROGRAM for _, program in found):
        yield Finding(
            name,
            "program",
            WRONG,
            "its device program was taken off: no device is refused",
            mend=partial(_refilter, name),
        )
    if above:
        yield Finding(
            name, "program", NOTE, f"device programs on the cgroups above it have a say, too: {', '.join(above)}"
        )  # fmt: skip


def _refilter(name: str) -> None:
    reply = control.ask(record.run_home(name), control.MEND_FILTER, timeout=PATIENCE)
    if reply.error:
        raise control.failure(name, reply.step, reply.detail, reply.error)


def _node(init: int, device: control.Device, plan: Sequence[Sequence[str]]) -> str:
    """What is wrong with the node as the instance sees it; no symlink of its making is followed."""
    fd = os.open(f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in device.path.strip("/").split("/"):
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
        found = os.fstat(fd)
    except (FileNotFoundError, NotADirectoryError):
        return "is gone"
    finally:
        os.close(fd)
    kind = stat.S_IFBLK if device.kind == "block" else stat.S_IFCHR
    if stat.S_IFMT(found.st_mode) != kind or found.st_rdev != os.makedev(device.major, device.minor):
        return "is something else"
    wanted = (_outside(plan, "uidmap", device.uid), _outside(plan, "gidmap", device.gid), device.mode)
    if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != wanted:
        return "has another owner or mode"
    return ""


def _outside(plan: Sequence[Sequence[str]], kind: str, inside: int) -> int:
    """The host's id for an id in the instance."""
    for row in plan:
        if row[0] == kind and int(row[1]) <= inside < int(row[1]) + int(row[3]):
            return int(row[2]) + inside - int(row[1])
    return -1


def _remake(name: str, device: control.Device) -> None:
    """Have the monitor make the node again, after the host's node of that number."""
    sort = "block" if device.kind == "block" else "char"
    try:
        with open(f"/sys/dev/{sort}/{device.major}:{device.minor}/uevent", encoding="utf-8") as file:
            named = [line.strip().partition("=")[2] for line in file if line.startswith("DEVNAME=")]
        fd = os.open(f"/dev/{named[0]}", os.O_PATH | os.O_CLOEXEC)
    except (OSError, IndexError):
        raise HostError(f"the host has no device {device.major}:{device.minor} any more") from None
    try:
        reply = control.ask(
            record.run_home(name), control.MEND_NODE, name=device.name, path=device.path, fd=fd, timeout=PATIENCE
        )
    finally:
        os.close(fd)
    if reply.error:
        raise control.failure(device.name, reply.step, reply.detail, reply.error)


def is_well(findings: Sequence[Finding]) -> bool:
    return all(finding.status != WRONG for finding in findings)


def _catch_up(name: str) -> None:
    """To where its devices are now. Raises HostError."""
    with record.lock(name):
        if repair.instance(name):
            placement.came(record.Record(name))
