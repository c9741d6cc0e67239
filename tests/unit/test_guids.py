# SPDX-License-Identifier: GPL-3.0-or-later
"""GUIDs of virtual functions: the message to the kernel, and a driver that reads them when it takes a function."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr import state
from ctrmgr.backend import guids
from ctrmgr.errors import CtrmgrError, HostError, SpecError, UnsupportedError
from ctrmgr.kernel import rtnetlink
from tests.unit.test_devices_other import planned

Machine = Callable[..., str]
VF, OTHER = "0000:19:00.3", "0000:19:00.2"
ZERO, OLD = "00:00:00:00:00:00:00:00", "11:22:33:44:55:66:77:88"
NODE, PORT = "00:11:22:33:44:55:66:77", "88:99:aa:bb:cc:dd:ee:ff"
GIVEN = {"node_guid": NODE, "port_guid": PORT}
ROW = ["vf-guid", "ib", VF, NODE, PORT]


def test_the_message_is_iproute2s() -> None:
    """What `ip link set lo vf 3 node_guid … port_guid …` of iproute2 6.1 sends, but for the sequence number."""
    sent = """
        50 00 00 00 10 00 05 00 01 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00
        30 00 16 00 2c 00 01 00 14 00 0a 00 03 00 00 00 00 00 00 00 77 66 55 44 33 22 11 00 14 00 0b 00
        03 00 00 00 00 00 00 00 ff ee dd cc bb aa 99 88
    """
    made = rtnetlink.change(1, 3, GIVEN)
    if struct.pack("=H", 1) == struct.pack("<H", 1):
        assert made == bytes.fromhex(sent)
    assert len(made) == 80


def test_answers() -> None:
    """Of the function that is asked for; of a driver that does not tell, nothing; an error is one."""
    one, other = (rtnetlink.change(1, n, {"node_guid": guid}) for n, guid in ((2, PORT), (3, NODE)))
    for said, found in ((one, {}), (other, {"node_guid": NODE}), (rtnetlink.change(1, 3, GIVEN), GIVEN)):
        assert rtnetlink.answer(said, 3) == found
    assert rtnetlink.answer(rtnetlink.message(rtnetlink.NEWLINK, 0, 1, b""), 3) == {}
    assert rtnetlink.answer(rtnetlink.HEADER.pack(36, 2, 0, 1, 0) + bytes(20), 3) == {}
    with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
        rtnetlink.answer(rtnetlink.HEADER.pack(36, 2, 0, 1, 0) + struct.pack("=i", -errno.EOPNOTSUPP) + bytes(16), 3)
    for broken in (other[:-8] + bytes(8), other[:40], rtnetlink.message(16, 0, 1, b"\1\0\0\0\0\0\0\0")):
        assert NODE not in rtnetlink.answer(broken, 3).values()


def test_the_kernel_reads_it() -> None:
    """It has looked at the function's number and GUIDs before it says that a loopback has no functions."""
    assert rtnetlink.guids(1, 0) == {}
    with pytest.raises(OSError, match=os.strerror(errno.EPERM if os.geteuid() else errno.EOPNOTSUPP)):
        rtnetlink.set_guids(1, 0, GIVEN)


class Hardware:
    """The functions of a recorded machine. Their driver reads what they were set to when it takes them."""

    def __init__(self, root: str, patch: pytest.MonkeyPatch) -> None:
        self.root, self.functions, self.bound = (
            root,
            {0: dict.fromkeys(GIVEN, ZERO), 1: dict.fromkeys(GIVEN, OLD)},
            list[str](),
        )
        self.deaf = self.zero_is_refused = False
        patch.setattr(rtnetlink, "guids", lambda link, number: dict(self.functions[number]) if link == 4 else {})
        patch.setattr(rtnetlink, "set_guids", self.set)
        patch.setattr(guids.Virtual, "_write", lambda function, path: self.write(path, function.address))
        patch.setattr(guids, "PATIENCE", 0.1)

    def set(self, link: int, number: int, wanted: dict[str, str]) -> None:
        if link != 4 or (self.zero_is_refused and ZERO in wanted.values()):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.functions[number].update(wanted)

    def write(self, path: str, address: str) -> None:
        assert path.startswith(f"{self.root}/sys/bus/pci/drivers/mlx5_core/")
        self.bound.append(f"{path.rpartition('/')[2]} {address}")
        if path.endswith("/bind") and not self.deaf:
            now = self.functions[int(address[-1]) - 2]
            folder = next(Path(f"{self.root}/sys/bus/pci/devices/{address}/infiniband").iterdir())
            words = {key: [guid.replace(":", "")[at : at + 4] for at in range(0, 16, 4)] for key, guid in now.items()}
            (folder / "node_guid").write_text(":".join(words["node_guid"]) + "\n")
            (folder / "ports/1/gids/0").write_text(
                ":".join(["fe80", "0000", "0000", "0000", *words["port_guid"]]) + "\n"
            )


@pytest.fixture
def hardware(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hardware:
    monkeypatch.setenv("CTRMGR_RUN_DIR", str(tmp_path / "run"))
    return Hardware(machine("mlx5"), monkeypatch)


def noted() -> dict[str, list[str]]:
    folder = f"{state.run_dir()}/.guids"
    return {name: state.read_flat(f"{folder}/{name}")[0] for name in state.entries(folder)}


def test_given_and_put_back(hardware: Hardware) -> None:
    root = hardware.root
    guids.prepare("c1", [ROW], root)
    assert hardware.functions[1] == GIVEN
    assert hardware.bound == [f"unbind {VF}", f"bind {VF}"]
    assert noted() == {VF: ["c1", "ib", OLD, OLD]}
    guids.prepare("c1", [ROW], root)
    assert len(hardware.bound) == 2, "its driver has them: it is left alone"
    guids.mend("c2", running=False, root=root)
    assert noted(), "it is another one's"
    guids.mend("c1", running=False, root=root)
    assert hardware.functions[1] == dict.fromkeys(GIVEN, OLD)
    assert hardware.bound[2:] == hardware.bound[:2]
    assert noted() == {}


def test_what_another_instance_has_next(hardware: Hardware) -> None:
    """The first has died, and no command has found that yet: what the function was at first is not lost, nor taken from the second."""
    root = hardware.root
    guids.prepare("c1", [ROW], root)
    guids.prepare("c2", [["vf-guid", "x", VF, "", NODE]], root)
    guids.mend("c1", running=False, root=root)
    assert hardware.functions[1] == {"node_guid": NODE, "port_guid": NODE}
    assert noted() == {VF: ["c2", "x", OLD, OLD]}
    guids.mend("c2", running=False, root=root)
    assert hardware.functions[1] == dict.fromkeys(GIVEN, OLD)


def test_a_function_that_had_none(hardware: Hardware) -> None:
    """Where a driver takes no zeros, it is set to what stands for none."""
    hardware.zero_is_refused = True
    guids.prepare("c1", [["vf-guid", "ib", OTHER, NODE, PORT]], hardware.root)
    guids.mend("c1", running=False, root=hardware.root)
    assert hardware.functions[0] == dict.fromkeys(GIVEN, guids.NONE)


def test_what_goes_wrong_changes_nothing(hardware: Hardware) -> None:
    """A driver that does not take them; no such function; a physical one, or one without a link of InfiniBand."""
    root = hardware.root
    hardware.deaf = True
    with pytest.raises(HostError, match="does not take"):
        guids.prepare("c1", [ROW], root)
    assert hardware.functions[1] == dict.fromkeys(GIVEN, OLD)
    assert noted() == {}
    Path(root, "sys/class/net/ib0/type").write_text("1\n")
    for address, error in (("0000:19:00.7", HostError), ("0000:19:00.0", HostError), (VF, UnsupportedError)):
        with pytest.raises(error):
            guids.prepare("c1", [["vf-guid", "ib", address, NODE, PORT]], root)
    assert noted() == {}


def test_a_function_that_is_gone(hardware: Hardware) -> None:
    guids.prepare("c1", [ROW], hardware.root)
    Path(hardware.root, "sys/bus/pci/devices", VF).unlink()
    guids.mend("c1", running=False, root=hardware.root)
    assert noted() == {}


def test_rows(machine: Machine) -> None:
    """Nothing that changes with a GUID is what the device is known by."""
    found = planned(machine("mlx5"), "infiniband", nictype="sriov", parent="mlx5_0", node_guid=NODE.upper())
    assert [row for row in found if row[0] == "vf-guid"] == [["vf-guid", "d", OTHER, NODE, ""]]
    assert not [row for row in found if row[0] == "identity" and row[2].endswith(("/node_guid", "/address"))]


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        ({"parent": "ib0", "nictype": "physical"}, UnsupportedError, "only a virtual function's"),
        ({"parent": "mlx5_2"}, SpecError, "nictype"),
        ({"parent": "ib0", "nictype": "sriov", "node_guid": ZERO}, SpecError, "nobody's"),
        ({"parent": "ib0", "nictype": "sriov", "node_guid": "00:11:22"}, SpecError, "8 bytes"),
    ],
)
def test_refused(machine: Machine, keys: dict[str, str], error: type[CtrmgrError], said: str) -> None:
    with pytest.raises(error, match=said):
        planned(machine("mlx5"), "infiniband", **{"node_guid": NODE, **keys})
