# SPDX-License-Identifier: GPL-3.0-or-later
"""A device of several parts - nodes, files of the host's, variables - comes and goes as one, while the instance runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.kernel import control
from tests.conftest import Ctr, same

Snapshot = Callable[[], dict[str, object]]
Rows = list[list[str]]
OTHERS = ("cgroups", "processes", "programs")
"""The running instance's own are looked at by other tests, and here they change with every command."""
FUSE, TUN = "/dev/fuse", "/dev/net/tun"
LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
SCRIPT = """
import json, sys
from ctrmgr.backend.attach import attach_rows
from ctrmgr.errors import CtrmgrError
name, rows, volatile = json.loads(sys.argv[1])
try:
    attach_rows("c1", name, {"type": "unix-char", "source": "/dev/fuse"}, rows, volatile=volatile)
except CtrmgrError as error:
    print(f"error: {error.message}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def attach(
    ctr: Ctr, rows: Rows, *, name: str = "gpu", volatile: bool = False, code: int = 0, env: dict[str, str] | None = None
) -> str:
    """Attach what a driver would have resolved to these rows."""
    words = [sys.executable, "-c", SCRIPT, json.dumps([name, rows, volatile])]
    done = subprocess.run(words, env={**ctr.env, **(env or {})}, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    return done.stderr


def node(source: str, path: str, *, name: str = "gpu", need: str = "required") -> list[str]:
    return ["device", name, "char", source, path, "0", "0", "0660", "rwm", need]


def bind(source: Path | str, target: str, options: str = "ro,nosuid,nodev", *, name: str = "gpu") -> list[str]:
    return ["bind", name, str(source), target, options]


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr(*LAUNCH)
    return ctr


@pytest.fixture
def library(ctr: Ctr) -> Path:
    """A folder of the host's with a file in it."""
    folder = ctr.folder / "driver"
    folder.mkdir(0o755)
    (folder / "libgpu.so.7").write_text("code\n")
    return folder


def sh(ctr: Ctr, script: str, code: int | None = 0) -> str:
    result = ctr("exec", "c1", "--", "sh", "-c", script, code=code)
    return result.stdout + result.stderr


def whole(library: Path) -> Rows:
    return [
        node(FUSE, "/dev/gpu/a"),
        node(TUN, "/dev/gpu/b"),
        bind(library / "libgpu.so.7", "/opt/lib/libgpu.so.7"),
        bind(library, "/opt/driver", "ro,noexec"),
        ["device-env", "gpu", "GPU_DEVICES", "all of=them"],
        ["identity", "gpu", "/proc/sys/kernel/ostype", "Linux"],
        ["lease", "gpu", "pci:0000:01:00.0", "shared"],
    ]


LOOK = "ls -d /dev/gpu /dev/gpu/* /opt/lib/* /opt/driver/* 2>/dev/null; echo ${GPU_DEVICES-unset}"
ALL = "/dev/gpu\n/dev/gpu/a\n/dev/gpu/b\n/opt/driver/libgpu.so.7\n/opt/lib/libgpu.so.7\nall of=them\n"


def parts(ctr: Ctr) -> list[control.Device]:
    return control.ask(str(ctr.folder / "run/c1"), control.DEVICES).devices()


def nothing(ctr: Ctr) -> None:
    """No part is left, nor anything that was made for one."""
    assert sh(ctr, LOOK) == "unset\n"
    assert (
        sh(ctr, "ls -a /dev | grep ctrmgr-; ls -d /opt", code=None)
        == ".ctrmgr-empty\nls: /opt: No such file or directory\n"
    )
    assert parts(ctr) == []


def test_together(c1: Ctr, library: Path, host_snapshot: Snapshot) -> None:
    before = host_snapshot()
    attach(c1, whole(library))
    assert sh(c1, LOOK) == ALL
    assert sh(c1, "cat /opt/lib/libgpu.so.7") == "code\n"
    assert sh(c1, "exec 3</dev/gpu/b && echo opened") == "opened\n"
    c1("detach-device", "c1", "gpu")
    nothing(c1)
    same(before, host_snapshot(), besides=OTHERS)


def test_a_start_brings_them_all(c1: Ctr, library: Path, host_snapshot: Snapshot) -> None:
    before = host_snapshot()
    attach(c1, whole(library))
    attach(
        c1,
        [node(FUSE, "/dev/other", name="other"), ["device-env", "other", "NOT", "kept"]],
        name="other",
        volatile=True,
    )
    assert sh(c1, "echo $NOT") == "kept\n"
    c1("restart", "c1")
    assert sh(c1, LOOK) == ALL
    assert sh(c1, "tr '\\0' '\\n' < /proc/1/environ | grep GPU") == "GPU_DEVICES=all of=them\n"
    assert sh(c1, "echo $NOT; ls /dev/other 2>/dev/null", code=None) == "\n"
    c1("detach-device", "c1", "gpu")
    nothing(c1)
    c1("restart", "c1")
    nothing(c1)
    same(before, host_snapshot(), besides=OTHERS)


REFUSED = (
    (bind("/etc", "/etc/passwd"), "a file is where a directory is needed"),
    (bind("/etc/hostname", "/bin"), "is a directory, the source is none"),
    (bind("/etc/hostname", "/proc/version"), "lies on another mount"),
    (bind("/etc/hostname", "/dev/x"), "lies on another mount"),
    (bind("/etc/hostname", "/etc/link"), "is a symlink"),
    (bind("/etc/hostname", "/etc/passwd/x"), "a file is where a directory is needed"),
    (node(FUSE, "/dev/null"), "exists in the instance already"),
    (["device", "gpu", "char", FUSE, "/dev/gpu/c", "nobody-here", "0", "0660", "rwm", "required"], "has no user"),
)


def test_all_or_nothing(c1: Ctr, library: Path) -> None:
    sh(c1, "ln -s /etc/hosts /etc/link; touch /etc/passwd")
    for last, why in REFUSED:
        assert why in attach(c1, [*whole(library), last], code=2 if "user" in why else 4), last
        nothing(c1)
        assert "name=gpu" not in c1("info", "c1").stdout, last
        assert "not permitted" in sh(c1, "mknod /dev/again c 10 229", code=1), last
        attach(c1, whole(library))
        assert sh(c1, LOOK) == ALL, last
        c1("detach-device", "c1", "gpu")


def test_a_connection_that_ends_before_it_commits(c1: Ctr, library: Path) -> None:
    attach(c1, whole(library), code=-9, env={"CTRMGR_CRASH_AT": "attach-prepared"})
    nothing(c1)


def test_mounts_are_locked(c1: Ctr, library: Path) -> None:
    (library / "libgpu.so.7").chmod(0o4755)
    attach(c1, [bind(library, "/opt/driver"), bind(library, "/opt/data", "rw,noexec")])
    lines = [line.split() for line in sh(c1, "grep /opt /proc/mounts").splitlines()]
    flags = {line[1]: set(line[3].split(",")) for line in lines}
    assert {"ro", "nosuid", "nodev"} <= flags["/opt/driver"]
    assert {"rw", "nosuid", "nodev", "noexec"} <= flags["/opt/data"]
    for how in ("rw", "ro,suid", "ro,dev"):
        sh(c1, f"mount -o remount,bind,{how} /opt/driver", code=1)
    sh(c1, "echo x > /opt/driver/new", code=1)
    sh(c1, "mount -o remount,bind,ro,exec /opt/data", code=1)


def test_what_the_instance_mounts_stays_there(c1: Ctr, library: Path) -> None:
    attach(c1, [bind(library, "/opt/driver")])
    before = Path("/proc/self/mountinfo").read_text()
    state = dict(line.split("\t") for line in (c1.folder / "run/c1/state").read_text().splitlines())
    monitor = Path(f"/proc/{state['monitor']}/mountinfo")
    ours = monitor.read_text()
    sh(
        c1,
        "mkdir -p /mnt/a && mount -t tmpfs x /mnt/a && mount --bind /etc /opt/driver && mount -t tmpfs y /opt/driver",
    )
    assert monitor.read_text() == ours
    assert Path("/proc/self/mountinfo").read_text() == before
    c1("detach-device", "c1", "gpu")
    assert "libgpu" not in sh(c1, "ls /opt/driver", code=None)
    assert str(library) not in monitor.read_text()


def test_a_symlink_of_the_instance_leads_nowhere_else(c1: Ctr, library: Path, host_snapshot: Snapshot) -> None:
    """A merged /usr is followed as the instance sees it; it leads into no mount and not to the host."""
    before = host_snapshot()
    sh(c1, "mkdir -p /srv/real && ln -s srv/real /merged && ln -s /../../../.. /up && ln -s /proc/1 /p")
    attach(c1, [bind(library, "/merged/x/y")])
    assert sh(c1, "ls /srv/real/x/y") == "libgpu.so.7\n"
    c1("detach-device", "c1", "gpu")
    assert sh(c1, "ls -A /srv/real; ls -d /merged") == "/merged\n"
    attach(c1, [bind(library, "/up/var/tmp/there")])
    assert sh(c1, "ls /var/tmp/there") == "libgpu.so.7\n"
    assert not Path("/var/tmp/there").exists()
    c1("detach-device", "c1", "gpu")
    assert "lies on another mount" in attach(c1, [bind(library, "/p/root/x")], code=4)
    same(before, host_snapshot(), besides=OTHERS)


def test_racing_symlinks(c1: Ctr, library: Path, host_snapshot: Snapshot) -> None:
    """The instance's root swaps what is on the way, as fast as it can."""
    before = host_snapshot()
    race = c1.popen(
        "exec", "c1", "--", "sh", "-c",
        "mkdir -p /a/b /c; while :; do mv /a /a1; ln -s /proc/self/root/.. /a; rm /a; ln -s /dev /a; rm /a; mv /a1 /a; done",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(0.3)
    rows = [node(FUSE, "/dev/gpu"), bind(library, "/a/b/x/y"), bind(library / "libgpu.so.7", "/a/b/z")]
    done = []
    for _ in range(40):
        words = [sys.executable, "-c", SCRIPT, json.dumps(["gpu", rows, False])]
        done.append(subprocess.run(words, env=c1.env, capture_output=True, timeout=60).returncode)
        if not done[-1]:
            c1("detach-device", "c1", "gpu")
        assert parts(c1) == []
    race.kill()
    race.wait()
    assert set(done) <= {0, 4, 7}, done
    assert done.count(0) > 0
    same(before, host_snapshot(), besides=OTHERS)
    assert "libgpu" not in sh(c1, "find / -xdev -name 'libgpu*'; find /dev -name 'gpu*'")


def test_what_was_there_stays(c1: Ctr, library: Path) -> None:
    sh(c1, "mkdir -p /opt/driver /opt/lib && echo mine > /opt/lib/libgpu.so.7 && mkdir /dev/gpu && touch /dev/gpu/own")
    attach(c1, whole(library))
    assert sh(c1, "cat /opt/lib/libgpu.so.7") == "code\n"
    c1("detach-device", "c1", "gpu")
    assert sh(c1, "cat /opt/lib/libgpu.so.7; ls -d /opt/driver /dev/gpu/*") == "mine\n/dev/gpu/own\n/opt/driver\n"


def test_what_was_made_belongs_to_the_instance(c1: Ctr, library: Path) -> None:
    attach(c1, whole(library))
    assert sh(c1, "stat -c %u:%g:%a /opt /opt/lib /dev/gpu").split() == ["0:0:755"] * 3
    sh(c1, "touch /opt/lib/other")
    c1("detach-device", "c1", "gpu")
    assert sh(c1, "ls /opt /opt/lib").split() == ["/opt:", "lib", "/opt/lib:", "other"]


def test_two_devices_share_a_part(c1: Ctr, library: Path) -> None:
    first = [node(FUSE, "/dev/ctl"), node(TUN, "/dev/gpu0"), bind(library, "/opt/driver")]
    second = [[row[0], "gpu1", *row[2:]] for row in first]
    second[1] = node("/dev/zero", "/dev/gpu1", name="gpu1")
    attach(c1, first)
    attach(c1, second, name="gpu1", volatile=True)
    assert [(part.name, part.kind) for part in parts(c1) if part.path == "/dev/ctl"] == [
        ("gpu", "char"),
        ("gpu1", "share"),
    ]
    c1("detach-device", "c1", "gpu")
    assert (
        sh(c1, "exec 3</dev/ctl && ls /dev/gpu0 /dev/gpu1 /opt/driver 2>/dev/null", code=1)
        == "/dev/gpu1\n\n/opt/driver:\nlibgpu.so.7\n"
    )
    c1("detach-device", "c1", "gpu1", "--volatile")
    assert sh(c1, "ls -d /dev/ctl /dev/gpu1 /opt 2>/dev/null", code=1) == ""
    assert parts(c1) == []
    attach(c1, first)
    attach(c1, second, name="gpu1")
    c1("detach-device", "c1", "gpu")
    c1("restart", "c1")
    assert sh(c1, "exec 3</dev/ctl && ls /dev/gpu1 /opt/driver") == "/dev/gpu1\n\n/opt/driver:\nlibgpu.so.7\n"


def test_an_optional_device_that_is_not_there(c1: Ctr, library: Path) -> None:
    c1("stop", "c1", "--force")
    rows = [
        node("/dev/no-such", "/dev/gpu/a", need="optional"),
        bind("/no/such", "/opt/driver", "ro,optional"),
        ["device-env", "gpu", "GPU_DEVICES", "all"],
    ]
    attach(c1, rows)
    c1("start", "c1")
    assert sh(c1, LOOK) == "unset\n"
    c1("detach-device", "c1", "gpu")
    assert "does not exist" in attach(c1, [bind("/no/such", "/opt/driver")], code=3)
    attach(c1, [*rows, node(FUSE, "/dev/gpu/b")])
    assert sh(c1, LOOK) == "/dev/gpu\n/dev/gpu/b\nall\n"


def test_as_many_as_a_driver_has(c1: Ctr, library: Path) -> None:
    rows = [bind(library / "libgpu.so.7", f"/opt/lib/lib{number:03}.so") for number in range(110)]
    attach(c1, [*rows, *(["device-env", "gpu", f"V{number}", "x" * 200] for number in range(100))])
    assert sh(c1, "ls /opt/lib | wc -l; cat /opt/lib/lib109.so; echo ${#V99}").split() == ["110", "code", "200"]
    assert len(parts(c1)) == 210
    more = [bind(library / "libgpu.so.7", f"/opt/more/lib{number:03}.so", name="more") for number in range(60)]
    assert "256 parts" in attach(c1, more, name="more", code=4)
    assert sh(c1, "ls -d /opt/more", code=1)
    assert len(parts(c1)) == 210
    monitor = dict(line.split("\t") for line in (c1.folder / "run/c1/state").read_text().splitlines())["monitor"]
    assert len(os.listdir(f"/proc/{monitor}/fd")) > 110
    c1("detach-device", "c1", "gpu")
    nothing(c1)
    assert len(os.listdir(f"/proc/{monitor}/fd")) < 30


OPEN = "for n in /dev/gpu/a /dev/kept; do (exec 3<$n) 2>/dev/null && echo open || echo refused; done"


def test_suspended_and_resumed(c1: Ctr, library: Path) -> None:
    attach(c1, whole(library))
    sh(c1, "ln /dev/gpu/a /dev/kept; chmod 0600 /dev/gpu/a")
    assert sh(c1, OPEN).split() == ["open", "open"]
    c1("suspend-device", "c1", "gpu")
    assert sh(c1, OPEN).split() == ["refused", "refused"]
    for command in ("chmod 666 /dev/kept", "chown 0:0 /dev/gpu/a", "mknod /dev/again c 10 229"):
        assert "not permitted" in sh(c1, command, code=1)
    assert sh(c1, "cat /opt/lib/libgpu.so.7; echo $GPU_DEVICES") == "code\nall of=them\n"
    assert "suspended: true" in c1("info", "c1", "--format", "yaml").stdout
    assert "suspended already" in c1("suspend-device", "c1", "gpu", code=4).stderr
    c1("resume-device", "c1", "gpu")
    assert sh(c1, OPEN).split() == ["open", "open"]
    assert sh(c1, "stat -c %a /dev/gpu/a /dev/gpu/b").split() == ["660", "660"]
    assert "suspended: true" not in c1("info", "c1", "--format", "yaml").stdout
    assert "not suspended" in c1("resume-device", "c1", "gpu", code=4).stderr
    c1("suspend-device", "c1", "gpu")
    c1("restart", "c1")
    assert sh(c1, "exec 3</dev/gpu/a && echo open") == "open\n"
    c1("suspend-device", "c1", "gpu")
    c1("detach-device", "c1", "gpu")
    sh(c1, "rm -f /dev/kept")
    nothing(c1)


def test_who_holds_what_is_suspended(c1: Ctr) -> None:
    attach(c1, [node(FUSE, "/dev/gpu/a"), node(TUN, "/dev/gpu/b")])
    holder = c1.popen(
        "exec", "c1", "--", "sh", "-c", "exec 3</dev/gpu/b; echo ready; exec sleep 100", stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    assert "is in use: sleep" in c1("suspend-device", "c1", "gpu", "--holders=refuse", code=4).stderr
    assert sh(c1, "exec 3</dev/gpu/a && echo open") == "open\n"
    assert "still has it: sleep" in c1("suspend-device", "c1", "gpu").stderr
    c1("resume-device", "c1", "gpu")
    c1("suspend-device", "c1", "gpu", "--holders=kill")
    assert holder.wait(10) == 128 + 9
    holder.stdout.close()


def test_what_another_device_needs_is_not_suspended(c1: Ctr) -> None:
    attach(c1, [node(FUSE, "/dev/ctl"), node(TUN, "/dev/gpu0")])
    attach(c1, [node(FUSE, "/dev/ctl", name="gpu1"), node("/dev/zero", "/dev/gpu1", name="gpu1")], name="gpu1")
    c1("suspend-device", "c1", "gpu")
    look = "for n in ctl gpu0 gpu1; do (exec 3</dev/$n) 2>/dev/null && echo $n; done; true"
    assert sh(c1, look).split() == ["ctl", "gpu1"]
    c1("resume-device", "c1", "gpu")
    assert sh(c1, look).split() == ["ctl", "gpu0", "gpu1"]
    attach(c1, [["device-env", "only", "A", "b"]], name="only")
    assert "has no node" in c1("suspend-device", "c1", "only", code=4).stderr
    assert "no device `none`" in c1("suspend-device", "c1", "none", code=3).stderr
    assert "no device `none`" in c1("resume-device", "c1", "none", code=3).stderr


def hook(*words: str) -> list[str]:
    return ["hook", "gpu", *words]


LDCONFIG = "mkdir -p /sbin; printf '#!/bin/sh\\ncat /etc/ld.so.conf.d/* >> /cached; echo run >> /cached\\n' > /sbin/ldconfig; chmod 755 /sbin/ldconfig"
HOOKS = [
    hook("symlink", "libgpu.so.7", "/opt/lib/libgpu.so"),
    hook("symlink", "/opt/lib/libgpu.so.7", "/usr/lib64/gpu/libgpu.so.1"),
    hook("chmod", "0640", "/etc/mine"),
    hook("ldcache", "/opt/lib", "/opt/driver"),
    hook("ldcache", "/opt/more"),
]
LINKS = "for n in /opt/lib/libgpu.so /usr/lib64/gpu/libgpu.so.1; do readlink $n; done; cat /etc/ld.so.conf.d/*gpu* 2>/dev/null; true"
LINKED = "libgpu.so.7\n/opt/lib/libgpu.so.7\n/opt/lib\n/opt/driver\n/opt/more\n"


def test_hooks(c1: Ctr, library: Path, host_snapshot: Snapshot) -> None:
    before = host_snapshot()
    sh(c1, f"touch /etc/mine; {LDCONFIG}")
    attach(c1, [*whole(library), *HOOKS])
    assert sh(c1, LINKS) == LINKED
    assert sh(c1, "stat -c %a /etc/mine; cat /cached; rm /cached").split("\n", 1) == [
        "640",
        "/opt/lib\n/opt/driver\n/opt/more\nrun\n",
    ]
    c1("restart", "c1")
    assert sh(c1, LINKS) == LINKED
    assert sh(c1, "cat /cached; rm /cached").endswith("run\n")
    c1("detach-device", "c1", "gpu")
    assert sh(c1, LINKS) == ""
    assert sh(c1, "cat /cached").endswith("run\n")
    assert parts(c1) == []
    attach(c1, [node(FUSE, "/dev/gpu/a"), HOOKS[0]], volatile=True)
    assert sh(c1, LINKS) == "libgpu.so.7\n"
    c1("detach-device", "--volatile", "c1", "gpu")
    assert sh(c1, LINKS) == ""
    same(before, host_snapshot(), besides=OTHERS)


def test_symlinks_of_the_instances_own_stay(c1: Ctr) -> None:
    sh(c1, "mkdir -p /opt/lib; ln -s libgpu.so.7 /opt/lib/libgpu.so")
    attach(c1, [node(FUSE, "/dev/gpu/a"), HOOKS[0]])
    c1("detach-device", "c1", "gpu")
    assert sh(c1, LINKS) == "libgpu.so.7\n"
    sh(c1, "rm /opt/lib/libgpu.so")
    attach(c1, [node(FUSE, "/dev/gpu/a"), HOOKS[0]])
    sh(c1, "ln -sf mine /opt/lib/libgpu.so")
    c1("detach-device", "c1", "gpu")
    assert sh(c1, LINKS) == "mine\n"


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (hook("symlink", "x", "/opt/lib"), "the symlink `/opt/lib`"),
        (hook("chmod", "0640", "/no/such"), "the mode of `/no/such`"),
        (hook("chmod", "rw", "/etc"), "the mode `rw`"),
        (hook("update-everything", "x"), "is no hook that is known here"),
    ],
)
def test_a_hook_that_fails_undoes_the_attach(c1: Ctr, library: Path, last: list[str], why: str) -> None:
    assert why in attach(c1, [*whole(library), HOOKS[0], HOOKS[3], last], code=7)
    assert sh(c1, LINKS) == ""
    assert parts(c1) == []
    assert "name: gpu" not in c1("info", "c1", "--format", "yaml").stdout


def test_a_hook_that_fails_keeps_the_instance_from_starting(c1: Ctr) -> None:
    sh(c1, "touch /etc/mine")
    attach(c1, [node(FUSE, "/dev/gpu/a"), HOOKS[2]])
    sh(c1, "rm /etc/mine")
    assert "the mode of `/etc/mine`" in c1("restart", "c1", code=7).stderr
    assert "STOPPED" in c1("list").stdout
    c1("detach-device", "c1", "gpu")
    c1("start", "c1")
