# SPDX-License-Identifier: GPL-3.0-or-later
"""When GUIDs of virtual functions are given and put back. What is done then is in tests/unit/test_guids.py: no such hardware is here, and
the monitor that puts them back is linked with tests/rootful/guids_double.c."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.backend.guids import NONE
from ctrmgr.kernel import rtnetlink
from tests.conftest import Ctr
from tests.rootful.planned import wait_for
from tests.rootful.test_resctrl import linked

VF, GUID = "0000:ff:00.7", "00:11:22:33:44:55:66:77"


def test_when(ctr: Ctr) -> None:
    """As long as the instance has the device; then, or when it has none, the next command puts them back."""
    note = Path(ctr.folder / "run/.guids" / VF)

    def has(owner: str) -> None:
        note.parent.mkdir(exist_ok=True)
        note.write_text(f"{owner}\tfuse\t{GUID}\t{GUID}\nend\n")

    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-d", "fuse,type=unix-char,source=/dev/fuse")
    has("c1")
    ctr("config", "set", "c1", "user.note=any command")
    assert note.exists()
    ctr("detach-device", "c1", "fuse")
    assert not note.exists()
    has("c1")
    ctr("config", "set", "c1", "user.note=it has no such device")
    assert not note.exists()
    has("c1")
    ctr("stop", "--force", "c1")
    assert not note.exists()
    has("c2")
    plan = ctr.folder / "state/instances/c1/plan"
    rows = plan.read_text().removesuffix("end\n")
    plan.write_text(f"{rows}vf-guid\tib\t{VF}\t{GUID}\t\nend\n")
    assert f"`{VF}` is no virtual function" in ctr("start", "c1", code=5).stderr
    plan.write_text(f"{rows}end\n")
    ctr("start", "c1")
    assert note.exists(), "it is another one's"
    state = ctr.folder / "run/c1/state"
    before = state.read_text()
    plan.write_text(f"{rows}vf-guid\tib\t{VF}\t{GUID}\t\nend\n")
    ctr("exec", "c1", "--", "reboot", "-f", code=None)
    wait_for(
        lambda: state.exists() and state.read_text() not in ("", before)
    )  # its monitor knows the row, and keeps to itself


@pytest.fixture
def drivers() -> Iterator[Path]:
    """A physical function with an InfiniBand link, and its second virtual function; this process alone sees them."""
    top = Path("/sys/bus/pci")
    subprocess.run(["mount", "-t", "tmpfs", "functions", top], check=True)
    physical, virtual, driver = top / "devices/0000:ff:00.0", top / "devices" / VF, top / "drivers/mlx5_core"
    for folder in (driver, physical / "net/ib0", physical / "net/eth0", virtual / "net/ib1"):
        folder.mkdir(parents=True)
    for link, kind in (("eth0", "1"), ("ib0", "32")):
        (physical / f"net/{link}/type").write_text(f"{kind}\n")
        (physical / f"net/{link}/ifindex").write_text("4\n")
    for name, target in (("virtfn0", "0000:ff:00.6"), ("virtfn1", VF)):
        (physical / name).symlink_to(f"../{target}")
    (virtual / "physfn").symlink_to("../0000:ff:00.0")
    (virtual / "driver").symlink_to("../../drivers/mlx5_core")
    for file in ("bind", "unbind"):
        (driver / file).touch()
    yield driver
    subprocess.run(["umount", top], check=True)


def test_an_instance_that_ends_by_itself(ctr: Ctr, drivers: Path, tmp_path: Path) -> None:
    """Its monitor puts them back, unless it begins another run; with what the driver takes where there were none."""
    ctr.env["CTRMGR_LIBEXEC"] = str(linked(tmp_path, "guids_double.c", ["netlink_run"]))
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    notes, told, state = ctr.folder / "run/.guids", ctr.folder / "run/guids-told", ctr.folder / "run/c1/state"
    notes.mkdir()
    for address, owner in ((VF, "c1"), ("0000:ff:00.6", "c2")):
        (notes / address).write_text(f"{owner}\tib\t{GUID}\t{rtnetlink.text(0)}\nend\n")
    run = state.read_text()
    ctr("exec", "c1", "--", "reboot", "-f", code=None)
    wait_for(lambda: state.exists() and state.read_text() not in ("", run))
    assert not told.exists()
    ctr("exec", "c1", "--", "poweroff", "-f", code=None)
    wait_for(lambda: not state.exists())
    assert [note.name for note in notes.iterdir()] == ["0000:ff:00.6"]
    wanted = rtnetlink.change(4, 1, {"node_guid": GUID, "port_guid": NONE})
    assert told.read_bytes()[16:] == wanted[16:], "all but the sequence number"
    assert [(drivers / file).read_text() for file in ("unbind", "bind")] == [VF, VF]
