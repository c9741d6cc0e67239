# SPDX-License-Identifier: GPL-3.0-or-later
"""A device that is another one since its plan was made is looked for again when the instance starts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr import state
from tests.conftest import Ctr


def setup(image: Path) -> str:
    return subprocess.check_output(["losetup", "--find", "--show", image], text=True).strip()


@pytest.fixture
def loop(ctr: Ctr) -> Iterator[str]:
    image = ctr.folder / "disk.img"
    image.write_bytes(b"first".ljust(1 << 20, b"\0"))
    node = setup(image)
    yield node
    subprocess.run(["losetup", "-d", node], check=False)


def identity(ctr: Ctr) -> list[list[str]]:
    return [row for row in state.read_flat(f"{ctr.folder}/state/instances/c1/plan") if row[0] == "identity"]


@pytest.mark.usefixtures("alone")  # else another test may get the number first
def test_another_disk_under_the_same_number(ctr: Ctr, loop: str) -> None:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("attach-device", "c1", "disk", "type=unix-block", f"source={loop}", "path=/dev/data")
    before = identity(ctr)
    assert [row[2] for row in before] == [f"/sys/block/{loop[5:]}/diskseq"]
    ctr("stop", "--force", "c1")
    subprocess.run(["losetup", "-d", loop], check=True)
    other = ctr.folder / "other.img"
    other.write_bytes(b"other".ljust(1 << 20, b"\0"))
    subprocess.run(["losetup", loop, other], check=True)
    ctr("start", "c1")
    after = identity(ctr)
    assert after != before and after[0][3] == Path(after[0][2]).read_text().strip()
    assert ctr("exec", "c1", "--", "head", "-c5", "/dev/data").stdout == "other"


@pytest.fixture
def vendor(ctr: Ctr) -> Path:
    """A CDI specification of the user's own."""
    folder = ctr.folder / "xdg/cdi"
    folder.mkdir(parents=True)
    ctr.env["XDG_CONFIG_HOME"] = str(ctr.folder / "xdg")
    nodes = [
        {
            "path": "/dev/vendor/fuse",
            "hostPath": "/dev/fuse",
            "uid": 5,
            "gid": 6,
            "fileMode": 0o640,
            "permissions": "rw",
        }
    ]
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "vendor.com/net",
        "devices": [{"name": "d0", "containerEdits": {"deviceNodes": nodes}}],
    }
    (folder / "v.json").write_text(json.dumps(spec))
    return folder / "v.json"


def test_a_cdi_device_comes_and_goes(ctr: Ctr, vendor: Path) -> None:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("attach-device", "c1", "vendor.com/net=d0")
    shown = ctr("exec", "c1", "--", "stat", "-c", "%u %g %a %t:%T", "/dev/vendor/fuse").stdout.split()
    assert shown == ["5", "6", "640", "a:e5"]
    ctr("restart", "--force", "c1")
    assert ctr("exec", "c1", "--", "test", "-c", "/dev/vendor/fuse").code == 0
    ctr("detach-device", "c1", "vendor.com/net=d0")
    assert ctr("exec", "c1", "--", "test", "-e", "/dev/vendor/fuse", code=None).code == 1


def test_a_device_that_is_gone_stops_the_start_unless_it_is_optional(ctr: Ctr, vendor: Path) -> None:
    for name, required in (("c1", "true"), ("c2", "false")):
        ctr("launch", "builtin:busybox", name, "-p", "no-network")
        ctr("attach-device", name, "v", "type=cdi", "id=vendor.com/net=d0", f"required={required}")
        ctr("stop", "--force", name)
        plan = Path(f"{ctr.folder}/state/instances/{name}/plan")
        plan.write_text(
            plan.read_text().replace(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "another boot")
        )
    os.rename(vendor, f"{vendor}.off")
    said = ctr("start", "c1", code=3).stderr
    assert "device `v`" in said and "vendor.com/net=d0" in said
    assert not (ctr.folder / "run/c1").exists()
    ctr("start", "c2")
    assert ctr("exec", "c2", "--", "test", "-e", "/dev/vendor/fuse", code=None).code == 1
    ctr("stop", "--force", "c2")
    os.rename(f"{vendor}.off", vendor)
    ctr("start", "c1")
    ctr("start", "c2")
    assert ctr("exec", "c2", "--", "test", "-c", "/dev/vendor/fuse").code == 0


def test_a_profile_with_a_device_that_this_machine_has_not(ctr: Ctr) -> None:
    said = ctr(
        "launch", "builtin:busybox", "c1", "-p", "no-network", "-d", "g,type=gpu,pci=0000:ff:1f.7", code=3
    ).stderr
    assert "device `g`: this host has no gpu device with `pci=0000:ff:1f.7`" in said
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-d", "g,type=gpu,pci=0000:ff:1f.7,required=false")
