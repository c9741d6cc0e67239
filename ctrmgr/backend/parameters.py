# SPDX-License-Identifier: GPL-3.0-or-later
"""Resource limits, OOM priority and kernel parameters of a running instance, as the kernel has them now. Cold."""

from __future__ import annotations

from ctrmgr.backend import record
from ctrmgr.errors import CtrmgrError
from ctrmgr.host import features
from ctrmgr.kernel import control
from ctrmgr.plan import compile, oom, rlimits, sysctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ctrmgr.backend.record import Record


def read(own: Record, plan: Sequence[Sequence[str]], init: int) -> Iterator[dict[str, object]]:
    """Each that a key asks for: what it is now, and whether that is what was asked for.

    Of resource limits those of init count, and of these the hard one: each process may have less, and its soft one is its own.
    """
    keys = _keys(own)
    now = features.limits(process=str(init))
    for row in plan:
        if row[0] == "rlimit" and rlimits.PREFIX + row[1] in keys:
            soft, hard = now.get(row[1], ("", ""))
            yield _line(rlimits.PREFIX + row[1], "rlimit", f"{soft}:{hard}" if hard else "", hard == row[3])
        elif row[0] == oom.ROW:
            value = str(features.oom_score_adj(process=str(init)))
            yield _line(oom.KEY, "oom_score_adj", value, value == row[1])
    for key in sorted(keys):
        path = sysctl.path(key.removeprefix(sysctl.PREFIX)) if key.startswith(sysctl.PREFIX) else ""
        for row in plan:
            if row[0] == "sysctl" and row[1] == path:
                value = _parameter(own.name, path)
                yield _line(key, "sysctl", value, value.split() == row[2].split())


def _keys(own: Record) -> set[str]:
    try:
        return set(compile.merged(own.profiles, own.config))
    except CtrmgrError:
        return set(own.config)  # a profile that is gone now was there when the plan was made


def _parameter(name: str, path: str) -> str:
    try:
        reply = control.ask(record.run_home(name), control.SYSCTL, path=path)
    except CtrmgrError:
        return ""  # it is ending
    return "" if reply.error else " ".join(reply.detail.split())


def _line(key: str, mechanism: str, value: str, holds: bool) -> dict[str, object]:
    return {
        "key": key, "file": "", "value": value, "hierarchy": "", "enforced": holds, "mechanism": mechanism,
        "state": "enforced" if holds else "not in force",
    }  # fmt: skip
