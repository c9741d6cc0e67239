# SPDX-License-Identifier: GPL-3.0-or-later
"""All devices under one roof: what is listed, what a word means, what is near what; and `ctrmgr device` on this machine."""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import ctrmgr
from ctrmgr.backend import catalog, topology
from ctrmgr.backend.inventory import KINDS, Device
from ctrmgr.cli import devices as cli
from ctrmgr.errors import NotFoundError, SpecError
from tests import trees
from tests.conftest import Ctr


def by_id(devices: list[Device]) -> dict[str, Device]:
    return {device.id: device for device in devices}


@pytest.mark.parametrize("name", trees.NAMES)
def test_no_two_devices_have_one_id(machine: Callable[..., str], name: str) -> None:
    found = catalog.devices(machine(name))
    assert len(by_id(found)) == len(found)
    assert [KINDS.index(device.kind) for device in found] == sorted(KINDS.index(device.kind) for device in found)
    json.dumps([device.fields() for device in found])


def test_gpu(machine: Callable[..., str]) -> None:
    found = by_id(catalog.devices(machine("nvidia")))
    device = found["0000:9a:00.0"]
    assert (device.kind, device.name, device.vendor, device.pci, device.numa) == (
        "gpu", "nvidia1", "nvidia", "0000:9a:00.0", 1,
    )  # fmt: skip
    fields = device.fields()
    assert fields["parts"] == ["0000:9a:00.0/gi1/ci0", "0000:9a:00.0/gi2/ci0"]
    assert fields["pci-ids"] == "10de:2330"
    assert found["0000:9a:00.0/gi1/ci0"].part_of == "0000:9a:00.0"
    display = found["0000:03:00.0"]
    assert (display.model, display.vendor) == ("ASPEED Graphics Family", "ASPEED Technology, Inc.")


def test_a_device_stands_for_its_nodes(machine: Callable[..., str]) -> None:
    """No render node, kfd, verbs or USB node once more among the character devices; nor of partitions not in use."""
    shown = [
        device
        for name in trees.NAMES
        if name != "virtual"
        for device in catalog.devices(machine(name), kinds=["unix-char"])
    ]
    assert {device.id for device in shown if device.notable} == {
        "/dev/vfio/19",
        "/dev/vfio/vfio",
        "/dev/vfio/devices/vfio0",
        "0403:6001:AH06W0EQ/1.0/tty",
        "1a86:7523@pci-0000:00:14.0-usb-0:3/1.0/tty",
        "1a86:7523@pci-0000:00:14.0-usb-0:4/1.0/tty",
        "1050:0407@pci-0000:00:14.0-usb-0:7/1.1/hidraw",
    }
    # but what is shared, or left over, is there for who asks for all
    assert {"/dev/dri/renderD144", "/dev/kfd", "/dev/infiniband/rdma_cm"} <= {device.id for device in shown}


def test_hubs_are_not_notable(machine: Callable[..., str]) -> None:
    found = catalog.devices(machine("usb"), kinds=["usb"])
    assert {device.name for device in found if device.notable} == {"1-2", "1-3", "1-4", "1-7", "2-2", "3-1.5.4"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("0000:18:00.0", "0000:18:00.0"),
        ("18:00.0", "0000:18:00.0"),
        ("00000000:18:00.0", "0000:18:00.0"),
        ("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "0000:18:00.0"),
        ("GPU-5c89852c", "0000:18:00.0"),
        ("nvidia0", "0000:18:00.0"),
        ("card1", "0000:18:00.0"),
        ("/dev/dri/renderD128", "0000:18:00.0"),
        ("MIG-GPU-a1b2c3d4-0011-2233-4455-66778899aabb/2/0", "0000:9a:00.0/gi2/ci0"),
        ("nvidia1/gi2/ci0", "0000:9a:00.0/gi2/ci0"),
        ("9a:00.0", "0000:9a:00.0"),
        ("mlx5_1", "0000:19:00.1"),
        ("ib0", "0000:19:00.0"),
        ("1122:3344:5566:7788", "0000:19:00.3"),
        ("nvme0n1p2", "eui.002538b511b01234-part2"),
        ("S5GXNX0R123456", "eui.002538b511b01234"),
        ("/dev/disk/by-id/wwn-0x50014ee2b9f01234", "naa.50014ee2b9f01234"),
        ("naa.50014", "naa.50014ee2b9f01234"),
        ("22222222-aaaa-4bbb-8ccc-000000000002", "t10.ATA_Samsung_SSD_850_EVO_250GB_S21PNSAG123456A-part2"),
    ],
)
def test_find(machine: Callable[..., str], word: str, expected: str) -> None:
    assert catalog.find(word, catalog.devices(machine("nvidia", "mlx5", "disks"))).id == expected


@pytest.mark.parametrize("word", ["card10", "nvidia10", "mlx5_", "loo", "", "0000:18:00.9", "/dev/sd", "/", "..", "\0"])
def test_find_nothing(machine: Callable[..., str], word: str) -> None:
    with pytest.raises(NotFoundError):
        catalog.find(word, catalog.devices(machine("nvidia", "mlx5", "disks")))


def test_a_number_is_not_cut(machine: Callable[..., str]) -> None:
    """`mlx5_1` never means `mlx5_10`, nor gi1 gi10, even where there is no other."""
    devices = catalog.devices(machine("mlx5", "nvidia", change=lambda text: text.replace("gi1/", "gi10/")))
    without = [device for device in devices if device.name != "mlx5_1"]
    for word in ("mlx5_1", "0000:9a:00.0/gi1"):
        with pytest.raises(NotFoundError):
            catalog.find(word, without)
    assert catalog.find("0000:9a:00.0/gi10", devices).id == "0000:9a:00.0/gi10/ci0"


def test_several_fit(machine: Callable[..., str]) -> None:
    with pytest.raises(SpecError, match="`1a86:7523` fits 2 devices") as error:
        catalog.find("1a86:7523", catalog.devices(machine("usb")))
    assert "usb-0:3` (usb)" in str(error.value.hint) and "usb-0:4` (usb)" in str(error.value.hint)


def test_the_nearest_name_is_the_hint(machine: Callable[..., str]) -> None:
    with pytest.raises(NotFoundError) as error:
        catalog.find("nvidia7", catalog.devices(machine("nvidia")))
    assert "did you mean `nvidia" in str(error.value.hint)


def test_pairs(machine: Callable[..., str]) -> None:
    devices = catalog.devices(machine("nvidia", "mlx5"))
    assert [(pair.gpu.name, pair.hca.name, pair.relation) for pair in topology.pairs(devices)] == [
        ("nvidia0", "mlx5_0", "PIX"),
        ("nvidia0", "mlx5_1", "PIX"),
        ("nvidia1", "mlx5_0", "SYS"),
        ("nvidia1", "mlx5_1", "SYS"),
    ]
    assert topology.pairs(catalog.devices(machine("xe"))) == []


def test_tree(machine: Callable[..., str]) -> None:
    root = machine("nvidia", "mlx5", "disks")
    cpus = Path(root, "sys/devices/system/node/node1/cpulist")
    cpus.parent.mkdir(parents=True)
    cpus.write_text("48-95\n")
    devices = catalog.devices(root)
    lines = cli.drawn(topology.numa_nodes(devices, root), topology.pairs(devices))
    assert lines[lines.index("NUMA 1 (CPUs 48-95)") :] == [
        "NUMA 1 (CPUs 48-95)",
        "└─ pci0000:97",
        "   ├─ 0000:a0:00.0 unix-block nvme1n1 Micron_7450_MTFDKCC3T8TFR",
        "   └─ 0000:97:01.0 (root port)",
        "      ├─ 0000:9a:00.0 gpu nvidia1 NVIDIA H100 80GB HBM3, 2 parts",
        "      └─ 0000:9b:00.0 unix-block nvme0n1 Samsung SSD 980 PRO 1TB",
        "best GPU and RDMA pairs:",
        "  0000:18:00.0 nvidia0 – 0000:19:00.0 mlx5_0: PIX, one PCIe switch between them",
        "  0000:18:00.0 nvidia0 – 0000:19:00.1 mlx5_1: PIX, one PCIe switch between them",
        "  0000:9a:00.0 nvidia1 – 0000:19:00.0 mlx5_0: SYS, between NUMA nodes",
        "  0000:9a:00.0 nvidia1 – 0000:19:00.1 mlx5_1: SYS, between NUMA nodes",
    ]
    assert len(cli.flat(topology.numa_nodes(devices, root))) == 12


def test_the_host_uses_it(machine: Callable[..., str]) -> None:
    rows = {device.name: cli.row(device)["held by"] for device in catalog.devices(machine("disks"))}
    assert rows["sda1"] == ["host:/boot"]
    assert rows["sda2"] == rows["zram0"] == ["host:[SWAP]"]
    assert rows["nvme0n1p2"] == ["host:dm-0"]
    assert rows["sdb"] == []


def test_a_real_machine(machine: Callable[..., str]) -> None:
    """A recording of one: what kernels really write."""
    found = {device.name: device for device in catalog.devices(machine("virtual")) if device.notable}
    assert [(name, device.id) for name, device in found.items() if device.kind in ("gpu", "infiniband")] == [
        ("card0", "0000:00:07.0"),
        ("card1", "faux/vgem"),
        ("rxe0", "5054:00ff:fe00:0001"),
    ]
    assert found["card1"].driver == "vgem"
    assert [node.role for node in (*found["rxe0"].nodes, *found["rxe0"].needs)] == ["verbs", "umad", "rdma_cm"]
    chars = {name for name, device in found.items() if device.kind == "unix-char"}
    assert chars >= {"ttyS0", "fuse", "cuse", "net/tun", "dma_heap/system", "uhid", "nvme0", "vport5p1"}
    assert not chars & {"tty0", "ttyS1", "kmsg", "console", "infiniband/umad0", "dri/card1"}
    assert [found[name].id for name in ("vda", "vde1", "nvme0n1")] == [
        "virtio-lab-root",
        "virtio-lab-data-part1",
        "nvme-QEMU_NVMe_Ctrl_labnvme_1",
    ]


def test_recording(tmp_path: Path) -> None:
    """What the recorder writes of this machine is the same machine to the readers."""
    for path, (kind, content) in trees.record().items():
        trees.put(tmp_path / path, kind, content)
    for kinds in (["unix-char"], ["gpu", "accel", "infiniband"]):
        here, there = (catalog.devices(root, kinds=kinds, holders=False) for root in ("/", str(tmp_path)))
        assert [device.fields() for device in here] == [device.fields() for device in there]


# This machine


def test_list_is_true(ctr: Ctr) -> None:
    """What is listed is there, with that number; and what everybody has is listed."""
    rows = json.loads(ctr("device", "list", "--all", "--format", "json").stdout)
    nodes = {node["path"]: node for row in rows for node in row["nodes"]}
    for path, node in nodes.items():
        if node["present"]:
            status = os.stat(path)
            assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (node["major"], node["minor"]), path
            assert stat.S_ISBLK(status.st_mode) == (node["type"] == "block"), path
    for name in os.listdir("/sys/block"):
        assert nodes[f"/dev/{name}"]["type"] == "block"
    for path in ("/dev/fuse", "/dev/net/tun", "/dev/kvm"):
        if os.path.exists(path):
            assert nodes[path]["type"] == "char"
    kinds = {node["path"]: row["kind"] for row in rows for node in row["nodes"]}
    assert kinds["/dev/fuse"] == "unix-char"


def test_list_only_some(ctr: Ctr) -> None:
    table = ctr("device", "list", "unix-char").stdout.splitlines()
    assert table[0].split()[:3] == ["KIND", "ID", "NAME"]
    assert {line.split()[0] for line in table[1:]} == {"unix-char"}
    assert not any("/dev/tty1 " in line for line in table)
    assert "`gpus` is no kind" in ctr("device", "list", "gpus", code=2).stderr


def test_show(ctr: Ctr) -> None:
    shown = ctr("device", "show", "fuse").stdout
    assert "id: /dev/fuse\n" in shown and "(char, char 10:229)" in shown
    assert yaml.safe_load(ctr("device", "show", "/dev/fuse", "-f", "yaml").stdout)["id"] == "/dev/fuse"
    lost = ctr("device", "show", "fusee", code=3).stderr
    assert "no device `fusee`" in lost and "did you mean `fuse`" in lost


def test_tree_in_all_formats(ctr: Ctr) -> None:
    assert ctr("device", "tree").stdout
    assert set(json.loads(ctr("device", "tree", "-f", "json").stdout)) == {"numa-nodes", "pairs"}
    assert next(csv.reader(ctr("device", "tree", "-f", "csv").stdout.splitlines()))[:2] == ["numa", "host-bridge"]


def test_api() -> None:
    assert {device.kind for device in ctrmgr.host_devices("unix-char")} == {"unix-char"}
    with pytest.raises(ctrmgr.SpecError):
        ctrmgr.host_devices("unix-chair")
