# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices on a server by what it tells of its hardware, or by a specification of its machine; without one."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from ctrmgr.devices import lxd
from ctrmgr.remote import translate
from ctrmgr.remote.server import Server
from ctrmgr.remote.wire import Target
from tests.translated import ALL, EXTENSIONS, HARDWARE, INTEL, golden, one

# By what a server tells of its hardware


def test_gpus_that_a_server_tells_of() -> None:
    pinned = {"d": {"type": "gpu", "pci": "0000:65:00.0"}}
    for chosen in (
        {"uuid": "GPU-5f1c2f4a-0000-1111-2222-333344445555", "vendorid": "10de"},
        {"id": "renderD129"},
        {"id": "nvidia0"},
        {"id": "0000:65:00.0"},
    ):
        found = one({"type": "gpu", **chosen}, resources=HARDWARE)
        assert (found.devices, found.problems) == (pinned, []), chosen
    assert one({"type": "gpu", "count": "2"}, resources=HARDWARE).devices == {"d": {"type": "gpu"}}
    assert one({"type": "gpu", "count": "1"}, resources=HARDWARE).problems[0][0] == "d.count"
    assert one({"type": "gpu", "id": "card7"}, resources=HARDWARE).problems[0][0] == "d.id"


def test_a_gpu_that_is_no_pci_device() -> None:
    """Of a board with everything on one chip: it is there, and has no address."""
    board = {"gpu": {"cards": [{"drm": {"id": 0, "card_name": "card0"}}]}}
    whole = one({"type": "gpu", "count": "1", "required": "false"}, resources=board)
    assert (whole.devices, whole.problems, whole.absent) == ({"d": {"type": "gpu"}}, [], [])
    assert one({"type": "gpu", "id": "0"}, resources=board).devices == {"d": {"type": "gpu", "id": "0"}}
    assert one({"type": "gpu", "id": "card0"}, resources=board).problems[0][0] == "d.id"
    assert one({"type": "gpu", "pci": "00:02.0"}, resources=board).absent[0][0] == "d"


def test_a_gpu_that_need_not_be_there() -> None:
    amd = {"type": "gpu", "vendorid": "1002", "required": "false"}
    found = one(amd, resources=HARDWARE)
    assert found.devices == {} and found.problems == [] and "left out" in found.notes[0]
    assert one({**amd, "vendorid": "8086"}, resources=HARDWARE).devices == {"d": {"type": "gpu", "vendorid": "8086"}}
    assert one(amd).problems[0][0] == "d.required"


def test_drivers_of_nvidia() -> None:
    wanted = {"type": "gpu", "driver.capabilities": "all"}
    runtime = {"nvidia.runtime": "true", "nvidia.driver.capabilities": "all"}
    assert one(wanted, resources=HARDWARE).config == runtime
    assert one({**wanted, "vendorid": "8086"}).config == {}
    assert one(wanted, resources={"gpu": {"cards": [INTEL]}}).config == {}
    assert golden({"nvidia.driver.capabilities": "compute"}, {"d": wanted}, resources=HARDWARE).config == {
        **runtime, "nvidia.driver.capabilities": "compute",
    }  # fmt: skip
    old = one(wanted, resources=HARDWARE, extensions=ALL - {"nvidia_runtime"})
    assert [key for key, _ in old.problems] == ["d.driver.capabilities"]


def test_amds_other_node_is_told() -> None:
    assert "kfd" in one({"type": "gpu", "vendorid": "1002"}).notes[0]
    kfd = {"type": "unix-char", "source": "/dev/kfd"}
    assert golden({}, {"d": {"type": "gpu", "vendorid": "1002"}, "kfd": kfd}).notes == []


def test_nodes_of_rdma_devices() -> None:
    found = one({"type": "infiniband", "count": "all", "gid": "rdma"}, resources=HARDWARE)
    assert found.problems == [] and found.devices == {
        "d": {"type": "unix-char", "source": "/dev/infiniband/uverbs0", "mode": "0666"},
        "d-2": {"type": "unix-char", "source": "/dev/infiniband/rdma_cm", "mode": "0666", "required": "false"},
    }
    assert found.names == [("d", "gid", "rdma"), ("d-2", "gid", "rdma")]
    assert found.config == {"user.ctrmgr.parts.d": "d d-2"}
    full = one({"type": "infiniband", "pci": "41:00.0", "access": "full"}, resources=HARDWARE).devices
    assert [keys["source"].rpartition("/")[2] for keys in full.values()] == ["uverbs0", "umad0", "issm0", "rdma_cm"]
    none = {"type": "infiniband", "count": "all", "vendorid": "1234"}
    assert one(none, resources=HARDWARE).problems[0][0] == "d"
    assert "left out" in one({**none, "required": "false"}, resources=HARDWARE).notes[0]
    link = one({"type": "infiniband", "nictype": "physical", "vendorid": "15b3"}, resources=HARDWARE)
    assert link.devices == {"d": {"type": "infiniband", "nictype": "physical", "parent": "ib0"}}


def test_a_disk_by_what_stays() -> None:
    found = one({"type": "unix-block", "id": "eui.0025-part1", "path": "/dev/scratch"}, resources=HARDWARE)
    assert found.devices == {"d": {"type": "unix-block", "path": "/dev/scratch", "source": "/dev/nvme0n1p1"}}
    whole = one({"type": "disk", "id": "nvme-eui.0025", "path": "/data"}, resources=HARDWARE)
    assert whole.devices == {"d": {"type": "disk", "path": "/data", "source": "/dev/nvme0n1"}}
    for id in ("eui.0025-part2", "eui.9999"):
        assert one({"type": "unix-block", "id": id}, resources=HARDWARE).problems[0][0] == "d.id"


def test_limits_of_a_disk_where_servers_have_them() -> None:
    found = one({"type": "unix-block", "source": "/dev/sda", "limits.max": "1MiB"}, extensions=EXTENSIONS)
    assert found.devices["d"] == {
        "type": "unix-block",
        "source": "/dev/sda",
        "limits.read": "1MiB",
        "limits.write": "1MiB",
    }


def test_for_whoever_chooses_a_member() -> None:
    """What it chooses by stays until it has."""
    asked = {"type": "gpu", "vendorid": "10de", "count": "2", "lease": "shared:2", "gid": "107"}
    assert one(asked, placing=True).devices == {"d": asked}
    links = {"type": "infiniband", "count": "all", "vendorid": "15b3"}
    assert one(links, placing=True).devices == {"d": links}
    assert one({**asked, "required": "false"}, placing=True).problems[0][0] == "d.required"


# Container Device Interface


def spec(root: Path, **edits: object) -> None:
    folder = root / "etc/cdi"
    folder.mkdir(parents=True)
    nodes = [{"path": "/dev/npu0", "hostPath": "/dev/null0", "type": "c"}]
    data = {
        "cdiVersion": "1.1.0", "kind": "vendor.com/npu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": nodes}}],
        "containerEdits": {"env": ["NPU=0"], **edits},
    }  # fmt: skip
    (folder / "vendor.json").write_text(json.dumps(data))
    (root / "opt").mkdir()
    (root / "opt/libnpu.so.1.2").write_text("")
    (root / "dev").mkdir()


LIBRARY = {
    "hostPath": "/opt/libnpu.so.1.2",
    "containerPath": "/usr/lib/libnpu.so.1.2",
    "options": ["ro", "nosuid", "nodev", "bind"],
}
NPU = {"type": "cdi", "id": "vendor.com/npu=0"}


def hook(*words: str) -> dict[str, object]:
    return {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", *words]}


def test_a_specification_of_this_machine(tmp_path: Path) -> None:
    """Nodes, files, links to these and variables, one by one."""
    link = hook("create-symlinks", "--link", "libnpu.so.1.2::/usr/lib/libnpu.so")
    spec(tmp_path, mounts=[LIBRARY], hooks=[link, hook("update-ldcache", "--folder", "/usr/share/none")])
    found = one({**NPU, "group": "render", "mode": "0660"}, root=str(tmp_path))
    assert found.problems == []
    file = {"type": "disk", "source": "/opt/libnpu.so.1.2", "readonly": "true"}
    assert found.devices == {
        "d": {"type": "unix-char", "source": "/dev/null0", "path": "/dev/npu0", "mode": "0660"},
        "d-2": {**file, "path": "/usr/lib/libnpu.so.1.2"},
        "d-3": {**file, "path": "/usr/lib/libnpu.so"},
    }
    assert found.names == [("d", "gid", "render")]
    assert found.config == {"environment.NPU": "0", "user.ctrmgr.parts.d": "d d-2 d-3 environment.NPU"}
    said = golden({"environment.NPU": "1"}, {"d": NPU}, root=str(tmp_path))
    assert said.config == {"environment.NPU": "1", "user.ctrmgr.parts.d": "d d-2 d-3"}


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"hooks": [hook("update-ldcache", "--folder", "/usr/lib")], "mounts": [LIBRARY]}, "update-ldcache"),
        ({"hooks": [hook("chmod", "--mode", "755", "--path", "/dev/dri")]}, "chmod"),
        ({"hooks": [hook("create-symlinks", "--link", "/else::/usr/lib/x")]}, "link `/usr/lib/x`"),
        ({"mounts": [{**LIBRARY, "hostPath": "/opt/gone"}]}, "no `/opt/gone`"),
        ({"mounts": [{**LIBRARY, "options": ["noexec"]}]}, "noexec"),
        ({"mounts": [{"hostPath": "tmpfs", "containerPath": "/t", "type": "tmpfs"}]}, "tmpfs"),
        ({"additionalGids": [44]}, "additionalGids"),
        ({"intelRdt": {"closID": "a"}}, "intelRdt"),
        ({"deviceNodes": [{"path": "/dev/x", "type": "c", "permissions": "r"}]}, "access"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_of_a_specification_no_server_does(tmp_path: Path, edits: dict[str, object], said: str) -> None:
    """All or nothing."""
    spec(tmp_path, **edits)
    found = one(NPU, root=str(tmp_path))
    assert found.devices == {} and found.config == {} and [key for key, _ in found.problems] == ["d"]
    assert said in found.problems[0][1]


def test_a_specification_that_is_not_there(tmp_path: Path) -> None:
    spec(tmp_path)
    other = {**NPU, "id": "vendor.com/npu=7"}
    assert one(other, root=str(tmp_path)).problems[0][0] == "d"
    assert "left out" in one({**other, "required": "false"}, root=str(tmp_path)).notes[0]
    assert one(NPU).problems == [
        ("d", f"it reads no specification of `vendor.com`, and {lxd.ELSEWHERE}"),
    ]


def test_a_link_of_the_hosts(tmp_path: Path) -> None:
    spec(tmp_path, netDevices=[{"hostInterfaceName": "npu0", "name": "eth1"}])
    found = one(NPU, root=str(tmp_path))
    assert found.devices["d-2"] == {"type": "nic", "nictype": "physical", "parent": "npu0", "name": "eth1"}


def test_gpus_by_their_cdi_names() -> None:
    """LXD reads NVIDIA's and AMD's since it has the extensions; Incus reads none."""
    card = {"type": "gpu", "id": "nvidia.com/gpu=0"}
    has = {"gpu_devices", "gpu_cdi"}
    assert one(card, extensions=has).devices == {"d": card}
    assert one({**card, "type": "cdi"}, extensions=has).devices == {"d": card}
    amd = {"type": "cdi", "id": "amd.com/gpu=0"}
    assert one(amd, extensions=has).problems[0][0] == "d"
    assert one(amd, extensions={*has, "gpu_cdi_amd"}).devices == {"d": {"type": "gpu", "id": "amd.com/gpu=0"}}
    old = one(card, kind="incus", extensions={"gpu_devices"})
    assert old.problems[0][0] == "d" and "`gpu_cdi`" in old.problems[0][1]


def test_nvidias_gpus_where_no_specification_is_read() -> None:
    older = ALL - {"gpu_cdi"}
    runtime = {"nvidia.runtime": "true", "nvidia.driver.capabilities": "all"}
    every = one({"type": "cdi", "id": "nvidia.com/gpu=all"}, extensions=older, resources=HARDWARE)
    assert (every.devices, every.config, every.problems) == ({"d": {"type": "gpu", "vendorid": "10de"}}, runtime, [])
    card = {"type": "cdi", "id": "nvidia.com/gpu=GPU-5f1c2f4a-0000-1111-2222-333344445555"}
    found = one(card, extensions=older, resources=HARDWARE)
    assert (found.devices, found.config) == ({"d": {"type": "gpu", "pci": "0000:65:00.0"}}, runtime)
    assert "number" in one({**card, "id": "nvidia.com/gpu=0"}, extensions=older, resources=HARDWARE).problems[0][1]


def test_whose_machine_a_socket_is_of(tmp_path: Path) -> None:
    """Not every unix socket leads to a server of this machine: whoever passes on what he gets listens at one, too."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        server = Server("x", Target("x", f"unix://{path}"))
        server._info = {"environment": {"kernel_version": os.uname().release}}
        assert not translate.is_here(server)
        comm = Path("/proc/self/comm")
        before = comm.read_text()
        try:
            comm.write_text("incusd")
            assert translate.is_here(server)
            server._info = {"environment": {"kernel_version": "2.6.18"}}
            assert not translate.is_here(server)
        finally:
            comm.write_text(before)
    assert not translate.is_here(Server("x", Target("x", "https://localhost:8443")))
