# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules for `failover: same-model`: read from sysfs, of nodes that are the machine's own /dev/null and /dev/zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrmgr.devices import rows, spares
from ctrmgr.errors import NotFoundError, UnsupportedError
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
    with pytest.raises(UnsupportedError, match="NVIDIA's library opens each GPU's node by the number"):
        spares.rules("it", [row(("/dev/nvidia0", ""), "/dev/nvidia0")], str(tmp_path))
    with pytest.raises(NotFoundError, match="nothing yet"):
        spares.rules("it", [], str(tmp_path))
    keys = {"type": "usb", "vendorid": "0bad", "failover": "same-model"}
    assert [found[0] for found in rows.rows("it", keys, machine("usb"))] == ["identity"]
