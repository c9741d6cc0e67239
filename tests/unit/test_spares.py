# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules for `failover: same-model`: read from sysfs, of nodes that are the machine's own /dev/null and /dev/zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrmgr.devices import rows, spares
from ctrmgr.errors import CtrmgrError, NotFoundError, SpecError, UnsupportedError
from tests.unit.test_devices_other import Machine

NULL, ZERO, FULL = ("/dev/null", "1:3"), ("/dev/zero", "1:5"), ("/dev/full", "1:7")
PCI, USB = ("vendor", "device"), ("idVendor", "idProduct")


def put(
    root: Path, node: tuple[str, str], place: str, kind: str, hardware: str = "", files: tuple[str, str] = PCI
) -> None:
    """A node whose place in sysfs is below a piece of hardware."""
    path = root / "sys/devices" / place
    path.mkdir(parents=True)
    (root / "sys/class" / kind).mkdir(parents=True, exist_ok=True)
    (path / "subsystem").symlink_to(root / "sys/class" / kind)
    for file, text in zip(files, ("0x1002\n", "0x73bf\n"), strict=True):
        if hardware:
            (root / "sys/devices" / hardware / file).write_text(text)
    folder = root / "sys/dev/char"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / node[1]).symlink_to(path)
    link = root / node[0].removeprefix("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(node[0])


def row(node: tuple[str, str], path: str, kind: str = "char") -> list[str]:
    return ["device", "it", kind, node[0], path, "0", "44", "0660", "rwm", "required"]


def words(found: list[list[str]]) -> list[str]:
    return [" ".join(rule[7:]) for rule in found]


def test_the_nodes_of_one_card_are_a_unit_and_what_is_everybodys_is_left_out(tmp_path: Path) -> None:
    for node, name in ((NULL, "card0"), (ZERO, "renderD128")):
        put(tmp_path, node, f"pci0000:00/0000:65:00.0/drm/{name}", "drm", "pci0000:00/0000:65:00.0")
    put(tmp_path, FULL, "virtual/kfd/kfd", "kfd")
    found = spares.rules(
        "it", [row(NULL, "/dev/dri/card0"), row(ZERO, "/dev/dri/renderD128"), row(FULL, "/dev/kfd")], str(tmp_path)
    )
    assert [rule[:7] for rule in found] == [["hotplug", "it", "0", "44", "0660", "rwm", "model"]] * 2
    assert words(found) == [
        "class=drm name=card vendor=0x1002 model=0x73bf unit=0 path=dri/card0",
        "class=drm name=renderD vendor=0x1002 model=0x73bf unit=0 path=dri/renderD128",
    ]


def test_two_pieces_are_two_units(tmp_path: Path) -> None:
    """A virtual bus between them and PCI has models of its own, which are nearer."""
    for number, node in enumerate((NULL, ZERO)):
        virtio = f"pci0000:00/0000:00:0{number}.0/virtio{number}"
        put(tmp_path, node, f"{virtio}/accel/accel{number}", "accel", virtio)
    found = spares.rules("it", [row(NULL, "/dev/accel/accel0"), row(ZERO, "/dev/accel/accel1")], str(tmp_path))
    assert [line.split(" ")[4] for line in words(found)] == ["unit=0", "unit=1"]


@pytest.mark.parametrize(
    ("place", "kind", "line"),
    [
        (
            "usb1/1-4/1-4:1.0/ttyUSB0/tty/ttyUSB10",
            "tty",
            "class=tty name=ttyUSB vendor=0x1002 model=0x73bf unit=0 path=port",
        ),
        ("usb1/1-4", "usb", "class=usb name= vendor=0x1002 model=0x73bf unit=0 path=port"),
    ],
)
def test_usb(tmp_path: Path, place: str, kind: str, line: str) -> None:
    put(tmp_path, NULL, place, kind, "usb1/1-4", USB)
    assert words(spares.rules("it", [row(NULL, "/dev/port")], str(tmp_path))) == [line]


def test_what_has_none(tmp_path: Path, machine: Machine) -> None:
    put(tmp_path, NULL, "virtual/mem/null", "mem")
    with pytest.raises(UnsupportedError, match="model the kernel knows"):
        spares.rules("it", [row(NULL, "/dev/null1")], str(tmp_path))
    (tmp_path / "sys/dev/block").symlink_to("char")
    with pytest.raises(UnsupportedError, match="other data"):
        spares.rules("it", [row(NULL, "/dev/sda", "block")], str(tmp_path))
    with pytest.raises(UnsupportedError, match="comes or goes"):
        spares.rules("it", [row(ZERO, "/dev/zero0")], str(tmp_path))
    with pytest.raises(UnsupportedError, match="MIG slice goes without a word"):
        spares.rules("it", [row(("/dev/nvidia-caps/nvidia-cap12", ""), "/dev/nvidia-caps/nvidia-cap12")], str(tmp_path))
    with pytest.raises(UnsupportedError, match="other GUIDs"):
        spares.rules("it", [row(NULL, "/dev/null1"), ["vf-guid", "it", "0000:65:00.1", "", ""]], str(tmp_path))
    with pytest.raises(NotFoundError, match="nothing yet"):
        spares.rules("it", [], str(tmp_path))
    keys = {"type": "usb", "vendorid": "0bad", "failover": "same-model"}
    assert [found[0] for found in rows.rows("it", keys, machine("usb"))] == ["identity"]


def test_a_gpu_of_nvidias_is_known_by_its_function_and_comes_under_its_own_name(machine: Machine) -> None:
    """With its render node: its libraries find that by the GPU's number, too."""
    root = Path(machine("nvidia"))
    node = root / "dev/dri/renderD128"
    node.unlink(missing_ok=True)
    node.symlink_to("/dev/null")
    numbers = root / "sys/dev/char"
    numbers.mkdir(parents=True, exist_ok=True)
    (numbers / "1:3").symlink_to((root / "sys/class/drm/renderD128").resolve())
    keys = {"type": "gpu", "pci": "0000:18:00.0", "driver.capabilities": "none", "failover": "same-model"}
    found = [rule for rule in rows.rows("it", keys, str(root)) if rule[0] == "hotplug"]
    model = "vendor=0x10de model=0x2330 unit=0"
    assert sorted(words(found)) == [
        f"class=drm name=renderD {model} path=dri/renderD128 names=own",
        f"class=pci name= {model} path=nvidia0 names=own holds=pci:0000:18:00.0",
    ]


def test_rdma_devices_come_under_the_kernels_names(tmp_path: Path) -> None:
    """With the device itself, which moves where the host keeps them apart; each port's node has a rule of its own."""
    hardware = "pci0000:00/0000:65:00.0"
    for node, kind, name in ((NULL, "verbs", "uverbs3"), (ZERO, "mad", "umad6"), (FULL, "mad", "umad7")):
        place = f"{hardware}/infiniband_{kind}/{name}"
        put(tmp_path, node, place, f"infiniband_{kind}", hardware)
        (tmp_path / "sys/devices" / place / "ibdev").write_text("mlx5_3\n")
    found = [
        row(node, f"/dev/infiniband/{name}") for node, name in ((NULL, "uverbs3"), (ZERO, "umad6"), (FULL, "umad7"))
    ]
    leases = ["rdma:0000:65:00.0", "node:/dev/infiniband/uverbs3"]
    (tmp_path / "sys/class/net/ib3").mkdir(parents=True)
    (tmp_path / "sys/class/net/ib3/device").symlink_to(tmp_path / "sys/devices" / hardware)
    (tmp_path / "sys/class/net/ib3/dev_port").write_text("0\n")
    found += [["rdma", "it", "mlx5_3"], ["netdev", "it", "ib3", "ib0", "", "2044", "required"]]
    said = words(spares.rules("it", found, str(tmp_path), leases))
    model = "vendor=0x1002 model=0x73bf unit=0"
    assert said == [
        f"class=infiniband_verbs name=uverbs {model} path=infiniband/uverbs3 names=own holds=rdma:0000:65:00.0",
        f"class=infiniband_mad name=umad {model} path=infiniband/umad6 names=own",
        f"class=infiniband_mad name=umad {model} path=infiniband/umad7 names=own",
        f"class=rdma name= {model} path=mlx5_3 names=own",
        f"class=net name= {model} path=ib0 address= mtu=2044 port=0 holds=link:ib3",
    ]
    (tmp_path / "sys/class/net/ib3/device").unlink()
    with pytest.raises(UnsupportedError, match="`ib3` does not belong"):
        spares.rules("it", found, str(tmp_path), leases)


def test_an_rdma_device_of_software_is_its_own_hardware_and_a_part_is_none(tmp_path: Path) -> None:
    place = "virtual/infiniband_verbs/uverbs0"
    put(tmp_path, NULL, place, "infiniband_verbs")
    (tmp_path / "sys/devices" / place / "ibdev").write_text("rxe0\n")
    (tmp_path / "sys/class/infiniband/rxe0").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/rxe0/node_type").write_text("1: CA\n")
    (said,) = words(spares.rules("it", [row(NULL, "/dev/infiniband/uverbs0")], str(tmp_path), ["rdma:5054:00ff"]))
    assert (
        said
        == "class=infiniband_verbs name=uverbs vendor=software model=1: CA unit=0 path=infiniband/uverbs0 names=own"
    )
    hardware = "pci0000:00/0000:65:00.0"
    place = f"{hardware}/mlx5_core.sf.2/infiniband_verbs/uverbs1"
    put(tmp_path, ZERO, place, "infiniband_verbs", hardware)
    (tmp_path / "sys/devices" / place / "ibdev").write_text("mlx5_2\n")
    with pytest.raises(UnsupportedError, match="`mlx5_2` is a part of hardware"):
        spares.rules("it", [row(ZERO, "/dev/infiniband/uverbs1")], str(tmp_path))


def test_a_link_alone(tmp_path: Path) -> None:
    """Its hardware is the directory that it is of; what is no hardware has no model."""
    place = tmp_path / "sys/devices/pci0000:00/0000:00:09.0/virtio7"
    place.mkdir(parents=True)
    (place / "vendor").write_text("0x1af4\n")
    (place / "device").write_text("0x0001\n")
    for name, device in (("eth1", place), ("veth0", tmp_path / "sys/devices/virtual")):
        (tmp_path / f"sys/class/net/{name}").mkdir(parents=True)
        (tmp_path / f"sys/class/net/{name}/device").symlink_to(device)
        (tmp_path / f"sys/class/net/{name}/dev_port").write_text("1\n")
    keys = {"type": "nic", "nictype": "physical", "parent": "eth1", "name": "net7", "failover": "same-model"}
    found = rows.rows("it", keys, str(tmp_path))
    (said,) = words([rule for rule in found if rule[0] == "hotplug"])
    model = "class=net name= vendor=0x1af4 model=0x0001"
    assert said == f"{model} unit=0 path=net7 address= mtu=0 port=1 holds=link:eth1"
    assert ["identity", "it", "/sys/class/net/eth1/device/device", "0x0001"] in found
    for parent, what in (("veth0", "no hardware"), ("eth9", "needs `eth9` at first")):
        with pytest.raises(CtrmgrError, match=what):
            rows.rows("it", {**keys, "parent": parent}, str(tmp_path))
    with pytest.raises(SpecError, match="is for `nictype: physical`"):
        rows.rows(
            "it", {"type": "nic", "nictype": "bridged", "parent": "ctrbr0", "failover": "same-model"}, str(tmp_path)
        )
