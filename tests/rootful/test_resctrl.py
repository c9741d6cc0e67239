# SPDX-License-Identifier: GPL-3.0-or-later
"""`intelRdt` of CDI specifications: an instance's class of cache and memory bandwidth, from a start to whatever ends it.

resctrl is plain directories, and the monitor one that is linked with tests/rootful/resctrl_double.c.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ctrmgr.kernel import helper
from tests.conftest import ROOT, Ctr, build
from tests.rootful.planned import wait_for

LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
CREATE = ("create", "builtin:busybox", "c2", "-p", "no-network")
CLASSES: dict[str, dict[str, object]] = {
    "own": {"schemata": ["L3:0=f", "MB:0=20"], "enableMonitoring": True},
    "plain": {},
    "gold": {"closID": "gold", "enableMonitoring": True},
    "same": {"closID": "gold", "l3CacheSchema": "L3: 0=00F0", "memBwSchema": "MB:0=25"},
    "other": {"closID": "gold", "l3CacheSchema": "L3:0=f"},
    "new": {"closID": "new", "schemata": ["L3:0=3"]},
    "none": {"closID": "none"},
    "wrong": {"schemata": ["L3:0=0"]},
    "default": {"closID": "/"},
}
CALLS = ("access", "fstatfs64", "mkdirat", "unlinkat", "openat64", "write", "close")


@pytest.fixture(scope="module")
def libexec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our programs, with a monitor whose kernel has resctrl."""
    return linked(tmp_path_factory.mktemp("libexec"), "resctrl_double.c", CALLS)


def linked(folder: Path, double: str, calls: Sequence[str]) -> Path:
    """Our programs, with a monitor that calls something else."""
    made = build(ROOT / "build/test")
    for path in made.iterdir():
        if path.is_file() and path.name != "ctrmgr-monitor":
            (folder / path.name).symlink_to(path)
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-D_FILE_OFFSET_BITS=64", "-static"]
    wrapped = [f"-Wl,--wrap={call}" for call in calls]
    sources = [ROOT / "tests/rootful" / double, *(made / "ctrmgr-monitor.p").glob("*.o")]
    include = f"-I{ROOT / 'native_helpers'}"
    subprocess.run(["cc", *flags, include, *wrapped, "-o", folder / "ctrmgr-monitor", *sources], check=True)
    return folder


class Machine:
    """A host with resctrl, which has a class `gold`, and a vendor's specification."""

    def __init__(self, ctr: Ctr, libexec: Path) -> None:
        self.ctr, self.top, self.log = ctr, ctr.folder / "resctrl", ctr.folder / "run/c1/resctrl"
        for folder in ("mon_groups", "info/L3_MON", "info/MB", "gold/mon_groups"):
            (self.top / folder).mkdir(parents=True)
        for folder in ("", "mon_groups", "gold", "gold/mon_groups"):
            (self.top / folder / ".resctrl").touch()
        (self.top / "info/L3_MON/mon_features").write_text("llc_occupancy\n")
        (self.top / "info/MB/bandwidth_gran").write_text("10\n")
        (self.top / "info/last_cmd_status").write_text("ok\n")
        for folder, lines in (("", "    L3:0=ff\n    MB:0=100\n"), ("gold", "    MB:0=30\n    L3:0=f0\n")):
            (self.top / folder / "schemata").write_text(lines)
            (self.top / folder / "tasks").touch()
        ctr.env.update(CTRMGR_LIBEXEC=str(libexec), RESCTRL=str(self.top), XDG_CONFIG_HOME=str(ctr.folder / "xdg"))
        ctr.argv = [sys.executable, str(ROOT / "tests/rootful/with_resctrl.py")]
        spec = ctr.folder / "xdg/cdi/vendor.json"
        spec.parent.mkdir(parents=True)
        devices = [{"name": name, "containerEdits": {"intelRdt": rdt}} for name, rdt in CLASSES.items()]
        spec.write_text(json.dumps({"cdiVersion": "1.1.0", "kind": "vendor.com/rdt", "devices": devices}))
        self.own = f"{ctr.env['CTRMGR_CGROUP_PARENT']}-c1"
        self.before = self.groups()

    def attach(self, device: str, code: int = 0) -> str:
        return self.ctr("attach-device", "c1", device, "type=cdi", f"id=vendor.com/rdt={device}", code=code).stderr

    def groups(self) -> set[str]:
        marked = {str(path.parent.relative_to(self.top)) for path in self.top.rglob(".resctrl")}
        return {name for name in marked if not name.endswith("mon_groups")}

    def tasks(self, group: str) -> list[str]:
        """All that were ever put there; `0` is whoever wrote it, and ends no line."""
        return re.sub(r"^0", "0\n", (self.top / group / "tasks").read_text(), flags=re.M).split()

    def running(self) -> set[str]:
        """Each thread of the instance."""
        return set((self.cgroup() / "cgroup.threads").read_text().split())

    def cgroup(self) -> Path:
        init = self.init()
        cgroup = next(line for line in Path(f"/proc/{init}/cgroup").read_text().splitlines() if line.startswith("0::"))
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        top = next(words[4] for words in mounts if words[words.index("-") + 1] == "cgroup2")
        return Path(f"{top}/{cgroup[3:]}")

    def init(self) -> str:
        rows = (self.ctr.folder / "run/c1/state").read_text().splitlines()
        return next(row.split("\t")[1] for row in rows if row.startswith("init"))

    def monitor(self) -> int:
        return int((self.ctr.folder / "run/c1/state").read_text().split("\t")[1].split("\n")[0])

    def nothing(self, *named: str) -> None:
        """No group is left that ends with the instance, and nobody means to remove one."""
        assert self.groups() == self.before | set(named)
        assert not self.log.exists()


@pytest.fixture
def machine(ctr: Ctr, libexec: Path) -> Machine:
    return Machine(ctr, libexec)


def test_from_the_start_to_the_end(machine: Machine) -> None:
    ctr, watched = machine.ctr, f"{machine.own}/mon_groups/{machine.own}"
    ctr(*LAUNCH, "-d", "r,type=cdi,id=vendor.com/rdt=own")
    assert machine.groups() == machine.before | {machine.own, watched}
    assert (machine.top / machine.own / "schemata").read_text().split() == ["L3:0=f", "MB:0=20"]
    for group in (machine.own, watched):
        assert machine.tasks(group) == [machine.init()], "before it had a child: those inherit it"
    (part,) = json.loads(ctr("info", "c1", "--format", "json").stdout)["attached"]
    assert (part["type"], part["path"]) == ("resctrl", machine.own)
    said = json.loads(ctr("cdi", "generate", "--instance", "c1", "--format", "json").stdout)
    assert said["devices"][0]["containerEdits"]["intelRdt"] == CLASSES["own"]
    assert ctr("exec", "c1", "echo", "in").stdout == "in\n"
    for group in (machine.own, watched):
        assert machine.tasks(group) == [machine.init(), "0"]
    first = machine.init()
    ctr("exec", "c1", "--", "reboot", "-f", code=None)
    wait_for(lambda: machine.log.exists() and machine.init() != first)
    wait_for(lambda: machine.tasks(machine.own) == [machine.init()])
    os.kill(machine.monitor(), signal.SIGKILL)
    wait_for(lambda: "STOPPED" in ctr("list").stdout)
    assert machine.own in machine.groups()
    ctr("config", "set", "c1", "user.any=command")
    machine.nothing()
    ctr("start", "c1")
    ctr("stop", "--force", "c1")
    machine.nothing()
    machine.top.rename(machine.top.with_name("unmounted"))
    assert f"no resctrl is mounted on `{machine.top}` any more" in ctr("start", "c1", code=5).stderr
    machine.top.with_name("unmounted").rename(machine.top)
    (machine.top / machine.own).mkdir()
    assert f"there is a group `{machine.own}`" in ctr("start", "c1", code=4).stderr
    assert (machine.top / machine.own).exists(), "it is not ours"
    (machine.top / machine.own).rmdir()
    ctr("start", "c1")


def test_comes_and_goes_live(machine: Machine) -> None:
    ctr, watched = machine.ctr, f"gold/mon_groups/{machine.own}"
    ctr(*LAUNCH)
    ctr("exec", "c1", "--", "sh", "-c", "for i in 1 2 3; do sleep 1000 >/dev/null 2>&1 </dev/null & done; mkdir /sys/fs/cgroup/below; "
        "echo $! > /sys/fs/cgroup/below/cgroup.procs")  # fmt: skip
    machine.attach("gold")
    assert len(machine.running()) > 2
    for group in ("gold", watched):
        assert machine.running() <= set(machine.tasks(group))
    assert ctr("exec", "c1", "echo", "in").stdout == "in\n"
    assert "0" in machine.tasks("gold") and "0" in machine.tasks(watched)
    for device in ("same", "new"):
        assert "device `gold` has put" in machine.attach(device, 4) or "`gold` and" in machine.attach(device, 4)
    assert machine.tasks("") == []
    ctr("freeze", "c1")
    ctr("detach-device", "c1", "gold")
    assert "FROZEN" in ctr("list").stdout
    ctr("unfreeze", "c1")
    assert machine.running() <= set(machine.tasks(""))
    machine.nothing()
    ctr("exec", "c1", "true")
    assert machine.tasks("gold").count("0") == 1, "which was the one before"
    machine.attach("same")
    ctr("attach-device", "c1", "second", "type=cdi", "id=vendor.com/rdt=same")
    back = machine.tasks("")
    ctr("detach-device", "c1", "same")
    assert machine.tasks("") == back, "the other one keeps it there"
    ctr("detach-device", "c1", "second")
    assert machine.running() <= set(machine.tasks("")[len(back) :])
    machine.attach("new")
    ctr("delete", "--force", "c1")
    machine.nothing("new")  # OCI: what has a name is everybody's, and stays


def test_a_class_that_comes_while_a_command_is_on_its_way_in(machine: Machine) -> None:
    """However long that takes: here it hears from the monitor only when there is one."""
    ctr = machine.ctr
    ctr(*LAUNCH)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked = [helper.find("ctrmgr-exec"), "--control", str(its.fileno()), "--", "echo", "in"]
    with (
        ours,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as monitor,
        subprocess.Popen(asked, pass_fds=[its.fileno()], stdout=subprocess.PIPE, text=True) as command,
    ):
        its.close()
        monitor.connect(str(ctr.folder / "run/c1/control"))
        while request := ours.recv(1 << 16):
            monitor.send(request)
            reply, fds, _, _ = socket.recv_fds(monitor, 1 << 18, 32)
            if not machine.tasks("gold"):
                machine.attach("gold")
            socket.send_fds(ours, [reply], fds)
            for fd in fds:
                os.close(fd)
        assert command.communicate(timeout=10)[0] == "in\n"
    assert "0" in machine.tasks("gold") and "0" in machine.tasks(f"gold/mon_groups/{machine.own}")


def test_what_cannot_be(machine: Machine) -> None:
    ctr = machine.ctr
    ctr(*LAUNCH)
    assert "`gold` is there and has not `L3:0=f`" in machine.attach("other", 4)
    assert "there is no class `none`" in machine.attach("none", 3)
    assert "`L3:0=0`: Need at least 1 bits" in machine.attach("wrong", 5)
    machine.nothing()
    (machine.top / ".full").touch()
    assert "Out of CLOSIDs" in machine.attach("plain", 4)
    (machine.top / "gold/mon_groups/.full").touch()
    assert "Out of CLOSIDs" in machine.attach("gold", 4)
    assert not ctr("info", "c1", "--format", "json").stdout.count('"resctrl"')
    machine.nothing()
    machine.attach("default")
    assert machine.running() <= set(machine.tasks(""))
    ctr("delete", "--force", "c1")
    machine.nothing()


def test_who_is_killed(machine: Machine) -> None:
    """A monitor that has made a class and written nothing to it yet; a command before and after the monitor has done its part."""
    ctr = machine.ctr
    ctr(*LAUNCH)
    for device, name in (("own", machine.own), ("new", "new")):
        (machine.top / ".fatal").touch()
        machine.attach(device, 4)
        assert name in machine.groups()
        (machine.top / ".fatal").unlink()
        ctr("start", "c1")
        machine.nothing()
    attach = ("attach-device", "c1", "own", "type=cdi", "id=vendor.com/rdt=own")
    detach = ("detach-device", "c1", "own")
    for step, words in (
        ("attach-prepared", attach), ("attach-done", attach), ("detach-recorded", detach), ("detach-done", detach)
    ):  # fmt: skip
        ctr(*words, code=-signal.SIGKILL, env={"CTRMGR_CRASH_AT": step})
        ctr("config", "set", "c1", "user.any=command")
        attached = json.loads(ctr("info", "c1", "--format", "json").stdout)["attached"]
        is_there = [part["type"] for part in attached] == ["resctrl"]
        assert is_there == (step in ("attach-done", "detach-recorded"))
        assert (machine.own in machine.groups()) == is_there == machine.log.exists()


def test_a_host_without(machine: Machine) -> None:
    """As most are: nothing is touched."""
    ctr = machine.ctr
    ctr(*LAUNCH)
    ctr.argv = [sys.executable, str(ROOT / "scripts/ctrmgr")]
    before = ctr.traces()
    wanted = "r,type=cdi,id=vendor.com/rdt=own"
    for said in (machine.attach("own", 5), ctr(*CREATE, "-d", wanted, code=5).stderr):
        assert "its specification has `intelRdt`, and " in said and "resctrl" in said
    assert ctr.traces() == before
