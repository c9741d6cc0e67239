# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on GPUs, on recorded machines: what carries them out, or why nothing can, and what is said of numbers that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.backend import limits as actual
from ctrmgr.devices import rows
from ctrmgr.errors import CtrmgrError, HostError, SpecError, UnsupportedError
from ctrmgr.host import cgroup
from ctrmgr.host.machine import Host
from ctrmgr.plan import gpu_limits, limits
from ctrmgr.spec import device, keys
from tests import nvml, trees

Machine = Callable[..., str]
MIB = 1 << 20
GIB = 1 << 30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
ARC, IGPU, FUNCTION = "0000:03:00.0", "0000:00:02.0", "0000:03:00.1"
H100, SLICED = "0000:18:00.0", "0000:9a:00.0"
PROFILE = f"/sys/bus/pci/devices/{ARC}/sriov_admin/vf1/profile"
REGIONS = (f"drm/{ARC}/vram0", f"drm/{ARC}/vram1")


def cgroups(root: str, controllers: str = "cpu memory dmem", *, delegated: str = "", v1: str = "") -> None:
    """cgroup2 with a region of device memory for each of the two tiles of a GPU."""
    files = {
        "proc/self/mountinfo": V2 + (f"31 31 0:31 / /sys/fs/cgroup/{v1} rw - cgroup cgroup rw,{v1}\n" if v1 else ""),
        "proc/self/cgroup": "0::/user.slice\n",
        "sys/fs/cgroup/cgroup.controllers": controllers + "\n",
        "sys/fs/cgroup/user.slice/cgroup.controllers": delegated + "\n",
    }
    if "dmem" in controllers:
        files["sys/fs/cgroup/dmem.capacity"] = f"{REGIONS[0]} {3 * GIB}\n{REGIONS[1]} {GIB}\n"
    for path, text in files.items():
        trees.put(Path(root) / path, "f", text)


def made(
    root: str, given: dict[str, str], *, best_effort: bool = False, privileged: bool = True, **own: str
) -> list[str]:
    """The rows of the limits of one gpu; `__` in a key is a dot."""
    values = {key.replace("__", "."): value for key, value in own.items()}
    whole = device.check("g", {"type": "gpu", "driver.capabilities": "none", **values})
    config = {f"limits.gpu.{key}": keys.check(f"limits.gpu.{key}", value) for key, value in given.items()}
    found = gpu_limits.resolve(rows.rows("g", whole, root), gpu_limits.defaults(config), Host(root, privileged=privileged),
                               best_effort=best_effort)  # fmt: skip
    return [" ".join(row[2:]) for row in found if row[0] in ("device-limit", "gpu-limit", "device-env")]


def test_raw_keys_and_those_of_devices_do_not_contradict_each_other(machine: Machine) -> None:
    root = machine("xe")
    cgroups(root)
    devices = [["device-limit", "g", "unified", "dmem.max", f"{REGIONS[0]} 4096"]]
    for file, value, said in (
        ("dmem.max", 8192, "`unified.dmem.max` and device `g` both say what `dmem.max` of"),
        ("dmem.min", 8192, "`dmem.min` of `.*` is above the hard limit of 4096 bytes"),
    ):
        own = limits.rows({f"unified.{file}": f"{REGIONS[0]} {value}"}, Host(root))
        with pytest.raises(SpecError, match=said):
            limits.agree(own, devices)
        limits.agree(own, [["device-limit", "g", "unified", "dmem.max", f"{REGIONS[1]} 4096"]])
    with pytest.raises(HostError, match=r"of `.*` in all"):
        limits.rows({"unified.dmem.low": f"{REGIONS[1]} 2G"}, Host(root))


@pytest.mark.parametrize(
    "given", [{"memory": "2GiB", "memory.reserve": "25%"}, {"memory": "1MiB", "memory.reserve": "9GiB"}]
)
def test_device_memory_is_shared_out_over_a_gpus_regions(machine: Machine, given: dict[str, str]) -> None:
    """The device's own keys win over the instance's."""
    root = machine("xe")
    cgroups(root)
    assert made(root, given, pci=ARC, memory="2GiB", memory__reserve="25%") == [
        f"unified dmem.max {REGIONS[0]} {3 * GIB // 2}", f"unified dmem.max {REGIONS[1]} {GIB // 2}",
        f"unified dmem.min {REGIONS[0]} {3 * GIB // 4}", f"unified dmem.min {REGIONS[1]} {GIB // 4}",
    ]  # fmt: skip


ENOUGH, ALL = (
    f"{REGIONS[0]} {first}\n{REGIONS[1]} {second}\n" for first, second in ((3 << 20, 1 << 20), ("max", "max"))
)
LESS = ENOUGH.replace(f"{3 << 20}", f"{(3 << 20) - 1}")


@pytest.mark.parametrize(
    ("parent", "files", "short"),
    [
        ("ctrmgr", {}, ""),  # the host's top-most cgroup has no such file
        ("above/ctrmgr", {}, "/sys/fs/cgroup/above"),
        ("above/ctrmgr", {"above": ENOUGH}, ""),
        ("above/ctrmgr", {"above": LESS}, "/sys/fs/cgroup/above"),
        ("a/b/ctrmgr", {"a": ENOUGH, "a/b": ALL}, ""),
        ("a/b/ctrmgr", {"a": f"{REGIONS[0]} max\n", "a/b": ENOUGH}, "/sys/fs/cgroup/a"),
        ("ctrmgr", {".": ENOUGH}, ""),  # a container's top-most cgroup has one
        ("ctrmgr", {".": LESS}, "/sys/fs/cgroup"),
    ],
)
def test_the_cgroups_above_must_keep_it_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, parent: str, files: dict[str, str], short: str
) -> None:
    monkeypatch.setenv("CTRMGR_CGROUP_PARENT", parent)
    root = machine("xe")
    cgroups(root)
    for folder, text in files.items():
        trees.put(Path(f"{root}/sys/fs/cgroup/{folder}/dmem.min"), "f", text)
    if not short:
        assert len(made(root, {"memory.reserve": "4MiB"}, pci=ARC)) == 2
        return
    with pytest.raises(UnsupportedError, match=f"the cgroup above, `{short}`, keeps") as raised:
        made(root, {"memory.reserve": "4MiB"}, pci=ARC)
    assert f">{short}/dmem.min`" in str(raised.value.hint)
    (instead,) = made(root, {"memory.reserve": "4MiB"}, pci=ARC, best_effort=True)
    assert instead.startswith("memory.reserve none") and "keeps" in instead


@pytest.mark.parametrize(
    ("own", "parent", "top", "kept"),
    [
        ("4096", "4096", "", True),
        ("4096", "12288", "12288", True),
        ("4096", "12288", "8192", False),  # not what its neighbours have as well
        ("4096", "0", "", False),
        ("max", "12288", "max", False),
        ("0", "0", "0", True),
    ],
)
def test_what_is_not_kept_above_is_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, parent: str, top: str, kept: bool
) -> None:
    monkeypatch.setattr(actual.cgroup, "read", lambda: cgroup.Cgroups(str(tmp_path), frozenset(), {}))
    for file, subject in (("dmem.min", f"{REGIONS[0]} "), ("memory.low", "")):
        for folder, value in (("all/c1", own), ("all", parent), (".", top)):
            if value:
                trees.put(tmp_path / folder / file, "f", f"{subject}{value}\n")
        (found,) = actual.read([["cgroup", "all/c1"], ["device-limit", "g", "unified", file, f"{subject}{own}"]])
        assert (found["state"], found["enforced"]) == ("enforced" if kept else "not in force", kept)


def test_a_limit_of_a_device_is_taken_back_and_known_by_its_line(machine: Machine) -> None:
    root = machine("xe")
    cgroups(root)
    host = Host(root)
    rows = [["device-limit", "g", "unified", "dmem.max", f"{REGIONS[0]} 4096"],
            ["device-limit", "g", "unified", "dmem.min", f"{REGIONS[0]} 4096"]]  # fmt: skip
    assert [row[3] for row in limits.changes(rows, [], host)] == [f"{REGIONS[0]} max", f"{REGIONS[0]} 0"]
    text = f"{REGIONS[0]} 4096\n{REGIONS[1]} max\n"
    assert limits.holds("dmem.max", rows[0][4], text) and not limits.holds(
        "dmem.max", rows[0][4], text.replace("4096", "max")
    )


@pytest.mark.parametrize(
    ("own", "error", "said"),
    [
        ({"memory": "5GiB"}, HostError, f"`{ARC}` has 4096 MiB of memory, not 5120"),
        ({"memory": "1GiB", "memory__reserve": "50%"}, SpecError, "of 2048 MiB is above the limit of 1024 MiB"),
        ({"memory": "0"}, SpecError, "no memory at all"),
        ({"memory": "101%"}, SpecError, "percentage"),
        ({"memory": "5 Gigs"}, SpecError, "unknown unit"),
        ({"memory__reserve": "-1"}, SpecError, "is not a size"),
    ],
)
def test_numbers_that_do_not_fit(machine: Machine, own: dict[str, str], error: type[CtrmgrError], said: str) -> None:
    root = machine("xe")
    cgroups(root)
    with pytest.raises(error, match=said):
        made(root, {}, pci=ARC, **own)


@pytest.mark.parametrize("value", ["0", "0%", "101", "x", "1.5%", ""])
def test_shares_that_are_none(value: str) -> None:
    with pytest.raises((SpecError, ValueError)):
        keys.lookup("limits.gpu.shares").parse(value)


def test_two_devices_of_one_gpu_have_one_limit(machine: Machine) -> None:
    root = machine("xe")
    cgroups(root)
    one, other = (
        rows.rows(name, device.check(name, {"type": "gpu", "pci": ARC, "memory": size}), root)
        for name, size in (("a", "1GiB"), ("b", "2GiB"))
    )
    with pytest.raises(SpecError, match="`a` and `b` are one GPU with two limits"):
        gpu_limits.resolve([*one, *other], {}, Host(root))
    assert gpu_limits.resolve([*one, *[["@gpu", "a", "memory", str(GIB)]]], {}, Host(root))


@pytest.mark.parametrize(
    ("controllers", "privileged", "said", "hint"),
    [
        ("cpu memory", True, "the `dmem` controller is in no hierarchy of this host", "best-effort"),
        ("cpu memory dmem", False, "the `dmem` controller was not delegated to you", "Delegate=dmem pids"),
    ],
)
def test_no_controller(machine: Machine, controllers: str, privileged: bool, said: str, hint: str) -> None:
    root = machine("xe")
    cgroups(root, controllers, delegated="pids")
    with pytest.raises(UnsupportedError, match=said) as raised:
        made(root, {"memory": "1GiB"}, privileged=privileged, pci=ARC)
    assert "`limits.gpu.memory` cannot be enforced here" in raised.value.message and hint in str(raised.value.hint)


def test_a_driver_that_counts_nothing(machine: Machine) -> None:
    root = machine("xe")
    cgroups(root)
    with pytest.raises(UnsupportedError, match="its driver, `i915`, does not let cgroups count its memory"):
        made(root, {}, pci=IGPU, memory="1GiB")
    (left,) = made(root, {}, best_effort=True, pci=IGPU, memory="1GiB")
    assert left.startswith("memory none  device `g`: `g.memory` cannot be enforced here")


def test_a_virtual_function(machine: Machine) -> None:
    """Its memory is its own, its time a turn of each round; a GPU of the same driver that is whole has no such turns."""
    root = machine("xe")
    cgroups(root)
    which = {"gputype": "sriov", "pci": FUNCTION}
    assert made(root, {"shares": "25", "priority": "8", "memory.reserve": "1GiB"}, **which) == [
        f"memory.reserve sysfs {PROFILE}/vram_quota {4 * GIB}",  # it has that and more
        f"shares sysfs {PROFILE}/exec_quantum_ms 25",
        f"shares sysfs {PROFILE}/preempt_timeout_us 25000",
        f"priority sysfs {PROFILE}/sched_priority high",
    ]
    assert made(root, {"memory": "6GiB"}, **which) == [f"memory sysfs {PROFILE}/vram_quota {6 * GIB}"]
    with pytest.raises(SpecError, match="percentage"):
        made(root, {"memory": "50%"}, **which)
    with pytest.raises(UnsupportedError, match="a virtual function of it could have a share"):
        made(root, {"shares": "25%"}, pci=ARC)
    with pytest.raises(UnsupportedError, match="chosen by the program that makes it"):
        made(root, {"priority": "1"}, pci=ARC)


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_the_gpu_controller_of_a_proof_of_concept(machine: Machine, kind: str) -> None:
    root = machine("xe")
    cgroups(root, "cpu" if kind == "v1" else "cpu gpu", v1="gpu" if kind == "v1" else "")
    for file in ("memory", "priority", "shares"):
        trees.put(Path(root) / f"sys/fs/cgroup/{'gpu/' if kind == 'v1' else 'x/'}gpu.{file}", "f", "")
    hierarchy = "gpu" if kind == "v1" else "unified"
    assert made(root, {"memory": "1MiB", "shares": "30%", "priority": "2"}, pci=ARC) == [
        f"{hierarchy} gpu.memory {MIB}", f"{hierarchy} gpu.shares 30", f"{hierarchy} gpu.priority 2",
    ]  # fmt: skip
    with pytest.raises(UnsupportedError):
        made(root, {}, pci=ARC, memory="1MiB")  # it limits all GPUs together


def test_wishes_are_no_limits(machine: Machine) -> None:
    """Variables that programs may ignore are only there on demand, and never counted as enforced."""
    root = machine("nvidia")
    cgroups(root)
    given = {"memory": "1GiB", "shares": "30%", "priority": "1"}
    with pytest.raises(UnsupportedError, match=r"NVML Shared Library Not Found|no limits for cgroups|not installed"):
        made(root, given, pci=H100)
    assert made(root, given, best_effort=True, pci=H100) == [
        "memory environment CUDA_MPS_PINNED_DEVICE_MEM_LIMIT 0=1024M",
        "shares environment CUDA_MPS_ACTIVE_THREAD_PERCENTAGE 30",
        "priority environment CUDA_MPS_CLIENT_PRIORITY 1",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT 0=1024M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE 30",
        "CUDA_MPS_CLIENT_PRIORITY 1",
    ]


def test_a_mask_of_compute_units(machine: Machine) -> None:
    root = machine("virtual")
    gpu = next((each for each in Host(root).gpus if each.vendor == "amd" and not each.parts), None)
    if gpu is None:
        root = machine("mi300x")
        assert all("none" in row for row in made(root, {"shares": "50%"}, best_effort=True))
        for properties in Path(root).glob("sys/devices/virtual/kfd/kfd/topology/nodes/*/properties"):
            text = properties.read_text()
            first = "drm_render_minor 128\n" in text
            properties.write_text(text + "simd_per_cu 4\n" if first else text.replace("location_id", "location_was"))
        gpu = Host(root).gpus[0]
    assert not gpu.parts
    found = made(root, {"shares": "50%"}, best_effort=True, pci=gpu.id)
    assert found == ["shares environment HSA_CU_MASK 0:0-18", "HSA_CU_MASK 0:0-18"]  # of 152 / 4


SCRIPT = """
import json, sys
from ctrmgr.errors import CtrmgrError
from tests.unit.test_gpu_limits import made
root, given, own = json.loads(sys.argv[1])
try:
    print(json.dumps(made(root, given, **own)))
except CtrmgrError as error:
    print(json.dumps([type(error).__name__, error.message, error.hint]))
"""


@pytest.fixture(scope="module", params=["new", "old"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A library with limits for cgroups, and one of before."""
    options = ["-DOLD"] if request.param == "old" else []
    return request.param, nvml.build(tmp_path_factory.mktemp(request.param), *options)


@pytest.mark.parametrize(
    ("given", "own", "new"),
    [
        ({"memory": "50%", "memory.reserve": "64MiB"}, {"pci": H100},
         [f"memory nvml {H100} {512 * MIB}", f"memory.reserve nvml {H100} {64 * MIB}"]),
        ({"memory": "2GiB"}, {"pci": H100}, "`0000:18:00.0` has 1024 MiB of memory, not 2048"),
        ({"memory": "1MiB", "memory.reserve": "2MiB"}, {"pci": H100}, "above the limit"),
        ({"memory": "1MiB"}, {"pci": SLICED}, "it is in MIG mode"),
    ],
)  # fmt: skip
def test_nvidias_driver(
    machine: Machine, library: tuple[str, dict[str, str]], given: dict[str, str], own: dict[str, str], new: object
) -> None:
    root = machine("nvidia")
    cgroups(root)
    found = ask(library[1], root, given, own)
    wanted = (
        new if library[0] == "new" or "MIG" in str(new) else "NVIDIA's driver 550.54.15 has no limits for cgroups: R615"
    )
    assert found == wanted if isinstance(wanted, list) else wanted in found[1]


def ask(env: dict[str, str], root: str, given: dict[str, str], own: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps([root, given, own])], env=env, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_slice_keeps_its_size_by_itself(machine: Machine, library: tuple[str, dict[str, str]]) -> None:
    """Whatever the driver's version; there are no limits within a slice."""
    root = machine("nvidia")
    cgroups(root)
    own = {"gputype": "mig", "pci": SLICED, "mig.gi": "1", "mig.ci": "0"}
    own = {key.replace(".", "__"): value for key, value in own.items()}
    part = f"{SLICED}/gi1/ci0"
    assert ask(library[1], root, {"memory": "600MiB", "memory.reserve": "100%"}, own) == [
        f"memory slice {part} {512 * MIB}", f"memory.reserve slice {part} {512 * MIB}",
    ]  # fmt: skip
    assert "limits nothing within a slice" in ask(library[1], root, {"memory": "256MiB"}, own)[1]
    assert "has 512 MiB of memory, not 600" in ask(library[1], root, {"memory.reserve": "600MiB"}, own)[1]
    assert "a slice's share of its GPU is its size" in ask(library[1], root, {"shares": "10%"}, own)[1]


@pytest.mark.parametrize(("hard", "kept"), [("1GiB", "2GiB"), ("10%", "20%")])
def test_a_guarantee_above_the_limit_whatever_gpus_there_are(hard: str, kept: str) -> None:
    given = {"limits.gpu.memory": hard, "limits.gpu.memory.reserve": kept}
    config = {key: keys.check(key, value) for key, value in given.items()}
    with pytest.raises(SpecError, match=r"`limits\.gpu\.memory\.reserve` is above the limit"):
        gpu_limits.kept(config)
    assert gpu_limits.kept({**config, "limits.gpu.memory.reserve": config["limits.gpu.memory"]})
