# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices on a server whose machine has real ones: this machine's LXD inside the guest, and ctrmgr outside."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr
from tests.lab import vm
from tests.remote.daemons import tiny_image

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the lab is a PC"),
    pytest.mark.timeout(400),
]
END = "-----END CERTIFICATE-----\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Ctr]:
    """A ctrmgr that knows the guest's LXD as `lab`, with an image `tiny`."""
    port, said = free_port(), ""

    def hear(text: str) -> bool:
        nonlocal said
        said += text
        return END in said

    kinds = ["gpu", "net", "host", f"port={port}"]
    with vm.running("exec tests/lab/server", kinds, memory=2048, append="apparmor=0") as guest:
        guest.follow(200, hear)
        if END not in said:
            raise guest.failed()
        certificate = tmp_path / "server.crt"
        certificate.write_text(said[said.index("-----BEGIN") : said.index(END) + len(END)])
        ctr = Ctr(tmp_path)
        url = f"https://127.0.0.1:{port}"
        ctr("remote", "add", "lab", url, "--password", "lab", "--certificate", str(certificate))
        ctr("image", "import", str(tiny_image(tmp_path / "tiny.tar")), "lab:", "--alias", "tiny")
        yield ctr


def test_gpu_and_infiniband(lab: Ctr) -> None:
    """At the start of an instance, live into a running one with an owner, and out of it again."""

    def sh(script: str) -> list[str]:
        return lab("exec", "lab:c1", "--", "sh", "-c", script).stdout.split()

    lab("launch", "tiny", "lab:c1", "-d", "gpu,type=gpu")
    nodes = "cd /dev/dri 2>/dev/null && stat -c '%n:%u:%g:%a:%t' * 2>/dev/null; "
    assert sh(nodes + "exec 3<>/dev/dri/renderD128; echo opened") == [
        "card0:0:0:600:e2", "renderD128:0:0:600:e2", "opened",
    ]  # fmt: skip
    lab("detach-device", "lab:c1", "gpu")
    lab("attach-device", "lab:c1", "render", "type=gpu", "vendorid=1af4", "gid=107", "mode=0660")
    assert sh(nodes + "ls /dev/infiniband 2>/dev/null; true") == ["card0:0:107:660:e2", "renderD128:0:107:660:e2"]

    lab("attach-device", "lab:c1", "hca", "type=infiniband", "nictype=physical", "parent=eth0", "name=ib0")
    assert sh("ls /sys/class/net; exec 3<>/dev/infiniband/uverbs0; echo opened") == ["ib0", "lo", "opened"]
    other = lab("attach-device", "lab:c1", "more", "type=gpu", "vendorid=10de", code=6)
    assert "`lab:c1`: " in other.stderr and "GPU" in other.stderr
    wrong = lab("attach-device", "lab:c1", "more", "type=infiniband", "nictype=physical", "parent=eth9", code=6)
    assert "eth9" in wrong.stderr
    devices = json.loads(lab("info", "lab:c1", "--format", "json").stdout)["devices"]
    assert {each["name"]: each.get("link") for each in devices} == {"hca": "ib0", "render": None, "root": None}

    lab("detach-device", "lab:c1", "render")
    lab("detach-device", "lab:c1", "hca")

    # What the server has no key for: by what it tells of its hardware.
    lab("attach-device", "lab:c1", "named", "type=gpu", "id=renderD128", "group=render", "count=1")
    lab("attach-device", "lab:c1", "verbs", "type=infiniband", "gid=107")
    assert "pci: " in lab("config", "show", "lab:c1").stdout
    assert sh("stat -c '%n:%g:%a' /dev/dri/renderD128 /dev/infiniband/*; exec 3<>/dev/infiniband/uverbs0; echo opened") == [
        "/dev/dri/renderD128:107:600", "/dev/infiniband/rdma_cm:107:666", "/dev/infiniband/uverbs0:107:666", "opened",
    ]  # fmt: skip
    assert (
        "gives all that fit, which are 1" in lab("attach-device", "lab:c1", "two", "type=gpu", "count=2", code=5).stderr
    )
    lab("detach-device", "lab:c1", "named")
    lab("detach-device", "lab:c1", "verbs")
    assert sh("ls /dev/dri /dev/infiniband /sys/class/net") == [
        "/dev/dri:",
        "/dev/infiniband:",
        "/sys/class/net:",
        "lo",
    ]
    lab("delete", "--force", "lab:c1")
