# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of an instance's network link: what changes them, and whether this kernel has what carries them out."""

from __future__ import annotations

from ctrmgr.errors import HelperError, UnsupportedError
from ctrmgr.kernel import spawn
from ctrmgr.plan.limits import left_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Rows = Sequence[Sequence[str]]

KEYS = ("limits.ingress", "limits.egress", "limits.network.priority")
"""Of an instance: what the nics have that do not say it themselves."""

NONE = ("0", "0", "4294967295")
"""Ingress and egress in bits a second, priority: a link without limits."""


def possible(rows: list[list[str]], *, best_effort: bool) -> list[list[str]]:
    """The rows, after this kernel was tried. Raises UnsupportedError, unless `best_effort`: then `left-out` says why not."""
    if not any(row[0] == "link-limit" for row in rows):
        return rows
    try:
        spawn.run("ctrmgr-net", ("can-limit",))
    except HelperError as error:
        if not best_effort:
            raise UnsupportedError(
                f"`limits.ingress` and `limits.egress` cannot be enforced here: {error.message}",
                hint="the kernel needs sch_tbf, sch_ingress, cls_bpf and BPF; `limits.enforcement: best-effort` goes on without",
            ) from None
        without = [_left_out(f"{row[1]}.limits", error.message) for row in rows if row[0] == "link-limit"]
        return [row for row in rows if row[0] != "link-limit"] + without
    return rows


def moves_past(config: Mapping[str, str], rows: Rows) -> list[list[str]]:
    """A `left-out` row for each of the instance's keys and each link of the host's that moves in: there the instance's root takes away
    what limits it. Raises UnsupportedError, unless best effort is asked for."""
    found = []
    for row in rows:
        for key in KEYS if row[0] == "netdev" else ():
            if not config.get(key):
                continue
            why = f"`{key}` cannot be enforced here: `{row[2]}` of device `{row[1]}` is a link of the host's that moves in, with all that limits it"
            if config.get("limits.enforcement") != "best-effort":
                hint = f"have a nic on the bridge say it instead (`{NICS[key]}`), or `limits.enforcement: best-effort` goes on without it there"
                raise UnsupportedError(why, hint=hint)
            found.append(left_out(key, why, row[1]))
    return found


NICS = dict(zip(KEYS, ("limits.ingress", "limits.egress", "limits.priority"), strict=True))
"""What they are called as keys of a nic."""


def _left_out(key: str, why: str) -> list[str]:
    return left_out(key, f"`{key}` cannot be enforced here: {why}")


def of(plan: Rows) -> dict[str, tuple[str, str, str]]:
    """Link inside → ingress, egress, priority."""
    return {row[1]: (row[2], row[3], row[4]) for row in plan if row[0] == "link-limit"}


def changes(old: Rows, new: Rows) -> Iterator[tuple[str, ...]]:
    """What `ctrmgr-net` is told, to take a running instance from the limits of one plan to those of another."""
    before, after = of(old), of(new)
    for row in new:
        if row[0] == "link" and before.get(row[3]) != after.get(row[3]):
            ingress, egress, priority = after.get(row[3], NONE)
            yield ("limit", row[2], ingress, egress, "none" if priority == NONE[2] else priority)
