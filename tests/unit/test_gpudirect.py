# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU and an RDMA device that are near each other, on recorded machines; and when they are refused."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.devices import choose, gpudirect, rows
from ctrmgr.errors import HostError, NotFoundError
from ctrmgr.host import gpu as gpus
from ctrmgr.host import peers, sysfs
from ctrmgr.spec import device

Machine = Callable[..., str]
PEERMEM = "/sys/module/nvidia_peermem/initstate"
NEAR, FAR = "0000:18:00.0", "0000:9a:00.0"


def put(root: str, path: str, text: str) -> None:
    file = Path(root + path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def both(machine: Machine) -> str:
    """Two H100, one of them in slices, and a ConnectX-5 below the switch of the first; the peer-memory module is loaded."""
    root = machine("nvidia", "mlx5")
    put(root, PEERMEM, "live\n")
    return root


def planned(root: str, **keys: str) -> list[list[str]]:
    given = {"type": "gpudirect", "driver.capabilities": "none", **{k.replace("_", "-"): v for k, v in keys.items()}}
    return rows.rows("p", device.check("p", given), root)


def nodes(found: list[list[str]]) -> set[str]:
    return {row[4] for row in found if row[0] == "device"}


def test_the_nearest_pair_whose_port_is_up(both: str) -> None:
    found = planned(both)
    assert {"/dev/nvidia0", "/dev/dri/renderD128", "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"} <= nodes(found)
    assert not nodes(found) & {"/dev/nvidia1", "/dev/infiniband/uverbs1", "/dev/infiniband/uverbs2"}
    leases = {row[2] for row in found if row[0] == "lease"}
    assert {f"pci:{NEAR}", "rdma:0000:19:00.0"} <= leases
    assert ["identity", "p", PEERMEM, "live"] in found


@pytest.mark.parametrize("hca", ["mlx5_1", "0000:19:00.1"])
def test_which_rdma_device_can_be_said(both: str, hca: str) -> None:
    assert "/dev/infiniband/uverbs1" in nodes(planned(both, hca=hca))


def test_far_ones_are_refused_with_the_way_between(both: str) -> None:
    with pytest.raises(HostError, match=r"0000:9a:00\.0.*: (SYS|NODE|PHB), ") as refused:
        planned(both, gpu=f"{FAR}/gi1/ci0")
    assert "within=" in (refused.value.hint or "")
    found = nodes(planned(both, gpu=f"{FAR}/gi1/ci0", within="SYS"))
    assert {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap147", "/dev/infiniband/uverbs0"} <= found
    assert "/dev/nvidia0" not in found


def test_neither_can_be_missing(machine: Machine) -> None:
    for tree, what in (("nvidia", "no infiniband device"), ("mlx5", "no gpu device"), ("nothing", "no gpu device")):
        with pytest.raises(NotFoundError, match=what):
            planned(machine(tree))
    with pytest.raises(NotFoundError, match="mlx5_9"):
        planned(machine("nvidia", "mlx5"), hca="mlx5_9")
    with pytest.raises(NotFoundError, match="0000:77"):
        planned(machine("nvidia", "mlx5"), gpu="0000:77:00.0")


def test_without_peer_memory_it_is_refused(machine: Machine) -> None:
    root = machine("nvidia", "mlx5")
    put(root, "/proc/sys/kernel/osrelease", "6.1.0-13-amd64\n")
    with pytest.raises(HostError, match=r"neither `nvidia_peermem` is loaded.*not the open ones") as refused:
        planned(root)
    assert "modprobe nvidia_peermem" in (refused.value.hint or "")
    assert "/dev/nvidia0" in nodes(planned(root, peer_memory="unchecked"))


def test_a_module_that_went_has_it_looked_for_again(both: str) -> None:
    """A start compares what is noted down with what is there now."""
    found = {row[2]: row[3] for row in planned(both) if row[0] == "identity"}
    assert all(sysfs.known(both + file) == text for file, text in found.items())
    Path(both + PEERMEM).unlink()
    assert [file for file, text in found.items() if sysfs.known(both + file) != text] == [PEERMEM]


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n"
CONFIG = "CONFIG_PCI_P2PDMA=y\nCONFIG_DMABUF_MOVE_NOTIFY=y\n"


@pytest.mark.parametrize(
    ("vendor", "driver", "kernel", "files", "why"),
    [
        ("nvidia", "mlx5_core", "6.8.0", {"/proc/driver/nvidia/version": OPEN}, ""),
        ("nvidia", "mlx5_core", "5.4.0", {"/proc/driver/nvidia/version": OPEN}, "since Linux 5.12"),
        ("nvidia", "mlx4_core", "6.8.0", {"/proc/driver/nvidia/version": OPEN}, "not known to register"),
        ("nvidia", "mlx4_core", "3.10.0", {"/sys/kernel/mm/memory_peers/nv_mem/version": "1.3\n"}, ""),
        ("amd", "mlx5_core", "6.8.0", {"/boot/config-6.8.0": CONFIG}, ""),
        ("amd", "mlx5_core", "6.8.0", {"/lib/modules/6.8.0/config": CONFIG}, ""),
        ("amd", "mlx5_core", "6.8.0", {"/proc/config.gz": CONFIG}, ""),
        ("amd", "mlx5_core", "6.8.0", {"/boot/config-6.8.0": "CONFIG_SMP=y\n"}, "CONFIG_PCI_P2PDMA"),
        ("amd", "mlx5_core", "6.8.0",
         {"/boot/config-6.8.0": "CONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\n"}, "CONFIG_DMABUF_MOVE_NOTIFY"),
        ("amd", "mlx5_core", "6.8.0", {}, "does not say how it was configured"),
        ("amd", "mlx5_core", "4.18.0", {"/sys/kernel/mm/memory_peers/amdkfd/version": "1.0\n"}, ""),
        ("intel", "mlx5_core", "6.8.0", {"/boot/config-6.8.0": "CONFIG_PCI_P2PDMA=y\n"}, ""),
        ("intel", "rdma_rxe", "6.8.0", {"/boot/config-6.8.0": CONFIG}, "`rdma_rxe` is not known"),
    ],
)  # fmt: skip
def test_signs_of_peer_memory(
    tmp_path: Path, vendor: str, driver: str, kernel: str, files: dict[str, str], why: str
) -> None:
    root = str(tmp_path)
    put(root, "/proc/sys/kernel/osrelease", f"{kernel}\n")
    for path, text in files.items():
        put(root, path, text)
        if path.endswith(".gz"):
            Path(root + path).write_bytes(gzip.compress(text.encode()))
    file, lacks = peers.memory(vendor, driver, root)
    assert bool(file) == (not why) and why in lacks
    assert not file or Path(root + file).exists()


def test_files_that_are_damaged_are_no_proof(tmp_path: Path) -> None:
    put(str(tmp_path), "/proc/sys/kernel/osrelease", "6.8.0\n")
    put(str(tmp_path), "/proc/config.gz", "this is no gzip")
    assert peers.memory("amd", "mlx5_core", str(tmp_path)) == (
        "",
        "DMA-BUF cannot be used: this kernel does not say how it was configured",
    )


def test_with_required_false_an_instance_starts_without_rdma(machine: Machine) -> None:
    (row,) = planned(machine("nvidia"), required="false")
    assert row[0] == "identity" and row[2] == rows.ALWAYS
    with pytest.raises(HostError):  # what is here and cannot be is no matter of waiting
        planned(machine("nvidia", "mlx5"), required="false")


@pytest.mark.parametrize(
    ("own", "others", "gpu", "hca"),
    [
        ((), (), "0000:18:00.0", "uverbs0"),
        ((), ("rdma:0000:19:00.0",), "0000:18:00.0", "uverbs1"),
        (("rdma:0000:19:00.0",), ("rdma:0000:19:00.0",), "0000:18:00.0", "uverbs0"),
        ((), ("rdma:0000:19:00.0", "rdma:0000:19:00.1", "rdma:0000:19:00.0"), "0000:18:00.0", "uverbs1"),
        ((), ("pci:0000:18:00.0",), "0000:28:00.0", "uverbs0"),
        ((), ("pci:0000:18:00.0", "pci:0000:28:00.0/gi1/ci0", "rdma:0000:19:00.0"), "0000:18:00.0", "uverbs1"),
        ((), ("pci:0000:18:00.0", "pci:0000:18:00.0", "pci:0000:28:00.0"), "0000:28:00.0", "uverbs0"),
        (("pci:0000:18:00.0",), ("pci:0000:18:00.0",), "0000:18:00.0", "uverbs0"),
    ],
)
def test_of_equally_near_ones_what_nobody_has(
    both: str, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...], others: tuple[str, ...], gpu: str, hca: str
) -> None:
    """Two GPUs below one switch with three RDMA devices whose ports are up: first the instance's own, then what the fewest have."""
    one = next(each for each in gpus.gpus(both) if each.id == NEAR)
    twin = copy.copy(one)
    twin.id = "0000:28:00.0"
    monkeypatch.setattr(gpus, "gpus", lambda root: [one, twin])
    monkeypatch.setattr(choose, "held", lambda: (own, others))
    found = gpudirect._nearest({}, both)
    assert (found[0].id, {Path(node.path).name for node in found[2].nodes} & {"uverbs0", "uverbs1"}) == (gpu, {hca})
