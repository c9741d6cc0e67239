# SPDX-License-Identifier: GPL-3.0-or-later
"""Where people say that something is to be written: a file is replaced whole, anything else stays what it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ctrmgr import state
from ctrmgr.errors import HostError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("old")
    os.link(file, other)
    state.write_output(str(file), b"new")
    assert (file.read_text(), other.read_text()) == ("new", "old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    state.write_output(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    state.write_output(str(pipe), b"new")
    assert os.read(reader, 10) == b"new"
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    os.close(reader)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    node = tmp_path / "null"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        assert os.geteuid()
        return
    state.write_output(str(node), b"new")
    assert node.lstat().st_rdev == os.makedev(1, 3)


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="Is a directory"):
        state.write_output(str(tmp_path), b"new")
