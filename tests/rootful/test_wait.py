# SPDX-License-Identifier: GPL-3.0-or-later
"""`attach-device --wait`: back when the device opens inside, or as if it had never been asked for."""

from __future__ import annotations

import threading
import time

import pytest

from tests.conftest import Ctr
from tests.rootful.test_hotplug import LAUNCH, Loop, loop  # noqa: F401


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr(*LAUNCH, "c1")
    return ctr


def test_what_is_there_is_not_waited_for(c1: Ctr) -> None:
    begin = time.monotonic()
    c1("attach-device", "c1", "fuse", "type=unix-char", "source=/dev/fuse", "--wait=60")
    assert time.monotonic() - begin < 10
    c1("exec", "c1", "--", "test", "-c", "/dev/fuse")


def test_what_comes_later_is(c1: Ctr, loop: Loop) -> None:  # noqa: F811
    timer = threading.Timer(1.5, loop.add)
    timer.start()
    begin = time.monotonic()
    c1("attach-device", "c1", "late", "type=unix-block", f"source={loop.node}", "required=false", "--wait")
    timer.join()
    assert time.monotonic() - begin > 1
    c1("exec", "c1", "--", "sh", "-c", f"exec 3<{loop.node}")


@pytest.mark.parametrize("options", [(), ("--volatile",)], ids=["kept", "volatile"])
def test_what_does_not_come_is_as_if_it_was_never_asked_for(c1: Ctr, loop: Loop, options: tuple[str, ...]) -> None:  # noqa: F811
    before = c1.traces()
    words = ("attach-device", "c1", "late", "type=unix-block", f"source={loop.node}", "required=false", *options)
    said = c1(*words, "--wait=0.5", code=5).stderr
    assert "could not be opened in `c1` within 0.5 s: nothing that fits is there" in said
    assert c1.traces() == before
    loop.add()
    assert c1("exec", "c1", "--", "test", "-e", loop.node, code=None).code


def test_what_the_driver_answers_is_said(c1: Ctr) -> None:
    """/dev/tty is there, and opens only for who has a terminal."""
    words = ("attach-device", "c1", "tty", "type=unix-char", "source=/dev/tty", "path=/dev/mytty")
    assert "`/dev/mytty`: No such device or address" in c1(*words, "--wait=0.5", code=5).stderr
    c1(*words)


def test_only_what_runs_can_be_waited_for(c1: Ctr) -> None:
    words = ("attach-device", "c1", "fuse", "type=unix-char", "source=/dev/fuse")
    for wrong in ("0", "-1", "soon", "nan"):
        assert f"`--wait={wrong}`" in c1(*words, f"--wait={wrong}", code=2).stderr
    c1("stop", "--force", "c1")
    assert "is not running" in c1(*words, "--wait", code=4).stderr
    assert "fuse" not in c1("config", "show", "c1").stdout
