# SPDX-License-Identifier: GPL-3.0-or-later
"""What people type wrong: one line that names the object, a hint, the right exit code, and nothing lost."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.cli import main
from tests.conftest import ROOT, Ctr, same

AS_USER = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from ctrmgr.cli.main import main  # before the rights to read it are gone
import ctrmgr.cli.launch
os.setgroups([]), os.setresgid(1000, 1000, 1000), os.setresuid(1000, 1000, 1000)
sys.exit(main())
"""
FUSE = "type=unix-char source=/dev/fuse"
LAUNCH = "launch builtin:busybox x -p no-network"

WRONG = [
    # the words, the exit code, what the line names, what the hint has
    ("launch nosuch", 3, "nosuch", "image list"),
    ("launch builtin:busybx x", 3, "builtin:busybx", "busybox"),
    ("launch builtin:busybox c1", 4, "c1", ""),
    ("launch builtin:busybox s1", 4, "s1", ""),
    ("launch builtin:busybox 1x", 2, "1x", ""),
    ("create builtin:busybox a_b", 2, "a_b", ""),
    ("launch builtin:busybox a b c", 2, "b", ""),
    ("launch", 2, "ctrmgr launch", "IMAGE"),
    ("launch --nosuch x", 2, "--nosuch", ""),
    ("lanch x", 2, "lanch", "launch"),
    (f"{LAUNCH} -p nosuch", 3, "nosuch", ""),
    (f"{LAUNCH} -p defualt", 3, "defualt", "default"),
    (f"{LAUNCH} -p ../default", 2, "../default", ""),
    (f"{LAUNCH} -c limits.cpuu=1", 2, "limits.cpuu", "limits.cpu"),
    (f"{LAUNCH} -c limits.memory=1Q", 2, "limits.memory", ""),
    (f"{LAUNCH} -c limits.memory", 2, "limits.memory", ""),
    (f"{LAUNCH} -d foo", 2, "foo", ""),
    (f"{LAUNCH} -d foo,type=unix-chr", 2, "unix-chr", "unix-char"),
    (f"{LAUNCH} -d foo,type=unix-char", 2, "foo", ""),
    (f"{LAUNCH} -d foo,type=unix-char,source=/dev/fuse,sauce=1", 2, "sauce", "source"),
    (f"{LAUNCH} -d foo,type=unix-char,source=/dev/fuse,mode=9", 2, "mode", "permission bits"),
    (f"{LAUNCH} -d foo,type=unix-char,source=/dev/nosuch", 5, "/dev/nosuch", "required=false"),
    (f"{LAUNCH} -d foo,type=unix-block,source=/dev/fuse", 2, "/dev/fuse", "unix-char"),
    (f"{LAUNCH} -d foo,type=unix-char,source=/etc,path=/dev/etc", 2, "/etc", ""),
    ("start nosuch", 3, "nosuch", ""),
    ("start ../x", 2, "../x", ""),
    ("start", 2, "ctrmgr start", "--all"),
    ("stop nosuch", 3, "nosuch", ""),
    ("stop s1", 4, "s1", ""),
    ("stop c1 --timeout x", 2, "x", ""),
    ("kill nosuch", 3, "nosuch", ""),
    ("kill c1 --signal NOSUCH", 2, "NOSUCH", ""),
    ("kill s1 --signal TERM", 4, "s1", ""),
    ("freeze nosuch", 3, "nosuch", ""),
    ("freeze s1", 4, "s1", ""),
    ("delete nosuch", 3, "nosuch", ""),
    ("delete c1", 4, "c1", "--force"),
    ("cluster list nosuch:", 3, "nosuch", "remote add"),
    ("console nosuch", 3, "nosuch", ""),
    ("console c1", 5, "c1", "logs --follow"),
    ("copy nosuch x", 3, "nosuch", ""),
    ("copy c1 x", 4, "c1", "stop"),
    ("copy s1 c1", 4, "c1", ""),
    ("move s1 c1", 4, "c1", ""),
    ("file pull c1 /tmp/x", 2, "c1", "INSTANCE/PATH"),
    ("file pull c1/nosuch /tmp/x", 3, "/nosuch", ""),
    ("file push /nosuch c1/x", 3, "/nosuch", ""),
    ("network list nosuch:", 3, "nosuch", "remote add"),
    ("storage list nosuch:", 3, "nosuch", "remote add"),
    ("partition delete nosuch", 3, "nosuch", ""),
    ("image export builtin:busybox /nowhere/x.tar", 5, "/nowhere", ""),
    ("publish s1 nosuch:", 3, "nosuch", "remote add"),
    ("snapshot create nosuch", 3, "nosuch", ""),
    ("snapshot restore s1 nosuch", 3, "nosuch", ""),
    ("rename nosuch x", 3, "nosuch", ""),
    ("rename s1 c1", 4, "c1", ""),
    ("rename s1 1x", 2, "1x", ""),
    ("rename c1 x", 4, "c1", "stop"),
    ("info nosuch", 3, "nosuch", "ctrmgr list"),
    ("logs nosuch", 3, "nosuch", ""),
    ("list --format xml", 2, "xml", ""),
    ("remote show nosuch", 3, "nosuch", "remote add"),
    ("doctor nosuch", 3, "nosuch", "ctrmgr list"),
    ("suspend-device nosuch x", 3, "nosuch", "ctrmgr list"),
    ("suspend-device c1 nosuch", 3, "nosuch", "ctrmgr info"),
    ("resume-device c1 nosuch", 3, "nosuch", "ctrmgr info"),
    ("monitor ../..", 2, "../..", "letters"),
    ("monitor --type weather", 2, "weather", ""),
    ("monitor --format csv", 2, "--format", "json"),
    ("top nosuch", 3, "nosuch", "ctrmgr list"),
    ("top ../..", 2, "../..", "letters"),
    ("top --once --record /etc/hostname", 2, "/etc/hostname", "new file"),
    ("top --once --record /nowhere/x", 5, "/nowhere/x", ""),
    ("plot /nowhere", 3, "/nowhere", "--record"),
    ("plot /etc/hostname", 2, "/etc/hostname", "--record"),
    ("plot /dev/null -o x.png", 2, "x.png", ""),
    ("top --once --interval 0", 2, "0", ""),
    ("top --once --sort beauty", 2, "beauty", ""),
    ("exec nosuch ls", 3, "nosuch", ""),
    ("exec s1 ls", 4, "s1", "start"),
    ("exec c1", 2, "c1", "COMMAND"),
    ("exec c1 --user nosuch id", 3, "nosuch", ""),
    ("exec c1 --cwd /nosuch pwd", 3, "/nosuch", ""),
    ("shell nosuch", 3, "nosuch", ""),
    ("config show nosuch", 3, "nosuch", ""),
    ("config get s1 nope", 2, "nope", ""),
    ("config set nosuch limits.cpu=1", 3, "nosuch", ""),
    ("config set s1 limits.cpuu=1", 2, "limits.cpuu", "limits.cpu"),
    ("config set s1 limits.memory=1X", 2, "limits.memory", ""),
    ("config set s1 limits.memory", 2, "limits.memory", ""),
    ("config set c1 limits.cpu=99999", 5, "limits.cpu", ""),
    ("config unset s1 limits.cpux", 2, "limits.cpux", "limits.cpu"),
    ("config", 2, "config", ""),
    ("attach-device nosuch /dev/fuse", 3, "nosuch", ""),
    ("attach-device c1 /dev/nosuch", 3, "/dev/nosuch", ""),
    ("attach-device s1 /dev/nosuch", 3, "/dev/nosuch", ""),
    ("attach-device c1 /etc/passwd", 2, "/etc/passwd", ""),
    ("attach-device c1 /etc", 2, "/etc", ""),
    ("attach-device c1 f type=unix-block source=/dev/fuse", 2, "/dev/fuse", "unix-char"),
    ("attach-device c1 f type=unix-char source=/dev/loop0", 2, "/dev/loop0", "unix-block"),
    ("attach-device c1 f type=unix-chr source=/dev/fuse", 2, "unix-chr", "unix-char"),
    ("attach-device c1 f type=gpu", 3, "f", "device list gpu"),
    ("attach-device c1 f type=nic", 5, "nic", "profile"),
    ("attach-device c1 f source=/dev/fuse", 2, "type", "unix-char"),
    (f"attach-device c1 f {FUSE} uid=nobodyx", 2, "nobodyx", "/etc/passwd"),
    (f"attach-device s1 f {FUSE} gid=-1", 2, "gid", ""),
    (f"attach-device c1 f {FUSE} uid=70000", 2, "f", "ctrmgr info"),
    (f"attach-device c1 f {FUSE} mode=rw", 2, "mode", ""),
    (f"attach-device c1 f {FUSE} pth=/dev/x", 2, "pth", "path"),
    (f"attach-device c1 f {FUSE} path=/etc/x", 2, "/etc/x", ""),
    (f"attach-device c1 f {FUSE} path=/dev/null", 4, "/dev/null", "path"),
    (f"attach-device c1 f {FUSE} path=/dev/../etc/x", 2, "/dev/../etc/x", ""),
    (f"attach-device c1 a/b {FUSE}", 2, "a/b", ""),
    ("attach-device c1 f type=unix-char source=fuse", 2, "source", ""),
    ("attach-device c1 f type", 2, "type", ""),
    (f"attach-device c1 taken {FUSE}", 4, "taken", ""),
    (f"attach-device c1 other {FUSE} path=/dev/taken", 4, "/dev/taken", "path"),
    ("attach-device s1 /dev/fuse --volatile", 4, "s1", "--volatile"),
    ("detach-device nosuch x", 3, "nosuch", ""),
    ("detach-device c1 nosuch", 3, "nosuch", "info"),
    ("detach-device s1 nosuch", 3, "nosuch", ""),
    ("detach-device c1 taken --holders=maybe", 2, "maybe", ""),
    ("image info nosuch", 3, "nosuch", ""),
    ("image delete nosuch", 3, "nosuch", ""),
    ("image export nosuch", 3, "nosuch", ""),
    ("image import /nosuch", 3, "/nosuch", ""),
    ("image import /etc/passwd", 2, "/etc/passwd", ""),
    ("image import /etc nick", 2, "nick", "--alias"),
    ("image import /etc/passwd nick", 2, "nick", "--alias"),
    ("image alias create a nosuch", 3, "nosuch", ""),
    ("image alias delete nosuch", 3, "nosuch", ""),
    ("profile show defalt", 3, "defalt", "default"),
    ("profile delete default", 4, "default", ""),
    ("profile delete nosuch", 3, "nosuch", ""),
    ("profile copy nosuch x", 3, "nosuch", ""),
    ("profile create default", 4, "default", ""),
    ("profile validate ./nosuch.yaml", 3, "./nosuch.yaml", ""),
    ("profile frob", 2, "profile frob", ""),
    ("device show nosuch", 3, "nosuch", ""),
    ("device", 2, "device", ""),
    ("cdi show nosuch.com/gpu=0", 3, "nosuch.com/gpu=0", ""),
    ("completion tcsh", 2, "tcsh", ""),
]


@pytest.fixture(scope="module")
def place() -> Iterator[Ctr]:
    """A running `c1` with a device `taken`, a stopped `s1`."""
    folder = Path(tempfile.mkdtemp(prefix="ctr-", dir="/var/tmp"))
    folder.chmod(0o711)
    ctr = Ctr(folder)
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("create", "builtin:busybox", "s1", "-p", "no-network")
    ctr("attach-device", "c1", "taken", "path=/dev/taken", *FUSE.split())
    yield ctr
    ctr.clean_up()
    shutil.rmtree(folder)


@pytest.mark.parametrize(("line", "code", "named", "hint"), WRONG, ids=[row[0] for row in WRONG])
def test_one_line_and_nothing_lost(place: Ctr, line: str, code: int, named: str, hint: str) -> None:
    before = place.traces()
    done = place(*shlex.split(line), code=code)
    assert done.stdout == ""
    first, _, rest = done.stderr.partition("\n")
    assert first.startswith("error: ") and named in " ".join(re.findall("`([^`]*)`", first)), done.stderr
    assert not rest or re.fullmatch(r"\nhint: [^\n]+\n", rest), done.stderr
    assert hint in rest, done.stderr
    same(before, place.traces())


@pytest.mark.parametrize("line", ["launch builtin:busybox x", "create builtin:busybox x"])
def test_an_ordinary_user_is_told_before_anything_is_made(line: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        os.chown(home, 1000, 1000)
        env = {"PATH": "/usr/bin:/bin", "HOME": home, "CTRMGR_LIBEXEC": os.environ["CTRMGR_LIBEXEC"]}
        words = [sys.executable, "-c", AS_USER, str(ROOT), *line.split()]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 5, done
        assert done.stderr.startswith("error: making an instance needs root") and "sudo" in done.stderr
        assert os.listdir(home) == []


def test_a_device_that_vanished_between(place: Ctr, tmp_path: Path) -> None:
    """Configured while it was there, gone when the instance starts: nothing starts, nothing is lost, a new try works."""
    (tmp_path / "disk").write_bytes(bytes(1 << 20))
    node = tmp_path / "node"
    loop = subprocess.check_output(["losetup", "--find", "--show", tmp_path / "disk"], text=True).strip()
    try:
        number = os.stat(loop).st_rdev
        os.mknod(node, stat.S_IFBLK | 0o600, number)
        place("attach-device", "s1", "disk", "type=unix-block", f"source={node}", "path=/dev/sda")
        node.unlink()
        before = place.traces()
        said = place("start", "s1", code=5).stderr
        assert f"`{node}`" in said and "required=false" in said
        node.mkdir()
        assert "is a directory" in place("start", "s1", code=2).stderr
        node.rmdir()
        same(before, place.traces())
        os.mknod(node, stat.S_IFBLK | 0o600, number)
        place("start", "s1")
        assert place("exec", "s1", "stat", "-c", "%F", "/dev/sda").stdout == "block special file\n"
    finally:
        place("stop", "s1", "--force", code=None)
        place("detach-device", "s1", "disk", code=None)
        subprocess.run(["losetup", "-d", loop], check=True)


@pytest.fixture
def small_state(ctr: Ctr) -> Iterator[Path]:
    state = ctr.folder / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=711", "tmpfs", state], check=True)
    try:
        yield state
    finally:
        ctr("delete", "--force", "c1", code=None)
        subprocess.run(["umount", state], check=True)


def test_a_disk_that_cannot_be_written(ctr: Ctr, small_state: Path) -> None:
    """Read-only, it is no kernel that lacks something. Filled by the instance, it does not keep the device for it."""
    ctr("create", "builtin:busybox", "c1", "-p", "no-network", "-d", "fuse,type=unix-char,source=/dev/fuse")
    subprocess.run(["mount", "-o", "remount,ro", small_state], check=True)
    said = ctr("start", "c1", code=5).stderr
    assert "cannot be written" in said and "hint: the filesystem is read-only" in said
    subprocess.run(["mount", "-o", "remount,rw", small_state], check=True)
    ctr("start", "c1")
    ctr("exec", "c1", "--", "sh", "-c", "cat /dev/zero >/1; dd if=/dev/zero of=/2 bs=1", code=1)
    said = ctr("detach-device", "c1", "fuse", code=5).stderr
    assert "No space left" in said and "free some space; `--volatile` takes it away now" in said
    ctr("exec", "c1", "test", "-c", "/dev/fuse")
    ctr("detach-device", "c1", "fuse", "--volatile")
    ctr("exec", "c1", "test", "-e", "/dev/fuse", code=1)
    ctr("stop", "c1")
    # with room for its record and not for the plan a rename stands half done, which keeps nobody from making room
    filler = small_state / "instances/c1/upper/1"
    os.truncate(filler, filler.stat().st_size - 4096)
    assert "plan` cannot be written: No space left" in ctr("rename", "c1", "c2", code=5).stderr
    assert "No space left" in ctr("start", "c2", code=5).stderr
    ctr("delete", "c2")
    assert ctr("list", "-fcsv").stdout.count("\n") == 1
    assert not [*(small_state / "ids").iterdir()]


def test_every_verb_is_here() -> None:
    verbs = {row[0].split()[0] for row in WRONG}
    assert verbs | {"help", "restart", "unfreeze"} >= set(main.VERBS)


def test_arguments_that_nobody_means(place: Ctr) -> None:
    """Words thrown together end in a code of the tree and at most one error a word; never in a traceback, and `c1` lives on."""
    pool = [
        *main.VERBS, "c1", "s1", "nosuch", "", " ", "-", "--", "---", "-f", "--format", "json", "--format=", "-c", "-d", "-p",
        "=", "a=b", "limits.cpu=", "\x00"[1:], "ä\u202e", "\udcff", "\n", "\t", "../..", "/", "/dev/fuse", "/dev", "type=", "name,type=",
        "x" * 300, "-1", "9" * 30, "--user", "--debug", "--dry-run", "--help", "list", "show", "set", "taken", "--volatile",
    ]  # fmt: skip
    dangerous = {
        "delete",
        "stop",
        "kill",
        "restart",
        "rename",
        "freeze",
        "create",
        "launch",
        "shell",
        "detach-device",
        "copy",
        "move",
        "snapshot",
    }
    endless = {"top", "monitor", "console"}
    rng = random.Random(20261121)
    for _ in range(150):
        words = [rng.choice(pool) for _ in range(rng.randint(1, 6))]
        before, rest = main.leading(words)
        if rest[:1] and rest[0] in dangerous and "c1" in rest:
            rest[rest.index("c1")] = "nosuch"
        if rest[:1] and rest[0] in endless and "--help" not in rest:
            rest.insert(1, "--help")
        words = [*before, *rest]
        said = place(*words, code=None)
        assert said.code in (0, 2, 3, 4, 5, 6, 7, 126, 127), (words, said)
        assert "Traceback" not in said.stderr, (words, said)
        assert len(re.findall(r"^error: ", said.stderr, re.M)) <= len(words), (words, said)
    assert place("exec", "c1", "echo", "alive").stdout == "alive\n"
