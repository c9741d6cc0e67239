# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks of CDI specifications that are run because the administrator's list names them: on the host, and inside."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr, same, settle

ATTACH = ("attach-device", "c1", "v", "type=cdi", "id=vendor.com/net=d0")
DEVICE = ("-d", "v,type=cdi,id=vendor.com/net=d0")
LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
INSIDE = "read state; echo $state >> /inside; env >> /inside"
Snapshot = Callable[[], dict[str, object]]


class Vendor:
    """A vendor's program, its specification, and the list that allows it."""

    def __init__(self, ctr: Ctr) -> None:
        self.log, self.program = ctr.folder / "log", ctr.folder / "hook"
        self.list, self.spec = ctr.folder / "etc/hooks.allow", ctr.folder / "xdg/cdi/vendor.json"
        ctr.env["XDG_CONFIG_HOME"] = str(ctr.folder / "xdg")
        for path in (self.list, self.spec):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.program.write_text(f"""#!/bin/sh
read state
echo "$1 $MODE $state" >> {shlex.quote(str(self.log))}
[ -e {shlex.quote(str(self.log))}.$1 ] || exit 0
echo one; echo broken "$1" >&2; exit 3
""")
        self.program.chmod(0o755)
        self.hooks = [self.hook(stage) for stage in ("poststop", "poststart", "createRuntime")]
        self.hooks.append(
            {"hookName": "startContainer", "path": "/bin/sh", "args": ["sh", "-c", INSIDE], "env": ["A=b c"]}
        )
        self.write()
        self.allow("poststop", "poststart", "createRuntime")

    def hook(self, stage: str, **more: object) -> dict[str, object]:
        return {"hookName": stage, "path": str(self.program), "args": ["hook", stage], "env": ["MODE=7"], **more}

    def write(self) -> None:
        edits = {"deviceNodes": [{"path": "/dev/net0", "hostPath": "/dev/fuse"}], "hooks": self.hooks}
        spec = {"cdiVersion": "0.6.0", "kind": "vendor.com/net", "devices": [{"name": "d0", "containerEdits": edits}]}
        self.spec.write_text(json.dumps(spec))

    def allow(self, *stages: str, inside: bool = True) -> None:
        lines = [f"{stage} MODE=[0-9] {self.program} {stage[:4]}*  # of the vendor" for stage in stages]
        lines += [f"startContainer 'A=*' /bin/sh -c {shlex.quote(INSIDE)}"] if inside else []
        self.list.write_text("# stage, variables, program, arguments\n" + "\n".join(lines) + "\n")
        self.list.chmod(0o644)

    def fails(self, stage: str, yes: bool = True) -> None:
        path = Path(f"{self.log}.{stage}")
        path.touch() if yes else path.unlink()

    def told(self) -> list[tuple[str, str, dict[str, object]]]:
        """What the program was called with, since the last time: its argument, its variable, the state."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [(stage, mode, json.loads(state)) for stage, mode, state in (line.split(" ", 2) for line in lines)]

    def stages(self) -> list[str]:
        return [stage for stage, _, _ in self.told()]


@pytest.fixture
def vendor(ctr: Ctr) -> Vendor:
    return Vendor(ctr)


def test_an_instance_with_hooks(ctr: Ctr, vendor: Vendor, host_snapshot: Snapshot) -> None:
    ctr("launch", "builtin:busybox", "first", "-p", "no-network")  # what is made on first use is there
    ctr("delete", "--force", "first")
    settle()
    before = host_snapshot()
    ctr(*LAUNCH, *DEVICE)
    told = vendor.told()
    assert [(stage, mode, state["status"]) for stage, mode, state in told] == [
        ("createRuntime", "7", "creating"),
        ("poststart", "7", "running"),
    ]
    pid = int(ctr("info", "c1").stdout.partition("\npid: ")[2].partition("\n")[0])
    assert [state["pid"] for _, _, state in told] == [pid, pid]
    assert (told[0][2]["id"], told[0][2]["annotations"]) == ("c1", {"ctrmgr.device": "v"})
    state, *env = ctr("exec", "c1", "cat", "/inside").stdout.splitlines()
    assert json.loads(state) == {
        "ociVersion": "1.0.2",
        "id": "c1",
        "status": "created",
        "pid": 1,
        "bundle": "/",
        "annotations": {"ctrmgr.device": "v"},
    }
    assert "A=b c" in env
    assert not [line for line in env if line.startswith(("CTRMGR", "PYTHON"))]
    ctr("stop", "c1")
    ((stage, _, state_after),) = vendor.told()
    assert (stage, state_after["status"], "pid" in state_after) == ("poststop", "stopped", False)
    ctr("start", "c1")
    assert vendor.stages() == ["createRuntime", "poststart"]
    ctr("restart", "c1")
    assert vendor.stages() == ["poststop", "createRuntime", "poststart"]
    ctr("exec", "c1", "reboot", "-f", code=None)
    for _ in range(100):
        if "STOPPED" in ctr("list").stdout:
            break
        time.sleep(0.1)
    assert "STOPPED" in ctr("list").stdout  # nobody was there to run them
    assert vendor.stages() == []
    ctr("start", "c1")
    assert vendor.stages() == ["poststop", "createRuntime", "poststart"]
    vendor.allow()
    said = f"device `v`: its specification wants `{vendor.program} poststop` to be run (poststop)"
    assert f"`c1` is stopped, and {said}" in ctr("stop", "c1", code=7).stderr
    assert said in ctr("start", "c1", code=5).stderr
    assert vendor.stages() == []  # not allowed any more
    vendor.allow("poststop", "poststart", "createRuntime")
    ctr("delete", "--force", "c1")
    settle()
    same(before, host_snapshot())
    assert not os.listdir(ctr.folder / "run/.hooks")


def test_live(ctr: Ctr, vendor: Vendor) -> None:
    ctr(*LAUNCH)
    ctr(*ATTACH)
    assert [(stage, state["status"]) for stage, _, state in vendor.told()] == [
        ("createRuntime", "running"),
        ("poststart", "running"),
    ]
    assert '"status":"running"' in ctr("exec", "c1", "cat", "/inside").stdout
    ctr("suspend-device", "c1", "v")
    ctr("resume-device", "c1", "v")
    assert vendor.stages() == []
    vendor.fails("poststop")
    said = ctr("detach-device", "c1", "v").stderr
    assert f"device `v`: the poststop hook `{vendor.program}` failed with 3: broken poststop\n" in said
    assert vendor.stages() == ["poststop"]
    assert ctr("exec", "c1", "test", "-e", "/dev/net0", code=1).code == 1
    vendor.fails("poststop", yes=False)
    ctr(*ATTACH, "--volatile")
    ctr("detach-device", "c1", "v", "--volatile")
    assert vendor.stages() == ["createRuntime", "poststart", "poststop"]


@pytest.mark.parametrize("stage", ["createRuntime", "startContainer", "poststart"])
def test_one_that_fails_undoes_all(ctr: Ctr, vendor: Vendor, stage: str) -> None:
    ctr(*LAUNCH)
    before = ctr.traces()
    if stage == "startContainer":
        vendor.hooks[-1] = {**vendor.hooks[-1], "args": ["sh", "-c", "echo no good; exit 9"]}
        vendor.write()
        vendor.list.write_text(vendor.list.read_text() + "startContainer A=* /bin/sh ...\n")
        said = "the hook `/bin/sh` failed with 9: no good"
    else:
        vendor.fails(stage)
        said = f"device `v`: the {stage} hook `{vendor.program}` failed with 3: broken {stage}"
    ran = ["createRuntime", *(["poststart"] if stage == "poststart" else []), "poststop"]
    ctr("info", "c1")
    before = ctr.traces()
    assert said in ctr(*ATTACH, code=7).stderr
    assert vendor.stages() == ran
    assert ctr("exec", "c1", "test", "-e", "/dev/net0", code=1).code == 1
    (ctr.folder / "run/.hooks").rmdir()
    ctr("exec", "c1", "rm", "-f", "/inside")  # what a program did inside is its own
    same(before, ctr.traces())
    assert said in ctr(*LAUNCH[:2], "c2", "-p", "no-network", *DEVICE, code=7).stderr
    assert vendor.stages() == ran
    assert "c2" not in ctr("list").stdout


def test_one_that_takes_too_long(ctr: Ctr, vendor: Vendor) -> None:
    ctr(*LAUNCH)
    vendor.program.write_text("#!/bin/sh\nsleep 60 & sleep 60\n")
    vendor.hooks = [vendor.hook("createRuntime", timeout=1)]
    vendor.write()
    assert "has not ended within 1 seconds" in ctr(*ATTACH, code=7).stderr
    vendor.hooks = [{"hookName": "startContainer", "path": "/bin/sleep", "args": ["sleep", "61"], "timeout": 1}]
    vendor.write()
    vendor.list.write_text("startContainer /bin/sleep [0-9]*\n")
    assert "the hook `/bin/sleep` has not ended within 1 seconds" in ctr(*ATTACH, code=7).stderr
    assert "sleep" not in ctr("exec", "c1", "ps").stdout


BESIDE = """#!/bin/sh
read state
set -C
{
    echo "$state"
    cat config.json
    echo "$(id -u) $(id -g) $(id -G) $$ $(pwd) $MODE"
    for kind in user net ipc uts cgroup mnt pid; do readlink /proc/self/ns/$kind; done
    ls -d rootfs/dev/net0 /proc/1/root/etc 2>&1
    ls /run
    touch /tmp/ctrmgr-hook-was-here "$0" 2>&1
    chmod 600 "$0" 2>&1
    cat /dev/fuse 2>&1
    mount -t tmpfs mine rootfs/mnt && umount rootfs/mnt && echo mounted
} > rootfs/beside 2>&1
sleep 61 &
[ ! -e "$0.fails" ] || { echo no good >&2; exit 4; }
[ ! -e "$0.hangs" ] || sleep 61
"""
NAMESPACES = ("user", "net", "ipc", "uts", "cgroup", "mnt", "pid")


@pytest.fixture
def beside(vendor: Vendor) -> Iterator[Path]:
    """A `createContainer` hook, where anybody may look."""
    folder = Path(tempfile.mkdtemp(prefix="ctrmgr-hook-"))
    folder.chmod(0o755)
    program = folder / "beside"
    program.write_text(BESIDE)
    program.chmod(0o755)
    hook = {"hookName": "createContainer", "path": str(program), "args": ["beside"], "env": ["MODE=7"], "timeout": 2}
    vendor.hooks = [vendor.hooks[-1], hook]
    vendor.write()
    vendor.allow()
    with vendor.list.open("a") as file:
        file.write(f"createContainer MODE=* {program}\n")
    yield program
    shutil.rmtree(folder)


def test_one_beside_the_instance(ctr: Ctr, vendor: Vendor, beside: Path) -> None:
    def check(status: str) -> None:
        state, config, who, *rest = ctr("exec", "c1", "cat", "/beside").stdout.splitlines()
        assert json.loads(state) == {
            "ociVersion": "1.0.2",
            "id": "c1",
            "status": status,
            "pid": 1,
            "bundle": "/run/ctrmgr",
            "annotations": {"ctrmgr.device": "v"},
        }
        assert json.loads(config)["root"] == {"path": "rootfs"}
        assert who == "0 0 0 1 /run/ctrmgr 7"
        found, rest = dict(zip(NAMESPACES, rest, strict=False)), rest[len(NAMESPACES) :]
        pid = int(ctr("info", "c1").stdout.partition("\npid: ")[2].partition("\n")[0])
        inside, here = ({one: os.readlink(f"/proc/{which}/ns/{one}") for one in NAMESPACES} for which in (pid, "self"))
        # init has mounts of its own only after the hook, whose number they may have got
        alike = [one for one in NAMESPACES if found[one] == inside[one] and (one, status) != ("mnt", "creating")]
        assert alike == ["user", "net", "ipc", "uts", "cgroup"]
        assert [one for one in NAMESPACES if found[one] == here[one]] == []
        assert "rootfs/dev/net0" in rest
        assert "ctrmgr" in rest  # and nothing else of /run
        said = "\n".join(rest)
        assert "Read-only file system" in said
        assert "/dev/fuse: Permission denied" in said
        assert "/proc/1/root/etc': Permission denied" in said
        assert rest[-1] == "mounted"
        assert ctr("exec", "c1", "stat", "-c", "%u:%g", "/beside").stdout == "0:0\n"
        order = ctr("exec", "c1", "stat", "-c", "%n %y", "/beside", "/inside").stdout.splitlines()
        assert order[0].split(" ", 1)[1] < order[1].split(" ", 1)[1]
        assert not any("sleep" in line for line in _commands())  # what it had started

    ctr(*LAUNCH, *DEVICE)
    check("creating")
    ctr("detach-device", "c1", "v")
    ctr("exec", "c1", "rm", "/beside", "/inside")
    ctr(*ATTACH)
    check("running")
    ctr("detach-device", "c1", "v")
    for how, said in (("fails", "failed with 4: no good"), ("hangs", "has not ended within 2 seconds")):
        ctr("exec", "c1", "rm", "/beside", "/inside", code=None)
        Path(f"{beside}.{how}").touch()
        assert f"device `v`: the createContainer hook `{beside}` {said}" in ctr(*ATTACH, code=7).stderr
        assert ctr("exec", "c1", "ls", "/dev/net0", "/inside", code=1).stdout == ""  # undone, before anything inside
        assert "net0" not in ctr("info", "c1").stdout
        assert not any("sleep" in line for line in _commands())
        Path(f"{beside}.{how}").unlink()
    ctr("exec", "c1", "rm", "/beside")
    assert ctr(*ATTACH, code=None, env={"CTRMGR_CRASH_AT": "attach-made"}).code == -signal.SIGKILL
    ctr("config", "set", "c1", "user.step=1")
    assert ctr("exec", "c1", "ls", "/dev/net0", "/inside", code=1).stdout == ""
    beside.chmod(0o700)
    assert f"the createContainer hook `{beside}` cannot be run: Permission denied" in ctr(*ATTACH, code=7).stderr


def _commands() -> list[str]:
    return [
        line
        for line in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
        if line.startswith("sleep 61")
    ]


STEPS = ("attach-hooks-noted", "attach-done", "attach-hooks-run", "detach-done")


def test_killed_at_any_step(ctr: Ctr, vendor: Vendor) -> None:
    ctr(*LAUNCH)
    for step in STEPS:
        words = ATTACH if step.startswith("attach") else ("detach-device", "c1", "v")
        if words != ATTACH:
            ctr(*ATTACH)
        vendor.told()
        assert ctr(*words, code=None, env={"CTRMGR_CRASH_AT": step}).code == -signal.SIGKILL, step
        ctr("config", "set", "c1", f"user.step={step}")  # whatever changes it next
        assert vendor.stages()[-1:] == ["poststop"], step
        assert ctr("exec", "c1", "test", "-e", "/dev/net0", code=1).code == 1, step
        assert "net0" not in ctr("info", "c1").stdout, step
    ctr("stop", "c1")
    assert vendor.stages() == []
    for step in ("start-hooks-noted", "start-hooks-run"):
        ctr("attach-device", "c1", "v", "type=cdi", "id=vendor.com/net=d0")
        assert ctr("start", "c1", code=None, env={"CTRMGR_CRASH_AT": step}).code == -signal.SIGKILL, step
        ctr("config", "set", "c1", f"user.step={step}")
        assert vendor.stages()[-1:] == ["poststop"], step
        ctr("stop", "c1", code=None)
        ctr("detach-device", "c1", "v")


def test_what_is_refused(ctr: Ctr, vendor: Vendor) -> None:
    ctr(*LAUNCH)
    before = ctr.traces()

    def refused(*said: str, code: int = 5) -> None:
        shown = ctr(*ATTACH, code=code).stderr
        assert [words for words in said if words not in shown] == [], shown
        assert ctr.traces()["mounts"] == before["mounts"]
        assert vendor.told() == []

    vendor.allow("poststop", "poststart")
    hint = f"who trusts it writes into {vendor.list}: createRuntime MODE=7 {vendor.program} createRuntime\n"
    refused(f"wants `{vendor.program} createRuntime` to be run (createRuntime)", "nobody has allowed it", hint)
    vendor.allow("poststop", "poststart", "createRuntime", inside=False)
    refused("wants `/bin/sh -c read state", "to be run (startContainer)")
    vendor.list.unlink()
    refused("nobody has allowed it")
    vendor.allow("poststop", "poststart", "createRuntime")
    text = vendor.list.read_text()
    for mode, uid, said in ((0o664, 0, "can be written by others"), (0o644, 1000, "belongs to user 1000")):
        vendor.list.chmod(mode)
        os.chown(vendor.list, uid, -1)
        refused(f"`{vendor.list}` {said}", "is not trusted")
    vendor.list.chmod(0o644)
    os.chown(vendor.list, 0, -1)
    os.chown(vendor.program, 1000, -1)
    refused(f"`{vendor.program}` belongs to user 1000")
    os.chown(vendor.program, 0, -1)
    vendor.list.write_text(text.replace("MODE=[0-9] ", ""))  # a variable that nobody has allowed
    refused("nobody has allowed it")
    vendor.list.write_text(text.replace("poststop MODE", "afterwards MODE"))
    refused(
        f"{vendor.list}:2: it is not a stage",
        "prestart, createRuntime, createContainer, poststart, poststop, startContainer",
        code=2,
    )
    vendor.list.write_text(text)
    for hook, said in (
        (vendor.hook("createContainer"), "nobody has allowed it"),
        (vendor.hook("poststop", args=["other", "poststop"]), "under another name, `other`"),
        (vendor.hook("poststop", args=["hook", "poststop", "more"]), "nobody has allowed it"),
        (vendor.hook("poststop", timeout=601), "may take 601 seconds"),
    ):
        vendor.hooks = [hook]
        vendor.write()
        refused(said)
    same({"nodes": before["nodes"], "processes": before["processes"]}, ctr.traces())
