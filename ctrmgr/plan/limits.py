# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits → files of the hierarchy that really has the controller; what a change of them writes; whether they hold.

The limits themselves are the entries of `ctrmgr.spec.limits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ctrmgr.errors import SpecError, UnsupportedError
from ctrmgr.host.cgroup import UNIFIED
from ctrmgr.host.machine import Host
from ctrmgr.plan import raw_limits
from ctrmgr.spec import values
from ctrmgr.spec.limit_files import KEYED, UNIFIED_FILES, V1_FILES, hugetlb
from ctrmgr.spec.limits import LIMITS, Ask, File, Limit

Rows = Sequence[Sequence[str]]

BEST_EFFORT = "`limits.enforcement: best-effort` goes on without it"


def rows(config: Mapping[str, str], host: Host) -> list[list[str]]:
    """`cgroup-file` rows, a `@cpus` row, and a `left-out` row for each key left out by `limits.enforcement: best-effort`.

    Raises UnsupportedError naming the key when this host has nothing to enforce it with, HostError for more than the host
    has, SpecError for keys that contradict each other.
    """
    best_effort = config.get("limits.enforcement") == "best-effort"
    found: list[list[str]] = []
    owners: dict[tuple[str, ...], tuple[str, str]] = {}
    for key, limit in _given(config):
        try:
            made = list(_rows(key, limit, config, host))
        except UnsupportedError as error:
            if not best_effort:
                raise
            found.append(left_out(key, error.message))
            continue
        for row in made:
            place = _place(row)
            other, value = owners.setdefault(place, (key, row[-1]))
            if value != row[-1]:
                raise SpecError(f"`{other}` and `{key}` both say what `{row[2]}` is", hint="take one of them out")
            if row not in found:
                found.append(row)
    raw_limits.check_order(found)
    return found


def left_out(key: str, reason: str, device: str = "") -> list[str]:
    """The row of a plan that says which limit, of a device or of the instance, is not in force and why."""
    return ["left-out", device, key, reason]


def _given(config: Mapping[str, str]) -> Iterator[tuple[str, Limit]]:
    for limit in LIMITS:
        for key in sorted(config):
            if limit.covers(key):
                yield key, limit


def limit_of(key: str) -> Limit | None:
    return next((limit for limit in LIMITS if limit.covers(key)), None)


def _rows(key: str, limit: Limit, config: Mapping[str, str], host: Host) -> Iterator[list[str]]:
    suffix = limit.ask(key, config, host, True).suffix
    controller = limit.controller or suffix.partition(".")[0]
    hierarchy = where(key, controller, limit.v1_controller or controller, host)
    unified = hierarchy == UNIFIED
    ask = limit.ask(key, config, host, unified)
    files = limit.v2 if unified else limit.v1
    if not files:
        raise UnsupportedError(f"`{key}` cannot be enforced here: {limit.absent}", hint=BEST_EFFORT)
    if not limit.controller:
        raw_limits.check(ask, host)
    for file in files:
        value = file.make(ask)
        if value is None:
            continue
        name = _name(file, ask, hierarchy, host)
        if not name:
            if file.optional(ask):
                continue
            raise UnsupportedError(f"`{key}` cannot be enforced here: {limit.absent}", hint=BEST_EFFORT)
        count, of, cpus = value.partition(" of ")
        if count.endswith(" numa"):
            yield ["@numa", name, count.removesuffix(" numa"), hierarchy, cpus]
            continue
        if of:
            # Which ones is chosen for each instance, in turn: see instance.fill.
            yield ["@cpus", count, hierarchy, cpus]
            continue
        for setting in _settings(name, value):
            yield _file(hierarchy, name, setting)


def where(key: str, controller: str, v1: str, host: Host) -> str:
    """The hierarchy that has a controller, on cgroup2 or by its name of v1. Raises UnsupportedError, and says how it could have."""
    if controller == "cgroup" and host.cgroups.unified:
        return UNIFIED
    hierarchy = host.cgroups.where(controller) or host.cgroups.where(v1)
    if hierarchy:
        return hierarchy
    if host.privileged:
        raise UnsupportedError(
            f"`{key}` cannot be enforced here: the `{controller}` controller is in no hierarchy of this host "
            f"({host.cgroups.layout})",
            hint=BEST_EFFORT,
        )
    raise UnsupportedError(
        f"`{key}` cannot be enforced here: the `{controller}` controller was not delegated to you",
        hint=f"root can: `systemctl edit user@.service`, `[Service]`, `Delegate={_delegate(controller, host)}`, and log in "
        f"again; or {BEST_EFFORT}",
    )


def _delegate(controller: str, host: Host) -> str:
    return " ".join(sorted({controller, *host.cgroups.controllers}))


def _name(file: File, ask: Ask, hierarchy: str, host: Host) -> str:
    """The file's name on this host; "" when it has none of them."""
    if host.kernel != (0, 0) and host.kernel < file.since:
        return ""
    names = [name.replace("{}", ask.suffix) for name in file.names]
    if not file.probed:
        return names[0]
    mount = host.cgroups.unified if hierarchy == UNIFIED else host.cgroups.v1[hierarchy]
    return next((name for name in names if host.has_file(mount, name)), "")


def _settings(file: str, value: str) -> Iterator[str]:
    """What a file with several settings on a line (`8:16 rbps=1 wbps=2`) is told one by one, so that each can be taken back."""
    subject, *words = value.split()
    if not file.startswith(KEYED) or not all("=" in word for word in words) or not words:
        yield value
        return
    for word in words:
        yield f"{subject} {word}"


def _file(hierarchy: str, name: str, value: object) -> list[str]:
    return ["cgroup-file", hierarchy, name, str(value)]


def _subject(file: str, value: str) -> str:
    """Which line, and which word of it, a value of a file is about: `8:16 rbps` of `8:16 rbps=1`."""
    if not file.startswith(KEYED):
        return ""
    subject, _, setting = value.rpartition(" ")
    word, equals, _ = setting.partition("=")
    return f"{subject} {word}" if equals else subject


def _place(row: Sequence[str]) -> tuple[str, ...]:
    """What a row sets; two rows that set the same cannot both hold."""
    if row[0] == "@cpus":
        return (row[2], "cpuset.cpus", "")
    if row[0] == "@numa":
        return (row[3], row[1], "")
    return (row[1], row[2], _subject(row[2], row[3]))


def agree(own: Rows, devices: Rows) -> None:
    """Raises SpecError where the instance's own rows and those of its devices say different things about one file."""
    said = {_place(row): row[3] for row in own if row[0] == "cgroup-file"}
    theirs = [(row[1], _file(row[2], row[3], row[4])) for row in devices if row[0] == "device-limit"]
    for name, row in theirs:
        if said.get(_place(row), row[3]) != row[3]:
            what = f"`{row[2]}` of `{_subject(row[2], row[3])}`"
            raise SpecError(
                f"`unified.{row[2]}` and device `{name}` both say what {what} is", hint="take one of them out"
            )
    raw_limits.check_order([*own, *(row for _, row in theirs)])


def neutral(file: str, subject: str, host: Host) -> str:
    """What a file says in a cgroup without a limit."""
    if file in ("cpuset.cpus", "cpuset.mems"):
        return ",".join(map(str, host.cpus if file == "cpuset.cpus" else host.nodes))
    known = hugetlb(file)
    value = UNIFIED_FILES[known] if known in UNIFIED_FILES else V1_FILES[known]
    device, _, word = subject.rpartition(" ")
    if file in ("io.weight", "io.bfq.weight") and subject:
        return f"{subject} default" if subject != "default" else f"default {value}"
    if file.startswith(("io.max", "io.latency", "rdma.max")):
        return f"{device} {word}={value}"
    return f"{subject} {value}" if subject else value


def changes(old: Rows, new: Rows, host: Host) -> list[list[str]]:
    """The `cgroup-file` rows that take a running instance from the plan `old` to `new`, in an order that the kernel takes."""
    before, after = _files(old), _files(new)
    found = [_file(hierarchy, name, neutral(name, subject, host))
             for hierarchy, name, subject in before if (hierarchy, name, subject) not in after]  # fmt: skip
    changed = [_file(*place[:2], value) for place, value in after.items() if before.get(place) != value]
    order = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    if any(row[2] == order[1] and _grows(before, row) for row in (*found, *changed)):
        # v1: the sum may never be below the memory alone, so it must grow first.
        order.reverse()
    return sorted((*found, *changed), key=lambda row: order.index(row[2]) if row[2] in order else -1)


def _grows(before: Mapping[tuple[str, str, str], str], row: Sequence[str]) -> bool:
    old = int(before.get((row[1], row[2], ""), "-1"))
    new = int(row[3])
    return old != -1 and (new == -1 or new > old)


def files(plan: Rows) -> Iterator[tuple[str, str, str, str]]:
    """(hierarchy, file, value, device) of everything that a plan writes; `device` is "" for the instance's own limits."""
    for row in plan:
        if row[0] == "cgroup-file":
            yield row[1], row[2], row[3], ""
        elif row[0] == "device-limit":
            yield row[2], row[3], row[4], row[1]


def _files(plan: Rows) -> dict[tuple[str, str, str], str]:
    return {(hierarchy, file, _subject(file, value)): value for hierarchy, file, value, _ in files(plan)}


def key_of(file: str, value: str, unified: bool) -> str:
    """The key that leads to a file with such a value; of several the first (`limits.cpu.allowance` for the weight that the
    priority changes)."""
    if file.startswith("gpu."):
        return f"limits.{file}"
    for limit in LIMITS:
        for candidate in limit.v2 if unified else limit.v1:
            if file in (name.replace("{}", limit.name.rpartition(".")[2]) for name in candidate.names):
                return limit.name.replace("*", _subject(file, value).replace(" ", "."))
    return f"unified.{file}"


def line_of(file: str, planned: str, text: str) -> str:
    """The line of a file that a setting is about; all of it where there is but one."""
    device = _subject(file, planned).partition(" ")[0]
    lines = [line for line in text.splitlines() if device in ("", line.partition(" ")[0])]
    return " ".join("\n".join(lines).split())


PAGE = 4096


def holds(file: str, planned: str, text: str) -> bool:
    """Whether what a file says now is what the plan says; the kernel writes it in its own words."""
    actual = line_of(file, planned, text)
    if file.startswith("cpuset.") and planned[:1].isdecimal():
        return actual[:1].isdecimal() and values.expand_cpus(planned) == values.expand_cpus(actual)
    if file.startswith(KEYED):
        return bool(actual) and planned.rsplit(maxsplit=1)[-1] in actual.split()
    wanted, found = raw_limits.number(planned), raw_limits.number(actual)
    if wanted is None or found is None:
        return planned.split() == actual.split()
    # The kernel counts memory in whole pages.
    return 0 <= wanted - found < (PAGE if file.startswith("memory.") else 1)
