# SPDX-License-Identifier: GPL-3.0-or-later
"""The specs of a machine: order of the directories, conflicts, broken files, and what a device does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ctrmgr.cdi.registry import Registry, folders
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, NetDevice
from ctrmgr.errors import ConflictError, NotFoundError, SpecError
from tests.cdi_specs import FIXTURES, put, spec


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without specs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/u/.config")
    return tmp_path


def test_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folders({"XDG_CONFIG_HOME": "/c"}) == ("/etc/cdi", "/run/cdi", "/c/cdi")
    monkeypatch.setenv("HOME", "/home/v")
    assert folders({}) == ("/etc/cdi", "/run/cdi", "/home/v/.config/cdi")


def test_a_machine_without_specs(root: Path) -> None:
    registry = Registry(str(root))
    assert (registry.devices, registry.errors) == ({}, {})
    with pytest.raises(NotFoundError) as caught:
        registry.find("v/c=one")
    assert caught.value.hint == f"no spec is in {root}/etc/cdi, {root}/run/cdi, {root}/home/u/.config/cdi"


def test_all_vendors_together(root: Path) -> None:
    (root / "etc/cdi").mkdir(parents=True)
    for path in FIXTURES:
        if path.name != "nvidia-wsl.yaml":
            shutil.copy(path, root / "etc/cdi")
    registry = Registry(str(root))
    assert (registry.errors, registry.conflicts) == ({}, {})
    assert len(registry.devices) == 13
    edits = registry.edits(["nvidia.com/gpu=0", "nvidia.com/gpu=all", "amd.com/gpu=1"])
    paths = [node.path for node in edits.device_nodes]
    assert paths.count("/dev/nvidia0") == 1
    assert {"/dev/nvidiactl", "/dev/nvidia1", "/dev/kfd", "/dev/dri/renderD129"} <= set(paths)


@pytest.mark.parametrize("winner", ["run/cdi", "home/u/.config/cdi"])
def test_a_later_directory_wins(root: Path, winner: str) -> None:
    put(root / "etc/cdi", "a.json", spec("v/c", "one", "two", env=["FROM=etc"]))
    put(root / winner, "b.json", spec("v/c", "one", env=["FROM=later"]))
    registry = Registry(str(root))
    assert registry.edits(["v/c=one"]).env == ("FROM=later",)
    assert registry.edits(["v/c=two"]).env == ("FROM=etc",)
    assert registry.conflicts == {}


def test_two_files_of_one_directory_make_a_device_unusable(root: Path) -> None:
    put(root / "etc/cdi", "a.json", spec("v/c", "one", "two"))
    put(root / "etc/cdi", "b.json", spec("v/c", "one"))
    registry = Registry(str(root))
    assert set(registry.devices) == {"v/c=two"}
    with pytest.raises(ConflictError) as caught:
        registry.find("v/c=one")
    assert caught.value.message == f"`v/c=one` is defined by `{root}/etc/cdi/a.json` and `{root}/etc/cdi/b.json`"


def test_a_conflict_ends_where_a_later_directory_has_it_once(root: Path) -> None:
    put(root / "etc/cdi", "a.json", spec("v/c", "one"))
    put(root / "etc/cdi", "b.json", spec("v/c", "one"))
    put(root / "run/cdi", "c.json", spec("v/c", "one", env=["A=run"]))
    assert Registry(str(root)).edits(["v/c=one"]).env == ("A=run",)


def test_one_name_in_two_kinds_is_no_conflict(root: Path) -> None:
    put(root / "etc/cdi", "a.json", spec("v/c", "one"))
    put(root / "etc/cdi", "b.json", spec("v/d", "one"))
    assert set(Registry(str(root)).devices) == {"v/c=one", "v/d=one"}


def test_broken_files_hide_no_other_and_are_told(root: Path) -> None:
    put(root / "etc/cdi", "a.yaml", "cdiVersion: [\n")
    put(root / "etc/cdi", "b.json", {**spec(), "cdiVersion": "9.0.0"})
    put(root / "etc/cdi", "c.json", spec("v/c", "one"))
    os.mkfifo(root / "etc/cdi/d.yaml")
    (root / "etc/cdi/e.yaml").symlink_to("nowhere")
    (root / "etc/cdi/f.yaml").mkdir()
    (root / "etc/cdi/g.json").write_bytes(b"\xff")
    registry = Registry(str(root))
    assert set(registry.devices) == {"v/c=one"}
    reasons = {os.path.basename(path): error.message for path, error in registry.errors.items()}
    assert set(reasons) == {"a.yaml", "b.json", "d.yaml", "e.yaml", "g.json"}
    assert "line 2" in reasons["a.yaml"]
    assert "is newer than" in reasons["b.json"]
    assert "is not a file" in reasons["d.yaml"]
    assert "No such file" in reasons["e.yaml"]
    assert "is not UTF-8" in reasons["g.json"]
    with pytest.raises(NotFoundError) as caught:
        registry.find("vendor.example/class=one")
    assert (
        caught.value.hint
        and "b.json" in caught.value.hint
        and caught.value.hint.startswith("there are devices of v/c; not used: `")
        and caught.value.hint.endswith("g.json: `ctrmgr cdi validate` says why")
    )
    for name in "acdefg":
        path = next((root / "etc/cdi").glob(f"{name}.*"))
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(NotFoundError) as alone:
        Registry(str(root)).find("v/c=one")
    assert alone.value.hint
    assert alone.value.hint.startswith(f"not used: `{root}/etc/cdi/b.json`: `cdiVersion` `9.0.0` is newer")


@pytest.mark.parametrize("whose", ["file", "folder"])
def test_what_everybody_may_write_is_not_trusted(root: Path, whose: str) -> None:
    path = put(root / "run/cdi", "a.json", spec("v/c", "one"))
    wide = path if whose == "file" else path.parent
    wide.chmod(0o777)
    registry = Registry(str(root))
    assert registry.devices == {}
    assert "can be written by everybody" in registry.errors[str(wide)].message


@pytest.mark.parametrize("whose", ["file", "folder"])
def test_what_another_user_wrote_is_not_trusted(root: Path, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo -E` with the directories of whoever called it."""
    path = put(root / "home/u/.config/cdi", "a.json", spec("v/c", "one"))
    other = str(path if whose == "file" else path.parent)
    real = os.stat

    def stat(path: str, **options: bool) -> os.stat_result:
        found = list(real(path, **options))
        return os.stat_result([*found[:4], 1000, *found[5:]] if path == other else found)

    monkeypatch.setattr(os, "stat", stat)
    registry = Registry(str(root))
    assert registry.devices == {}
    assert registry.errors[other].message == f"`{other}` belongs to user 1000 and is not trusted"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert set(Registry(str(root)).devices) == {"v/c=one"}


@pytest.mark.parametrize("name", ["a.yml", "a.txt", "a", ".a.json", "a.json.tmp7", "a.yaml~"])
def test_other_files_are_no_specs(root: Path, name: str) -> None:
    put(root / "etc/cdi", name, spec("v/c", "one"))
    registry = Registry(str(root))
    assert (registry.devices, registry.errors) == ({}, {})


def test_gpu_1_is_not_gpu_10(root: Path) -> None:
    put(root / "etc/cdi", "a.json", spec("v/gpu", "10", "11"))
    with pytest.raises(NotFoundError) as caught:
        Registry(str(root)).find("v/gpu=1")
    assert caught.value.message == "there is no CDI device `v/gpu=1`"
    assert caught.value.hint == "did you mean `v/gpu=11` or `v/gpu=10`?"


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("nvidia.com/gpu=00", "did you mean `nvidia.com/gpu=0`?"),
        ("nvidia.com/gpu=all", "there are nvidia.com/gpu=0, nvidia.com/gpu=GPU-2fd4b9f4-3a0c-4d47"),
        ("w.x/yyy=one", "there are devices of nvidia.com/gpu"),
    ],
)
def test_an_unknown_device_says_what_there_is(root: Path, asked: str, hint: str) -> None:
    put(root / "etc/cdi", "a.json", spec("nvidia.com/gpu", "0", "GPU-2fd4b9f4-3a0c-4d47"))
    with pytest.raises(NotFoundError) as caught:
        Registry(str(root)).find(asked)
    assert caught.value.hint == hint


@pytest.mark.parametrize("asked", ["", "gpu", "nvidia.com/gpu", "nvidia.com=0", "/dev/null", "v/c=", "v/c=../x"])
def test_what_is_no_name(root: Path, asked: str) -> None:
    with pytest.raises(SpecError, match="is not a CDI device"):
        Registry(str(root)).edits([asked])


def test_what_is_said_for_all_devices_comes_once_and_first(root: Path) -> None:
    wide = {"env": ["W=1"], "hooks": [{"hookName": "poststop", "path": "/wide"}], "additionalGids": [7, 0]}
    put(
        root / "etc/cdi",
        "a.json",
        {
            **spec("v/c", "a", "b", env=["W=2"], hooks=[{"hookName": "poststop", "path": "/own"}]),
            "containerEdits": wide,
        },
    )
    put(root / "etc/cdi", "b.json", {**spec("w/c", "a"), "containerEdits": {"env": ["W=3"]}})
    registry = Registry(str(root))
    assert registry.edits(["v/c=a", "v/c=b", "v/c=a", "w/c=a"]) == ContainerEdits(
        env=["W=3"],
        device_nodes=[DeviceNode("/dev/x")],
        hooks=[Hook("poststop", "/wide"), Hook("poststop", "/own")],
        additional_gids=[7],
    )
    assert registry.find("v/c=a").edits == registry.edits(["v/c=a"])


def test_two_interfaces_of_one_name(root: Path) -> None:
    for index, name in enumerate(("one", "two")):
        device = {"hostInterfaceName": f"eth{index}", "name": "net0"}
        put(root / "etc/cdi", f"{name}.json", spec("v/c", name, netDevices=[device]))
    registry = Registry(str(root))
    assert registry.edits(["v/c=one"]).net_devices == (NetDevice("eth0", "net0"),)
    with pytest.raises(ConflictError, match="`eth0` and `eth1` would both be `net0` inside"):
        registry.edits(["v/c=one", "v/c=two"])
