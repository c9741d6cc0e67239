# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CDI device becomes: every field of the specification is done, or refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrmgr.devices import cdi_hooks, rows
from ctrmgr.edits import Hook
from ctrmgr.errors import NotFoundError, SpecError, UnsupportedError
from ctrmgr.spec import device


@pytest.fixture
def planned(machine: Callable[..., str]) -> Callable[..., list[list[str]]]:
    """The rows of a device of vendor.com/net whose own edits are given."""

    def plan(edits: dict[str, Any], common: dict[str, Any] | None = None, **keys: str) -> list[list[str]]:
        root = Path(machine("nothing"))
        for path in ("dev/vendor0", "dev/vendorctl"):
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_text("")
        (root / "etc/cdi").mkdir(parents=True, exist_ok=True)
        spec = {"cdiVersion": "1.1.0" if "netDevices" in edits else "0.7.0", "kind": "vendor.com/net", "containerEdits": common or {},
                "devices": [{"name": "d0", "containerEdits": edits}]}  # fmt: skip
        (root / "etc/cdi/vendor.json").write_text(json.dumps(spec))
        kind = keys.pop("type", "cdi")
        return rows.rows("d", device.check("d", {"type": kind, "id": "vendor.com/net=d0", **keys}), str(root))

    return plan


NODE = {
    "deviceNodes": [{"path": "/dev/vendor0", "type": "c", "permissions": "rw", "uid": 5, "gid": 44, "fileMode": 0o640}]
}
Planned = Callable[..., list[list[str]]]


def test_node_with_all_its_fields(planned: Planned) -> None:
    found = planned(NODE)
    assert found[0] == ["device", "d", "char", "/dev/vendor0", "/dev/vendor0", "5", "44", "0640", "rw", "required"]
    assert ["lease", "d", "cdi:vendor.com/net=d0", "shared"] in found
    assert ["lease", "d", "node:/dev/vendor0", "shared"] in found
    found = planned(NODE, gid="video", mode="0666", required="false")
    assert found[0][5:] == ["5", "video", "0666", "rw", "optional"]


def test_a_gpu_by_its_cdi_name(planned: Planned) -> None:
    assert planned(NODE, type="gpu") == planned(NODE)


def test_host_path_and_common_edits(planned: Planned) -> None:
    own = {"deviceNodes": [{"path": "/dev/nic", "hostPath": "/dev/vendor0"}], "env": ["VENDOR=1=2", "B="]}
    common = {"deviceNodes": [{"path": "/dev/vendorctl"}], "env": ["VENDOR=0"],
              "additionalGids": [44, 0, 44],
              "mounts": [{"hostPath": "/opt/lib", "containerPath": "/usr/lib/vendor", "options": ["ro", "nosuid", "rbind"]},
                         {"hostPath": "/opt/run", "containerPath": "/run/vendor", "options": ["rw", "noexec"]}]}  # fmt: skip
    found = planned(own, common)
    assert [row[3:5] for row in found if row[0] == "device"] == [
        ["/dev/vendorctl", "/dev/vendorctl"],
        ["/dev/vendor0", "/dev/nic"],
    ]
    assert [row[2] for row in found if row[0] == "device-group"] == ["44"]
    assert [row[1:] for row in found if row[0] == "device-env"] == [["d", "VENDOR", "1=2"], ["d", "B", ""]]
    assert [row[2:] for row in found if row[0] == "bind"] == [
        ["/opt/run", "/run/vendor", "rw,nosuid,nodev,noexec"],
        ["/opt/lib", "/usr/lib/vendor", "ro,nosuid,nodev"],
    ]
    leases = [row[2] for row in found if row[0] == "lease"]
    assert leases == ["cdi:vendor.com/net=d0", "node:/dev/vendor0"], (
        "what all devices of the vendor need is nobody's own"
    )


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"intelRdt": {"closID": "x"}}, "intelRdt"),
        ({"hooks": [{"hookName": "createContainer", "path": "/usr/bin/curl", "args": ["curl", "x"]}]}, "/usr/bin/curl"),
        (
            {
                "hooks": [
                    {"hookName": "poststop", "path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook", "chmod"]}
                ]
            },
            "poststop",
        ),
        ({"mounts": [{"hostPath": "none", "containerPath": "/x", "type": "overlay"}]}, "type `overlay`"),
        ({"mounts": [{"hostPath": "none", "containerPath": "/x", "type": "tmpfs", "options": ["uid=0"]}]}, "uid=0"),
        ({"mounts": [{"hostPath": "none", "containerPath": "/sys/x", "type": "tmpfs"}]}, "/sys/x"),
        ({"mounts": [{"hostPath": "/x", "containerPath": "/x", "options": ["suid"]}]}, "suid"),
        ({"mounts": [{"hostPath": "/x", "containerPath": "/proc/sys"}]}, "/proc/sys"),
        ({"mounts": [{"hostPath": "/x", "containerPath": "/dev/shm"}]}, "/dev/shm"),
        ({"deviceNodes": [{"path": "/dev/vendor0", "type": "p"}]}, "type `p`"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_name(planned: Planned, edits: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        planned({**NODE, **edits} if "deviceNodes" not in edits else edits)


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"deviceNodes": [{"path": "/etc/passwd", "hostPath": "/dev/vendor0"}]}, "below /dev"),
        ({"deviceNodes": [{"path": "/dev/pts/5", "hostPath": "/dev/vendor0"}]}, "belongs to something else"),
    ],
    ids=str,
)
def test_hostile_paths(planned: Planned, edits: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planned(edits)


def test_a_path_with_dots_spoils_the_specification(planned: Planned) -> None:
    with pytest.raises(NotFoundError) as error:
        planned({"mounts": [{"hostPath": "/opt/../etc", "containerPath": "/x"}]})
    assert "vendor.json" in str(error.value.hint)


def test_a_number_that_is_not_the_nodes(planned: Planned) -> None:
    with pytest.raises(NotFoundError, match="195:9"):
        planned({"deviceNodes": [{"path": "/dev/vendor0", "type": "c", "major": 195, "minor": 9}]})


@pytest.mark.parametrize("id", ["gpu0", "vendor.com=0", "/x"])
def test_what_is_no_cdi_name(id: str) -> None:
    with pytest.raises(SpecError, match="not a CDI device"):
        device.check("d", {"type": "cdi", "id": id})


def hook(path: str, *args: str, stage: str = "createContainer") -> Hook:
    return Hook(stage, path, args)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            hook("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"),
            [["ldcache", "/usr/lib64"]],
        ),
        (
            hook("/usr/bin/nvidia-ctk", "nvidia-ctk", "hook", "create-soname-symlinks", "--folder", "/usr/lib64"),
            [["ldcache", "/usr/lib64"]],
        ),
        (
            hook(
                "/usr/bin/nvidia-ctk",
                "nvidia-ctk",
                "hook",
                "create-symlinks",
                "--link",
                "a.so.1::/usr/lib/a.so",
                "--link=b::/c",
            ),
            [["symlink", "a.so.1", "/usr/lib/a.so"], ["symlink", "b", "/c"]],
        ),
        (
            hook("/x/nvidia-ctk", "nvidia-ctk", "hook", "chmod", "--mode", "755", "--path", "/dev/dri,/dev/x"),
            [["chmod", "0755", "/dev/dri"], ["chmod", "0755", "/dev/x"]],
        ),
        (hook("/x/nvidia-cdi-hook", "nvidia-cdi-hook", "disable-device-node-modification"), []),
        (hook("/x/nvidia-cdi-hook", "nvidia-cdi-hook", "update-ldcache"), [["ldcache", "/usr/lib"]]),
    ],
    ids=lambda value: "",
)
def test_known_hooks(given: Hook, expected: list[list[str]]) -> None:
    assert cdi_hooks.rows(given) == expected


def test_many_folders_are_several_rows() -> None:
    words = [word for n in range(10) for word in ("--folder", f"/lib{n}")]
    found = cdi_hooks.rows(hook("/x/nvidia-ctk", "nvidia-ctk", "hook", "update-ldcache", *words))
    assert [len(row) for row in found] == [9, 3]


@pytest.mark.parametrize(
    "args",
    [
        ("create-symlinks", "--link", "a"),
        ("create-symlinks", "--link", "a::../b"),
        ("create-symlinks", "--link", "a::/x/../../b"),
        ("create-symlinks", "--link"),
        ("create-symlinks", "a::/b"),
        ("chmod", "--mode", "4777", "--path", "/x"),
        ("chmod", "--path", "/x"),
        ("update-ldcache", "--folder", "lib"),
    ],
    ids=str,
)
def test_hooks_with_wrong_arguments(args: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="its specification"):
        cdi_hooks.rows(hook("/x/nvidia-cdi-hook", "nvidia-cdi-hook", *args))


def test_an_unknown_work_of_a_known_program() -> None:
    with pytest.raises(UnsupportedError, match="format-disk"):
        cdi_hooks.rows(hook("/x/nvidia-cdi-hook", "nvidia-cdi-hook", "format-disk"))
