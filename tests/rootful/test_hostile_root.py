# SPDX-License-Identifier: GPL-3.0-or-later
"""What root inside may do to its own cgroups, files and processes neither hides anything from its monitor nor hurts it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import control, helper
from tests.conftest import Ctr, libc
from tests.rootful.planned import Planned, image, wait_for

FUSE = "/dev/fuse"
MNT_DETACH = 2
MANY = 64
"""Holders, as many as a reply has room for."""
PIECE = 4095
"""Of a line, what a buffer of a page takes."""


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[Planned]:
    own = Planned(tmp_path, image(tmp_path))
    yield own
    own.close()


def link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def openers(planned: Planned) -> int:
    """Processes of the instance that have the device."""
    found = 0
    for file in planned.cgroup.rglob("cgroup.procs"):
        for pid in file.read_text().split():
            found += any(link(fd) == FUSE for fd in Path(f"/proc/{pid}/fd").glob("*"))
    return found


def test_no_holder_hides(planned: Planned) -> None:
    """Deep in cgroups of the instance's own, among more than a reply has room for, or as a child that is made just then."""
    planned.start()
    assert not planned.attach("fuse", FUSE, FUSE).error
    hide = "d=/sys/fs/cgroup; n=0; while [ $n -lt 40 ]; do d=$d/d; /bin/busybox mkdir $d; n=$((n+1)); done"
    planned.sh(f"{hide}; (sleep 1000 <{FUSE} >/dev/null 2>&1 & echo $! >/sys/fs/cgroup{'/d' * 40}/cgroup.procs)")
    refused = planned.ask(control.DETACH, control.HOLDERS.index("refuse"), "fuse")
    assert (refused.error, refused.value) == (errno.EBUSY, 1)
    many = "n=0; while [ $n -lt 300 ]; do sleep 1000 & n=$((n+1)); done; sleep 1000"
    planned.sh(f"(exec 9<{FUSE}; {many}) >/dev/null 2>&1 &")
    wait_for(lambda: openers(planned) > MANY)
    taken = planned.ask(control.DETACH, control.HOLDERS.index("kill"), "fuse")
    assert not taken.error and taken.value > MANY == len(taken.holders())
    wait_for(lambda: not openers(planned))


def test_a_user_that_has_frozen_it_thaws_it(planned: Planned) -> None:
    planned.start()
    assert not planned.attach("fuse", FUSE, FUSE).error
    assert not planned.ask(control.FREEZE).error
    assert not planned.ask(control.DETACH, control.HOLDERS.index("refuse"), "fuse").error
    assert planned.ask(control.STATUS).status()[2]


def test_cgroups_of_its_own_are_not_too_many_levels(planned: Planned) -> None:
    """What is too deep to be removed would stay for ever."""
    planned.start()
    made = planned.sh(
        "cd /sys/fs/cgroup; n=0; while [ $n -lt 100 ] && /bin/busybox mkdir d 2>/dev/null; do cd d; n=$((n+1)); done; echo $n"
    )
    assert made.stdout == "64\n"
    planned.ask(control.KILL)
    wait_for(planned.gone)


def test_a_user_of_the_host_mounts_on_a_long_path(planned: Planned, tmp_path: Path) -> None:
    """As `fusermount` lets everybody: its line of mountinfo ends in what alone is no line."""
    here = os.open(tmp_path, os.O_PATH)

    def mounted(name: str) -> tuple[bytes, bytes]:
        os.mkdir(name, dir_fd=here)
        where = f"/proc/self/fd/{here}/{name}".encode()
        assert not libc.mount(b"ctrmgr-test", where, b"tmpfs", 0, None)
        return where, Path("/proc/self/mountinfo").read_bytes().splitlines()[-1]

    for _ in range(8):
        os.mkdir(" " * 100, dir_fd=here)  # in mountinfo four bytes each
        below = os.open(" " * 100, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    where, line = mounted("x")
    missing = PIECE - line.index(b" - ")
    libc.umount2(where, MNT_DETACH)
    where, line = mounted("y" + " " * (missing // 4) + "x" * (missing % 4))
    assert line.index(b" - ") == PIECE
    try:
        assert not planned.monitor().error
    finally:
        libc.umount2(where, MNT_DETACH)
        os.close(here)


def test_its_names_are_looked_up_in_its_files_alone(planned: Planned) -> None:
    """Over `/proc/1/root` its passwd would lead into its own mounts: to a file system that never answers, say."""
    planned.start()
    other = "echo eve:x:5:5::/:/bin/sh >/etc/other; cd /etc; /bin/busybox rm passwd"
    assert planned.sh(f"{other}; ln -s other passwd").stderr == ""
    assert not planned.attach("fuse", FUSE, FUSE, user="eve").error
    assert not planned.ask(control.DETACH, name="fuse").error
    planned.sh("/bin/busybox rm /etc/passwd; ln -s /proc/1/root/etc/other /etc/passwd")
    assert planned.attach("fuse", FUSE, FUSE, user="eve").step == "find the owner"


def test_its_words_are_none_of_the_terminals(planned: Planned) -> None:
    planned.start()
    assert not planned.attach("fuse", FUSE, FUSE).error
    planned.sh(f"(exec <{FUSE}; printf '\\033[2J' >/proc/self/comm; while :; do read x; done) >/dev/null 2>&1 &")
    wait_for(lambda: openers(planned))
    assert "?[2J" in [holder.comm for holder in planned.ask(control.DETACH, 3, "fuse").holders()]


def test_a_directory_of_the_hosts_is_not_handed_in(planned: Planned) -> None:
    planned.start()
    exec_in = [helper.find("ctrmgr-exec"), "--control", f"{planned.run}/control", "--", "ls", "/proc/self/fd/0/etc"]
    host = os.open("/", os.O_PATH)
    done = subprocess.run(exec_in, stdin=host, capture_output=True, text=True)
    os.close(host)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pass on the standard input: Is a directory" in done.stderr


def test_programs_that_it_could_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs inside is in its /proc: of an owner whom the instance has, it would be root's on the host in the end."""
    owner = 54321
    shutil.copytree(os.environ["CTRMGR_LIBEXEC"], tmp_path / "programs", ignore=shutil.ignore_patterns("*.p"))
    os.chown(tmp_path / "programs/ctrmgr-monitor", owner, 0)
    monkeypatch.setenv("CTRMGR_LIBEXEC", str(tmp_path / "programs"))
    planned = Planned(tmp_path, image(tmp_path), rows=f"uidmap\t70000\t{owner}\t1\n")
    report = planned.monitor()
    assert (report.step, report.error) == ("check our own programs", errno.EPERM)
    assert "raw.idmap" in str(control.failure("c1", report.step, report.detail, report.error).hint)
    assert planned.gone()
    os.chown(tmp_path / "programs/ctrmgr-monitor", 0, 0)
    planned.start()
    planned.close()


def test_set_id_files_are_out_of_reach(ctr: Ctr) -> None:
    """On the disk they are root's: an instance's root and any user of the host could make that one root."""
    home = ctr.folder / "state/instances"
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("exec", "c1", "--", "sh", "-c", "cp /bin/busybox /srv-id; chmod 6755 /srv-id")
    there = (home / "c1/upper/srv-id").stat()
    assert (there.st_uid, stat.S_IMODE(there.st_mode)) == (0, 0o6755)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    ctr("stop", "-f", "c1")
    home.chmod(0o711)
    ctr("start", "c1")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
