# SPDX-License-Identifier: GPL-3.0-or-later
"""The profiles that ship: what each becomes on recorded machines that have what it is for, and on one that has not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.backend import functions
from ctrmgr.errors import CtrmgrError, HostError, NotFoundError, UnsupportedError
from ctrmgr.host import libraries
from ctrmgr.host.machine import Host
from ctrmgr.images.store import Image
from ctrmgr.plan import compile, oom, rlimits
from ctrmgr.spec import profile

Machine = Callable[..., str]
ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "profiles").glob("*.yaml"))
NAMES = [file.stem for file in FILES]
IMAGE = Image("ab" * 32, "/images/x", {"init": "/sbin/init", "halt-signal": "37"})
LIBS = "/usr/lib/x86_64-linux-gnu"
PHONES = 11


def load(name: str) -> profile.ProfileSpec:
    return profile.load(str(ROOT / f"profiles/{name}.yaml"))


def compiled(name: str, root: str) -> list[list[str]]:
    spec = load(name)
    config, devices = profile.merge([spec], {}, {})
    return compile.build(IMAGE, config, devices, Host(root, privileged=True))


def nodes(rows: list[list[str]]) -> list[str]:
    return [row[4] for row in rows if row[0] == "device"]


def nvidia(machine: Machine, monkeypatch: pytest.MonkeyPatch, *names: str) -> str:
    """A recorded machine with NVIDIA's libraries."""
    root = machine(*names)
    monkeypatch.setattr(libraries, "folders", lambda machine="": (LIBS,))
    for name in ("libcuda.so", "libnvidia-ml.so", "libGLX_nvidia.so", "libnvidia-encode.so"):
        file = Path(f"{root}{LIBS}/{name}.535.129.03")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    return root


def test_render_nodes_of_all(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    intel = compiled("gpu-render", machine("xe"))
    assert nodes(intel) == ["/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/renderD130"]
    assert {row[7] for row in intel if row[0] == "device"} == {"0666"}
    both = compiled("gpu-render", nvidia(machine, monkeypatch, "nvidia"))
    assert {"/dev/nvidia0", "/dev/dri/renderD128", "/dev/nvidia-modeset"} <= set(nodes(both))
    assert not any(path.startswith(("/dev/dri/card", "/dev/nvidia-uvm")) for path in nodes(both))
    assert any("libGLX_nvidia" in row[2] for row in both if row[0] == "bind")


def test_cuda_takes_no_other_vendor(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled("gpu-cuda", nvidia(machine, monkeypatch, "nvidia"))
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(nodes(found))
    assert any("libcuda" in row[2] for row in found if row[0] == "bind")
    with pytest.raises(NotFoundError, match="10de"):
        compiled("gpu-cuda", machine("xe"))


def test_rocm_has_kfd_and_all_partitions(machine: Machine) -> None:
    found = nodes(compiled("gpu-rocm", machine("mi300x")))
    assert found.count("/dev/kfd") == 1
    assert sum(path.startswith("/dev/dri/renderD") for path in found) == 16
    with pytest.raises(NotFoundError, match="1002"):
        compiled("gpu-rocm", machine("xe"))


def test_intel(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    # one of the three functions is vfio's
    assert nodes(compiled("gpu-intel", machine("xe"))) == [
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
        "/dev/dri/renderD130",
    ]
    with pytest.raises(NotFoundError, match="8086"):
        compiled("gpu-intel", machine("mi300x"))


@pytest.mark.parametrize(
    ("tree", "first"), [("nvidia", "0000:9a:00.0/gi1/ci0"), ("mi300x", "0000:05:00.0/xcp0"), ("xe", "0000:03:00.1")]
)
def test_slices_and_nothing_but_slices(machine: Machine, tree: str, first: str) -> None:
    keys = load("gpu-slice").devices["gpu"]
    seen = functions.look("any", machine(tree))
    found = [each.id for each in functions.fitting("any", keys, seen, [])]
    assert found[0] == first
    whole = {each.id for each in seen.devices if not each.part_of and not (each.function and each.function.physfn)}
    assert not whole & set(found)


def test_a_machine_whose_gpus_are_whole_has_no_slice(machine: Machine) -> None:
    keys = load("gpu-slice").devices["gpu"]
    with pytest.raises(NotFoundError) as refused:
        functions.fitting("any", keys, functions.look("any", machine("virtual")), [])
    assert "its part is no" in (refused.value.hint or "")


def test_infiniband(machine: Machine) -> None:
    found = compiled("infiniband", machine("mlx5"))
    assert {"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"} <= set(nodes(found))
    assert not any("umad" in path for path in nodes(found))
    assert ["rlimit", "memlock", "unlimited", "unlimited"] in found
    assert nodes(compiled("infiniband", machine("virtual"))) == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]


def test_mpi_goes_on_without_rdma(machine: Machine) -> None:
    assert "/dev/infiniband/uverbs0" in nodes(compiled("hpc-mpi", machine("mlx5")))
    bare = compiled("hpc-mpi", machine("nothing"))
    assert not any("infiniband" in path for path in nodes(bare))
    limits = {row[1]: row[2:] for row in bare if row[0] == "rlimit"}
    assert limits["memlock"] == limits["stack"] == ["unlimited", "unlimited"]
    assert limits["nofile"] == ["65536", "65536"]


def test_gpudirect_is_one_pair(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    root = nvidia(machine, monkeypatch, "nvidia", "mlx5")
    with pytest.raises(HostError, match="nvidia_peermem"):
        compiled("gpudirect", root)
    loaded = Path(root, "sys/module/nvidia_peermem/initstate")
    loaded.parent.mkdir(parents=True)
    loaded.write_text("live\n")
    found = compiled("gpudirect", root)
    assert {"/dev/nvidia0", "/dev/nvidia-uvm", "/dev/infiniband/uverbs0"} <= set(nodes(found))
    assert not {"/dev/nvidia1", "/dev/infiniband/uverbs1"} & set(nodes(found))
    assert ["rlimit", "memlock", "unlimited", "unlimited"] in found


def test_scratch_is_the_partition_of_that_name(machine: Machine) -> None:
    root = machine("disks")
    link = Path(root, "dev/disk/by-partlabel/scratch")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("../../nvme0n1p2")
    found = compiled("block-scratch", root)
    assert nodes(found) == ["/dev/scratch"]
    assert any(row[0] == "lease" and row[3] == "exclusive" for row in found)
    assert any(row[0] == "identity" and row[2] == "/sys/block/nvme0n1/diskseq" for row in found)


def test_phones_come_and_go(machine: Machine) -> None:
    rows = compiled("usb-phone", machine("usb"))
    assert [row[1:5] for row in rows if row[0] == "device"] == [
        ["sony", "char", "/dev/bus/usb/003/024", "/dev/bus/usb/003/024"]
    ]
    rules = [row for row in rows if row[0] == "hotplug"]
    assert len(rules) == PHONES
    assert {"usb", "vendorid=0fce"} <= set(next(row for row in rules if row[1] == "sony"))


def test_qaic_takes_no_other_accelerator(machine: Machine) -> None:
    assert nodes(compiled("accel-qaic", machine("aic100"))) == ["/dev/accel/accel0", "/dev/accel/accel1"]


def test_a_desktop_starts_anywhere(machine: Machine) -> None:
    assert nodes(compiled("desktop-gui", machine("nothing"))) == ["/dev/fuse"]
    rows = compiled("desktop-gui", machine("xe"))
    assert "/dev/dri/renderD128" in nodes(rows)
    assert any(row[0] == "hotplug" and "subsystem=sound" in row for row in rows)


@pytest.mark.parametrize(
    "name", ["gpu-render", "gpu-cuda", "gpu-rocm", "gpu-intel", "infiniband", "gpudirect", "accel-qaic"]
)
def test_without_the_hardware_it_is_refused(machine: Machine, name: str) -> None:
    with pytest.raises(CtrmgrError) as refused:
        compiled(name, machine("nothing"))
    assert refused.value.exit_code in (3, 5)


def test_the_guide_says_of_each_what_it_gives_and_what_it_cannot_do() -> None:
    text = (ROOT / "docs/guide/profiles.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.+ \| .+) \|$", text, re.MULTILINE))
    assert set(NAMES) <= set(rows)
    assert all(len(cell.strip()) > 10 for name in NAMES for cell in rows[name].split(" | "))
    assert all(load(name).description for name in NAMES)


def test_limits_that_the_kernel_would_refuse(machine: Machine) -> None:
    root = machine("nothing")
    for name, text in {
        "proc/self/limits": "Max locked memory         8388608              8388608              bytes     \n",
        "proc/self/status": "CapEff:\t000001fffeffffff\n",
        "proc/sys/fs/nr_open": "1048576\n",
    }.items():
        Path(root, name).parent.mkdir(parents=True, exist_ok=True)
        Path(root, name).write_text(text)
    host = Host(root)
    for given, said in (
        ({"limits.kernel.memlock": "1024:unlimited"}, "above the 8388608 that you have yourself"),
        ({"limits.kernel.memlock": "8388609:8388609"}, "CAP_SYS_RESOURCE"),
        ({"limits.kernel.nofile": "1024:unlimited"}, "fs.nr_open"),
    ):
        with pytest.raises(UnsupportedError, match=said) as refused:
            rlimits.rows(given, host)
        assert next(iter(given)) in refused.value.message
        rows = rlimits.rows({**given, "limits.enforcement": "best-effort"}, host)
        assert [row[:3] for row in rows] == [["left-out", "", next(iter(given))]]
    assert rlimits.rows({"limits.kernel.memlock": "1:8388608"}, host) == [["rlimit", "memlock", "1", "8388608"]]


def test_nobody_goes_below_his_own_oom_priority_without_the_right_to(machine: Callable[[str], str]) -> None:
    root = Path(machine("nothing"), "proc/self")
    root.mkdir(parents=True, exist_ok=True)
    (root / "oom_score_adj").write_text("100\n")
    (root / "status").write_text("CapEff:\t000001fffeffffff\n")
    host = Host(str(root.parent.parent))
    assert oom.rows({}, host) == []
    assert oom.rows({"limits.memory.oom_priority": "100"}, host) == [["oom-score-adj", "100"]]
    with pytest.raises(
        UnsupportedError, match=r"`limits.memory.oom_priority` cannot be set to 99 here: .* the 100 .* CAP_SYS_RESOURCE"
    ):
        oom.rows({"limits.memory.oom_priority": "99"}, host)
    given = {"limits.memory.oom_priority": "-5", "limits.enforcement": "best-effort"}
    assert [row[:3] for row in oom.rows(given, host)] == [["left-out", "", "limits.memory.oom_priority"]]
    (root / "status").write_text("CapEff:\t000001ffffffffff\n")
    assert oom.rows(given, Host(host.root)) == [["oom-score-adj", "-5"]]
