# SPDX-License-Identifier: GPL-3.0-or-later
"""What accelerators, RDMA devices and what is behind USB become on recorded machines."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.devices import driver, links, rows, unix_block
from ctrmgr.errors import CtrmgrError, HostError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.host.machine import Host
from ctrmgr.plan import compile
from ctrmgr.spec import device
from tests import trees

Machine = Callable[..., str]


def planned(root: str, type: str, **keys: str) -> list[list[str]]:
    return rows.rows("d", device.check("d", {"type": type, **keys}), root)


def nodes(found: list[list[str]]) -> list[str]:
    return [row[4] for row in found if row[0] == "device"]


@pytest.mark.parametrize(
    ("tree", "type", "keys", "expected"),
    [
        ("aic100", "accel", {"id": "accel1"}, ["/dev/accel/accel1"]),
        ("aic100", "accel", {"id": "10"}, ["/dev/accel/accel10"]),
        ("aic100", "accel", {"pci": "01:00.0"}, ["/dev/accel/accel0"]),
        ("aic100", "accel", {"driver": "qaic", "count": "all"}, ["/dev/accel/accel0", "/dev/accel/accel1"]),
        ("mlx5", "infiniband", {"parent": "ib0"}, ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]),
        ("mlx5", "infiniband", {"parent": "mlx5_1"}, ["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"]),
        ("mlx5", "infiniband", {"id": "506b:4b03:00cb:1234"}, ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]),
        (
            "mlx5",
            "infiniband",
            {"pci": "0000:19:00.3", "access": "full"},
            [*(f"/dev/infiniband/{name}10" for name in ("uverbs", "umad", "issm")), "/dev/infiniband/rdma_cm"],
        ),
        ("virtual", "infiniband", {}, ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]),
        ("usb", "usb", {"vendorid": "1a86"}, ["/dev/bus/usb/001/013", "/dev/bus/usb/001/014"]),
        ("usb", "usb", {"serial": "AH06W0EQ"}, ["/dev/bus/usb/001/012"]),
        ("usb", "usb", {"id": "1a86:7523@pci-0000:00:14.0-usb-0:4"}, ["/dev/bus/usb/001/014"]),
        ("usb", "usb", {"busnum": "3", "devnum": "24"}, ["/dev/bus/usb/003/024"]),
        ("usb", "unix-hotplug", {"vendorid": "1a86", "subsystem": "tty"}, ["/dev/ttyUSB1", "/dev/ttyUSB2"]),
        ("usb", "unix-hotplug", {"vendorid": "0951", "subsystem": "block"}, ["/dev/sdd"]),
    ],
    ids=str,
)
def test_nodes(machine: Machine, tree: str, type: str, keys: dict[str, str], expected: list[str]) -> None:
    found = planned(machine(tree), type, **keys)
    assert nodes(found) == expected
    assert any(row[0] == "identity" for row in found)
    assert {row[2] for row in found if row[0] == "lease"} >= {
        f"node:{path}" for path in expected if "rdma_cm" not in path
    }


def test_a_disk_is_a_block_device(machine: Machine) -> None:
    assert planned(machine("usb"), "unix-hotplug", subsystem="block")[0][2] == "block"


def test_all_usb_devices_are_no_hubs(machine: Machine) -> None:
    root = machine("usb")
    assert len(nodes(planned(root, "usb"))) == 6
    assert nodes(planned(root, "usb", vendorid="0409", productid="0058")) == ["/dev/bus/usb/003/020"]


def test_what_is_plugged_in_is_noticed(machine: Machine) -> None:
    root = machine("usb")
    for found in (planned(root, "usb", vendorid="1a86"), planned(root, "unix-hotplug", subsystem="tty")):
        identity = [row[2:] for row in found if row[0] == "identity"]
        assert not rows.changed([["identity", "d", root + file, text] for file, text in identity if text])
        (number,) = Path(root, "sys/bus/usb/devices/1-4").resolve().glob("devnum")
        was = number.read_text()
        number.write_text("99\n")  # out, and in again
        assert rows.changed([["identity", "d", root + file, text] for file, text in identity if text])
        number.write_text(was)
        Path(root, "sys/bus/usb/devices/9-9").symlink_to("1-4")
        assert rows.changed([["identity", "d", root + file, text] for file, text in identity if text])
        Path(root, "sys/bus/usb/devices/9-9").unlink()


def test_an_adapter_that_is_renumbered(machine: Machine) -> None:
    before, after = machine("mlx5"), machine("mlx5", change=trees.swap("uverbs0", "uverbs1"))
    assert nodes(planned(before, "infiniband", parent="ib0"))[0] == "/dev/infiniband/uverbs0"
    assert nodes(planned(after, "infiniband", parent="ib0"))[0] == "/dev/infiniband/uverbs1"
    identity = [row for row in planned(before, "infiniband", parent="ib0") if row[0] == "identity"]
    assert any(not Path(after + file).exists() for _, _, file, _ in identity)


@pytest.mark.parametrize(
    ("tree", "type", "keys", "kind", "words"),
    [
        ("aic100", "accel", {}, SpecError, ("3 accel devices", "0000:01:00.0", "0000:02:00.0")),
        ("aic100", "accel", {"id": "accel"}, NotFoundError, ("0000:01:00.0",)),
        ("mlx5", "infiniband", {}, SpecError, ("5 infiniband", "mlx5_10")),
        ("mlx5", "infiniband", {"parent": "mlx5"}, NotFoundError, ("mlx5_0",)),
        ("mlx5", "infiniband", {"access": "most"}, SpecError, ("verbs, full",)),
        ("usb", "usb", {"serial": "AH06W0E", "required": "true"}, NotFoundError, ("AH06W0EQ",)),
        ("usb", "usb", {"vendorid": "12345"}, SpecError, ("four hexadecimal",)),
        ("usb", "unix-hotplug", {"vendorid": "0bad", "required": "true"}, NotFoundError, ("0bad", "1a86")),
        ("usb", "unix-hotplug", {}, SpecError, ("vendorid", "subsystem")),
        ("nothing", "accel", {}, NotFoundError, ("device list accel",)),
        ("nothing", "usb", {"lease": "shared:0"}, SpecError, ("shared:N",)),
    ],
    ids=str,
)
def test_what_cannot_be_had(
    machine: Machine, tree: str, type: str, keys: dict[str, str], kind: type[CtrmgrError], words: tuple[str, ...]
) -> None:
    with pytest.raises(kind) as error:
        planned(machine(tree), type, **keys)
    said = f"{error.value.message} {error.value.hint}"
    assert all(word in said for word in words), said


def test_a_device_without_a_node(machine: Machine) -> None:
    root = machine("mlx5")
    for path in Path(root, "sys/class/infiniband_verbs").iterdir():
        path.unlink()
    with pytest.raises(HostError, match="mlx5_0"):
        planned(root, "infiniband", parent="mlx5_0")


def moved(found: list[list[str]]) -> list[list[str]]:
    return [row[2:] for row in found if row[0] in ("netdev", "rdma")]


def test_the_link_of_an_adapter(machine: Machine) -> None:
    found = planned(machine("mlx5"), "infiniband", parent="ib0", nictype="physical", mtu="2044", name="ib9")
    assert moved(found) == [["ib0", "ib9", "", "2044", "required"], ["mlx5_0"]]
    assert ["lease", "d", "link:ib0", "exclusive"] in found
    assert any(row[0] == "identity" and row[2] == "/sys/class/net/ib0/address" for row in found)
    optional = planned(machine("mlx5"), "infiniband", parent="mlx5_0", nictype="physical", required="false")
    assert moved(optional) == [["ib0", "ib0", "", "0", "optional"], ["mlx5_0"]]
    assert moved(planned(machine("mlx5"), "infiniband", parent="ib0")) == [["mlx5_0"]]


def test_a_free_virtual_function(machine: Machine) -> None:
    """One whose link is not on the host is another instance's."""
    root = machine("mlx5")
    first = moved(planned(root, "infiniband", parent="mlx5_0", nictype="sriov"))
    link = first[0][0]
    for path in Path(root).glob(f"sys/**/net/{link}"):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    for path in Path(root).glob("sys/**/gid_attrs/ndevs/*"):
        if path.read_text().strip() == link:
            path.unlink()
    second = moved(planned(root, "infiniband", parent="mlx5_0", nictype="sriov"))
    assert second[0][0] != link
    assert second[1] != first[1]


@pytest.mark.parametrize(
    ("tree", "keys", "error", "said"),
    [
        ("mlx5", {"parent": "ib0", "mtu": "2044"}, SpecError, "nictype"),
        ("mlx5", {"parent": "ib0", "mtu": "67", "nictype": "physical"}, SpecError, "MTU"),
        ("mlx5", {"parent": "ib0", "name": "a/b", "nictype": "physical"}, SpecError, "name for a link"),
        ("mlx5", {"parent": "ib0", "hwaddr": "52:54", "nictype": "physical"}, SpecError, "hardware address"),
        ("mlx5", {"count": "all", "nictype": "physical"}, SpecError, "count"),
        ("virtual", {"nictype": "physical"}, UnsupportedError, "made of software"),
    ],
)
def test_links_that_cannot_be_given(
    machine: Machine, tree: str, keys: dict[str, str], error: type[CtrmgrError], said: str
) -> None:
    with pytest.raises(error, match=said):
        planned(machine(tree), "infiniband", **keys)


def test_what_has_moved_in_is_kept_in_a_plan_that_is_made_again(machine: Machine) -> None:
    """A link that the instance has is not on the host: other keys can be changed all the same."""
    image = type("Image", (), {"rootfs": "/", "metadata": {}})()
    given = {"d": device.check("d", {"type": "infiniband", "parent": "ib0", "nictype": "physical"})}
    host = Host(machine("mlx5"), privileged=False)
    before = compile.build(image, {}, given, host, ignore_unsupported=True)
    gone = Host(machine("virtual"), privileged=False)
    with pytest.raises(NotFoundError):
        compile.build(image, {}, given, gone, ignore_unsupported=True)
    for old in (before, compile.build(image, {}, given, gone, ignore_unsupported=True, old=before)):
        after = compile.build(image, {}, given, gone, ignore_unsupported=True, old=old)
        assert moved(after) == moved(before)
        assert after.count(["identity", "d", rows.ALWAYS, ""]) == 1


def test_memory_that_verbs_pin(machine: Machine) -> None:
    image = type("Image", (), {"rootfs": "/", "metadata": {}})()
    host = Host(machine("mlx5"), privileged=False)
    given = {"d": device.check("d", {"type": "infiniband", "parent": "ib0"})}
    for config, devices, limit in (
        ({}, given, ["unlimited", "unlimited"]),
        ({"limits.kernel.memlock": "65536:131072"}, given, ["65536", "131072"]),
        ({"limits.kernel.memlock": "65536:131072"}, {}, ["65536", "131072"]),
    ):
        found = compile.build(image, config, devices, host, ignore_unsupported=True)
        assert [row[2:] for row in found if row[:2] == ["rlimit", "memlock"]] == [limit]
    found = compile.build(image, {}, {}, host, ignore_unsupported=True)
    assert ["rlimit", "memlock", "unlimited", "unlimited"] not in found


def test_a_device_that_comes_live_is_planned_anew_at_the_next_start(machine: Machine) -> None:
    values = device.check("d", {"type": "infiniband", "parent": "ib0"})
    again = ["identity", "d", rows.ALWAYS, ""]
    assert again in rows.live("d", values, machine("mlx5"))
    assert again not in rows.rows("d", values, machine("mlx5"))


def test_a_physical_nic() -> None:
    found = planned("/", "nic", nictype="physical", parent="eth7", hwaddr="52:54:00:12:34:56")
    assert moved(found) == [["eth7", "eth7", "52:54:00:12:34:56", "0", "required"]]
    for wrong in ({"parent": "eth7", "limits.max": "1Mbit"}, {}, {"parent": "eth7", "ipv4.address": "10.0.0.1"}):
        with pytest.raises(SpecError):
            planned("/", "nic", nictype="physical", **wrong)
    with pytest.raises(SpecError, match="two devices bring a link `x`"):
        rows.shared([row for one in ("a", "b") for row in links.netdev(one, one, "x", "", "0", "required")])


def test_hardware_and_plan_meet_in_the_compiled_rows(machine: Machine) -> None:
    image = type("Image", (), {"rootfs": "/", "metadata": {}})()
    given = {name: device.check(name, {"type": "infiniband", "parent": name}) for name in ("mlx5_0", "mlx5_1")}
    found = compile.build(image, {}, given, Host(machine("mlx5"), privileged=False), ignore_unsupported=True)
    assert ["shares", "mlx5_1", "/dev/infiniband/rdma_cm"] in found
    with pytest.raises(UnsupportedError, match="`p` cannot be done: a whole PCI"):
        compile.build(image, {}, {"p": device.check("p", {"type": "pci"})}, Host("/"))


@pytest.mark.parametrize("kind", sorted(driver.DRIVERS))
def test_every_driver_says_how_it_makes_rows(kind: str) -> None:
    module = driver.load(kind)
    assert hasattr(module, "resolve") != hasattr(module, "rows")
    assert driver.is_live(kind) or kind in ("disk", "nic", "none")


# Disks

WD, NVME = "naa.50014ee2b9f01234", "eui.002538b511b01234"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/dev/sdb", WD),
        ("/dev/disk/by-id/wwn-0x50014ee2b9f01234", WD),
        ("/dev/nvme0n1p2", f"{NVME}-part2"),
        ("/dev/disk/by-id/nvme-eui.002538b511b01234-part2", f"{NVME}-part2"),
        ("/dev/loop0", ""),  # a loop device is whatever it was made of today
        ("/dev/none", ""),
    ],
)
def test_a_disk_is_remembered_by_what_it_is(machine: Machine, source: str, expected: str) -> None:
    root = machine("disks")
    assert unix_block.remembered({"source": source}, root) == ({"id": expected} if expected else {})


def test_a_disk_that_has_another_name_today(machine: Machine) -> None:
    keys = {"source": "/dev/sdb", "id": WD}
    before = planned(machine("disks"), "unix-block", **keys)
    assert before[0][3:5] == ["/dev/sdb", "/dev/sdb"]
    after = planned(machine("disks", change=trees.swap("sda", "sdb")), "unix-block", **keys)
    assert after[0][3:5] == ["/dev/sda", "/dev/sdb"], "the disk's node of today, under the name that it had inside"
    assert [row[2] for row in before if row[0] == "identity"] == ["/sys/block/sdb/diskseq"]
    assert [row[2] for row in after if row[0] == "identity"] == ["/sys/block/sda/diskseq"]


def test_a_disk_by_its_identity_alone(machine: Machine) -> None:
    root = machine("disks")
    assert planned(root, "unix-block", id=f"{NVME}-part1", path="/dev/data")[0][3:5] == ["/dev/nvme0n1p1", "/dev/data"]
    assert planned(root, "unix-block", id=NVME)[0][3:5] == ["/dev/nvme0n1", "/dev/nvme0n1"]
    files = [row[2] for row in planned(root, "unix-block", id=f"{NVME}-part1") if row[0] == "identity"]
    assert files == ["/sys/block/nvme0n1/diskseq", "/sys/block/nvme0n1/nvme0n1p1/partition"]


def test_another_disk_under_the_number_is_refused(machine: Machine) -> None:
    root = machine("disks")
    with pytest.raises(NotFoundError, match=rf"`naa\.gone` is not on this host; `/dev/sdb` is `{WD}` now"):
        planned(root, "unix-block", source="/dev/sdb", id="naa.gone")
    assert planned(root, "unix-block", id="naa.gone", required="false") == [["identity", "d", rows.ALWAYS, ""]]


def test_a_disk_that_is_not_there_is_for_the_start_to_say(machine: Machine) -> None:
    row, _, rule = planned(machine("disks"), "unix-block", source="/dev/sdz", required="false")
    assert row[3] == "/dev/sdz" and row[-1] == "optional"
    assert rule[0] == "hotplug" and rule[6:] == ["block", "source=sdz", "path=sdz"]


@pytest.mark.parametrize(
    ("kind", "keys", "words"),
    [
        ("usb", {"vendorid": "1a86"}, ["usb", "vendorid=1a86"]),
        ("usb", {"id": "1a86:7523@pci-0000:00:14.0-usb-0:4"}, ["usb", "vendorid=1a86", "productid=7523", "socket=1-4"]),
        ("unix-hotplug", {"vendorid": "1a86", "subsystem": "tty"}, ["unix-hotplug", "subsystem=tty", "vendorid=1a86"]),
        ("usb", {"serial": "none", "gid": "dialout"}, ["usb", "serial=none"]),
        ("usb", {"id": "0403:6001:none"}, ["usb", "vendorid=0403", "productid=6001", "serial=none"]),
        ("unix-hotplug", {"vendorid": "0bad"}, ["unix-hotplug", "vendorid=0bad"]),
    ],
)
def test_what_comes_later(machine: Machine, kind: str, keys: dict[str, str], words: list[str]) -> None:
    """The rule by which the monitor chooses, and whose the node is then: with what is there now, and with nothing."""
    (rule,) = (row for row in planned(machine("usb"), kind, **keys) if row[0] == "hotplug")
    assert (rule[6], sorted(rule[7:])) == (words[0], sorted(words[1:]))
    assert rule[3:6] == [keys.get("gid", "0"), "0660", "rwm"]


@pytest.mark.parametrize("id", ["1-9", "0403:6001@pci-0000:00:14.0-usb-0:9", "0403:6001"])
def test_a_socket_that_is_not_there_says_nothing_of_what_comes(machine: Machine, id: str) -> None:
    """It is looked for at the next start, and an attach fails."""
    assert [row[0] for row in planned(machine("usb"), "usb", id=id)] == ["identity"]


def test_only_disks_have_something_to_note_down(machine: Machine) -> None:
    root = machine("disks")
    keys = {"type": "unix-block", "source": "/dev/sdb"}
    assert rows.remembered(keys, root) == {**keys, "id": WD}
    for keys in ({"type": "unix-char", "source": "/dev/sdb"}, {"type": "unix-block", "source": "/dev/sdb", "id": "x"}):
        assert rows.remembered(keys, root) == keys
