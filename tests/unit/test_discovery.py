# SPDX-License-Identifier: GPL-3.0-or-later
"""The readers of `ctrmgr.host` over recorded machines: what is found, under names that renumbering does not change."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.host import accel, amd, block, char, gpu, nvidia, pci, rdma, sysfs, usb
from tests import trees

READERS: dict[str, Callable[[str], list[object]]] = {
    "pci": pci.functions,
    "gpu": gpu.gpus,
    "accel": accel.accelerators,
    "rdma": rdma.hcas,
    "block": block.disks,
    "usb": usb.devices,
    "char": char.devices,
    "nvidia": nvidia.cards,
    "amd": amd.agents,
}  # type: ignore[assignment]


def paths(nodes: list[sysfs.Node], *roles: str) -> list[str]:
    return [node.path for node in nodes if not roles or node.role in roles]


def test_every_tree_says_where_it_is_from() -> None:
    for name in trees.NAMES:
        head = [line for line in (trees.FOLDER / f"{name}.tree").read_text().split("\n") if line.startswith("#")]
        assert any("Origin: " in line for line in head), name


def test_accelerators(machine: Callable[..., str]) -> None:
    npu, first, second = accel.accelerators(machine("aic100"))
    assert (npu.id, npu.driver, npu.number) == ("0000:00:0b.0", "intel_vpu", 10)
    assert (first.id, first.driver, first.number) == ("0000:01:00.0", "qaic", 0)
    assert first.node and (first.node.path, first.node.major, first.node.minor) == ("/dev/accel/accel0", 261, 0)
    assert first.function and first.function.ids == "17cb:a100"
    assert second.id == "0000:02:00.0"
    swapped = accel.accelerators(machine("aic100", change=trees.swap("accel0", "accel1")))
    assert [each.id for each in swapped] == [npu.id, first.id, second.id]
    assert [each.number for each in swapped] == [10, 1, 0]


def test_hcas(machine: Callable[..., str]) -> None:
    found = {hca.name: hca for hca in rdma.hcas(machine("mlx5"))}
    assert {name: hca.id for name, hca in found.items()} == {
        "mlx5_0": "0000:19:00.0",
        "mlx5_1": "0000:19:00.1",
        "mlx5_2": "0000:19:00.2",
        "mlx5_10": "0000:19:00.3",
        "rxe0": "a8a1:59ff:fe0c:11d2",
    }
    hca = found["mlx5_0"]
    assert (hca.node_guid, hca.node_type, hca.firmware) == ("506b:4b03:00cb:1234", "CA", "16.35.2000")
    (port,) = hca.ports
    assert (port.number, port.state, port.link_layer, port.guid) == (1, "ACTIVE", "InfiniBand", "506b:4b03:00cb:1234")
    assert (port.rate, port.netdevs, hca.netdevs) == ("100 Gb/sec (4X EDR)", ["ib0"], ["ib0"])
    assert [(node.path, node.role, node.major, node.minor) for node in hca.nodes] == [
        ("/dev/infiniband/uverbs0", "verbs", 231, 192),
        ("/dev/infiniband/umad0", "umad", 231, 0),
        ("/dev/infiniband/issm0", "issm", 231, 64),
    ]
    assert paths(hca.needs) == ["/dev/infiniband/rdma_cm"]
    assert hca.function and hca.function.virtfns == ("0000:19:00.2", "0000:19:00.3")


def test_roce_and_virtual_hcas(machine: Callable[..., str]) -> None:
    found = {hca.name: hca for hca in rdma.hcas(machine("mlx5"))}
    roce = found["mlx5_1"]
    assert (roce.ports[0].link_layer, roce.ports[0].guid, roce.ports[0].netdevs) == ("Ethernet", "", ["enp25s0f1np1"])
    unset = found["mlx5_2"]  # an administrator has given it no GUID yet
    assert (unset.node_guid, unset.ports[0].state) == ("", "DOWN")
    assert unset.function and unset.function.physfn == "0000:19:00.0"
    # mlx5_1 is not mlx5_10
    assert paths(found["mlx5_10"].nodes, "verbs") == ["/dev/infiniband/uverbs10"]
    assert paths(roce.nodes, "verbs") == ["/dev/infiniband/uverbs1"]
    soft = found["rxe0"]
    assert (soft.netdevs, soft.function, paths(soft.nodes)) == (["veth0"], None, ["/dev/infiniband/uverbs3"])


def test_disks(machine: Callable[..., str]) -> None:
    found = {disk.name: disk for disk in block.disks(machine("disks"))}
    assert sorted(found) == ["dm-0", "loop0", "loop1", "nvme0n1", "nvme1n1", "sda", "sdb", "sr0", "zram0"]
    nvme = found["nvme0n1"]
    assert (nvme.id, nvme.model, nvme.serial) == ("eui.002538b511b01234", "Samsung SSD 980 PRO 1TB", "S5GXNX0R123456")
    assert (nvme.size, nvme.transport, nvme.diskseq) == (1953525168 * 512, "pcie", 9)
    assert nvme.function and nvme.function.address == "0000:9b:00.0"
    assert "/dev/disk/by-path/pci-0000:9b:00.0-nvme-1" in nvme.links
    assert [part.id for part in nvme.partitions] == ["eui.002538b511b01234-part1", "eui.002538b511b01234-part2"]
    crypt = nvme.partitions[1]
    assert (crypt.holders, crypt.partuuid) == (["dm-0"], "11111111-aaaa-4bbb-8ccc-000000000002")
    assert found["nvme1n1"].function and found["nvme1n1"].function.address == "0000:a0:00.0"
    sata = found["sda"]
    assert (sata.serial, sata.transport) == ("S21PNSAG123456A", "sata")
    assert sata.id == "t10.ATA_Samsung_SSD_850_EVO_250GB_S21PNSAG123456A"
    assert [part.mounts for part in sata.partitions] == [["/boot"], ["[SWAP]"], ["/srv/my data"]]
    assert (found["sdb"].id, found["sdb"].mounts) == ("naa.50014ee2b9f01234", [])
    assert found["dm-0"].id == "dm-uuid-CRYPT-LUKS2-5d3a0c6b1f2e4a7c9b8d-cryptroot"
    loop = found["loop0"]
    assert (loop.id, loop.readonly, loop.backing) == ("loop0", True, "/var/lib/images/data disk.img")
    assert (loop.mounts, found["zram0"].mounts, found["loop1"].size) == (["/mnt/image"], ["[SWAP]"], 0)
    assert loop.node and (loop.node.kind, loop.node.major, loop.node.minor) == ("block", 7, 0)


def test_disks_that_swap_names(machine: Callable[..., str]) -> None:
    before = {disk.id: disk for disk in block.disks(machine("disks"))}
    after = {disk.id: disk for disk in block.disks(machine("disks", change=trees.swap("sda", "sdb")))}
    assert set(before) == set(after)
    assert (before["naa.50014ee2b9f01234"].name, after["naa.50014ee2b9f01234"].name) == ("sdb", "sda")


def test_two_paths_to_one_disk(machine: Callable[..., str]) -> None:
    same = "naa.50014ee2b9f01234"
    root = machine("disks", change=lambda text: same if text.startswith("t10.ATA") else text)
    found = {disk.name: disk for disk in block.disks(root)}
    assert (found["sda"].id, found["sdb"].id) == (f"{same}@sda", f"{same}@sdb")
    assert found["sda"].partitions[0].id == f"{same}@sda-part1"


def test_emmc(tmp_path: Path) -> None:
    """Its boot areas are disks of their own, and do not take its name away."""
    card = tmp_path / "sys/devices/platform/mmc_host/mmc0/mmc0:0001"
    for name, number in (("mmcblk0", 0), ("mmcblk0boot0", 8), ("mmcblk0boot1", 16)):
        disk = card / "block" / name
        disk.mkdir(parents=True)
        (disk / "dev").write_text(f"179:{number}\n")
        (disk / "uevent").write_text(f"DEVNAME={name}\n")
        (disk / "device").symlink_to("../..")
        (tmp_path / "sys/block").mkdir(exist_ok=True)
        (tmp_path / "sys/block" / name).symlink_to(f"../devices/platform/mmc_host/mmc0/mmc0:0001/block/{name}")
    (card / "name").write_text("DG4064\n")
    (card / "serial").write_text("0x1d2f4a6b\n")
    assert [(disk.id, disk.transport) for disk in block.disks(str(tmp_path))] == [
        ("mmc-DG4064_0x1d2f4a6b", "mmc"),
        ("mmc-DG4064_0x1d2f4a6b-boot0", "mmc"),
        ("mmc-DG4064_0x1d2f4a6b-boot1", "mmc"),
    ]


def test_usb(machine: Callable[..., str]) -> None:
    root = machine("usb")
    found = {device.name: device for device in usb.devices(root)}
    assert sorted(name for name, device in found.items() if device.hub) == ["3-1", "3-1.5", "usb1", "usb2", "usb3"]
    phone = found["3-1.5.4"]
    assert (phone.id, phone.manufacturer, phone.product) == ("0fce:0166:0123456789ABCDEF", "Sony", "MiniPro")
    assert (phone.busnum, phone.devnum, phone.port) == (3, 24, "pci-0000:00:1a.0-usb-0:1.5.4")
    assert phone.node and (phone.node.path, phone.node.major, phone.node.minor) == ("/dev/bus/usb/003/024", 189, 279)
    serial = found["1-2"]
    assert (serial.id, serial.driver) == ("0403:6001:AH06W0EQ", "ftdi_sio")
    assert [(child.subsystem, child.interface, child.node.path) for child in serial.children] == [
        ("tty", "1.0", "/dev/ttyUSB0")
    ]
    stick = found["2-2"]
    assert (stick.port, serial.port) == ("pci-0000:00:14.0-usbv3-0:2", "pci-0000:00:14.0-usb-0:2")
    assert [(child.subsystem, child.node.kind, child.node.path) for child in stick.children] == [
        ("block", "block", "/dev/sdd")
    ]
    assert [child.node.path for child in found["1-7"].children] == ["/dev/hidraw3"]
    (disk,) = block.disks(root)
    assert (disk.id, disk.transport, disk.removable) == (
        "usb-Kingston_DataTraveler_3.0_60A44C413FAEE371D9940C5D", "usb", True,
    )  # fmt: skip


def test_usb_twins_without_serial_numbers(machine: Callable[..., str]) -> None:
    """Told apart by their sockets, and still after the serial ports and buses came up in another order."""

    def twins(root: str) -> dict[str, list[str]]:
        return {
            device.id: [child.node.path for child in device.children]
            for device in usb.devices(root)
            if device.vendorid == "1a86"
        }

    assert twins(machine("usb")) == {
        "1a86:7523@pci-0000:00:14.0-usb-0:3": ["/dev/ttyUSB1"],
        "1a86:7523@pci-0000:00:14.0-usb-0:4": ["/dev/ttyUSB2"],
    }
    swapped = machine("usb", change=trees.swap("ttyUSB1", "ttyUSB2"))
    assert twins(swapped)["1a86:7523@pci-0000:00:14.0-usb-0:3"] == ["/dev/ttyUSB2"]


def test_usb_buses_that_swap(machine: Callable[..., str]) -> None:
    def swap(text: str) -> str:
        text = trees.swap("usb1", "usb3")(trees.swap("bus/usb/001", "bus/usb/003")(text))
        return re.sub(r"(?<![\w.:])[13](?=-\d)", lambda match: "31"[match[0] == "3"], text)

    before = {device.id: device.name for device in usb.devices(machine("usb")) if not device.hub}
    after = {device.id: device.name for device in usb.devices(machine("usb", change=swap)) if not device.hub}
    assert set(before) == set(after)
    assert (before["0403:6001:AH06W0EQ"], after["0403:6001:AH06W0EQ"]) == ("1-2", "3-2")


def test_usb_twins_with_one_serial_number(machine: Callable[..., str]) -> None:
    root = machine("usb")
    for name in ("1-3", "1-4"):
        Path(root, f"sys/bus/usb/devices/{name}/serial").write_text("0001\n")
    assert {device.id for device in usb.devices(root) if device.vendorid == "1a86"} == {
        "1a86:7523:0001@pci-0000:00:14.0-usb-0:3",
        "1a86:7523:0001@pci-0000:00:14.0-usb-0:4",
    }


def test_a_device_cannot_write_to_the_terminal(machine: Callable[..., str]) -> None:
    root = machine("usb")
    Path(root, "sys/bus/usb/devices/1-2/product").write_bytes(b"Evil\x1b]0;pwned\x07 stick\xff\n")
    Path(root, "sys/bus/usb/devices/1-2/serial").write_bytes(b"a b\tc\x1b[2J\n")
    (found,) = (device for device in usb.devices(root) if device.name == "1-2")
    assert found.product == "Evil?]0;pwned? stick\ufffd"
    assert found.id == "0403:6001:a_b_c?[2J"


def test_character_devices(machine: Callable[..., str]) -> None:
    found = {device.id: device for device in char.devices(machine("xe"))}
    assert found["/dev/vfio/19"].subsystem == "vfio"
    assert found["/dev/vfio/devices/vfio0"].address == "0000:03:00.2"
    assert (found["/dev/dri/card1"].node.major, found["/dev/dri/card1"].node.minor) == (226, 1)
    assert all(device.plain for device in found.values())


def test_consoles_are_not_for_passing(machine: Callable[..., str]) -> None:
    root = machine("usb")
    for name, kind in (("tty7", ""), ("ttyS0", "0"), ("ttyS1", "4")):
        folder = Path(root, f"sys/devices/x/tty/{name}")
        folder.mkdir(parents=True)
        (folder / "uevent").write_text(f"DEVNAME={name}\n")
        (folder / "dev").write_text(f"4:{len(name)}{kind or 9}\n")
        (folder / "subsystem").symlink_to("../../../../class/tty")
        if kind:
            (folder / "type").write_text(kind)
            (folder / "device").symlink_to("../..")
        Path(root, f"sys/dev/char/4:{name}").symlink_to(f"../../devices/x/tty/{name}")
    found = {device.id: device.plain for device in char.devices(root)}
    assert {name: found[f"/dev/{name}"] for name in ("tty7", "ttyS0", "ttyS1", "ttyUSB0")} == {
        "tty7": False, "ttyS0": False, "ttyS1": True, "ttyUSB0": True,
    }  # fmt: skip


# Bad input


@pytest.mark.parametrize("reader", READERS)
def test_nothing_at_all(machine: Callable[..., str], tmp_path: Path, reader: str) -> None:
    assert READERS[reader](machine("nothing")) == []
    assert READERS[reader](str(tmp_path / "not there")) == []


GARBAGE = (
    b"",
    b"\n",
    b"\0\0\0\0",
    b"\xff\xfe\x80garbage",
    b"-",
    b"0x",
    b"99999999999999999999999999999999999",
    b"-1\n",
    b"a:b:c:d",
    b": : :\n=\n:\n",
    b"DEVNAME=../../etc/passwd\nMAJOR=x\nMINOR=-7\n",
    b"x" * 200_000,
)


@pytest.mark.parametrize("name", trees.NAMES)
def test_garbage(machine: Callable[..., str], name: str) -> None:
    """Whatever files hold, whatever is missing, whatever is a file, a folder or a link to nowhere instead: no traceback."""
    chance = random.Random(name)
    for how in ("content", "missing", "kind"):
        root = machine(name)
        files = sorted(path for path in Path(root).rglob("*") if path.is_file() or path.is_symlink())
        for path in chance.sample(files, len(files) * 2 // 3):
            if how == "content" and not path.is_symlink():
                path.write_bytes(chance.choice(GARBAGE))
            elif how != "content":
                path.unlink()
                if how == "kind":
                    chance.choice((path.mkdir, lambda path=path: path.symlink_to("/nowhere/at/all"), path.touch))()
        for reader in READERS.values():
            for found in reader(root):
                for node in [*getattr(found, "nodes", []), *getattr(found, "needs", [])]:
                    assert node.path.startswith("/dev/") and ".." not in node.path
                    assert min(node.major, node.minor) >= 0


def test_readers_import_nothing_dear() -> None:
    """They run at every start: the standard library's cheap part, as for all hot files."""
    script = (
        "import sys; before = set(sys.modules); "
        "from ctrmgr.host import accel, block, char, gpu, pci, rdma, usb; "
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('ctrmgr')))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__future__"}
