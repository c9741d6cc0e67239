# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance's limits as the kernel has them now, and what it uses of them. Cold."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import HelperError, HostError
from ctrmgr.host import cgroup
from ctrmgr.kernel import spawn
from ctrmgr.plan import limits, link_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ctrmgr.backend.record import Record

    Rows = Sequence[Sequence[str]]


GUARANTEES = ("dmem.low", "dmem.min", "memory.low", "memory.min")


class Files:
    """The files of an instance's cgroups, by hierarchy (`unified`, or a v1 controller)."""

    __slots__ = ("folders", "path", "unified")

    def __init__(self, plan: Rows) -> None:
        (path,) = (row[1] for row in plan if row[0] == "cgroup")
        host = cgroup.read()
        self.path, self.unified = path, host.unified
        mounts = {**host.v1, **({cgroup.UNIFIED: host.unified} if host.unified else {})}
        self.folders = {hierarchy: f"{mount}/{path}" for hierarchy, mount in mounts.items()}

    def kept(self, file: str, actual: str) -> bool:
        """Whether the cgroups above have what this one is guaranteed, too: the kernel keeps no more than they have."""
        if file not in GUARANTEES:
            return True
        subject, parent = actual.rpartition(" ")[0], os.path.dirname(self.path)
        own, ours = (cgroup.guaranteed(f"{self.unified}/{path}", file, subject) for path in (self.path, parent))
        return own <= ours <= cgroup.least_guaranteed(self.unified, os.path.dirname(parent), file, subject)[0]

    def text(self, hierarchy: str, file: str) -> str:
        """ "" where there is none, which is what a v1 hierarchy says that the instance is not in."""
        try:
            with open(f"{self.folders[hierarchy]}/{file}", encoding="utf-8") as stream:
                return stream.read().strip()
        except (OSError, KeyError):
            return ""


def read(plan: Rows) -> list[dict[str, object]]:
    """Each limit of a running instance: its key, the file that carries it out, what that says, and whether it holds.

    Those that `limits.enforcement: best-effort` went on without say why.
    """
    files = Files(plan)
    found: list[dict[str, object]] = []
    for hierarchy, file, planned, device in limits.files(plan):
        text = files.text(hierarchy, file)
        holds = limits.holds(file, planned, text)
        found.append(
            {
                "key": _device_key(device, file, planned)
                if device
                else limits.key_of(file, planned, hierarchy == cgroup.UNIFIED),
                "file": file,
                "value": limits.line_of(file, planned, text),
                "hierarchy": hierarchy,
                **_state(_mechanism(file), holds and files.kept(file, limits.line_of(file, planned, text))),
            }
        )
    if any(row[0] == "gpu-limit" for row in plan):
        from ctrmgr.backend import gpu_limits

        found += gpu_limits.read(plan)
    found += _links(plan)
    for row in plan:
        if row[0] == "left-out":
            found.append({"key": row[2], "file": "", "value": row[3], "hierarchy": "", **_state("none", False)})
    found += _for_nobody(plan)
    return found


def _for_nobody(plan: Rows) -> Iterator[dict[str, object]]:
    """Limits on GPUs that no device of the instance has: they wait for one that comes."""
    limited = {row[2] for row in plan if row[0] == "gpu-limit"}
    for _, file, planned, device in limits.files(plan):
        if device and file.startswith(("dmem.", "gpu.")):
            limited.add(_device_key(device, file, planned).removeprefix(f"{device}."))
    for row in plan:
        if row[0] == "gpu-default" and row[1] not in {*limited, "enforcement"}:
            reason = "it has no GPU now; one that is attached will have it, or be refused"
            yield {
                "key": f"limits.gpu.{row[1]}",
                "file": "",
                "value": reason,
                "hierarchy": "",
                **_state("none", False),
                "state": "no device",
            }


def left_out(plan: Rows) -> list[str]:
    """Why limits that best effort went on without are not in force, one text each."""
    found = [row[3] for row in plan if row[0] == "left-out"]
    for row in plan:
        if row[0] == "gpu-limit" and row[3] == "none":
            found.append(row[5])
        elif row[0] == "gpu-limit" and row[3] == "environment":
            found.append(f"device `{row[1]}`: `{row[2]}` is only advice, which programs may ignore: {row[4]}={row[5]}")
    return list(dict.fromkeys(found))


def moved_past(own: Record, plan: Rows, rows: Rows) -> list[list[str]]:
    """What best effort goes on without for links of the host's, in `rows`, that come to an instance whose link is limited. Raises
    UnsupportedError."""
    limited = any(row[0] == "link-limit" or (row[0] == "left-out" and row[2] in link_limits.KEYS) for row in plan)
    if not limited or not any(row[0] == "netdev" for row in rows):
        return []
    from ctrmgr.plan import compile

    return link_limits.moves_past(compile.merged(own.profiles, own.config), rows)


def _mechanism(file: str) -> str:
    return {"dmem": "dmem", "gpu": "gpu controller"}.get(file.partition(".")[0], "cgroup")


def _state(mechanism: str, holds: bool) -> dict[str, object]:
    state = "enforced" if holds else "unsupported" if mechanism == "none" else "not in force"
    return {"enforced": holds, "mechanism": mechanism, "state": state}


def ignored(name: str, hierarchy: str, file: str, value: str) -> None:
    """Raises HostError when the kernel has ignored a limit without a word: it does that to limits of device memory below use."""
    files = Files([["cgroup", f"{state.cgroup_parent()}/{name}"]])
    text = files.text(hierarchy, file)
    if not limits.holds(file, value, text):
        used = limits.line_of(file, value, files.text(hierarchy, "dmem.current")).rpartition(" ")[2]
        raise HostError(
            f"`{name}`: the kernel does not take `{file}` = `{value}`: {used or 'not known how many'} bytes are in use",
            hint="end what uses the GPU's memory first; the limit is as it was",
        )


def _links(plan: Rows) -> Iterator[dict[str, object]]:
    wanted = link_limits.of(plan)
    for row in plan:
        if row[0] != "link" or row[3] not in wanted:
            continue
        try:
            actual = spawn.ask("ctrmgr-net", ("limits", row[2])).split()
        except HelperError:
            actual = ["", "", ""]  # it is ending: its link is gone
        names = (("ingress", "sch_tbf"), ("egress", "cls_bpf"), ("priority", "cls_bpf"))
        for (direction, what), asked, none, now in zip(names, wanted[row[3]], link_limits.NONE, actual, strict=True):
            if asked != none:
                yield {
                    "key": f"{row[3]}.limits.{direction}",
                    "file": what,
                    "value": now,
                    "hierarchy": row[2],
                    **_state("link", now == asked),
                }


def _device_key(device: str, file: str, planned: str) -> str:
    if file.startswith("gpu."):
        return f"{device}.{file.removeprefix('gpu.')}"
    if file.startswith("dmem."):
        return f"{device}.memory" if file == "dmem.max" else f"{device}.memory.reserve"
    writes = "write" in file or planned.partition(" ")[2].startswith("w")
    return f"{device}.limits.{'write' if writes else 'read'}"


BELOW = {
    "memory.max": ("memory.current", "the kernel takes memory back, and kills processes where that is not enough"),
    "memory.high": ("memory.current", "the kernel takes memory back and slows its processes down meanwhile"),
    "memory.swap.max": ("memory.swap.current", "what is swapped out stays there; nothing more goes out"),
    "pids.max": ("pids.current", "those that run go on; no new ones until there are fewer"),
}
HUGE = "pages in use stay; it gets no more until it has given some back"


def below_use(old: Rows, new: Rows) -> Iterator[str]:
    """What the kernel does about limits of a running instance that are about to be lower than what it uses.

    (v1 refuses such a limit on memory.)
    """
    folders = Files(new)
    before = set(limits.files(old))
    for row in limits.files(new):
        hierarchy, file, value, _ = row
        if row in before or not value.isdecimal():
            continue
        current, what = BELOW.get(file, ("", ""))
        if file.startswith("hugetlb.") and ".rsvd." not in file:
            name = "max" if file.endswith(".max") else "limit_in_bytes"
            current, what = file.removesuffix(name) + ("current" if name == "max" else "usage_in_bytes"), HUGE
        used = folders.text(hierarchy, current) if current else ""
        if used.isdecimal() and int(used) > int(value):
            yield f"`{file}` = {value} is below what is in use now ({used}): {what}"


def usage(plan: Rows) -> Mapping[str, int]:
    """Bytes of memory, and microseconds of CPU time, as far as the hierarchies count them."""
    files = Files(plan)
    found = {}
    words = files.text(cgroup.UNIFIED, "cpu.stat").split()
    if "usage_usec" in words:
        found["cpu-usec"] = int(words[words.index("usage_usec") + 1])
    for hierarchy, file in ((cgroup.UNIFIED, "memory.current"), ("memory", "memory.usage_in_bytes")):
        text = files.text(hierarchy, file)
        if text:
            found["memory"] = int(text)
    return found
