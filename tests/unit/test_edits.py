# SPDX-License-Identifier: GPL-3.0-or-later
"""The words of CDI as plain data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from tests.conftest import ROOT


def test_values_are_equal_by_their_fields_and_do_not_change() -> None:
    node = DeviceNode("/dev/a", major=1, minor=3)
    assert node == DeviceNode("/dev/a", "", "", 1, 3)
    assert node != DeviceNode("/dev/a", major=1, minor=4)
    assert NetDevice("a", "b") != Mount("a", "b")
    assert len({node, DeviceNode("/dev/a", major=1, minor=3)}) == 1
    with pytest.raises(AttributeError, match="DeviceNode does not change"):
        node.path = "/dev/b"
    with pytest.raises(AttributeError, match="DeviceNode does not change"):
        del node.path
    assert node.path == "/dev/a"


def test_repr_can_be_read_back() -> None:
    edits = ContainerEdits(
        ["A=b"],
        [DeviceNode("/dev/a", "/dev/b", "c", 1, 3, 0o666, "rw", 0, 5)],
        [NetDevice("eth9", "net0")],
        [Mount("/a", "/b", ["ro"], "none")],
        [Hook("createContainer", "/bin/x", ["x", "-v"], ["A=b"], 5)],
        IntelRdt("c", "L3:0=f", "MB:0=1", ["x"], True, True, True),
        [44],
    )
    assert eval(repr(edits)) == edits
    assert repr(DeviceNode("/dev/a", uid=3)) == "DeviceNode(path='/dev/a', uid=3)"


def test_empty_edits_are_false() -> None:
    assert not ContainerEdits()
    assert ContainerEdits(intel_rdt=IntelRdt())
    assert ContainerEdits(additional_gids=[0])


@pytest.mark.parametrize(
    ("permissions", "access"), [("", "rwm"), ("none", ""), ("r", "r"), ("rw", "rw"), ("rwm", "rwm")]
)
def test_access(permissions: str, access: str) -> None:
    assert DeviceNode("/dev/a", permissions=permissions).access == access


@pytest.mark.parametrize(
    ("mount", "is_bind"),
    [
        (Mount("/a", "/b"), True),
        (Mount("/a", "/b", ["rbind"], "none"), True),
        (Mount("/a", "/b", ["bind"], "ext4"), True),
        (Mount("tmpfs", "/b", ["size=1m"], "tmpfs"), False),
    ],
)
def test_bind_mounts(mount: Mount, is_bind: bool) -> None:
    assert mount.is_bind is is_bind


def test_add_keeps_everything_in_order() -> None:
    first = ContainerEdits(["A=1"], hooks=[Hook("poststop", "/x")], intel_rdt=IntelRdt("a"))
    second = ContainerEdits(["A=2"], hooks=[Hook("poststop", "/x")], additional_gids=[0, 7])
    both = first.add(second)
    assert both.env == ("A=1", "A=2")
    assert both.hooks == (Hook("poststop", "/x"),) * 2
    assert both.intel_rdt == IntelRdt("a")
    assert second.add(first).intel_rdt == IntelRdt("a")
    assert both.add(ContainerEdits(intel_rdt=IntelRdt("b"))).intel_rdt == IntelRdt("b")


def test_merged_is_what_a_runtime_ends_with() -> None:
    edits = ContainerEdits(
        ["A=1", "B=1", "A=2"],
        [DeviceNode("/dev/a", uid=1), DeviceNode("/dev/b"), DeviceNode("/dev/a", uid=2)],
        [NetDevice("e0", "a"), NetDevice("e0", "b")],
        [Mount("/x", "/m"), Mount("/y", "/m")],
        [Hook("poststop", "/x"), Hook("poststop", "/y"), Hook("poststop", "/x")],
        additional_gids=[0, 7, 7, 5],
    ).merged()
    assert edits == ContainerEdits(
        ["A=2", "B=1"],
        [DeviceNode("/dev/a", uid=2), DeviceNode("/dev/b")],
        [NetDevice("e0", "b")],
        [Mount("/y", "/m")],
        [Hook("poststop", "/x"), Hook("poststop", "/y")],
        additional_gids=[7, 5],
    )
    assert edits.merged() == edits


def test_importing_them_costs_no_module() -> None:
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules); import ctrmgr.edits; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__future__", "ctrmgr", "ctrmgr.edits", "ctrmgr.errors"}
