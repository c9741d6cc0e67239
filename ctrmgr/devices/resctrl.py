# SPDX-License-Identifier: GPL-3.0-or-later
"""`intelRdt` of a CDI specification: the class of cache and memory bandwidth that an instance is in. Cold."""

from __future__ import annotations

from ctrmgr.errors import UnsupportedError
from ctrmgr.host import resctrl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ctrmgr.edits import IntelRdt
    from ctrmgr.host.resctrl import Resctrl

NAME_MAX, LINE_MAX, LINES_MAX = 255, 1023, 40
"""What the monitor has room for."""
OWN = "."
"""In place of a class's name: one that is made for the instance, and ends with it."""


def row(name: str, rdt: IntelRdt, root: str = "/") -> list[str]:
    """Raises ValueError for what makes no sense anywhere, UnsupportedError for what this machine cannot do."""
    if rdt.clos_id in (".", "..") or ("/" in rdt.clos_id and rdt.clos_id != "/") or not _plain(rdt.clos_id, NAME_MAX):
        raise ValueError(f"`closID`: `{rdt.clos_id}` cannot be the name of a class")
    lines = list(_lines(rdt))
    try:
        there = resctrl.find(root)
    except UnsupportedError as error:
        raise UnsupportedError(f"its specification has `intelRdt`, and {error.message}", hint=error.hint) from None
    for line in lines:
        resource = line.partition(":")[0].strip()
        if resource not in there.resources:
            has = ", ".join(there.resources) or "nothing"
            raise UnsupportedError(f"`{line}`: this machine does not share out `{resource}`; it does {has}")
    if not there.resources and rdt.clos_id != "/":
        raise UnsupportedError("this machine has no classes: it shares out neither caches nor bandwidth")
    _counts(rdt, there)
    watched = rdt.enable_monitoring or rdt.enable_cmt or rdt.enable_mbm
    return ["resctrl", name, rdt.clos_id or OWN, there.path, "monitored" if watched else "", *lines]


def _lines(rdt: IntelRdt) -> Iterable[str]:
    """Of `schemata`, in the order in which OCI has them written."""
    if rdt.mem_bw_schema and not rdt.mem_bw_schema.startswith("MB:"):
        raise ValueError(f"`memBwSchema`: `{rdt.mem_bw_schema}` does not begin with `MB:`")
    given = [*rdt.l3_cache_schema.split("\n"), rdt.mem_bw_schema, *rdt.schemata]
    found = [line.strip() for line in given if line.strip()]
    for line in found:
        if ":" not in line or not _plain(line, LINE_MAX):
            raise ValueError(f"`{line}` is no line of `schemata`, such as `L3:0=f;1=f`")
    if len(found) > LINES_MAX or sum(len(line) for line in found) > 2 * LINE_MAX:
        raise ValueError(f"`schemata` has more than {LINES_MAX} lines, or too long ones")
    return found


def _plain(word: str, size: int) -> bool:
    return word.isprintable() and "\\" not in word and len(word.encode()) <= size


def _counts(rdt: IntelRdt, there: Resctrl) -> None:
    asked = {
        "enableMonitoring": (rdt.enable_monitoring, ""),
        "enableCMT": (rdt.enable_cmt, "llc_occupancy"),
        "enableMBM": (rdt.enable_mbm, "mbm_"),
    }
    for key, (wanted, feature) in asked.items():
        if wanted and not any(each.startswith(feature) for each in there.features):
            has = ", ".join(there.features) or "nothing"
            raise UnsupportedError(f"`{key}`: this machine does not count that of a class; it counts {has}")
