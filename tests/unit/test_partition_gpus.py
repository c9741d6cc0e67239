# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs divided by their drivers: recorded trees that answer as the kernel does, and NVIDIA's own Python module on a library of the same
binary interface. Each is killed at every step, and what is left is what there was before."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from ctrmgr.backend import (
    allocations,
    giving,
    held,
    leases,
    partition_list,
    partition_modes,
    partitions,
    repair,
)
from ctrmgr.devices import partition as partition_key
from ctrmgr.devices import rows as parts
from ctrmgr.errors import (
    ConflictError,
    CtrmgrError,
    HelperError,
    HostError,
    NotFoundError,
    SpecError,
    UnsupportedError,
)
from ctrmgr.partition import nvml
from tests import trees
from tests.conftest import ROOT
from tests.gpu_machines import GIB, Amd, Nvidia, Tree, Xe, on


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The library, loaded under its real name, by which NVIDIA's module finds it."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["cc", *flags, "-o", path, ROOT / "tests/unit/fake_nvml.c"], check=True)
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def plan_of(name: str, partition: str, **more: str) -> list[list[str]]:
    values = {"type": "gpu", "partition": partition_key.parse(partition), **more}
    return [["ctrmgr-plan", "1"], ["name", name], *parts.rows("g", values)]


def start(name: str, partition: str, **more: str) -> list[list[str]]:
    return giving.settle(name, plan_of(name, partition, **more), repair.instance, starts=True)


def stop(name: str) -> None:
    allocations.released(held.of(name).values())


def paths(rows: list[list[str]]) -> list[str]:
    return [row[3] for row in rows if row[0] == "device"]


def parts_now() -> dict[str, str]:
    """Who has which part."""
    return {each.owner: f"{each.found_id}/{each.part}" for each in held.everything()}


# AMD


def test_amd(tmp_path: Path) -> None:
    with on(Amd(tmp_path / "root"), tmp_path) as tree:
        before = tree.everything()
        rows = start("x", "cores=30,memory=20GiB", pci=Amd.ID)
        assert parts_now() == {"x/g": f"{Amd.ID}/xcp0"}
        assert {"/dev/kfd"} < set(paths(rows))
        assert ["lease", "g", f"pci:{Amd.ID}/xcp0", "exclusive"] in rows
        assert (tree.root / "sys/bus/pci/devices" / Amd.ID / "current_compute_partition").read_text() == "CPX\n"
        other = start("y", "profile=CPX", pci=Amd.ID)
        assert parts_now()["y/g"] == f"{Amd.ID}/xcp1"
        assert set(paths(rows)) & set(paths(other)) == {"/dev/kfd"}
        with pytest.raises(
            ConflictError, match="is divided in mode CPX as long as somebody has a part, and QPX is needed"
        ):
            start("z", "cores=70", pci=Amd.ID)
        stop("x")
        assert (tree.root / "sys/bus/pci/devices" / Amd.ID / "current_compute_partition").read_text() == "CPX\n"
        stop("y")  # the second has noted down, too, what the first one found
        assert tree.everything() == before


def test_amd_all_parts(tmp_path: Path) -> None:
    with on(Amd(tmp_path / "root"), tmp_path):
        for number in range(8):
            start(f"x{number}", "profile=CPX", pci=Amd.ID)
        with pytest.raises(ConflictError, match="has 0 of 196592MiB memory left") as error:
            start("y", "cores=38", pci=Amd.ID)
        assert "x7/g has 24574MiB" in str(error.value.hint)
        assert len(set(parts_now().values())) == 8


def test_amd_smallest_that_is_enough(tmp_path: Path) -> None:
    with on(Amd(tmp_path / "root"), tmp_path) as tree:
        start("x", "memory=60GiB,cores=1", pci=Amd.ID)
        assert (tree.root / "sys/bus/pci/devices" / Amd.ID / "current_compute_partition").read_text() == "DPX\n"
        ((each),) = held.everything()
        assert each.takes["cores"] == 152
        with pytest.raises(ConflictError, match=f"no partition of `{Amd.ID}` is so large"):
            start("y", "cores=200", pci=Amd.ID)


def test_amd_is_busy(tmp_path: Path) -> None:
    """What somebody uses is neither divided nor put back."""
    with on(Amd(tmp_path / "root"), tmp_path) as tree:
        tree.busy = True
        with pytest.raises(ConflictError, match="is busy"):
            start("x", "profile=DPX", pci=Amd.ID)
        assert held.everything() == []
        tree.busy = False
        start("x", "profile=DPX", pci=Amd.ID)
        tree.busy = True
        stop("x")
        assert held.everything() == []
        assert (tree.root / "sys/bus/pci/devices" / Amd.ID / "current_compute_partition").read_text() == "DPX\n"


def test_amd_others_have_it_whole(tmp_path: Path) -> None:
    """The mode is not changed below an instance that has the GPU by other keys."""
    with on(Amd(tmp_path / "root"), tmp_path) as tree:
        os.makedirs(leases.folder())
        Path(leases.folder(), f"pci:{Amd.ID} shared other g").touch()
        with pytest.raises(ConflictError, match="is divided in mode SPX"):
            start("x", "profile=DPX", pci=Amd.ID)
        assert tree.writes == 0


# Intel


@pytest.mark.parametrize("layout", ["sriov", "gt", "none"])
def test_xe(tmp_path: Path, layout: str) -> None:
    with on(Xe(tmp_path / "root", layout), tmp_path) as tree:
        assert isinstance(tree, Xe)
        before = tree.everything()
        rows = start("x", "memory=8GiB")
        assert paths(rows) == ["/dev/dri/renderD130"]
        assert (tree.device / "sriov_numvfs").read_text() == "2\n"
        assert (tree.device / "sriov_admin/vf1/profile/vram_quota").read_text() == f"{8 * GIB}\n"
        quotas = {path.name: path.read_text() for path in tree.root.rglob("vf1/**/*_quota") if "debug" in str(path)}
        if layout != "none":
            assert quotas == {
                "lmem_quota": "0\n",
                "ggtt_quota": "2138046464\n",
                "contexts_quota": "32767\n",
                "doorbells_quota": "128\n",
            }
        (line,) = partition_list.overview()[0]
        assert (line["used by"], line["part"], line["state"]) == ("x/g", "vf1", "in use")
        assert paths(start("y", "memory=16GiB")) == ["/dev/dri/renderD131"]
        with pytest.raises(ConflictError, match="has 0 of 24GiB memory left, and 1GiB are asked for") as error:
            start("z", "memory=1GiB")
        assert error.value.hint == "x/g has 8GiB, y/g has 16GiB"
        stop("x")
        assert (tree.device / "sriov_numvfs").read_text() == "2\n"
        stop("y")
        assert tree.everything() == before


def test_xe_of_somebody_else(tmp_path: Path) -> None:
    """Functions that an administrator has enabled and provisioned are counted and left alone."""
    with on(Xe(tmp_path / "root"), tmp_path) as tree:
        assert isinstance(tree, Xe)
        tree.enable(2)
        (tree.device / "sriov_numvfs").write_text("2\n")
        (tree.device / "sriov_admin/vf1/profile/vram_quota").write_text(f"{20 * GIB}\n")
        before = tree.everything()
        with pytest.raises(ConflictError, match="has 4GiB of 24GiB memory left") as error:
            start("x", "memory=8GiB")
        assert error.value.hint == "another user or tool has 20GiB"
        start("x", "memory=4GiB")
        assert parts_now() == {"x/g": f"{Xe.ID}/vf2"}
        stop("x")
        assert tree.everything() == before


def test_xe_bad_words(tmp_path: Path) -> None:
    with on(Xe(tmp_path / "root"), tmp_path):
        with pytest.raises(SpecError, match="has no pool `cores`") as error:
            start("x", "cores=2")
        assert re.fullmatch("it has contexts=[0-9]+,doorbells=[0-9]+,ggtt=[0-9]+,memory=24GiB", str(error.value.hint))
        with pytest.raises(ConflictError, match=r"how much memory of `0000:03:00.0` is not said"):
            start("x", "contexts=2")
        with pytest.raises(ConflictError, match="has 24GiB memory in all, and 25GiB are asked for") as large:
            start("x", "memory=25GiB")
        assert "memory=24GiB" in str(large.value.hint)
        with pytest.raises(NotFoundError, match="no device that fits can be divided") as missing:
            start("x", "memory=1GiB", pci="0000:00:02.0")
        assert "is not that with `pci=0000:00:02.0`" in str(missing.value.hint)
        assert held.everything() == []


def test_what_cannot_be_divided(tmp_path: Path) -> None:
    root = tmp_path / "root"
    trees.unpack(root, "aic100", "disks")
    with on(Tree(root), tmp_path):
        rows = parts.rows("g", {"type": "accel", "partition": "cores=2"})
        with pytest.raises(NotFoundError, match="this machine has no device that can be divided") as error:
            giving.settle("x", [["name", "x"], *rows], repair.instance, starts=True)
        assert "none of the calls of Linux's driver `qaic` makes a partition" in str(error.value.hint)
        assert "`DRM_IOCTL_QAIC_PART_DEV` was taken out before" in str(error.value.hint)
        optional = plan_of("x", "cores=2", required="false")
        assert giving.settle("x", optional, repair.instance, starts=True) == optional


# NVIDIA


def mig(tree: Tree) -> str:
    """The instances of the card."""
    path = tree.root.parent / "instances"
    return path.read_text() if path.exists() else ""


@pytest.mark.usefixtures("library")
def test_mig(tmp_path: Path) -> None:
    with on(Nvidia(tmp_path / "root"), tmp_path) as tree:
        before = tree.everything()
        rows = start("x", "memory=9GiB", **{"driver.capabilities": "none"})
        assert parts_now() == {"x/g": f"{Nvidia.ID}/1g.10gb@0"}
        assert {
            "/dev/nvidia0",
            "/dev/nvidiactl",
            "/dev/nvidia-caps/nvidia-cap12",
            "/dev/nvidia-caps/nvidia-cap13",
        } <= set(paths(rows))
        assert ["lease", "g", f"pci:{Nvidia.ID}/gi1/ci0", "exclusive"] in rows
        start("y", "profile=3g.40gb", **{"driver.capabilities": "none"})
        assert mig(tree) == "1 19 0 1 0\n2 9 4 4 0\n"
        ((_, pool),) = [(each["device"], each) for each in partition_list.overview()[1]]
        assert (pool["partitions"], pool["most"]) == (2, 7)
        with pytest.raises(SpecError, match=r"has no profile `9g.900gb`"):
            start("z", "profile=9g.900gb")
        stop("x")
        stop("y")
        assert mig(tree) == ""
        assert tree.everything() == before


@pytest.mark.usefixtures("library")
def test_mig_in_use(tmp_path: Path) -> None:
    """What a program uses is not ended, stays held, and is ended when it can be."""
    with on(Nvidia(tmp_path / "root"), tmp_path) as tree:
        start("x", "cores=16", **{"driver.capabilities": "none"})
        (tmp_path / "busy").touch()
        with pytest.raises(HelperError, match="is still in use"):
            stop("x")
        assert mig(tree) == "1 19 0 1 0\n"
        assert partition_list.overview()[0][0]["state"] == f"not released: `{Nvidia.ID}/gi1` is still in use"
        (tmp_path / "busy").unlink()
        for left in allocations.left_over():
            allocations.release(left)
        assert mig(tree) == ""


@pytest.mark.usefixtures("library")
def test_mig_of_somebody_else(tmp_path: Path) -> None:
    with on(Nvidia(tmp_path / "root"), tmp_path) as tree:
        (tmp_path / "instances").write_text("5 0 0 8 0\n")
        with pytest.raises(ConflictError, match="has 0 of 81152MiB memory left") as error:
            start("x", "cores=16")
        assert error.value.hint == "another user or tool has 81152MiB"
        assert mig(tree) == "5 0 0 8 0\n"


@pytest.mark.usefixtures("library")
def test_mig_after_a_restart_of_the_machine(tmp_path: Path) -> None:
    """What is there now, in the same place, is somebody else's."""
    with on(Nvidia(tmp_path / "root"), tmp_path) as tree:
        start("x", "cores=16", **{"driver.capabilities": "none"})
        with patch.object(partitions, "boot", lambda: "another"):
            stop("x")
        assert mig(tree) == "1 19 0 1 0\n"
        assert held.everything() == []


@pytest.mark.usefixtures("library")
def test_mig_in_pieces(tmp_path: Path) -> None:
    with on(Nvidia(tmp_path / "root"), tmp_path) as tree:
        (tmp_path / "instances").write_text("1 19 0 1 0\n2 19 4 1 0\n")
        with pytest.raises(
            ConflictError, match=r"has no room for a 3g.40gb: what is free is not in one piece"
        ) as error:
            start("x", "profile=3g.40gb")
        assert error.value.hint == "1g.10gb@0, 1g.10gb@4"
        assert mig(tree) == "1 19 0 1 0\n2 19 4 1 0\n"


@pytest.mark.usefixtures("library")
def test_mig_is_off(tmp_path: Path) -> None:
    with on(Nvidia(tmp_path / "root"), tmp_path):
        (tmp_path / "off").touch()
        with pytest.raises(NotFoundError) as error:
            start("x", "cores=16")
        assert f"{Nvidia.ID}: MIG mode is off (`ctrmgr partition mode {Nvidia.ID} on`)" in str(error.value.hint)


@pytest.mark.usefixtures("library")
def test_mig_mode(tmp_path: Path) -> None:
    """Switched when it is asked for and nobody has the GPU; what was refused does not wait for the next reset."""
    off, pending = tmp_path / "off", tmp_path / "pending"
    with on(Nvidia(tmp_path / "root"), tmp_path):
        off.touch()
        assert partition_modes.mode(Nvidia.ID) == "off"
        for name, kind, said in (("open", ConflictError, "is in use"), ("passed", HostError, "would have to be reset"),
                                 ("user", HostError, "does not switch MIG mode")):  # fmt: skip
            (tmp_path / name).touch()
            with pytest.raises(kind, match=said):
                partition_modes.switch(Nvidia.ID, "on")
            assert off.exists() and not pending.exists()
            (tmp_path / name).unlink()
        assert partition_modes.switch(Nvidia.ID, "on") == "" and not off.exists()
        assert partition_modes.switch(Nvidia.ID, "on") is None
        start("x", "cores=16", **{"driver.capabilities": "none"})
        with pytest.raises(ConflictError, match="only one that nobody has") as error:
            partition_modes.switch(Nvidia.ID, "off")
        assert error.value.hint == "x/g"
        stop("x")
        (tmp_path / "instances").write_text("5 0 0 8 0\n")
        with pytest.raises(ConflictError, match="has GPU instances") as error:
            partition_modes.switch(Nvidia.ID, "off")
        assert error.value.hint == "7g.80gb@0" and not off.exists()
        (tmp_path / "instances").unlink()
        leases.take("y", [["lease", "g", f"pci:{Nvidia.ID}", "shared"]])
        with (
            patch.object(leases, "is_stale", lambda lease, instance: False),
            pytest.raises(ConflictError) as error,
        ):
            partition_modes.switch(Nvidia.ID, "off")
        assert error.value.hint == "y/g"
        assert partition_modes.switch(Nvidia.ID, "OFF") == "" and off.exists()
        with pytest.raises(NotFoundError, match=r"no GPU `0000:77:00\.0`") as missing:
            partition_modes.mode("0000:77:00.0")
        assert Nvidia.ID in str(missing.value.hint)
    with (
        on(Xe(tmp_path / "xe"), tmp_path),
        pytest.raises(UnsupportedError, match="has no mode that decides how it can be divided"),
    ):
        partition_modes.switch(Xe.ID, "on")


def test_mig_without_the_module(tmp_path: Path) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    with on(Nvidia(tmp_path / "root"), tmp_path), patch.object(nvml, "import_module", absent):
        with pytest.raises(NotFoundError) as error:
            start("x", "cores=16")
        assert "`nvidia-ml-py`, which is not installed" in str(error.value.hint)


# Killed at each step


def dies(do: Callable[[], object]) -> bool:
    """Whether a process that does it is killed in it."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            do()
        except CtrmgrError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) not in (0, 1)


@pytest.mark.parametrize("verb", ["start", "stop"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("make", [Amd, Xe])
def test_killed_at_each_write(tmp_path: Path, make: type[Tree], when: str, verb: str) -> None:
    asked = "profile=DPX" if make is Amd else "memory=8GiB"
    with on(make(tmp_path / "root"), tmp_path) as tree:
        before = tree.everything()
        number, killed = 0, True
        while killed:
            number += 1
            if verb == "stop":
                start("x", asked)
            tree.writes, tree.kill_at = 0, (number, when)
            killed = dies(lambda: start("x", asked) if verb == "start" else stop("x"))
            tree.kill_at = (0, "")
            start("y", asked)  # the next command, whoever's
            assert "y/g" in parts_now()
            stop("y")
            stop("x")
            assert held.everything() == []
            assert tree.everything() == before, (number, when)
        assert number > (1 if make is Amd else 5)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("step", ["before-gi", "after-gi", "after-ci", "ci-gone", "gi-gone"])
def test_mig_killed(tmp_path: Path, step: str) -> None:
    nodes = {"driver.capabilities": "none"}
    with on(Nvidia(tmp_path / "root"), tmp_path) as tree:
        before = tree.everything()
        verb: Callable[[], object] = lambda: start("x", "profile=7g.80gb", **nodes)  # noqa: E731
        if step.endswith("gone"):
            verb()
            verb = lambda: stop("x")  # noqa: E731
        with patch.dict(os.environ, {"FAKE_NVML_KILL": step}):
            assert dies(verb)
        if step.endswith("gone"):
            stop("x")  # the next command of the same instance
        start("y", "profile=7g.80gb", **nodes)
        assert set(parts_now()) == {"y/g"}
        assert len(mig(tree).splitlines()) == 1
        stop("y")
        assert (mig(tree), held.everything()) == ("", [])
        assert tree.everything() == before
