# SPDX-License-Identifier: GPL-3.0-or-later
"""Files into instances of this machine and out of them, running and stopped."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Ctr


@pytest.fixture(params=["running", "stopped"])
def c1(request: pytest.FixtureRequest, ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    if request.param == "stopped":
        ctr("stop", "--force", "c1")
    return ctr


def inside(ctr: Ctr, command: str) -> str:
    """What a shell in c1 says; it may be started for that."""
    if "STOPPED" in ctr("list").stdout:
        ctr("start", "c1")
    return str(ctr("exec", "c1", "--", "sh", "-c", command).stdout)


def test_there_and_back(c1: Ctr, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "deep/er/bytes").write_bytes(bytes(range(256)) * 20000)
    (tree / "deep/run").write_text("#!/bin/sh\n")
    (tree / "deep").chmod(0o750)
    os.chown(tree / "deep/run", 1000, 107)
    (tree / "deep/run").chmod(0o4750)
    (tree / "link").symlink_to("deep/run")
    os.mkfifo(tree / "fifo")
    pushed = c1("file", "push", "--recursive", "--create-dirs", str(tree), "c1/srv/www/site")
    assert "fifo` was left out" in pushed.stderr
    back = tmp_path / "back"
    c1("file", "pull", "--recursive", "c1/srv/www/site", str(back))
    assert subprocess.run(["diff", "-r", "--exclude=fifo", tree, back]).returncode == 0
    assert os.readlink(back / "link") == "deep/run" and (back / "deep").stat().st_mode & 0o7777 == 0o750
    taken = (back / "deep/run").stat()
    assert (taken.st_mode & 0o7777, taken.st_uid) == (0o750, os.getuid())  # set-id bits do not come out
    assert inside(c1, "stat -c '%a %u %g' /srv/www/site/deep/run /srv/www/site/deep").split() == [
        "4750", "1000", "107", "750", "0", "0",
    ]  # fmt: skip


def test_one_file(c1: Ctr, tmp_path: Path) -> None:
    c1("file", "push", "-", "c1/etc/motd", "--mode", "0640", "--uid", "5", "--gid", "107", stdin="hello\n")
    assert c1("file", "pull", "c1/etc/motd", "-").stdout == "hello\n"
    source = tmp_path / "a.txt"
    source.write_text("a")
    c1("file", "push", str(source), "c1/etc/")
    c1("file", "push", str(source), "c1/etc")
    assert "has no user 70000" in c1("file", "push", str(source), "c1/etc/", "--uid", "70000", code=2).stderr
    assert "is a directory" in c1("file", "pull", "c1/etc", str(tmp_path / "etc"), code=2).stderr
    assert "no file `/etc/nothing`" in c1("file", "pull", "c1/etc/nothing", "-", code=3).stderr
    assert "--create-dirs" in c1("file", "push", str(source), "c1/no/where", code=3).stderr
    assert "no instance `c9`" in c1("file", "push", str(source), "c9/etc/", code=3).stderr
    assert c1("file", "push", str(source), "c1/etc/b", "--dry-run").stdout == f"push {source} c1/etc/b\n"
    assert inside(c1, "stat -c '%a %u %g' /etc/motd; ls /etc/a.txt /etc/b || true").split() == [
        "640", "5", "107", "/etc/a.txt",
    ]  # fmt: skip
    # Files of the kernel's say that they are empty, or a page long.
    release = Path("/proc/sys/kernel/osrelease").read_text()
    assert c1("file", "pull", "c1/proc/sys/kernel/osrelease", "-").stdout == release
    c1("file", "pull", "--recursive", "c1/sys/kernel/mm/ksm", str(tmp_path / "ksm"))
    assert (tmp_path / "ksm/run").read_text() == Path("/sys/kernel/mm/ksm/run").read_text()


def test_no_device_is_replaced(c1: Ctr, tmp_path: Path) -> None:
    """A file that is pulled to a node of the host goes into it, as with `cp`; one that is pushed takes the place of none inside."""
    c1("file", "push", "-", "c1/etc/motd", stdin="hello\n")
    null, pipe, link = tmp_path / "null", tmp_path / "pipe", tmp_path / "link"
    os.mknod(null, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    assert c1("file", "pull", "c1/etc/motd", "/dev/stdout").stdout == "hello\n"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for target in (null, pipe, link):
        c1("file", "pull", "c1/etc/motd", str(target))
    assert os.read(reader, 100) == b"hello\n" * 2
    os.close(reader)
    assert stat.S_ISCHR(null.lstat().st_mode) and stat.S_ISFIFO(pipe.lstat().st_mode) and link.is_symlink()
    null.rename(tmp_path / "motd")
    assert "is there and is no file" in c1("file", "pull", "c1/etc/motd", str(tmp_path), code=4).stderr
    inside(c1, "mkfifo /etc/pipe")
    assert "is there and is no file" in c1("file", "push", "-", "c1/etc/pipe", stdin="x", code=4).stderr
    kept = tmp_path / "kept"
    kept.write_text("mine")
    link.unlink()
    link.symlink_to(kept)
    for target in ("/dev/stdout", str(link)):
        assert (
            f"`c1/etc` is a directory, and `{target}` is none"
            in c1("file", "pull", "-r", "c1/etc", target, code=2).stderr
        )
    assert kept.read_text() == "mine"
    c1("file", "pull", "c1/etc/motd", str(link))
    assert link.is_symlink() and kept.read_text() == "hello\n"


def test_symlinks_stay_inside(c1: Ctr, tmp_path: Path) -> None:
    """What the instance's root put in the way leads to its own files, for reading and for writing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of the host")
    inside(
        c1,
        f"mkdir -p {outside} && echo mine >{outside}/secret; ln -s / /up; ln -s {outside} /out; ln -s ../../../../..{outside}/secret /file",
    )
    for path in (f"c1/up{outside}/secret", "c1/out/secret", "c1/file"):
        assert c1("file", "pull", path, "-").stdout == "mine\n"
    c1("file", "push", "-", "c1/out/new", stdin="x")
    assert os.listdir(outside) == ["secret"] and (outside / "secret").read_text() == "of the host"


def test_what_comes_out_is_written_below(ctr: Ctr, tmp_path: Path) -> None:
    """A symlink that is here already is not written through by what comes from an instance."""
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("exec", "c1", "--", "sh", "-c", "mkdir -p /tree/sub; echo evil >/tree/sub/passwd")
    (tmp_path / "etc").mkdir()
    (tmp_path / "back/tree").mkdir(parents=True)
    (tmp_path / "back/tree/sub").symlink_to("../../etc")
    assert "is no directory" in ctr("file", "pull", "-r", "c1/tree", str(tmp_path / "back"), code=4).stderr
    assert os.listdir(tmp_path / "etc") == []
