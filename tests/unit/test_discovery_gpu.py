# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI functions and GPUs of recorded machines, under names that renumbering does not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.host import gpu, nvidia, pci, sysfs
from tests import trees


def paths(nodes: list[sysfs.Node], *roles: str) -> list[str]:
    return [node.path for node in nodes if not roles or node.role in roles]


# PCI


def test_pci_function(machine: Callable[..., str]) -> None:
    function = pci.read("0000:18:00.0", machine("nvidia"))
    assert function
    assert (function.ids, function.subvendor, function.subdevice) == ("10de:2330", "10de", "16c1")
    assert (function.class_id, function.driver, function.driver_version) == ("030200", "nvidia", "535.129.03")
    assert (function.numa, function.iommu_group) == (0, "41")
    assert function.parents == ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0")
    assert (function.host_bridge, function.switch) == ("pci0000:15", "0000:15:01.0")


def test_pci_virtual_functions(machine: Callable[..., str]) -> None:
    root = machine("mlx5")
    physical, virtual = pci.read("0000:19:00.0", root), pci.read("0000:19:00.3", root)
    assert physical and virtual
    assert (physical.virtfns, physical.numvfs, physical.totalvfs) == (("0000:19:00.2", "0000:19:00.3"), 2, 8)
    assert (virtual.physfn, virtual.virtfns) == ("0000:19:00.0", ())


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0000:19:00.0", "0000:19:00.1", "SAME"),
        ("0000:19:00.2", "0000:19:00.3", "SAME"),
        ("0000:18:00.0", "0000:19:00.0", "PIX"),
        ("0000:9a:00.0", "0000:9b:00.0", "PIX"),
        ("0000:9a:00.0", "0000:a0:00.0", "PHB"),
        ("0000:18:00.0", "0000:03:00.0", "NODE"),
        ("0000:18:00.0", "0000:9a:00.0", "SYS"),
    ],
)
def test_pci_relation(machine: Callable[..., str], one: str, other: str, expected: str) -> None:
    root = machine("nvidia", "mlx5", "disks")
    left, right = pci.read(one, root), pci.read(other, root)
    assert left and right
    assert pci.relation(left, right) == pci.relation(right, left) == expected


def test_two_switches_in_a_row() -> None:
    near = pci.Function("0000:05:00.0", "/x/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:05:00.0")
    far = pci.Function(
        "0000:09:00.0", "/x/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:06:00.0/0000:07:00.0/0000:09:00.0"
    )
    assert pci.relation(near, far) == "PXB"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("0000:65:00.0", "0000:65:00.0"),
        ("65:00.0", "0000:65:00.0"),
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:9A:1F.7", "0000:9a:1f.7"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("0000:65:00.8", ""),
        ("0000:65:0.0", ""),
        ("..:..:...", ""),
        ("0000:../..", ""),
        ("", ""),
    ],
)
def test_pci_address(word: str, expected: str) -> None:
    assert pci.canonical(word) == expected


def test_pci_names(machine: Callable[..., str]) -> None:
    names = pci.Names(machine("nvidia"))
    assert names.vendor("10de") == "NVIDIA Corporation"
    assert names.device("10de", "2330") == "GH100 [H100 SXM5 80GB]"
    assert names.device("10de", "16c1") == "10de:16c1"  # a subsystem's
    assert names.device("10de", "1019") == "10de:1019"  # the next vendor's
    assert names.device("15b3", "101a") == "MT28800 Family [ConnectX-5 Ex Virtual Function]"
    assert names.device("1a03", "2000") == "ASPEED Graphics Family"
    assert names.vendor("ffff") == "ffff"
    nothing = pci.Names(machine("nothing"))
    assert (nothing.vendor("10de"), nothing.device("10de", "2330")) == ("10de", "10de:2330")


# GPUs


def test_nvidia(machine: Callable[..., str]) -> None:
    display, first, second = gpu.gpus(machine("nvidia"))
    assert (display.id, display.vendor, display.card, display.render) == ("0000:03:00.0", "1a03", 0, -1)
    assert (first.id, first.uuid) == ("0000:18:00.0", "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f")
    assert (first.vendor, first.model, first.driver) == ("nvidia", "NVIDIA H100 80GB HBM3", "nvidia")
    assert (first.driver_version, first.minor, first.card, first.render) == ("535.129.03", 0, 1, 128)
    assert paths(first.nodes) == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert [(node.path, node.major, node.minor) for node in first.needs] == [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 511, 0),
        ("/dev/nvidia-uvm-tools", 511, 1),
        ("/dev/nvidia-modeset", 195, 254),
    ]
    assert first.parts == []
    assert second.id == "0000:9a:00.0"


def test_mig(machine: Callable[..., str]) -> None:
    root = machine("nvidia")
    second = gpu.gpus(root)[2]
    assert [part.id for part in second.parts] == ["0000:9a:00.0/gi1/ci0", "0000:9a:00.0/gi2/ci0"]
    part = second.parts[0]
    assert part.uuid == "MIG-GPU-a1b2c3d4-0011-2233-4455-66778899aabb/1/0"
    assert [(node.path, node.major, node.minor, node.role) for node in part.nodes] == [
        ("/dev/nvidia-caps/nvidia-cap147", 236, 147, "cap-gi"),
        ("/dev/nvidia-caps/nvidia-cap148", 236, 148, "cap-ci"),
    ]
    assert paths(part.needs)[:2] == ["/dev/nvidia1", "/dev/nvidiactl"]
    assert [(each.gi, each.ci) for each in nvidia.slices(10, root)] == [(7, 0)]  # gpu10 is not gpu1


def test_nvidia_that_is_not_set_up(machine: Callable[..., str]) -> None:
    root = machine("nvidia")
    information = Path(root, "proc/driver/nvidia/gpus/0000:18:00.0/information")
    text = information.read_text().replace("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "GPU-????????-????-????")
    information.write_text(text.replace("Device Minor: \t 0", "Device Minor: \t 4096").replace("No\n", "Yes\n"))
    first = gpu.gpus(root)[1]
    assert (first.uuid, first.minor, first.needs, first.parts) == ("", -1, [], [])
    assert "excluded" in first.details
    assert paths(first.nodes) == ["/dev/dri/card1", "/dev/dri/renderD128"]


def test_old_and_new_names_of_the_major() -> None:
    assert nvidia._major({"nvidia-frontend": 195}) == nvidia._major({"nvidia": 195}) == nvidia._major({}) == 195


def test_partitions_of_mi300x(machine: Callable[..., str]) -> None:
    first, second = gpu.gpus(machine("mi300x"))
    assert (first.id, first.model, first.uuid) == ("0000:05:00.0", "AMD Instinct MI300X OAM", "1a2b3c4d5e6f7081")
    assert first.details == {"compute-partition": "CPX", "memory-partition": "NPS1", "vram": "206141652992"}
    assert [part.id for part in first.parts] == [f"0000:05:00.0/xcp{index}" for index in range(8)]
    assert [paths(part.nodes) for part in first.parts] == [[f"/dev/dri/renderD{number}"] for number in range(128, 136)]
    # the newer kernels' way to number them
    assert [paths(part.nodes) for part in second.parts] == [[f"/dev/dri/renderD{n}"] for n in range(136, 144)]
    assert paths(second.parts[3].needs) == ["/dev/kfd"]


def test_a_whole_mi300x_has_no_parts(machine: Callable[..., str]) -> None:
    root = machine("mi300x")
    for number in [*range(3, 10), *range(11, 18)]:
        Path(root, f"sys/class/kfd/kfd/topology/nodes/{number}/properties").write_text("simd_count 0\n")
    assert [(each.id, each.render, each.parts) for each in gpu.gpus(root)] == [
        ("0000:05:00.0", 128, []),
        ("0000:27:00.0", 136, []),
    ]


def test_xe_and_its_virtual_functions(machine: Callable[..., str]) -> None:
    igpu, physical, used, given_away = gpu.gpus(machine("xe"))
    assert (igpu.driver, igpu.card, igpu.render, igpu.details) == ("i915", 0, 128, {})
    assert (physical.id, physical.driver, physical.details) == ("0000:03:00.0", "xe", {"tiles": "1"})
    assert physical.function
    assert physical.function.virtfns == ("0000:03:00.1", "0000:03:00.2")
    assert (used.id, used.details, paths(used.nodes, "render")) == (
        "0000:03:00.1", {"vram": str(4 << 30)}, ["/dev/dri/renderD130"],
    )  # fmt: skip
    assert (given_away.id, given_away.driver, given_away.nodes) == ("0000:03:00.2", "vfio-pci", [])


def test_cards_that_swap_names(machine: Callable[..., str]) -> None:
    """The next boot finds the cards in another order: the ids stay with the hardware, only the nodes change."""
    before = gpu.gpus(machine("xe"))

    def other_boot(text: str) -> str:
        for one, other in (("card0", "card1"), ("renderD128", "renderD129")):
            text = trees.swap(one, other)(text)
        for one, other in (("226:0", "226:1"), ("226:128", "226:129")):
            text = trees.swap(one, other)(text)
        return trees.swap("MINOR=128", "MINOR=129")(trees.swap("MINOR=0", "MINOR=1")(text))

    after = gpu.gpus(machine("xe", change=other_boot))
    assert [each.id for each in before] == [each.id for each in after]
    assert [each.driver for each in before] == [each.driver for each in after]
    assert (before[0].card, before[1].card) == (0, 1)
    assert (after[0].card, after[1].card) == (1, 0)
    assert paths(after[1].nodes) == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert [(node.major, node.minor) for node in after[1].nodes] == [(226, 0), (226, 128)]


def test_nvidia_minors_that_swap(machine: Callable[..., str]) -> None:
    before = gpu.gpus(machine("nvidia"))
    root = machine("nvidia", change=trees.swap("Device Minor: \t 0", "Device Minor: \t 1"))
    after = gpu.gpus(root)
    assert [(each.id, each.uuid) for each in before] == [(each.id, each.uuid) for each in after]
    assert [each.minor for each in before] == [-1, 0, 1]
    assert [each.minor for each in after] == [-1, 1, 0]
    assert [len(each.parts) for each in after] == [0, 2, 0]  # capabilities are named by the minor
