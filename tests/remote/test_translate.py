# SPDX-License-Identifier: GPL-3.0-or-later
"""What profiles of ours become on real servers: it works, or is refused before anything is made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.devices import lxd
from ctrmgr.errors import BackendError
from ctrmgr.remote import translate
from ctrmgr.remote.server import Server
from ctrmgr.remote.wire import Target
from ctrmgr.spec import keys
from tests.remote.daemons import Daemon, Remote

NPU = "test.ctrmgr/npu=0"


@pytest.fixture
def specification() -> Iterator[None]:
    """Two nodes, a file with a link to it, and a variable, as this machine's CDI knows them."""
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
    link = ["nvidia-cdi-hook", "create-symlinks", "--link", "npu.conf.1::/usr/lib/npu.conf"]
    nodes = {"/dev/npu0": "/dev/zero", "/dev/npuctl": "/dev/full"}
    data = {
        "cdiVersion": "0.6.0",
        "kind": "test.ctrmgr/npu",
        "containerEdits": {
            "env": ["NPU=0"],
            "mounts": [
                {"hostPath": "/etc/hostname", "containerPath": "/usr/lib/npu.conf.1", "options": ["ro", "bind"]}
            ],
            "hooks": [{**hook, "args": link}],
        },
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "deviceNodes": [{"path": path, "hostPath": host, "type": "c"} for path, host in nodes.items()]
                },
            }
        ],
    }
    folder = Path("/run/cdi")
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    path = folder / "test.ctrmgr-npu.json"
    path.write_text(json.dumps(data))
    yield
    path.unlink()
    if made:
        folder.rmdir()


LOOK = "stat -c '%n %G %a' /dev/npu0 /dev/npuctl; cat /usr/lib/npu.conf; echo NPU=$NPU"


@pytest.mark.usefixtures("specification")
def test_a_device_of_a_specification(unix: Remote) -> None:
    """A server of this machine gets all that it says, one by one, and gives it back as one."""
    name = Path("/etc/hostname").read_text().strip()
    unix("launch", "tiny", "host:c1", "-c", "user.mine=1")
    before = unix("config", "show", "host:c1").stdout
    unix("attach-device", "host:c1", "npu", "type=cdi", f"id={NPU}", "group=render", "mode=0660")
    seen = unix("exec", "host:c1", "--", "sh", "-c", LOOK).stdout
    assert seen.splitlines() == ["/dev/npu0 render 660", "/dev/npuctl render 660", name, "NPU=0"]
    unix("detach-device", "host:c1", "npu")
    gone = "ls -d /dev/npu* /usr/lib/npu.conf* 2>/dev/null; echo NPU=$NPU"
    assert unix("exec", "host:c1", "--", "sh", "-c", gone).stdout == "NPU=\n"
    assert unix("config", "show", "host:c1").stdout == before
    unix("delete", "--force", "host:c1")
    unix("launch", "tiny", "host:c1", "-d", f"npu,type=cdi,id={NPU}")
    assert unix("exec", "host:c1", "--", "sh", "-c", LOOK).stdout.endswith(f"{name}\nNPU=0\n")


@pytest.mark.usefixtures("specification")
def test_a_device_of_another_machines_specification(https: Remote) -> None:
    """Who is reached by https may be anywhere: nothing is made of what holds here."""
    refused = https("launch", "tiny", "host:c1", "-d", f"npu,type=cdi,id={NPU}", code=5)
    assert "`host` cannot do `npu`: it reads no specification of `test.ctrmgr`" in refused.stderr
    assert https("list", "host:", "--format", "csv").stdout.count("\n") == 1


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_profiles_that_come_along(https: Remote) -> None:
    """As the server would get it, or an error with all that it cannot do."""
    wanted = https("launch", "tiny", "host:c1", "-p", "default", "-p", "usb-phone", "-p", "fuse", "--dry-run").stdout
    assert "vendorid: '1004'" in wanted and "source: /dev/fuse" in wanted
    words = ("-p", "gpu-slice", "-p", "host-network", "-p", "block-scratch")
    refused = https("launch", "tiny", "host:c1", *words, code=5).stderr
    assert refused.startswith("error: `host` cannot do `gpu`: ") and refused.count("error: ") == 3
    assert "\nerror: `eth0.nictype`: " in refused and "\nerror: `scratch.lease`: " in refused
    without = https("launch", "tiny", "host:c1", "-p", "default", "-p", "desktop-gui", "--ignore-unsupported")
    assert "`sound` was left out: it has no API extension" in without.stderr
    https("delete", "--force", "host:c1")
    assert https("list", "host:", "--format", "csv").stdout.count("\n") == 1


@pytest.mark.parametrize("daemon", ["incus"], indirect=True)
def test_an_instance_that_cannot_start_is_gone(https: Remote) -> None:
    """Hardware that the server tells it has not; a start that fails in the middle."""
    absent = https("launch", "tiny", "host:c1", "-d", "g,type=gpu,vendorid=fff0", code=3)
    assert "`host` cannot start with `g`" in absent.stderr
    https("launch", "tiny", "host:c1", "-c", "raw.lxc=lxc.hook.pre-start = /bin/false", code=6)
    assert https("list", "host:", "--format", "csv").stdout.count("\n") == 1


BASE = {
    "disk": {"path": "/x", "source": "/tmp"},
    "gpu": {},
    "infiniband": {"nictype": "physical", "parent": "ib0"},
    "unix-block": {"source": "/dev/loop0"},
    "unix-char": {"source": "/dev/fuse"},
    "unix-hotplug": {"vendorid": "1234"},
    "usb": {"vendorid": "1234"},
}
ELSEWHERE = ("image.", "volatile.", "cloud-init.", "cluster.*", "placement.")
"""Keys that a profile may not have, or of which only some words after the prefix are known."""


def test_what_is_called_native_the_server_knows(daemon: Daemon) -> None:
    """Asked one by one: it may find a value wrong, but no key unknown."""
    with Server("x", Target("x", f"unix://{daemon.socket}")) as server:
        there = translate.Live(server)

        def known(config: dict[str, str], devices: dict[str, dict[str, str]]) -> bool:
            try:
                server.change("POST", "/profiles", {"name": "probe", "config": config, "devices": devices})
            except BackendError as error:
                return "nknown configuration key" not in error.message and "nvalid device option" not in error.message
            server.change("DELETE", "/profiles/probe")
            return True

        names = [name for name in keys.KEYS if not name.startswith(ELSEWHERE)]
        names = [name.replace("hugepages.*", "hugepages.2MB").replace("*", "nofile") for name in names]
        native = [next(iter(translate.translate({name: "1"}, {}, there).config), "") for name in names]
        assert [name for name in native if name and not known({name: "1"}, {})] == []
        for kind, base in BASE.items():
            for key in lxd.ways_of(kind):
                if key.startswith("mig."):
                    continue  # of another kind of GPU
                value = base.get(key, "0700" if key == "mode" else "1")
                made = translate.translate({}, {"d": {"type": kind, **base, key: value}}, there)
                assert made.problems or known({}, made.devices), (kind, key)
