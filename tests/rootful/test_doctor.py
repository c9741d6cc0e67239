# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr doctor`: each thing broken for real, found, and mended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

import ctrmgr
from ctrmgr.backend import checkup
from ctrmgr.kernel import bpf
from tests.conftest import Ctr, Result
from tests.rootful.double import cgroup2
from tests.rootful.test_attach import FUSE, c1, sh

__all__ = ("c1",)
LOOP = "/dev/loop-control"
"""A device of the host that no instance here is given."""


def findings(ctr: Ctr, *words: str, code: int | None = 0) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(ctr("doctor", *words, "--format", "json", code=code).stdout)
    return found


def wrong(ctr: Ctr, *words: str) -> list[str]:
    """What is wrong, as the doctor says, who must say it by the exit code, too."""
    found = findings(ctr, *words, code=None)
    texts = [row["text"] for row in found if row["status"] == "wrong"]
    assert ctr("doctor", *words, code=None).code == (5 if texts else 0)
    return texts


def mended(ctr: Ctr, *words: str, code: int = 0) -> list[str]:
    return [row["text"] for row in findings(ctr, "--fix", *words, code=code) if row["status"] == "mended"]


def cgroup(ctr: Ctr, name: str = "c1") -> Path:
    return cgroup2() / ctr.env["CTRMGR_CGROUP_PARENT"] / name


def opens(ctr: Ctr, path: str) -> bool:
    """Whether a process in the instance's cgroup may open a device of the host."""
    script = f'echo $$ > "{cgroup(ctr)}/cgroup.procs" && exec 3<{path}'
    return subprocess.run(["sh", "-c", script], capture_output=True).returncode == 0


def refuse_all(folder: Path) -> None:
    """What systemd does to a unit with `DeviceAllow=`: a device program of its own on the cgroup."""
    code = struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0)  # r0 = 0; exit
    import ctypes

    program, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    load = struct.pack("=IIQQ", 15, 2, ctypes.addressof(program), ctypes.addressof(licence))
    load += bytes(4 + 4 + 8 + 4 + 4) + b"sd_devices".ljust(16, b"\0") + struct.pack("=II", 0, 6)
    (fd,) = struct.unpack_from("i", bpf._bpf(5, load))
    target = os.open(folder, os.O_RDONLY)
    bpf._bpf(8, struct.pack("=IIII", target, fd, 6, 2))
    os.close(fd)
    os.close(target)


def test_all_is_well(c1: Ctr) -> None:
    c1("attach-device", "c1", FUSE, "gid=render")
    found = findings(c1, code=None)
    rows = {(row["subject"], row["check"]): row for row in found}
    assert {row["check"] for row in found if row["status"] == "wrong"} <= {"modules", "ids"}, found
    for check in ("kernel", "cgroups", "programs", "left-overs"):
        assert rows["host", check]["status"] == "ok", check
    info = json.loads(c1("info", "c1", "--format", "json").stdout)
    assert rows["host", "open-fds"]["text"] == info["open-fds"]
    assert findings(c1, "c1") == [
        {"status": "ok", "subject": "c1", "check": "all", "text": "runs well", "hint": ""},
    ]
    assert c1("doctor", "c1").stdout == "ok      c1: all: runs well\n"
    c1("doctor", "c2", code=3)


def test_the_api(c1: Ctr, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE_DIR", "RUN_DIR", "CONFIG_DIR", "CGROUP_PARENT"):
        monkeypatch.setenv(f"CTRMGR_{name}", c1.env[f"CTRMGR_{name}"])
    c1("attach-device", "c1", FUSE)
    sh(c1, f"rm {FUSE}")
    (found,) = ctrmgr.doctor("c1")
    assert (found.status, found.subject, found.check) == ("wrong", "c1", "device")
    assert [finding.status for finding in ctrmgr.doctor("c1", fix=True)] == ["mended", "ok"]
    with pytest.raises(ctrmgr.NotFoundError):
        ctrmgr.doctor("c2")


def test_a_program_of_somebody_else(c1: Ctr) -> None:
    c1("attach-device", "c1", FUSE)
    refuse_all(cgroup(c1))
    assert "not permitted" in sh(c1, f"exec 3<{FUSE}", code=None)
    (text,) = wrong(c1, "c1")
    assert "`sd_devices`" in text
    assert c1("doctor", "c1", "--fix", "--dry-run", code=5).stdout.startswith("wrong ")
    assert mended(c1, "c1") == [text]
    sh(c1, f"exec 3<{FUSE}")
    assert wrong(c1, "c1") == []
    assert not opens(c1, LOOP)


def test_a_program_above(c1: Ctr) -> None:
    """It is for whoever owns that cgroup: said, and left."""
    c1("attach-device", "c1", FUSE)
    refuse_all(cgroup(c1).parent)
    (row,) = findings(c1, "c1", "--fix")
    assert (row["status"], row["check"]) == ("note", "program")
    assert row["text"].endswith("above it have a say, too: sd_devices")
    assert [name for _, name in bpf.device_programs(str(cgroup(c1).parent))] == ["sd_devices"]


@pytest.mark.parametrize("replaced", [False, True])
def test_our_program_is_gone(c1: Ctr, replaced: bool) -> None:
    c1("attach-device", "c1", FUSE)
    ((number, _),) = bpf.device_programs(str(cgroup(c1)))
    bpf.take_off(str(cgroup(c1)), number)
    assert opens(c1, LOOP)
    if replaced:
        refuse_all(cgroup(c1))
    found = wrong(c1, "c1")
    assert len(found) == 1 + replaced and "was taken off" in found[-1]
    assert sorted(mended(c1, "c1")) == sorted(found)
    assert not opens(c1, LOOP)
    assert opens(c1, FUSE), "what was attached is still allowed"
    sh(c1, f"exec 3<{FUSE}")
    c1("detach-device", "c1", "fuse")
    assert not opens(c1, FUSE), "and the program is the one that detach changes"
    assert [name for _, name in bpf.device_programs(str(cgroup(c1)))] == ["ctrmgr_devices"]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (f"rm {FUSE}", "is gone"),
        (f"mv {FUSE} /dev/elsewhere", "is gone"),
        (f"chmod 777 {FUSE}", "has another owner or mode"),
        (f"chown 1000:1000 {FUSE}", "has another owner or mode"),
    ],
)
def test_a_node_that_is_not_as_it_was(c1: Ctr, harm: str, says: str) -> None:
    c1("attach-device", "c1", FUSE, "gid=render", "mode=0640")
    sh(c1, f"ln {FUSE} /dev/kept; {harm}")
    (text,) = wrong(c1, "c1")
    assert text == f"`fuse`: `{FUSE}` {says}"
    assert mended(c1, "c1") == [text]
    assert sh(c1, f"stat -c '%U %G %a %t:%T' {FUSE}") == "root render 640 a:e5\n"
    sh(c1, f"exec 3<{FUSE}")
    assert "denied" in sh(c1, "exec 3</dev/kept", code=None), "there are not two of it"
    c1("detach-device", "c1", "fuse")
    assert "No such file" in sh(c1, f"ls {FUSE}", code=1)


@pytest.mark.parametrize("other", [f"touch {FUSE}", f"ln -s /dev/null {FUSE}", f"mkdir {FUSE}"])
def test_something_else_in_the_nodes_place(c1: Ctr, other: str) -> None:
    """Which is the instance's own: it is not removed, and is named."""
    c1("attach-device", "c1", FUSE)
    sh(c1, f"rm {FUSE}; {other}")
    assert wrong(c1, "c1") == [f"`fuse`: `{FUSE}` is something else"]
    (row,) = [row for row in findings(c1, "--fix", "c1", code=5) if row["status"] == "wrong"]
    assert "cannot be mended" in row["hint"] and "exists in the instance already" in row["hint"]
    sh(c1, f"rm -r {FUSE}")
    assert mended(c1, "c1") == [f"`fuse`: `{FUSE}` is gone"]
    sh(c1, f"exec 3<{FUSE}")


def test_a_dead_monitor(c1: Ctr) -> None:
    state = (c1.folder / "run/c1/state").read_text().split()
    os.kill(int(state[state.index("monitor") + 1]), signal.SIGKILL)
    until = time.monotonic() + 10
    while not any("monitor of `c1` is dead" in text for text in wrong(c1)):
        assert time.monotonic() < until
    assert "the monitor of `c1` is dead, what it ran is not cleaned up" in mended(c1, code=none_else(c1))
    assert not cgroup(c1).exists() and not (c1.folder / "run/c1").exists()
    assert [row["text"] for row in findings(c1, "c1")] == ["is stopped"]


def none_else(ctr: Ctr) -> int:
    """The exit code when nothing is wrong but what the machine itself lacks."""
    host = {row["check"] for row in findings(ctr, code=None) if row["status"] == "wrong" and row["subject"] == "host"}
    return 5 if host - {"left-overs"} else 0


def test_what_nobody_owns(c1: Ctr) -> None:
    state = c1.folder / "state"
    (state / "ids/4000000000-65536").symlink_to("ghost")
    (state / "instances/.new-half").mkdir()
    (state / "instances/.del-old").mkdir()
    (state / "instances/c1/plan.new").write_text("cut o")
    leases = c1.folder / "run/.leases"
    leases.mkdir(mode=0o700, exist_ok=True)
    (leases / "pci:0000:01:00.0 exclusive ghost gpu").touch()
    for name in ("ghost", "c1-old"):
        cgroup(c1, name).mkdir()
    sleeper = subprocess.Popen(["sleep", "1000"])
    (cgroup(c1, "ghost") / "cgroup.procs").write_text(str(sleeper.pid))
    found = wrong(c1)
    parts = (
        "made: `.new-half`",
        "deleted: `.del-old`",
        "ids of `ghost`",
        "a lease on `pci:0000:01:00.0`",
        "cgroup of `ghost`",
        "cgroup of `c1-old`",
        "killed while it changed it (plan.new)",
    )
    for part in parts:
        assert any(part in text for text in found), (part, found)
    assert len(mended(c1, code=none_else(c1))) == len(parts)
    assert sleeper.wait(10) == -9
    assert not cgroup(c1, "ghost").exists() and not cgroup(c1, "c1-old").exists()
    assert sorted(os.listdir(state / "instances")) == ["c1"]
    assert not (state / "instances/c1/plan.new").exists() and not os.listdir(leases)
    assert [row["text"] for row in findings(c1, "c1")] == ["runs well"]


def test_helpers_of_another_version(c1: Ctr, tmp_path: Path) -> None:
    libexec = tmp_path / "libexec"
    libexec.mkdir()
    for name in checkup.HELPERS:
        shutil.copy(Path(os.environ["CTRMGR_LIBEXEC"]) / name, libexec)
    monitor = libexec / "ctrmgr-monitor"
    data = monitor.read_bytes()
    assert data.count(checkup.MARK) == 1
    at = data.index(checkup.MARK) + len(checkup.MARK)
    monitor.write_bytes(data[:at] + b"9" + data[at + 1 :])
    (libexec / "ctrmgr-net").unlink()
    env = {"CTRMGR_LIBEXEC": str(libexec)}
    said = c1("doctor", code=5, env=env).stdout
    assert "`ctrmgr-monitor` is of version 9." in said
    assert "ctrmgr-net` is missing" in said
    assert "c1: monitor: is of another build than the one installed (`ctrmgr restart c1`)" in said


def test_a_monitor_that_does_not_answer(c1: Ctr, monkeypatch: pytest.MonkeyPatch) -> None:
    state = (c1.folder / "run/c1/state").read_text().split()
    monitor = int(state[state.index("monitor") + 1])
    os.kill(monitor, signal.SIGSTOP)
    try:
        done: Result = c1("doctor", "c1", code=5)
        assert "c1: monitor: the monitor of `c1` does not answer" in done.stdout
    finally:
        os.kill(monitor, signal.SIGCONT)
