# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of instances on servers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.remote.daemons import Remote
from tests.remote.middle import Middle


def test_there_and_back(https: Remote, tmp_path: Path) -> None:
    https("launch", "tiny", "host:c1")
    tree = tmp_path / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "deep/er/bytes").write_bytes(bytes(range(256)) * 20000)
    (tree / "deep/empty").touch()
    (tree / "deep/run").write_text("#!/bin/sh\n")
    (tree / "deep/run").chmod(0o750)
    (tree / "deep").chmod(0o750)
    os.chown(tree / "deep/run", 1000, 107)
    (tree / "with space é").symlink_to("deep/run")
    https("file", "push", "--recursive", "--create-dirs", str(tree), "host:c1/srv/www/site")
    https("file", "push", "--recursive", str(tree), "host:c1/srv/www/site", "--quiet")  # again, and below it
    said = https("exec", "host:c1", "--", "stat", "-c", "%a %u %g", "/srv/www/site/deep/run", "/srv/www/site/deep")
    assert said.stdout.split() == ["750", "1000", "107", "750", "0", "0"]
    assert https("exec", "host:c1", "--", "readlink", "/srv/www/site/with space é").stdout == "deep/run\n"
    https("file", "pull", "--recursive", "host:c1/srv/www/site/tree", str(tmp_path / "back"))
    assert subprocess.run(["diff", "-r", "--no-dereference", tree, tmp_path / "back"]).returncode == 0
    assert (tmp_path / "back/deep/run").stat().st_mode & 0o7777 == 0o750


def test_one_file(unix: Remote, tmp_path: Path) -> None:
    unix("create", "tiny", "host:c1")
    unix("file", "push", "-", "host:c1/etc/motd", "--mode", "0640", "--uid", "5", stdin="hello\n")
    assert unix("file", "pull", "host:c1/etc/motd", "-").stdout == "hello\n"
    source = tmp_path / "a.txt"
    source.write_text("a")
    unix("file", "push", str(source), "host:c1/etc")
    assert unix("file", "pull", "host:c1/etc/a.txt", "-").stdout == "a"
    assert "is a directory" in unix("file", "pull", "host:c1/etc", str(tmp_path / "etc"), code=2).stderr
    assert "no file `/etc/nothing`" in unix("file", "pull", "host:c1/etc/nothing", "-", code=3).stderr
    assert "--create-dirs" in unix("file", "push", str(source), "host:c1/no/where", code=3).stderr
    assert "no instance `host:c9`" in unix("file", "push", str(source), "host:c9/etc/x", code=3).stderr
    unix("start", "host:c1")
    unix("exec", "host:c1", "--", "ln", "-s", "../etc/motd", "/tmp/link")
    assert unix("file", "pull", "host:c1/tmp/link", "-").stdout == "hello\n"
    # What servers call empty, or shorter or longer than it is.
    unix("exec", "host:c1", "--", "sh", "-c", ": >/tmp/empty; ln -s proc /p")
    assert unix("file", "pull", "host:c1/tmp/empty", "-").stdout == ""
    release = unix("exec", "host:c1", "--", "cat", "/proc/sys/kernel/osrelease").stdout
    for path in ("/proc/sys/kernel/osrelease", "/p/sys/kernel/osrelease"):
        assert unix("file", "pull", f"host:c1{path}", "-").stdout == release
    unix("file", "pull", "--recursive", "host:c1/sys/kernel/mm/ksm", str(tmp_path / "ksm"))
    assert (tmp_path / "ksm/run").read_text() == Path("/sys/kernel/mm/ksm/run").read_text()
    assert "is neither a file" in unix("file", "pull", "host:c1/dev/zero", str(tmp_path / "zero"), code=2).stderr
    assert (
        "`/proc/kmsg` in `host:c1`: Permission denied" in unix("file", "pull", "host:c1/proc/kmsg", "-", code=5).stderr
    )
    unix("freeze", "host:c1")
    assert "is frozen" in unix("file", "pull", "host:c1/proc/cpuinfo", str(tmp_path / "cpu"), code=4).stderr
    unix("unfreeze", "host:c1")
    unix("exec", "host:c1", "--", "mv", "/bin/sh", "/bin/ash")
    assert (
        "run `sh`: No such file" in unix("file", "pull", "host:c1/proc/cpuinfo", str(tmp_path / "cpu"), code=6).stderr
    )
    assert unix("file", "pull", "host:c1/tmp/empty", "-").stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "ksm"]


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_gone_in_the_middle(unix: Remote, middle: Middle, tmp_path: Path) -> None:
    unix("create", "tiny", "host:c1")
    (tmp_path / "a").mkdir()
    for name in ("1", "2", "3"):
        (tmp_path / "a" / name).write_text(name)
    middle.rule = lambda data: "cut" if b"path=%2Fa%2F2" in data.split(b"\r\n")[0] and data[:4] == b"POST" else "pass"
    gone = unix("file", "push", "-r", str(tmp_path / "a"), "far:c1/a", code=6)
    assert "`far` went away" in gone.stderr and "2 files and directories are there" in gone.stderr
    middle.rule = lambda data: "cut" if b"path=%2Fa%2F1" in data.split(b"\r\n")[0] else "pass"
    gone = unix("file", "pull", "far:c1/a/1", str(tmp_path / "one"), code=6)
    assert "`far` went away" in gone.stderr and not (tmp_path / "one").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
