# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on GPUs → for each device the strongest mechanism that this host has for it, or why there is none.

What a cgroup file carries out (`dmem`, or the historical `gpu` controller) becomes `device-limit` rows. All else is one row each, `gpu-limit NAME KEY MECHANISM SUBJECT VALUE`, of which `ctrmgr.backend.gpu_limits` knows what to do:

* `nvml`: NVIDIA's driver limits the instance's cgroup on the GPU at PCI address SUBJECT;
* `sysfs`: SUBJECT is a file of the GPU's driver (a virtual function's profile);
* `slice`: a MIG slice of VALUE bytes keeps it by itself;
* `environment`: a wish in the variable SUBJECT that programs may ignore: never counted as enforced;
* `none`: VALUE is the reason.
"""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import HostError, SpecError, UnsupportedError
from ctrmgr.host import cgroup, sysfs
from ctrmgr.host.cgroup import UNIFIED
from ctrmgr.plan import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ctrmgr.host.gpu import Gpu, Part
    from ctrmgr.host.machine import Host

    Rows = list[list[str]]
    Way = Callable[[str], Rows]

MEMORY, RESERVE, SHARES, PRIORITY = KEYS = ("memory", "memory.reserve", "shares", "priority")
DMEM = {MEMORY: "dmem.max", RESERVE: "dmem.min"}
LIMITS = ("device-limit", "gpu-limit")
PAGE = 4096
ROUND = 100
"""Milliseconds in which the shares of a GPU's virtual functions take turns."""
HINT = "`limits.enforcement: best-effort` goes on without it"


class Target:
    """One GPU, or a MIG slice of one, of the device `name`. `own` says which keys are the device's and not the instance's."""

    __slots__ = ("gpu", "host", "index", "name", "own", "part")

    def __init__(self, name: str, gpu: Gpu, part: Part | None, own: Sequence[str], host: Host) -> None:
        self.name, self.gpu, self.part, self.own, self.host = name, gpu, part, own, host
        self.index = 0
        """Which one of its vendor's GPUs it is in the instance."""

    def key(self, key: str) -> str:
        return f"{self.name}.{key}" if key in self.own else f"limits.gpu.{key}"

    def row(self, key: str, mechanism: str, subject: str, value: object) -> list[str]:
        return ["gpu-limit", self.name, key, mechanism, subject, str(value)]

    def impossible(self, key: str, why: str, hint: str = HINT) -> UnsupportedError:
        which = self.part.id if self.part else self.gpu.id
        return UnsupportedError(
            f"device `{self.name}`: `{self.key(key)}` cannot be enforced here: `{which}`: {why}", hint=hint
        )

    def bytes(self, key: str, value: str, capacity: int) -> int:
        """A size or a percentage of the GPU's memory, in whole pages. Raises HostError for more than there is."""
        wanted = capacity * int(value[:-1]) // 100 if value.endswith("%") else int(value)
        if wanted > capacity:
            raise HostError(
                f"device `{self.name}`: `{self.key(key)}`: `{self.gpu.id}` has {capacity >> 20} MiB of memory, not {wanted >> 20}",
                hint="a percentage fits every GPU",
            )
        return wanted // PAGE * PAGE


def defaults(config: Mapping[str, str]) -> dict[str, str]:
    """The instance's own keys, for each GPU that says nothing else."""
    return {key: config[f"limits.gpu.{key}"] for key in KEYS if f"limits.gpu.{key}" in config}


def kept(config: Mapping[str, str]) -> Rows:
    """The rows by which a device that is attached later is limited, too. Raises SpecError when it would be kept more than it may have."""
    given = defaults(config)
    hard, soft = given.get(MEMORY, ""), given.get(RESERVE, "")
    if hard and soft and hard.endswith("%") == soft.endswith("%") and int(soft.rstrip("%")) > int(hard.rstrip("%")):
        raise SpecError(
            f"`limits.gpu.{RESERVE}` is above the limit",
            hint=f"`limits.gpu.{MEMORY}` is {hard if hard.endswith('%') else f'{int(hard) >> 20} MiB'}",
        )
    if config.get("limits.enforcement") == "best-effort":
        given["enforcement"] = "best-effort"  # of a disk that is attached, too
    return [["gpu-default", key, value] for key, value in given.items()]


def resolve(rows: Sequence[list[str]], given: Mapping[str, str], host: Host, *, best_effort: bool = False) -> Rows:
    """The rows with those of the limits in place of `@gpu NAME KEY VALUE`; `given` is for all GPUs that say nothing themselves.

    Raises UnsupportedError when nothing can enforce one (`best_effort` says so in a row), HostError for more than
    a GPU has, SpecError for limits that contradict each other.
    """
    own: dict[str, dict[str, str]] = {}
    for row in rows:
        if row[0] == "@gpu":
            own.setdefault(row[1], {})[row[2]] = row[3]
    found = [row for row in rows if row[0] != "@gpu"]
    if not own and not given:
        return found
    targets = [target for name in dict.fromkeys(row[1] for row in found if row[0] == "device")
               for target in _targets(name, found, own.get(name, {}), host)]  # fmt: skip
    for name in own:
        if any(row[:2] == ["device", name] for row in found) and not any(target.name == name for target in targets):
            raise SpecError(f"device `{name}`: its limits are for GPUs, and none of its nodes is one's")
    _count(targets)
    wishes: dict[str, list[str]] = {}
    for target in targets:
        wanted = {**given, **own.get(target.name, {})}
        for keys in ((MEMORY, RESERVE), (SHARES,), (PRIORITY,)):
            asked = {key: wanted[key] for key in keys if key in wanted}
            if asked:
                found += _carried_out(target, asked, wishes, best_effort)
    return unique(found) + _environment(wishes)


def _targets(name: str, rows: Rows, own: Mapping[str, str], host: Host) -> Iterator[Target]:
    sources = {row[3] for row in rows if row[0] == "device" and row[1] == name}
    for gpu in host.gpus:
        slices = [part for part in gpu.parts if part.kind == "mig" and any(node.path in sources for node in part.nodes)]
        nodes = {node.path for node in (*gpu.nodes, *(node for part in gpu.parts for node in part.nodes))}
        for part in slices:
            yield Target(name, gpu, part, tuple(own), host)
        if not slices and nodes & sources:
            yield Target(name, gpu, None, tuple(own), host)


def _count(targets: Sequence[Target]) -> None:
    seen: dict[str, list[str]] = {}
    for target in targets:
        ids = seen.setdefault(target.gpu.vendor, [])
        if target.gpu.id not in ids:
            ids.append(target.gpu.id)
        target.index = ids.index(target.gpu.id)


def _carried_out(target: Target, asked: dict[str, str], wishes: dict[str, list[str]], best_effort: bool) -> Rows:
    """The rows of some keys that one mechanism carries out together."""
    try:
        if MEMORY in asked or RESERVE in asked:
            return _memory(target, asked)
        return _time(target, *next(iter(asked.items())))
    except UnsupportedError as error:
        if not best_effort:
            raise
        found: Rows = []
        for key, value in asked.items():
            wish = _wish(target, key, value)
            if wish:
                wishes.setdefault(f"{target.name}\t{wish[0]}", []).append(wish[1])
                found.append(target.row(key, "environment", *wish))
            else:
                found.append(target.row(key, "none", "", error.message))
        return found


# Memory


def _memory(target: Target, asked: Mapping[str, str]) -> Rows:
    if target.gpu.vendor == "nvidia" and target.gpu.driver == "nvidia":
        return _slice(target, asked) if target.part else _nvml(target, asked)
    regions = _regions(target)
    if regions:
        return _dmem(target, asked, regions)
    profile = _profile(target)
    if profile and sysfs.number(f"{target.host.root.rstrip('/')}{profile}/vram_quota") >= 0:
        return _quota(target, asked, f"{profile}/vram_quota")
    if target.host.cgroups.where("gpu") and not set(asked) & {*target.own, RESERVE}:
        return _historical(target, MEMORY, str(int(asked[MEMORY])))
    raise target.impossible(next(iter(asked)), *_no_dmem(target))


def _regions(target: Target) -> dict[str, int]:
    """What the kernel can charge of this GPU's memory: region → bytes."""
    if target.host.cgroups.where("dmem") != UNIFIED:
        return {}
    prefix = f"drm/{target.gpu.id}/"
    return {name: size for name, size in target.host.dmem_regions.items() if name.startswith(prefix) and size}


def _no_dmem(target: Target) -> tuple[str, str]:
    host = target.host
    if host.cgroups.where("dmem") == UNIFIED:
        who = f"its driver, `{target.gpu.driver}`," if target.gpu.driver else "it has no driver, which"
        return f"{who} does not let cgroups count its memory: it is not in `dmem.capacity`", HINT
    try:
        limits.where("limits.gpu.memory", "dmem", "dmem", host)
    except UnsupportedError as error:
        return error.message.partition(": ")[2] + "; Linux 6.14 brought it", error.hint or HINT
    return "the `dmem` controller is not cgroup2's", HINT


def _shared_out(wanted: int, regions: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Each region's part, by its size: no part may be more than the region."""
    total = sum(regions.values())
    for region, size in regions.items():
        yield region, wanted * size // total // PAGE * PAGE


def _in_order(target: Target, hard: int | None, soft: int | None) -> None:
    if hard is not None and soft is not None and soft > hard:
        raise SpecError(
            f"device `{target.name}`: `{target.key(RESERVE)}` of {soft >> 20} MiB is above the limit of {hard >> 20} MiB"
        )


def _dmem(target: Target, asked: Mapping[str, str], regions: Mapping[str, int]) -> Rows:
    capacity = sum(regions.values())
    wanted = {key: target.bytes(key, value, capacity) for key, value in asked.items()}
    _in_order(target, wanted.get(MEMORY), wanted.get(RESERVE))
    found: Rows = []
    for key, value in wanted.items():
        for region, size in _shared_out(value, regions):
            if key == RESERVE:
                _kept_above(target, region, size)
            found.append(["device-limit", target.name, UNIFIED, DMEM[key], f"{region} {size}"])
            found += _promise(target, region, size, regions[region]) if key == RESERVE else []
    return found


def _kept_above(target: Target, region: str, size: int) -> None:
    """The cgroup of all instances gets what they have together; those above it, if there are any, are not ours to change."""
    root = target.host.root.rstrip("/")
    above = os.path.dirname(state.cgroup_parent())
    mount = f"{root}{target.host.cgroups.unified}"
    amount, folder = cgroup.least_guaranteed(mount, above, DMEM[RESERVE], region)
    if amount < size:
        folder = folder.removeprefix(root)
        raise target.impossible(
            RESERVE,
            f"of `{region}` the cgroup above, `{folder}`, keeps {amount} bytes for all that is in it",
            f"root can: `echo '{region} {size}' >{folder}/{DMEM[RESERVE]}`; {HINT}",
        )


def _promise(target: Target, subject: str, size: int, capacity: int) -> Rows:
    """What is kept for one instance must be left by the others: their sum is admitted as leases are."""
    return [["lease", target.name, f"memory:{subject}", f"keeps:{size}:{capacity}"]] if size else []


def _nvml(target: Target, asked: Mapping[str, str]) -> Rows:
    from ctrmgr.kernel import nvml

    first = next(iter(asked))
    if not target.host.privileged:
        raise target.impossible(first, "NVIDIA's driver lets only root set limits")
    if target.host.cgroups.unified != nvml.CGROUPS:
        raise target.impossible(first, f"NVIDIA's driver wants cgroup2 at {nvml.CGROUPS}")
    try:
        with nvml.Library() as library:
            library.check_limits(target.gpu.id)
            capacity = library.capacity(target.gpu.id)
    except UnsupportedError as error:
        raise target.impossible(first, error.message, error.hint or HINT) from None
    wanted = {key: target.bytes(key, value, capacity) for key, value in asked.items()}
    _in_order(target, wanted.get(MEMORY), wanted.get(RESERVE))
    promise = _promise(target, target.gpu.id, wanted.get(RESERVE, 0), capacity)
    return [target.row(key, "nvml", target.gpu.id, value) for key, value in wanted.items()] + promise


def _slice(target: Target, asked: Mapping[str, str]) -> Rows:
    from ctrmgr.kernel import nvml

    assert target.part
    first = next(iter(asked))
    try:
        with nvml.Library() as library:
            size = library.slice_size(target.gpu.id, *target.part.name.replace("gi", "").replace("ci", "").split("/"))
    except UnsupportedError as error:
        raise target.impossible(first, f"how large the slice is only NVIDIA's library says: {error.message}", error.hint or HINT) from None  # fmt: skip
    for key, value in asked.items():
        wanted = size * int(value[:-1]) // 100 if value.endswith("%") else int(value)
        if key == MEMORY and wanted < size:
            raise target.impossible(
                key,
                f"it has {size >> 20} MiB, and NVIDIA's driver limits nothing within a slice",
                "make it of a smaller profile; " + HINT,
            )
        if key == RESERVE and wanted > size:
            raise HostError(f"device `{target.name}`: `{target.key(key)}`: `{target.part.id}` has {size >> 20} MiB of memory, not {wanted >> 20}")  # fmt: skip
    return [target.row(key, "slice", target.part.id, size) for key in asked]


def _quota(target: Target, asked: Mapping[str, str], file: str) -> Rows:
    """A virtual function's own memory: nobody else's, and no more than it."""
    now = sysfs.number(f"{target.host.root.rstrip('/')}{file}")
    if any(value.endswith("%") for value in asked.values()):
        raise SpecError(f"device `{target.name}`: a virtual function has no size of which there could be a percentage")
    wanted = {key: int(value) // PAGE * PAGE for key, value in asked.items()}
    _in_order(target, wanted.get(MEMORY), wanted.get(RESERVE))
    # a function that has as much as is to be kept for it may keep it
    value = wanted.get(MEMORY, max(now, wanted.get(RESERVE, 0)))
    return [target.row(key, "sysfs", file, value) for key in wanted]


def _profile(target: Target) -> str:
    """The folder with the profile of a virtual function, in the directory of its physical one; "" for anything else."""
    function = target.gpu.function
    if function is None or not function.physfn:
        return ""
    from ctrmgr.host import pci

    root = target.host.root.rstrip("/")
    owner = pci.read(function.physfn, target.host.root)
    if owner is None or function.address not in owner.virtfns:
        return ""
    # the driver counts virtual functions from 1
    folder = f"/sys/bus/pci/devices/{owner.address}/sriov_admin/vf{owner.virtfns.index(function.address) + 1}/profile"
    return folder if sysfs.names(root + folder) else ""


# Time


def _time(target: Target, key: str, value: str) -> Rows:
    profile = _profile(target)
    if profile:
        there = sysfs.names(target.host.root.rstrip("/") + profile)
        if key == SHARES and {"exec_quantum_ms", "preempt_timeout_us"} <= set(there):
            quantum = max(1, ROUND * int(value[:-1]) // 100)
            # without a time-out, what runs longer than its turn is never stopped
            return [
                target.row(key, "sysfs", f"{profile}/exec_quantum_ms", quantum),
                target.row(key, "sysfs", f"{profile}/preempt_timeout_us", quantum * 1000),
            ]
        if key == PRIORITY and "sched_priority" in there:
            return [target.row(key, "sysfs", f"{profile}/sched_priority", _level(value))]
        raise target.impossible(
            key, f"its driver has no `{'sched_priority' if key == PRIORITY else 'exec_quantum_ms'}` for it"
        )
    if target.host.cgroups.where("gpu") and key not in target.own:
        return _historical(target, key, value.removesuffix("%"))
    raise target.impossible(key, _no_time(target, key))


def _level(value: str) -> str:
    return "low" if int(value) < 4 else "normal" if int(value) < 7 else "high"


def _no_time(target: Target, key: str) -> str:
    vendor = target.gpu.vendor
    if target.part:
        return "a slice's share of its GPU is its size" if key == SHARES else "slices have no priorities"
    if vendor == "nvidia":
        return "NVIDIA's driver shares time equally; MPS only has variables that programs may change"
    if key == SHARES and vendor == "amd":
        return "AMD's driver shares no time by cgroup; a mask of compute units is a variable that programs may change"
    if key == SHARES:
        return "its driver shares no time by cgroup; a virtual function of it could have a share"
    return "the priority of a DRM context is chosen by the program that makes it, for itself"


def _historical(target: Target, key: str, value: str) -> Rows:
    """The `gpu` controller of a proof of concept, which limits all GPUs together."""
    hierarchy = target.host.cgroups.where("gpu")
    mount = target.host.cgroups.unified if hierarchy == UNIFIED else target.host.cgroups.v1[hierarchy]
    if not target.host.has_file(mount, f"gpu.{key}"):
        raise target.impossible(key, f"this kernel's `gpu` controller has no `gpu.{key}`")
    return [["device-limit", target.name, hierarchy, f"gpu.{key}", value]]


# Wishes


def _wish(target: Target, key: str, value: str) -> tuple[str, str] | None:
    """Variable and value that ask programs for what nothing enforces."""
    if target.gpu.vendor == "nvidia" and target.gpu.driver == "nvidia":
        if key == MEMORY and not value.endswith("%"):
            return "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"{target.index}={max(1, int(value) >> 20)}M"
        if key == SHARES:
            return "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", value.removesuffix("%")
        if key == PRIORITY:
            # MPS knows two: normal, and below
            return "CUDA_MPS_CLIENT_PRIORITY", "1" if _level(value) == "low" else "0"
    if target.gpu.vendor == "amd" and key == SHARES:
        units = _compute_units(target)
        if units:
            return "HSA_CU_MASK", f"{target.index}:0-{max(1, units * int(value[:-1]) // 100) - 1}"
    return None


def _compute_units(target: Target) -> int:
    from ctrmgr.host import amd

    every = amd.agents(target.host.root)
    if amd.partitions(target.gpu.id, target.host.root, of=every):
        return 0  # each partition counts as a GPU
    return next((agent.units for agent in every if agent.owner == target.gpu.id), 0)


def _environment(wishes: Mapping[str, Sequence[str]]) -> Rows:
    """One variable is for all GPUs of the instance: each device that has a part of it brings it whole."""
    whole: dict[str, list[str]] = {}
    for place, values in wishes.items():
        whole.setdefault(place.partition("\t")[2], []).extend(values)
    found = []
    for place in wishes:
        name, _, variable = place.partition("\t")
        found.append(["device-env", name, variable, _joined(variable, list(dict.fromkeys(whole[variable])))])
    return found


def _joined(variable: str, values: list[str]) -> str:
    between = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",", "HSA_CU_MASK": ";"}.get(variable)
    # the others have one value for all GPUs
    return between.join(values) if between else min(values, key=int)


def unique(rows: Rows) -> Rows:
    """Without repetitions. Raises SpecError when a cgroup or a GPU would have two limits."""
    found: Rows = []
    said: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        place: tuple[str, ...] = ()
        if row[0] == "device-limit" and row[3].startswith("dmem."):
            place = (row[3], row[4].partition(" ")[0])
        elif row[0] == "gpu-limit" and row[3] in ("nvml", "sysfs"):
            place = (row[2] if row[3] == "nvml" else "", row[4])
        other = said.setdefault(place, row) if place else row
        if other[-1] != row[-1]:
            raise SpecError(
                f"devices `{other[1]}` and `{row[1]}` are one GPU with two limits", hint="give them the same"
            )
        found.append(row)
    return found
