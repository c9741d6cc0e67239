# SPDX-License-Identifier: GPL-3.0-or-later
"""Attach and detach through the command line: real nodes, real owners, and really gone."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr, same, settle

Snapshot = Callable[[], dict[str, object]]
FUSE = "/dev/fuse"


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    return ctr


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """A real block device with a known first line."""
    file = tmp_path / "disk"
    file.write_bytes(b"known content\n".ljust(1 << 20, b"\0"))
    device = subprocess.check_output(["losetup", "--find", "--show", file], text=True).strip()
    yield device
    subprocess.run(["losetup", "-d", device], check=True)


def sh(ctr: Ctr, script: str, code: int | None = 0, user: str = "0") -> str:
    result = ctr("exec", "--user", user, "c1", "--", "sh", "-c", script, code=code)
    return result.stdout + result.stderr


def test_owner_by_name_and_number(c1: Ctr) -> None:
    c1("attach-device", "c1", "fuse", "type=unix-char", f"source={FUSE}", "uid=1000", "gid=render", "mode=0640")
    assert sh(c1, f"stat -c '%u %G %a %t:%T' {FUSE}").split() == ["1000", "render", "640", "a:e5"]
    assert sh(c1, f"exec 3<{FUSE} && echo opened", user="1000") == "opened\n"
    assert "denied" in sh(c1, f"exec 3<{FUSE}", code=None, user="1234")


def test_no_moment_has_wrong_rights(c1: Ctr, tmp_path: Path) -> None:
    """A new node is visible inside at once: it opens to nobody until it has its owner, and to all only then."""
    state = (c1.folder / "run/c1/state").read_text().split()
    monitor = state[state.index("monitor") + 1]
    calls = tmp_path / "calls"
    tracer = subprocess.Popen(["strace", "-qq", "-o", calls, "-p", monitor])
    status = Path(f"/proc/{monitor}/status")
    while f"TracerPid:\t{tracer.pid}" not in status.read_text():
        time.sleep(0.01)
    c1("attach-device", "c1", FUSE, "uid=1000", "mode=0644")
    tracer.terminate()
    tracer.wait(10)
    # 0x1c4 is fchmodat2, of which an older strace does not know
    steps = r"(mknodat|fchownat|fchmodat2|syscall_0x1c4|renameat2)\((?:.*S_IFCHR(\|\d+)?)?"
    done = re.findall(steps, calls.read_text())
    names = [name.replace("syscall_0x1c4", "fchmodat2") for name, _ in done]
    assert names == ["mknodat", "fchownat", "fchmodat2", "renameat2"], done
    assert done[0][1] in ("", "|000"), done
    assert sh(c1, f"stat -c '%u %a' {FUSE}") == "1000 644\n"


def without_fchmodat2() -> None:
    """Linux before 6.6, for this process and what it starts: a filter that says ENOSYS to number 452."""
    program = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 452)
    program += struct.pack("HBBI", 6, 0, 0, 0x50000 | errno.ENOSYS) + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program)
    filtered = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    if libc.prctl(22, 2, filtered, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


def test_a_kernel_without_fchmodat2(ctr: Ctr) -> None:
    launch = ctr.popen("launch", "builtin:busybox", "c1", "-p", "no-network", preexec_fn=without_fchmodat2)
    assert launch.wait(30) == 0
    ctr("attach-device", "c1", FUSE, "uid=1000", "mode=0640")
    assert sh(ctr, f"ln {FUSE} /dev/kept; stat -c '%u %a' {FUSE}") == "1000 640\n"
    ctr("detach-device", "c1", "fuse")
    assert sh(ctr, f"stat -c %a /dev/kept; ls {FUSE}", code=1).startswith("0\n")


def test_names_are_the_instances_own(c1: Ctr) -> None:
    sh(c1, "echo special:x:4321: >> /etc/group")
    c1("attach-device", "c1", FUSE, "group=special")
    assert sh(c1, f"stat -c %g {FUSE}") == "4321\n"


def test_short_form_and_subdirectory(c1: Ctr) -> None:
    c1("attach-device", "c1", "/dev/net/tun")
    assert sh(c1, "stat -c '%t:%T' /dev/net/tun") == "a:c8\n"
    assert sh(c1, "stat -c '%u %a' /dev/net") == "0 755\n"
    c1("detach-device", "c1", "net-tun")
    assert "No such file" in sh(c1, "ls /dev/net/tun", code=1)


def test_by_the_name_that_device_list_has(c1: Ctr) -> None:
    c1("attach-device", "c1", "fuse")
    assert sh(c1, f"stat -c '%t:%T' {FUSE}") == "a:e5\n"
    c1("detach-device", "c1", "fuse")
    said = c1("attach-device", "c1", "nonsense", code=2).stderr
    assert said.startswith("error: device `nonsense` has no `type`, and this host has no device of that name\n")
    c1("attach-device", "c1", "f", "type=unix-char", "source=/dev/fuse")
    for _ in range(2):  # the second time nothing is different, and nothing waits for the next start
        assert c1("config", "device", "set", "c1", "f", "gid=5").stderr == ""


def test_block_device(c1: Ctr, loop: str) -> None:
    c1("attach-device", "c1", "disk", "type=unix-block", f"source={loop}", "path=/dev/sda", "gid=disk")
    assert sh(c1, "head -n 1 /dev/sda") == "known content\n"
    sh(c1, "echo written | dd of=/dev/sda conv=notrunc 2>/dev/null; sync")
    assert Path(loop).read_bytes()[:8] == b"written\n"


def test_a_disk_that_the_host_uses(c1: Ctr, loop: str, tmp_path: Path) -> None:
    subprocess.run(["mkfs.ext4", "-q", loop], check=True)
    (tmp_path / "mnt").mkdir()
    subprocess.run(["mount", "-o", "ro", loop, tmp_path / "mnt"], check=True)
    try:
        read = c1("attach-device", "c1", "disk", "type=unix-block", f"source={loop}", "readonly=true")
        assert read.stderr == ""
        c1("detach-device", "c1", "disk")
        assert f"the host itself uses this disk ({tmp_path / 'mnt'})" in c1("attach-device", "c1", loop).stderr
    finally:
        subprocess.run(["umount", tmp_path / "mnt"], check=True)


@pytest.mark.parametrize("verb", ["detach-device", "suspend-device"])
def test_what_was_written_is_on_the_disk(c1: Ctr, loop: str, tmp_path: Path, verb: str) -> None:
    """Though somebody still has it open, so that the kernel has no reason of its own to write it out."""
    c1("attach-device", "c1", "disk", "type=unix-block", f"source={loop}", "path=/dev/sda")
    sh(
        c1,
        "(exec 3<>/dev/sda; echo kept >&3; touch /tmp/written; exec sleep 1000) >/dev/null 2>&1 & until [ -e /tmp/written ]; do :; done",
    )
    assert (tmp_path / "disk").read_bytes()[:5] == b"known"
    said = c1(verb, "c1", "disk").stderr
    assert "still has it" in said
    assert "flushed" not in said
    assert (tmp_path / "disk").read_bytes()[:5] == b"kept\n"


@pytest.mark.usefixtures("alone")
def test_a_drive_without_a_medium(c1: Ctr) -> None:
    empty = subprocess.run(["losetup", "-f"], check=True, capture_output=True, text=True).stdout.strip()
    c1("attach-device", "c1", empty)
    assert c1("detach-device", "c1", Path(empty).name).stderr == ""


def test_read_only_block_device(c1: Ctr, loop: str) -> None:
    c1("attach-device", "c1", "disk", "type=unix-block", f"source={loop}", "path=/dev/sda", "readonly=true")
    assert sh(c1, "head -n 1 /dev/sda") == "known content\n"
    # root may do all that the node's mode says; the device program refuses
    assert "not permitted" in sh(c1, "echo no > /dev/sda", code=1)


def test_detach_leaves_no_way_back(c1: Ctr, loop: str) -> None:
    c1("attach-device", "c1", "disk", "type=unix-block", f"source={loop}", "path=/dev/sda")
    sh(c1, "ln /dev/sda /dev/kept && touch /mnt/bound && mount --bind /dev/sda /mnt/bound || touch /mnt/bound")
    bound = subprocess.Popen(
        [*c1.argv, "exec", "c1", "--", "sh", "-c", "mount -o bind /dev/sda /mnt/bound; exec 3</dev/sda; sleep 60"],
        env=c1.env,
    )
    deadline = time.monotonic() + 10
    while not sh(c1, "pidof sleep || true").strip() and time.monotonic() < deadline:
        time.sleep(0.05)
    said = c1("detach-device", "c1", "disk").stderr
    assert "still has it: sleep" in said
    assert "already keep working" in said
    for path in ("/dev/sda", "/dev/kept", "/mnt/bound"):
        assert sh(c1, f"head -c 1 {path}", code=1), path
    assert sh(c1, "for p in /proc/[0-9]*; do head -c 1 $p/fd/3 2>/dev/null; done; true") == ""
    for command in (
        "chmod 666 /dev/kept",
        "chown 0:0 /dev/kept",
        f"mknod /dev/again b {os.major(os.stat(loop).st_rdev)} 0",
    ):
        assert "not permitted" in sh(c1, command, code=1)
    bound.terminate()
    bound.wait(10)


def test_holders(c1: Ctr) -> None:
    def held() -> subprocess.Popen[bytes]:
        c1("attach-device", "c1", FUSE)
        holder = c1.popen(
            "exec", "c1", "--", "sh", "-c", f"exec 3<{FUSE}; echo ready; exec sleep 100", stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        return holder

    holder = held()
    refused = c1("detach-device", "c1", "fuse", "--holders=refuse", code=4)
    assert "sleep" in refused.stderr
    assert "hint:" in refused.stderr
    assert sh(c1, f"exec 3<{FUSE} && echo still") == "still\n"
    c1("detach-device", "c1", "fuse", "--holders=kill")
    assert holder.wait(10) == 128 + 9
    holder = held()
    c1("detach-device", "c1", "fuse", "--holders=freeze")
    assert "FROZEN" in c1("list").stdout
    c1("unfreeze", "c1")
    assert "RUNNING" in c1("list").stdout
    holder.terminate()
    holder.wait(10)


def test_persistent_and_volatile(c1: Ctr) -> None:
    c1("attach-device", "c1", FUSE)
    c1("attach-device", "--volatile", "c1", "/dev/net/tun")
    c1("restart", "c1")
    assert sh(c1, f"test -c {FUSE} && ! test -e /dev/net/tun && echo right") == "right\n"
    c1("detach-device", "--volatile", "c1", "fuse")
    assert sh(c1, f"test -e {FUSE} || echo gone") == "gone\n"
    c1("restart", "c1")
    assert sh(c1, f"test -c {FUSE} && echo back") == "back\n"


def test_attach_to_a_stopped_instance(c1: Ctr) -> None:
    c1("stop", "c1")
    said = c1("attach-device", "c1", FUSE, "gid=kvm").stderr
    assert "next start" in said
    c1("start", "c1")
    assert sh(c1, f"stat -c %G {FUSE}") == "kvm\n"


def test_a_profiles_device_can_be_detached(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-p", "fuse")
    assert sh(ctr, f"test -c {FUSE} && echo there") == "there\n"
    ctr("detach-device", "c1", "fuse")
    assert sh(ctr, f"test -e {FUSE} || echo gone") == "gone\n"
    ctr("restart", "c1")
    assert sh(ctr, f"test -e {FUSE} || echo gone") == "gone\n"


def test_two_leases_of_one_number(c1: Ctr) -> None:
    c1("attach-device", "c1", "one", "type=unix-char", f"source={FUSE}", "path=/dev/one")
    c1("attach-device", "c1", "two", "type=unix-char", f"source={FUSE}", "path=/dev/two")
    c1("detach-device", "c1", "one")
    assert sh(c1, "exec 3</dev/two && echo opened") == "opened\n"
    c1("detach-device", "c1", "two")
    assert "no such" in sh(c1, "exec 3</dev/two", code=None)


def test_the_containers_root_cannot_lead_a_node_astray(c1: Ctr) -> None:
    """A symlink in /dev, or something of that name already: refused, and what is there stays."""
    sh(c1, "ln -s /etc /dev/net")
    assert "error:" in c1("attach-device", "c1", "/dev/net/tun", code=7).stderr
    assert sh(c1, "ls /etc/tun", code=1)
    sh(c1, f"echo mine > {FUSE}")
    assert "exists" in c1("attach-device", "c1", FUSE, code=4).stderr
    assert sh(c1, f"cat {FUSE}") == "mine\n"


def test_nothing_is_left(ctr: Ctr, loop: str, host_snapshot: Snapshot) -> None:
    ctr("launch", "builtin:busybox", "warm", "-p", "no-network")
    ctr("delete", "--force", "warm")
    settle()
    before = host_snapshot()
    mode = stat.S_IMODE(os.stat(FUSE).st_mode)
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("attach-device", "c1", FUSE, "uid=1000", "mode=0666")
    ctr("attach-device", "c1", loop)
    sh(ctr, f"chmod 600 {FUSE}; chown 0:0 {FUSE}")
    ctr("detach-device", "c1", "fuse")
    during = host_snapshot()
    assert during["programs"] == before["programs"] + 1  # type: ignore[operator]
    ctr("delete", "--force", "c1")
    settle()
    same(before, host_snapshot())
    assert stat.S_IMODE(os.stat(FUSE).st_mode) == mode
    assert not (ctr.folder / "run/c1").exists()
    assert list((ctr.folder / "state/ids").iterdir()) == []


def test_open_descriptors_are_as_info_says(c1: Ctr, loop: str) -> None:
    """`held`: one that was open before goes on; `revoked`: it is refused. This kernel is one of the two."""
    c1("attach-device", "c1", "disk", "type=unix-block", f"source={loop}")
    script = f"exec 3<{loop}; touch /tmp/open; while [ -e {loop} ]; do sleep 0.05; done; head -c 5 <&3"
    holder = c1.popen("exec", "c1", "--", "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sh(c1, "while [ ! -e /tmp/open ]; do sleep 0.05; done")
    foreseen = open_fds(c1)
    said = c1("detach-device", "c1", "disk").stderr
    out, err = holder.communicate(timeout=30)
    assert open_fds(c1) == foreseen
    if foreseen == "revoked":
        assert (out, b"not permitted" in err) == (b"", True)
        assert "refused from now on" in said
    else:
        assert foreseen.startswith("held: ")
        assert out == b"known"
        assert "keep working" in said


def open_fds(ctr: Ctr) -> str:
    return str(json.loads(ctr("info", "c1", "--format", "json").stdout)["open-fds"])
