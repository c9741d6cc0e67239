# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of an OCI runtime configuration as keys of ours: `linux.resources` and `linux.sysctl` of a `config.json`, and the `rlimits`
of its process. Cold.

What has no key of ours is an error that names it: a limit that is dropped without a word is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ctrmgr.source import Document, Path
from ctrmgr.spec import keys

Config = dict[str, str]
UNLIMITED = -1
INFINITY = (1 << 64) - 1
"""The limit of a process that is none."""
TOP: Path = ("linux", "resources")
SYSCTL, RLIMIT, OOM = "linux.sysctl.", "limits.kernel.", "limits.memory.oom_priority"


def is_config(data: object) -> bool:
    """Whether this is a runtime configuration, and not a profile."""
    return isinstance(data, dict) and "ociVersion" in data


def config(document: Document) -> Config:
    """The keys, each in its canonical form. Raises SpecError for what cannot be taken over."""
    resources = _at(document, TOP)
    found: Config = {**_sysctl(document, ("linux", "sysctl")), **_process(document)}
    for name, value in _map(document, TOP, resources).items():
        take = TAKEN.get(name)
        if take is None:
            raise document.error((*TOP, name), "has no counterpart here", f"there is one for {', '.join(TAKEN)}")
        if value is not None:
            found.update(take(document, (*TOP, name), value))
    return {key: keys.check(key, value) for key, value in found.items()}


def _at(document: Document, path: Path) -> Any:
    found: Any = document.data
    for step in path:
        found = found.get(step) or {} if isinstance(found, dict) else found
    return found


def _sysctl(document: Document, path: Path) -> Config:
    return {f"{SYSCTL}{name}": str(value) for name, value in _map(document, path, _at(document, path)).items()}


def _process(document: Document) -> Config:
    found = _rlimits(document, ("process", "rlimits"))
    priority = _map(document, ("process",), _at(document, ("process",))).get("oomScoreAdj")
    if priority is not None:
        found[OOM] = str(priority)
    return found


def _rlimits(document: Document, path: Path) -> Config:
    given, found = _at(document, path) or [], dict[str, str]()
    if not isinstance(given, list):
        raise document.error(path, "is not a list")
    for each in given:
        name = str(_map(document, path, each).get("type"))
        numbers = [_number(document, path, each.get(word)) for word in ("soft", "hard")]
        soft, hard = ("unlimited" if number in (UNLIMITED, INFINITY) else str(number) for number in numbers)
        if not name.startswith("RLIMIT_") or name[7:].lower() not in keys.RLIMITS:
            raise document.error(path, f"has no limit that is called `{name}`")
        found[f"{RLIMIT}{name[7:].lower()}"] = f"{soft}:{hard}"
    return found


def _map(document: Document, path: Path, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise document.error(path, "is not a map")
    return value


def _number(document: Document, path: Path, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < UNLIMITED:
        raise document.error(path, "is not a number")
    return value


def _fields(document: Document, path: Path, value: Any, known: Mapping[str, str]) -> dict[str, int]:
    """OCI's numbers by what they are here; those that are -1 limit nothing and are left out."""
    found = {}
    for name, each in _map(document, path, value).items():
        if name not in known:
            if each in (None, False, 0):
                continue
            raise document.error((*path, name), "has no counterpart here")
        number = _number(document, (*path, name), each)
        if number != UNLIMITED:
            found[known[name]] = number
    return found


def _simple(**known: str) -> Callable[[Document, Path, Any], Config]:
    """A map of numbers that are each a key of ours."""

    def take(document: Document, path: Path, value: Any) -> Config:
        return {key: str(number) for key, number in _fields(document, path, value, known).items()}

    return take


def _memory(document: Document, path: Path, value: Any) -> Config:
    known = {"limit": "limits.memory", "reservation": "unified.memory.low", "swap": "swap"}
    given = _fields(document, path, value, known)
    both = given.pop("swap", None)
    if both is not None:
        # OCI's is the sum of both
        if "limits.memory" not in given or both < given["limits.memory"]:
            raise document.error((*path, "swap"), "is less than `limit`, or without one")
        given["limits.memory.swap"] = both - given["limits.memory"]
    return {key: str(number) for key, number in given.items()}


def _cpu(document: Document, path: Path, value: Any) -> Config:
    given = dict(_map(document, path, value))
    found = {key: str(given.pop(name)) for name, key in (("cpus", "limits.cpu"), ("mems", "limits.cpu.nodes")) if given.get(name)}  # fmt: skip
    if found.get("limits.cpu", "").isdecimal():
        found["limits.cpu"] += f"-{found['limits.cpu']}"  # alone it would be a count
    numbers = _fields(document, path, given, {name: name for name in ("shares", "quota", "period")})
    quota, period = numbers.get("quota"), numbers.get("period", 100000)
    if quota and numbers.get("shares"):
        raise document.error((*path, "shares"), "and `quota` are one key here, `limits.cpu.allowance`")
    if quota and (quota % 1000 or period % 1000):
        raise document.error((*path, "quota"), "is not in whole milliseconds")
    if quota:
        found["limits.cpu.allowance"] = f"{quota // 1000}ms/{period // 1000}ms"
    elif numbers.get("shares"):
        found["limits.cpu.allowance"] = f"{max(1, numbers['shares'] * 100 // 1024)}%"
    return found


def _huge(document: Document, path: Path, value: Any) -> Config:
    if not isinstance(value, list):
        raise document.error(path, "is not a list")
    given = [_map(document, path, each) for each in value]
    return {f"limits.hugepages.{each.get('pageSize')}": str(_number(document, path, each.get("limit"))) for each in given}  # fmt: skip


def _rdma(document: Document, path: Path, value: Any) -> Config:
    found: Config = {}
    for device, given in _map(document, path, value).items():
        known = {"hcaHandles": "hca_handle", "hcaObjects": "hca_object"}
        for word, number in _fields(document, (*path, device), given, known).items():
            found[f"limits.rdma.{device}.{word}"] = str(number)
    return found


def _unified(document: Document, path: Path, value: Any) -> Config:
    found: Config = {}
    for file, text in _map(document, path, value).items():
        lines = str(text).splitlines()
        if file == "misc.max" and all(len(line.split()) == 2 for line in lines):
            found.update((f"limits.misc.{resource}", amount) for resource, amount in map(str.split, lines))
        else:
            found[f"unified.{file}"] = str(text)
    return found


def _block(document: Document, path: Path, value: Any) -> Config:
    weight = _fields(document, path, value, {"weight": "weight"}).get("weight", 0)
    if weight % 100 and weight != 10:
        raise document.error((*path, "weight"), "is not in hundreds, which `limits.disk.priority` counts")
    return {"limits.disk.priority": str(weight // 100)} if weight else {}


def _devices(document: Document, path: Path, value: Any) -> Config:
    rules = value if isinstance(value, list) else [value]
    if any(_map(document, path, rule).get("allow") for rule in rules):
        raise document.error(path, "allow devices", "here devices are given by name: `ctrmgr attach-device`, or `devices:` of a profile")  # fmt: skip
    return {}  # denied is what is not given


TAKEN: dict[str, Callable[[Document, Path, Any], Config]] = {
    "blockIO": _block,
    "cpu": _cpu,
    "devices": _devices,
    "gpu": _simple(memory="limits.gpu.memory", prio="limits.gpu.priority"),
    "hugepageLimits": _huge,
    "memory": _memory,
    "pids": _simple(limit="limits.processes"),
    "rdma": _rdma,
    "unified": _unified,
}
