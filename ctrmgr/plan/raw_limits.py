# SPDX-License-Identifier: GPL-3.0-or-later
"""`unified.` keys: what no kernel takes, and what it takes without a word although this host has not so much."""

from __future__ import annotations

from ctrmgr.errors import HostError, SpecError, UnsupportedError
from ctrmgr.spec import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ctrmgr.host.machine import Host
    from ctrmgr.spec.limits import Ask

    Rows = Sequence[Sequence[str]]

SIZES = ("memory.", "hugetlb.")
FLAGS = ("memory.oom.group", "memory.zswap.writeback")
"""Files of these controllers that say no size."""
UNITS = " KMGTPE"


def number(value: str) -> int | None:
    """Of a kernel's size (`64M`); None for `max` and what is none."""
    unit = value[-1:].upper()
    digits = value[:-1] if unit and unit in UNITS else value
    return int(digits) << UNITS.index(unit if digits != value else " ") * 10 if digits.isdecimal() else None


def check(ask: Ask, host: Host) -> None:
    """Raises SpecError for what no kernel takes as a size or a number, HostError for more than the host has, UnsupportedError for pages that it has not."""
    file, value = ask.suffix, ask.value
    sized = file.startswith(SIZES) and file not in FLAGS
    found = number(value) if sized else int(value) if value.isdecimal() else None
    if (sized or file == "pids.max") and value != "max" and found is None:
        units = ", perhaps with K, M, G or T," if sized else ""
        raise SpecError(f"`{ask.key}`: `{value}` is not what the kernel takes: a number{units} or `max`")
    page = file.split(".")[1]
    if file.startswith("hugetlb.") and page not in host.huge_pages:
        raise UnsupportedError(
            f"`{ask.key}` cannot be enforced here: this host has no pages of {page}",
            hint=f"it has {', '.join(host.huge_pages) or 'none that are huge'}",
        )
    if sized and not file.startswith(SWAP):
        _amount(ask, found, host.memory, "bytes of memory")
    for name, counted in COUNTED:
        if file == name:
            counted(ask, host)


SWAP = ("memory.swap.", "memory.zswap.")
"""How much there can be of it changes while the host runs."""


def _amount(ask: Ask, found: int | None, most: int, what: str) -> None:
    if found is not None and found > most:
        raise HostError(
            f"`{ask.key}`: this host has {most} {what}, not {found}", hint="a limit above that would limit nothing"
        )


def _processes(ask: Ask, host: Host) -> None:
    _amount(ask, number(ask.value), host.pid_max, "processes in all (sysctl kernel.pid_max)")


def _quota(ask: Ask, host: Host) -> None:
    quota, _, period = ask.value.partition(" ")
    if quota.isdecimal() and (period or "100000").isdecimal():
        _amount(ask, int(quota), int(period or "100000") * len(host.cpus), "microseconds of CPU time in that period")


def _set(what: str, there: Callable[[Host], Sequence[int]]) -> Callable[[Ask, Host], None]:
    def counted(ask: Ask, host: Host) -> None:
        try:
            wanted = values.expand_cpus(values.cpu_list(ask.value))
        except ValueError:
            return  # in words that only the kernel knows
        missing = [each for each in wanted if each not in there(host)]
        if missing:
            raise HostError(
                f"`{ask.key}`: this host has no {what.format(missing[0])}",
                hint=f"it has {', '.join(map(str, there(host)))}",
            )

    return counted


def _region(capacity: Callable[[Host], dict[str, int]]) -> Callable[[Ask, Host], None]:
    """Of a file with a line for each resource: which, and how much of it."""

    def counted(ask: Ask, host: Host) -> None:
        name, _, value = ask.value.rpartition(" ")
        there = capacity(host)
        if name not in there:
            raise HostError(f"`{ask.key}`: this host has no `{name}`", hint=f"it has {', '.join(there) or 'none'}")
        _amount(ask, number(value), there[name], f"of `{name}` in all")

    return counted


COUNTED: tuple[tuple[str, Callable[[Ask, Host], None]], ...] = (
    ("cpu.max", _quota),
    ("cpuset.cpus", _set("CPU {} that is online", lambda host: host.cpus)),
    ("cpuset.mems", _set("NUMA node {}", lambda host: tuple(host.nodes))),
    *((f"dmem.{word}", _region(lambda host: host.dmem_regions)) for word in ("max", "low", "min")),
    ("misc.max", _region(lambda host: host.misc_capacity)),
    ("pids.max", _processes),
)


def check_order(found: Rows) -> None:
    """A guarantee, or a soft limit, above the hard limit would never be reached. Raises SpecError."""
    said = {(row[2], subject): value for row in found if row[0] == "cgroup-file" for subject, value in [_line(row)]}
    for lower, upper in _pairs():
        for (file, subject), value in said.items():
            low, high = number(value), number(said.get((upper, subject), "max"))
            if file == lower and low is not None and high is not None and low > high:
                hint = "see `limits.memory`" if upper == "memory.max" else ""
                of = f" of `{subject}`" if subject else ""
                raise SpecError(f"`{lower}`{of} is above the {WORDS[upper]} limit of {high} bytes", hint=hint)


WORDS = {"memory.max": "hard", "memory.high": "soft", "memory.swap.max": "hard", "dmem.max": "hard"}


def _pairs() -> Iterator[tuple[str, str]]:
    for file in ("memory.min", "memory.low", "memory.high"):
        yield file, "memory.max"
    for file in ("memory.min", "memory.low"):
        yield file, "memory.high"
    yield "memory.swap.high", "memory.swap.max"
    for file in ("dmem.min", "dmem.low"):
        yield file, "dmem.max"


def _line(row: Sequence[str]) -> tuple[str, str]:
    """Which resource a value is about, where a file has a line for each, and how much."""
    subject, _, value = row[3].rpartition(" ")
    return (subject, value) if row[2].startswith("dmem.") else ("", row[3])
