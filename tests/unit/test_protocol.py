# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr/kernel/control.py` and `native_helpers/control.h` are two descriptions of one thing."""

from __future__ import annotations

import errno
import re
import subprocess
from pathlib import Path

from ctrmgr.errors import HostError
from ctrmgr.kernel import control
from tests.conftest import ROOT

HEADER = ROOT / "native_helpers/control.h"
PROGRAM = """
#include <stdio.h>
#include <stddef.h>
#include "control.h"
int main(void)
{
	printf("%zu %zu %zu %zu %zu %zu %zu %zu\\n", sizeof(struct ctl_request), offsetof(struct ctl_request, device),
	       sizeof(struct ctl_device), sizeof(struct ctl_reply), sizeof(struct ctl_holder), sizeof(struct ctl_status),
	       sizeof(struct start_report), offsetof(struct ctl_device, type));
	return 0;
}
"""


def test_layout(tmp_path: Path) -> None:
    (tmp_path / "layout.c").write_text(PROGRAM)
    include = f"-I{HEADER.parent}"
    subprocess.run(["cc", include, "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    sizes = [int(word) for word in subprocess.check_output([tmp_path / "layout"]).split()]
    assert sizes == [
        control.HEADER.size + control.DEVICE.size,
        control.HEADER.size,
        control.DEVICE.size,
        control.REPLY.size,
        control.HOLDER.size,
        control.STATUS_DATA.size,
        control.REPORT.size,
        control.DEVICE.size - 7 * 4,
    ]


def test_numbers() -> None:
    text = HEADER.read_text()
    found = {name: int(value) for name, value in re.findall(r"\bCTL_([A-Z_]+) = (\d+)", text)}
    for number, name in enumerate(control.NAMES):
        if name:
            assert found[name.upper()] == number == getattr(control, name.upper())
    assert [found[name] for name in ("REPORT", "REFUSE", "FREEZE_HOLDERS", "KILL_HOLDERS")] == [0, 1, 2, 3]
    assert {
        "m": found["MKNOD"], "r": found["READ"], "w": found["WRITE"], "x": found["EXEC"], "s": found["SHIFT"],
        "R": found["RECURSIVE"],
    } == control.ACCESS  # fmt: skip
    assert {
        name: found[name.upper()]
        for name in (
            "char",
            "block",
            "bind",
            "env",
            "hook",
            "share",
            "rule",
            "netdev",
            "rdma",
            "filesystem",
            "group",
            "resctrl",
        )
    } == control.TYPES
    assert found["SUSPENDED"] == control.SUSPENDED


def test_a_device_survives_the_journey() -> None:
    device = control.Device("gpu", "block", "/dev/x", (7, 3), user="1000", group="disk", mode=0o640, access="rw")
    assert not control.unpack_device(device.pack(), 0).suspended
    back = control.unpack_device(device.pack(), 0)
    for field in ("name", "kind", "path", "user", "group", "major", "minor", "mode", "access"):
        assert getattr(back, field) == getattr(device, field)


def test_an_init_that_was_killed_is_no_failure_of_ours() -> None:
    error = control.failure("c1", "make namespaces", "init died", errno.EIO)
    assert isinstance(error, HostError)
    assert "limits.memory" in str(error.hint)
