# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI specs of recorded machines, and what our own reader makes of them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.backend import passable
from ctrmgr.cdi import model, names, write
from ctrmgr.devices import rows
from tests import trees
from tests.conftest import Ctr


@pytest.mark.parametrize("tree", trees.NAMES)
def test_every_machine(machine: Callable[..., str], tree: str) -> None:
    root = machine(tree)
    usable = [each for each in passable.described(root=root) if not each.reason]
    assert len({each.name for each in usable}) == len(usable)
    if not usable:
        assert tree in ("nothing", "disks", "usb", "nvidia")  # the last has no libraries of its driver
        return
    spec = write.build("v.com/d", {each.name: each.edits for each in usable})
    for form in ("yaml", "json"):
        path = Path(root, "etc/cdi", f"x.{form}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write.text(spec, form))
        assert model.load(str(path)).data() == spec.data()
        for each in usable:
            names.check_device(each.name)
            found = rows.rows("d", {"type": "cdi", "id": f"v.com/d={each.name}"}, root)
            ours = {node.path for node in each.edits.device_nodes}
            assert ours and {row[4] for row in found if row[0] == "device"} == ours
        path.unlink()


def test_driver_files_and_hooks(machine: Callable[..., str]) -> None:
    root = machine("nvidia")
    for file in ("usr/lib/libcuda.so.535.129.03", "usr/bin/nvidia-ctk"):
        Path(root, file).parent.mkdir(parents=True, exist_ok=True)
        Path(root, file).touch()
    (first, *_) = passable.described(["0000:18:00.0"], root)
    assert first.name == "gpu-0000:18:00.0"
    assert [mount.container_path for mount in first.edits.mounts] == ["/usr/lib/libcuda.so.535.129.03"]
    assert [hook.args[1:3] for hook in first.edits.hooks] == [("hook", "create-symlinks"), ("hook", "update-ldcache")]
    Path(root, "usr/bin/nvidia-ctk").unlink()
    assert passable.described(["0000:18:00.0"], root)[0].edits.hooks == ()


def test_the_command(ctr: Ctr, machine: Callable[..., str], tmp_path: Path) -> None:
    root = machine("mi300x")
    path = tmp_path / "amd.json"
    ctr("cdi", "generate", "--root", root, "--kind", "amd.example/gpu", "-o", str(path))
    listed = ctr("cdi", "validate", str(path)).stdout
    assert "amd.example/gpu" in listed and "gpu-0000:05:00.0-xcp3" in listed
    assert "renderD131" in ctr("cdi", "generate", "--root", root, "0000:05:00.0/xcp3").stdout
    assert "no GPU" in ctr("cdi", "generate", "--root", machine("nothing"), code=3).stderr
    assert "libraries" in ctr("cdi", "generate", "--root", machine("nvidia"), "0000:18:00.0", code=5).stderr
    assert "no render node" in ctr("cdi", "generate", "--root", machine("nvidia"), code=3).stderr
    assert "--kind" in ctr("cdi", "generate", "--root", root, "--kind", "gpu", code=2).stderr
    assert "no device `card77`" in ctr("cdi", "generate", "--root", root, "card77", code=3).stderr
