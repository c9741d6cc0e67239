# SPDX-License-Identifier: GPL-3.0-or-later
"""Each thing that ctrmgr needs of the kernel, refused: what is documented to be done without it is done, anything else is
exit code 5, names what is missing and leaves nothing."""

from __future__ import annotations

import errno
import json
import re
import subprocess
from pathlib import Path

import pytest

from ctrmgr.kernel import missing
from tests.conftest import ROOT, Ctr, Result, same
from tests.rootful.refuse import Refusal, older_than, without

LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
FUSE = "/dev/fuse"
NEWNS, NEWCGROUP, NEWNET = 0x20000, 0x2000000, 0x40000000
SET_FD, NETLINK, TIOCGPTPEER, MS_PRIVATE = 5, 16, 0x5441, 1 << 18
BY_DESCRIPTOR = Refusal("fsconfig", errno.EINVAL, arg=1, value=SET_FD)


def run(ctr: Ctr, *words: str, lacking: list[Refusal], code: int | None = 0) -> Result:
    """`ctrmgr` on a kernel that lacks something."""
    done = subprocess.run(
        [*ctr.argv, *words], env=ctr.env, capture_output=True, text=True, timeout=120, preexec_fn=without(*lacking)
    )
    result = Result(done.returncode, done.stdout, done.stderr)
    assert code is None or result.code == code, f"without {lacking}: {result}"
    assert "Traceback" not in result.stderr, result.stderr
    return result


@pytest.fixture
def ready(ctr: Ctr) -> Ctr:
    """All that is made on first use is there, so that only what the launch leaves is a difference."""
    ctr(*LAUNCH)
    ctr("delete", "--force", "c1")
    return ctr


NEEDED = [
    ("unshare", Refusal("unshare", arg=0, value=NEWNS)),
    ("unshare", Refusal("unshare", errno.EPERM, arg=0, value=NEWNS)),
    ("unshare", Refusal("unshare", errno.EINVAL, arg=0, value=NEWNET, bits=True)),
    ("unshare", Refusal("unshare", errno.EPERM, arg=0, value=NEWCGROUP, bits=True)),
    ("mount", Refusal("mount", errno.EPERM, arg=3, value=MS_PRIVATE, bits=True)),
    ("clone3", Refusal("clone3")),
    ("setns", Refusal("setns", errno.EINVAL)),
    ("setns", Refusal("setns", errno.EPERM)),
    ("pivot_root", Refusal("pivot_root", errno.EPERM)),
    ("open_tree", Refusal("open_tree")),
    ("move_mount", Refusal("move_mount", errno.EPERM)),
    ("fsopen", Refusal("fsopen")),
    ("fsopen", Refusal("fsopen", errno.EPERM)),
    ("filesystem", Refusal("fsopen", errno.ENODEV)),
    ("fsconfig", Refusal("fsconfig")),
    ("fsmount", Refusal("fsmount")),
    ("openat2", Refusal("openat2")),
    ("openat2", Refusal("openat2", errno.EPERM)),
    ("bpf", Refusal("bpf")),
    ("bpf", Refusal("bpf", errno.EPERM)),
    ("bpf", Refusal("bpf", errno.EINVAL)),
    ("mknod", Refusal("mknodat", errno.EPERM)),
    ("TIOCGPTPEER", Refusal("ioctl", errno.ENOTTY, arg=1, value=TIOCGPTPEER)),
    ("execveat", Refusal("execveat")),
    ("load the seccomp filter", Refusal("seccomp")),
    ("load the seccomp filter", Refusal("seccomp", errno.EINVAL)),
    ("open a netlink socket", Refusal("socket", errno.EAFNOSUPPORT, arg=0, value=NETLINK)),
]


@pytest.mark.parametrize(
    ("name", "refusal"), NEEDED, ids=lambda value: repr(value) if value.__class__ is Refusal else ""
)
def test_a_launch_says_what_is_missing(ready: Ctr, name: str, refusal: Refusal) -> None:
    before = ready.traces()
    said = run(ready, *LAUNCH, "--format", "json", lacking=[refusal], code=5)
    error = json.loads(said.stderr)
    assert error["kind"] == "UnsupportedError", error
    what, needed = missing.CALLS[name]
    assert what in error["error"] and "`c1`" in error["error"], error
    if refusal.number in missing.FORBIDDEN:
        assert "forbidden here" in error["error"] and "sandbox" in error["hint"]
    else:
        assert error["hint"] == f"needed: {needed}"
    assert said.stdout == ""
    same(before, ready.traces())


def test_every_need_is_tested_and_documented() -> None:
    text = (ROOT / "docs/reference/kernel.md").read_text()
    named = {word for line in text.splitlines() if line[:1] == "|" for word in re.findall(r"`([^`]+)`", line)}
    assert set(missing.CALLS) <= named
    fallbacks = {"fchmodat2", "mount_setattr", "renameat2"}  # below
    assert {name for name, _ in NEEDED} | fallbacks == set(missing.CALLS)


DONE_WITHOUT = {
    "descriptors for overlay": [BY_DESCRIPTOR],
    "fchmodat2": [Refusal("fchmodat2")],
    "fchmodat2 in a sandbox": [Refusal("fchmodat2", errno.EPERM)],
    "pidfd_send_signal": [Refusal("pidfd_send_signal", errno.EPERM)],
    "keyctl": [Refusal("keyctl")],
    "all since Linux 6.1": [BY_DESCRIPTOR, *older_than(451)],
}


@pytest.mark.parametrize("lacking", DONE_WITHOUT.values(), ids=DONE_WITHOUT)
def test_done_without(ready: Ctr, lacking: list[Refusal]) -> None:
    before = ready.traces()
    run(ready, *LAUNCH, lacking=lacking)
    run(ready, "attach-device", "c1", FUSE, "uid=1000", "mode=0640", lacking=lacking)
    seen = run(ready, "exec", "c1", "stat", "-c", "%u %a %t:%T", FUSE, lacking=lacking)
    assert seen.stdout == "1000 640 a:e5\n"
    assert ready("exec", "c1", "cat", "/proc/self/mounts").stdout.startswith("ctrmgr / overlay ")
    run(ready, "detach-device", "c1", "fuse", lacking=lacking)
    assert ready("exec", "c1", "ls", FUSE, code=1).stdout == ""
    run(ready, "kill", "c1", "--signal", "CONT", lacking=lacking)
    run(ready, "stop", "c1", "--timeout", "20", lacking=lacking)
    assert json.loads(ready("info", "c1", "-f", "json").stdout)["status"] == "STOPPED"
    run(ready, "delete", "c1", lacking=lacking)
    same(before, ready.traces())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM], ids=errno.errorcode.get)
def test_a_shifted_copy_where_nothing_can_be_idmapped(ready: Ctr, number: int) -> None:
    limited = (*LAUNCH, "-c", "limits.processes=50")
    ready(*limited)
    ready("delete", "--force", "c1")
    before = ready.traces()
    said = run(ready, *limited, lacking=[Refusal("mount_setattr", number)])
    assert "note: this host cannot idmap" in said.stderr
    info = json.loads(ready("info", "c1", "-f", "json").stdout)
    assert info["root"] == "copied with shifted owners"
    owners = ready("exec", "c1", "stat", "-c", "%u", "/bin/busybox", "/etc/hostname", "/home/user").stdout
    assert owners.split() == ["0", "0", "1000"]
    ready("exec", "c1", "--", "sh", "-c", "echo kept > /etc/mine")
    # the masks are there, and as read-only as ever
    assert ready("exec", "c1", "--", "sh", "-c", "echo 1 > /proc/irq/default_smp_affinity", code=1).stderr
    mounts = ready("exec", "c1", "cat", "/proc/self/mounts").stdout.splitlines()
    options = {line.split()[1]: line.split()[3].split(",") for line in mounts}
    assert "ro" in options["/proc/irq"] and "nosuid" in options["/proc/irq"]
    assert "ro" in options["/proc/keys"]
    said = run(ready, "config", "set", "c1", "limits.processes=40", lacking=[Refusal("mount_setattr", number)])
    assert said.stderr == ""  # it is live, and nothing waits for the next start
    said = run(ready, "restart", "c1", lacking=[Refusal("mount_setattr", number)])
    assert said.stderr == ""  # nothing was copied again
    assert ready("exec", "c1", "cat", "/etc/mine").stdout == "kept\n"

    ready("delete", "--force", "c1")
    same(before, ready.traces())


def test_two_things_can_be_missing_at_a_start(ready: Ctr) -> None:
    """Idmaps, and the bridge: a network namespace has none when it is new."""
    words = ["unshare", "--net", *ready.argv, "launch", "builtin:busybox", "c1"]
    done = subprocess.run(
        words, env=ready.env, capture_output=True, timeout=120, preexec_fn=without(Refusal("mount_setattr"))
    )
    assert done.returncode == 0, done
    assert "eth0" in ready("exec", "c1", "ip", "link").stdout


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (Refusal("renameat2"), missing.CALLS["renameat2"][0]),
        (Refusal("mknodat", errno.EPERM, arg=2, value=0o60000, bits=True), missing.CALLS["mknod"][0]),
    ],
    ids=["renameat2", "mknodat"],
)
def test_an_attach_says_what_is_missing(ready: Ctr, tmp_path: Path, refusal: Refusal, says: str) -> None:
    run(ready, *LAUNCH, lacking=[refusal])
    file = tmp_path / "disk"
    file.write_bytes(bytes(1 << 20))
    loop = subprocess.check_output(["losetup", "--find", "--show", file], text=True).strip()
    try:
        before = ready.traces()
        said = ready("attach-device", "c1", "disk", "type=unix-block", f"source={loop}", "path=/dev/sda", code=5)
        assert says in said.stderr and "`disk`" in said.stderr
        same(before, ready.traces())
        assert "sda" not in ready("exec", "c1", "ls", "-a", "/dev").stdout
        assert ".ctrmgr-" not in ready("exec", "c1", "ls", "-a", "/dev").stdout.replace(".ctrmgr-empty", "")
        assert json.loads(ready("info", "c1", "-f", "json").stdout)["attached"] == []
    finally:
        subprocess.run(["losetup", "-d", loop], check=True)


@pytest.mark.parametrize(
    "refusal", [Refusal("clone3"), Refusal("close_range"), Refusal("setns"), Refusal("setns", errno.EPERM)], ids=repr
)
def test_exec_says_what_is_missing(ready: Ctr, refusal: Refusal) -> None:
    ready(*LAUNCH)
    said = run(ready, "exec", "c1", "true", lacking=[refusal], code=5).stderr
    first, blank, hint = said.splitlines()
    assert first.startswith("error: ")
    assert blank == "" and hint.startswith("hint: ")
    assert ready("exec", "c1", "echo", "well").stdout == "well\n"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EINVAL], ids=errno.errorcode.get)
def test_an_import_says_what_is_missing(ready: Ctr, tmp_path: Path, number: int) -> None:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    images = sorted((ready.folder / "state/images").iterdir())
    refusal = Refusal("unshare", number, arg=0, value=0x10000000, bits=True)
    said = run(ready, "image", "import", str(tmp_path / "rootfs"), "-f", "json", lacking=[refusal], code=5)
    error = json.loads(said.stderr)
    assert error["kind"] == "UnsupportedError"
    assert "namespaces" in error["error"]
    assert sorted((ready.folder / "state/images").iterdir()) == images
