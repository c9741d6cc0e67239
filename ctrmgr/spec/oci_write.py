# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys as the limits of an OCI runtime configuration, for runtimes that read a `config.json`. Cold.

What OCI has no word for is told by name: a limit that is dropped without a word is none. What is written here, `oci` takes over again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ctrmgr.spec import keys, oci, values

Made = dict[str, Any]
Config = Mapping[str, str]

VERSION = "1.2.0"
PREFIXES = ("limits.", "unified.", oci.SYSCTL)
NO_WORD = "OCI has no word for it"
WHY = {
    "limits.cpu.priority": "OCI has shares alone: say `limits.cpu.allowance`",
    "limits.cpu.nodes": "OCI does not say whose CPUs with it: say which with `limits.cpu`",
    "limits.gpu.memory.reserve": "OCI's proposal for GPUs has `memory` and `prio` alone",
    "limits.gpu.shares": "OCI's proposal for GPUs has `memory` and `prio` alone",
    "limits.memory.swap.priority": "it is of cgroup v1 alone",
}


def config(given: Config, devices: Mapping[str, Mapping[str, str]]) -> tuple[Made, dict[str, str]]:
    """The `config.json`, and why which limits are not in it."""
    config = {key: keys.check(key, value) for key, value in given.items() if value != ""}
    resources: Made = {}
    left: dict[str, str] = {}
    process: Made = {}
    parameters: dict[str, str] = {}
    for key, value in sorted(config.items()):
        if not key.startswith(PREFIXES) or key == "limits.enforcement":
            continue
        if key.startswith(oci.SYSCTL):
            parameters[key.removeprefix(oci.SYSCTL)] = value
        elif key.startswith(oci.RLIMIT):
            process.setdefault("rlimits", []).append(_rlimit(key.removeprefix(oci.RLIMIT), value))
        elif key == oci.OOM:
            process["oomScoreAdj"] = int(value)
        else:
            reason = _ways(key)(resources, key, value, config)
            if reason:
                left[key] = reason
    for name, keys_of in devices.items():
        for key in keys_of:
            if key.startswith("limits.") or (keys_of.get("type") == "gpu" and key in ("memory", "memory.reserve")):
                left[f"{name}.{key}"] = "OCI knows devices by their numbers, and GPUs only all together"
    made: Made = {"ociVersion": VERSION}
    if process:
        made["process"] = process
    made["linux"] = {**({"sysctl": parameters} if parameters else {}), "resources": resources}
    return made, left


def _ways(key: str) -> Callable[[Made, str, str, Config], str]:
    if key in WAYS:
        return WAYS[key]
    first, dot, _ = key.removeprefix("limits.").partition(".")
    return WAYS.get(f"{first}{dot}*", _none)


def _none(made: Made, key: str, value: str, config: Config) -> str:
    return WHY.get(key, NO_WORD)


def _put(made: Made, *path: str | int) -> None:
    """The last of `path` is what all before it lead to."""
    *folders, name, value = path
    for folder in folders:
        made = made.setdefault(str(folder), {})
    made[str(name)] = value


def _number(*path: str) -> Callable[[Made, str, str, Config], str]:
    def write(made: Made, key: str, value: str, config: Config) -> str:
        if value.endswith("%"):
            return "OCI has no percentages: say a size"
        _put(made, *path, int(value))
        return ""

    return write


def _memory(made: Made, key: str, value: str, config: Config) -> str:
    if value.endswith("%"):
        return "OCI has no percentages: say a size"
    if config.get("limits.memory.enforce") == "soft":
        _put(made, "unified", "memory.high", value)
    else:
        _put(made, "memory", "limit", int(value))
    return ""


def _swap(made: Made, key: str, value: str, config: Config) -> str:
    limit = config.get("limits.memory", "")
    if value == "true":
        return ""
    swap = "0" if value == "false" else value
    if limit.isdecimal() and config.get("limits.memory.enforce") != "soft":
        _put(made, "memory", "swap", int(limit) + int(swap))  # OCI's is the sum of both
    else:
        _put(made, "unified", "memory.swap.max", swap)
    return ""


def _enforce(made: Made, key: str, value: str, config: Config) -> str:
    return ""  # with `limits.memory`


def _oom_group(made: Made, key: str, value: str, config: Config) -> str:
    _put(made, "unified", "memory.oom.group", "1" if values.is_true(value) else "0")
    return ""


def _cpus(made: Made, key: str, value: str, config: Config) -> str:
    if value.isdecimal():
        return "OCI has no number of CPUs: say which (`0-3`), or a quota (`limits.cpu.allowance: 200ms/100ms`)"
    _put(made, "cpu", "cpus", value)
    return ""


def _nodes(made: Made, key: str, value: str, config: Config) -> str:
    if not value[:1].isdecimal() or config.get("limits.cpu", "").isdecimal() or "limits.cpu" not in config:
        return WHY[key]
    _put(made, "cpu", "mems", value)
    return ""


def _allowance(made: Made, key: str, value: str, config: Config) -> str:
    if value.endswith("%"):
        _put(made, "cpu", "shares", max(2, -(-int(value[:-1]) * 1024 // 100)))
        return ""
    used, _, whole = value.partition("/")
    _put(made, "cpu", "quota", values.milliseconds(used) * 1000)
    _put(made, "cpu", "period", values.milliseconds(whole) * 1000)
    return ""


def _huge(made: Made, key: str, value: str, config: Config) -> str:
    page = {"pageSize": key.rpartition(".")[2], "limit": int(value)}
    made.setdefault("hugepageLimits", []).append(page)
    return ""


def _rdma(made: Made, key: str, value: str, config: Config) -> str:
    device, _, resource = key.removeprefix("limits.rdma.").rpartition(".")
    word = {"hca_handle": "hcaHandles", "hca_object": "hcaObjects"}[resource]
    if value != "max":
        _put(made, "rdma", device, word, int(value))
    return ""


def _misc(made: Made, key: str, value: str, config: Config) -> str:
    there = made.get("unified", {}).get("misc.max", "")
    _put(made, "unified", "misc.max", f"{there}{there and chr(10)}{key.removeprefix('limits.misc.')} {value}")
    return ""


def _weight(made: Made, key: str, value: str, config: Config) -> str:
    _put(made, "blockIO", "weight", max(10, int(value) * 100))
    return ""


def _unified(made: Made, key: str, value: str, config: Config) -> str:
    file = key.removeprefix("unified.")
    there = made.get("unified", {}).get(file, "")
    _put(made, "unified", file, f"{there}{there and chr(10)}{value}")
    return ""


def _rlimit(name: str, value: str) -> Made:
    soft, _, hard = value.partition(":")
    numbers = (oci.INFINITY if word == "unlimited" else int(word) for word in (soft, hard))
    return {"type": f"RLIMIT_{name.upper()}", **dict(zip(("soft", "hard"), numbers, strict=True))}


WAYS: dict[str, Callable[[Made, str, str, Config], str]] = {
    "hugepages.*": _huge,
    "limits.cpu": _cpus,
    "limits.cpu.allowance": _allowance,
    "limits.cpu.nodes": _nodes,
    "limits.disk.priority": _weight,
    "limits.gpu.memory": _number("gpu", "memory"),
    "limits.gpu.priority": _number("gpu", "prio"),
    "limits.memory": _memory,
    "limits.memory.enforce": _enforce,
    "limits.memory.oom_group": _oom_group,
    "limits.memory.swap": _swap,
    "limits.processes": _number("pids", "limit"),
    "misc.*": _misc,
    "rdma.*": _rdma,
    "unified.*": _unified,
}
