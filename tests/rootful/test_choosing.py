# SPDX-License-Identifier: GPL-3.0-or-later
"""`attach-device` without a device: chosen on a terminal, an error that lists without one."""

from __future__ import annotations

import os
import pty
import re

import pytest

from tests.conftest import Ctr, same


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    return ctr


def answer(ctr: Ctr, text: bytes | None) -> tuple[int, str]:
    """What is said on the terminal; an answer of None is the number of /dev/fuse."""
    master, slave = pty.openpty()
    process = ctr.popen("attach-device", "c1", stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    said = b""
    while b"which one for `c1`?" not in said:
        said += os.read(master, 1 << 16)
    if text is None:
        found = re.search(rb"(\d+)  unix-char  /dev/fuse", said)
        assert found, said
        text = found[1]
    os.write(master, text + b"\n")
    code = process.wait(60)
    try:
        while piece := os.read(master, 1 << 16):
            said += piece
    except OSError:
        pass  # nobody has the other end any more
    os.close(master)
    return code, said.decode()


def test_chosen_by_number_and_by_name(c1: Ctr) -> None:
    for text in (None, b"/dev/fuse"):
        code, said = answer(c1, text)
        assert code == 0, said
        assert c1("exec", "c1", "stat", "-c", "%F", "/dev/fuse").stdout == "character special file\n"
        c1("detach-device", "c1", "/dev/fuse")


@pytest.mark.parametrize(("text", "code"), [(b"", 2), (b"0", 3), (b"99999", 3), (b"nonsense", 3)])
def test_nothing_is_chosen(c1: Ctr, text: bytes, code: int) -> None:
    before = c1.traces()
    assert answer(c1, text)[0] == code
    same(before, c1.traces())


def test_without_a_terminal(c1: Ctr) -> None:
    said = c1("attach-device", "c1", code=2).stderr
    assert "no terminal" in said and "`/dev/fuse` (unix-char)" in said
    assert "`nobody`" in c1("attach-device", "nobody", code=3).stderr
