# SPDX-License-Identifier: GPL-3.0-or-later
"""A start, and another try where something that it lacks can be given. Hot."""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.backend import ended, leases, record
from ctrmgr.backend.record import crash
from ctrmgr.errors import CtrmgrError, HelperError, HostError, NotFoundError, UnsupportedError
from ctrmgr.images import store
from ctrmgr.kernel import control, spawn
from ctrmgr.plan import network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctrmgr.backend.asked import Mend

    Remedy = Callable[[str, spawn.Report], bool]

CANNOT_IDMAP = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
NO_LABEL = (errno.ENOENT, errno.EINVAL)


def start(name: str, mend: Mend) -> None:
    """Start an instance that is not running; the caller holds its lock. `mend` puts another in order that has what it needs. Raises HostError, HelperError, CtrmgrError for a
    corrupt file."""
    path, run = record.home(name), record.run_home(name)
    record.close_instances()
    state.make_dir(state.run_dir())
    if not os.path.exists(f"{path}/plan"):
        replan(name)
    with open(f"{path}/plan", "rb") as file:
        data = file.read()
    if b"\tkeeps:" in data or b"memory.reserve" in data:
        from ctrmgr.backend import machine_lock

        with machine_lock.taken():  # until it is written where others see it what is kept for this instance
            _start(name, path, run, data, mend)
    else:
        _start(name, path, run, data, mend)


def _start(name: str, path: str, run: str, data: bytes, mend: Mend) -> None:
    try:
        _devices(name, data, mend)
    except BaseException:
        ended.guids(name, running=False)
        leases.release(name)
        _take_back(name)
        raise
    crash("start-leased")
    state.make_dir(run, 0o700)
    crash("start-directory")
    try:
        report = _spawn(name, path, run)
        remedies: list[Remedy] = [_mend_plan, _mend_filter, _mend_label, _mend_link, _mend_layers, _mend_limits]
        while report.error and (remedy := _mended(name, report, remedies)):
            remedies.remove(remedy)
            leases.take(name, _rows(f"{path}/plan"))  # a plan that was lost has them only now
            report = _spawn(name, path, run)
    except FileNotFoundError as error:
        _undo(name)
        raise state.corrupt(str(error.filename), 1, "is missing") from None
    except CtrmgrError:
        _undo(name)
        raise
    crash("start-done")
    if report.error:
        _undo(name)
        raise control.failure(name, report.step, report.detail, report.error)


def _spawn(name: str, path: str, run: str) -> spawn.Report:
    """Have a monitor start it; around that, hooks of the host's are run."""
    plan = f"{path}/plan"
    with open(plan, "rb") as file:
        data = file.read()
    if b"\nhost-hook\t" not in data and b"\trun\t" not in data:
        return spawn.monitor("start", plan, path, run)
    from ctrmgr.backend import host_hooks

    return host_hooks.start(name, _rows(plan), lambda between: spawn.monitor("start", plan, path, run, between))


def _undo(name: str) -> None:
    """What a start that failed has left. What went wrong first is what the user must see; the next command tries again."""
    try:
        ended.guids(name, running=False)
        leases.release(name)
        ended.end_run(name)
        ended.restore(name)
    except (CtrmgrError, OSError):
        pass
    _take_back(name)


def _devices(name: str, data: bytes, mend: Mend) -> None:
    """Make sure that the plan's devices are what they were when it was made, and that the instance may have them.

    Raises NotFoundError, HostError or UnsupportedError for a device that cannot be had any more, ConflictError when it is leased.
    """
    path = f"{record.home(name)}/plan"
    if b"\nidentity\t" in data and _is_stale(path):
        _look_again(name, path)
    if b"\nresctrl\t" in data:
        from ctrmgr.host import resctrl

        for row in _rows(path):
            if row[0] == "resctrl" and len(row) > 4:
                resctrl.check(row[3])
    asks = b"\nrequest\t" in data
    if asks:
        _give(name, mend)
    if asks or b"\nlease\t" in data:
        leases.take(name, _rows(path))
    if b"\nvf-guid\t" in data:
        _set_guids(name, path)
    if b"\ngpu-limit\t" in data or (asks and b"\ngpu-default\t" in data):
        from ctrmgr.backend import gpu_limits

        gpu_limits.prepare(name, _rows(path))
        crash("start-limited")


def _set_guids(name: str, path: str) -> None:
    """A function that its driver has taken anew may have other names and nodes then."""
    from ctrmgr.backend import guids
    from ctrmgr.devices import rows

    plan = _rows(path)
    guids.prepare(name, plan)
    if rows.changed([row for row in plan if row[0] == "identity" and row[2] != rows.ALWAYS]):
        replan(name)
        leases.take(name, _rows(path))


def _look_again(name: str, path: str) -> None:
    """A device is not what it was. Raises ConflictError when its link is another instance's meanwhile."""
    try:
        replan(name)
    except NotFoundError as error:
        links = [row[2] for row in _rows(path) if row[0] == "netdev"]
        raise next((said for link in links if (said := leases.elsewhere(link, error)) is not error), error) from None


def _take_back(name: str) -> None:
    """What was chosen for a start that failed."""
    if ended.has_allocations(name):
        from ctrmgr.backend import allocations

        allocations.mend(name, running=False)


def _rows(path: str) -> list[list[str]]:
    try:
        return state.read_flat(path)
    except CtrmgrError:
        return []  # the monitor says what is wrong with it, and it is made again


def _is_stale(path: str) -> bool:
    from ctrmgr.devices.rows import changed

    return changed(_rows(path))


def _mended(name: str, report: spawn.Report, remedies: list[Remedy]) -> Remedy | None:
    """The first that makes another try worth it; each helps once."""
    return next((remedy for remedy in remedies if remedy(name, report)), None)


# What a start may lack and can be given: each looks at how it failed and says whether another try is worth it.


def _mend_plan(name: str, report: spawn.Report) -> bool:
    if report.step != "read the plan":
        return False
    replan(name)
    return True


def _mend_filter(name: str, report: spawn.Report) -> bool:
    """A filter that is lost or damaged is compiled again from its policy."""
    refused = report.step == "confine init" and "seccomp" in report.detail and report.error == errno.EINVAL
    if report.step != "read the seccomp filter" and not refused:
        return False
    paths = [row[1] for row in record.read_plan(record.home(name)) if row[0] == "seccomp" and os.path.exists(row[1])]
    for path in paths:
        os.rename(path, path + "~")
    try:
        replan(name)
    except UnsupportedError:
        for path in paths:
            os.rename(path + "~", path)
        return False  # no filter at all can be loaded here, as the start said
    for path in paths:
        state.unlink(path + "~")
    return True


def _mend_label(name: str, report: spawn.Report) -> bool:
    """The AppArmor profile was loaded when the plan was made and is not now; or AppArmor is off."""
    if report.step != "confine init" or "AppArmor" not in report.detail or report.error not in NO_LABEL:
        return False
    replan(name)
    return True


def _mend_link(name: str, report: spawn.Report) -> bool:
    if report.error != errno.ENODEV or report.step != "make the network link":
        return False
    bring_up(record.read_plan(record.home(name)))
    return True


def _mend_layers(name: str, report: spawn.Report) -> bool:
    if report.error not in CANNOT_IDMAP or report.step != "idmap a layer":
        return False
    from ctrmgr.backend import shift

    shift.shift(record.home(name), record.read_plan(record.home(name)))
    return True


def _mend_limits(name: str, report: spawn.Report) -> bool:
    """A disk has another number now, or is gone."""
    if report.step != "set a limit" or report.error not in (errno.ENODEV, errno.ENXIO):
        return False
    replan(name)
    return True


def replan(name: str) -> None:
    """Compile a damaged plan anew from what the user asked for; ids and addresses are known by their claims. Cold."""
    from ctrmgr.plan import compile, numa

    own = record.Record(name)
    old = [["address", "4", address, ""] for address, owner in state.claims("addresses").items() if owner == name]
    old += [
        row for row in _rows(f"{own.path}/plan") if row[0] == numa.FOLLOWS or (len(row) == 4 and numa.is_place(row))
    ]
    leases.tell(name)
    rows = compile.recompile(name, store.load(own.image), own.profiles, own.config, own.devices, old)
    if ended.has_allocations(name):
        from ctrmgr.backend import allocations

        rows = allocations.with_rows(name, rows)
    state.write_flat(f"{own.path}/plan", rows)


def _give(name: str, mend: Mend) -> None:
    """Choose and prepare the devices that the plan asks for. Raises NotFoundError, ConflictError, HostError."""
    from ctrmgr.backend import giving

    path = record.home(name)
    try:
        plan = record.read_plan(path)
    except HostError:
        raise
    except CtrmgrError:
        replan(name)
        plan = record.read_plan(path)
    rows = giving.settle(name, plan, mend, starts=True)
    if any(row[0] == "follows-devices" for row in rows):
        from ctrmgr.backend import placement
        from ctrmgr.host.machine import Host

        rows = placement.followed(name, rows, Host())
    if rows != plan:
        state.write_flat(f"{path}/plan", rows)


def bring_up(plan: Sequence[Sequence[str]]) -> None:
    """Make the managed bridge that the plan's link wants. Raises HelperError, HostError."""
    for row in plan:
        if row[0] == "link":
            bridge = network.load(row[1])
            addresses = (f"{bridge.gateway}/{bridge.prefix}", f"{bridge.gateway6}/{bridge.prefix6}")
            try:
                spawn.run("ctrmgr-net", ("up", row[1], *addresses, "--nat"))
            except HelperError as error:
                raise HostError(
                    f"network `{row[1]}` cannot be made: {error.message}",
                    hint="install `nftables`, or launch with `-p no-network`",
                ) from error
