# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance by a plan written by hand: the monitor and its protocol without the rest of ctrmgr above them."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from ctrmgr.kernel import control, helper, spawn
from tests.rootful.double import cgroup2

BASE = 1_800_000_000
"""First host id of the range; far from what the allocator gives and from the double's."""

APPLETS = "sh cat sleep ln ls stat wc reboot poweroff".split()


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def image(folder: Path) -> Path:
    """The least that can run a shell."""
    root = folder / "rootfs"
    for part in ("bin", "etc", "proc", "sys", "dev"):
        (root / part).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for name in APPLETS:
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nrender:x:105:ann\n")
    return root


class Planned:
    """`script` is what init runs; `rows` are added to the plan."""

    def __init__(self, folder: Path, layer: Path, script: str = "sleep 1000", rows: str = "") -> None:
        self.home, self.run = folder / "home", folder / "run"
        for path in (self.home / "upper", self.home / "work", self.run):
            path.mkdir(parents=True)
        self.parent = f"ctrmgr-test-{os.getpid()}-{time.monotonic_ns()}"
        self.cgroup = cgroup2() / self.parent / "planned"
        self.plan = (
            "ctrmgr-plan\t1\nname\tplanned\nhostname\tplanned\n"
            f"uidmap\t0\t{BASE}\t65536\ngidmap\t0\t{BASE}\t65536\n"
            f"layer\t{layer}\ncgroup\t{self.parent}/planned\nnet\tnone\n"
            f"init\t/bin/sh\narg\t-c\narg\t{script}\nenv\tPATH=/bin\n{rows}end\n"
        )
        (self.home / "plan").write_text(self.plan)

    def monitor(self, verb: str = "start") -> spawn.Report:
        return spawn.monitor(verb, str(self.home / "plan"), str(self.home), str(self.run))

    def start(self) -> spawn.Report:
        report = self.monitor()
        assert not report.error, f"{report.step}: {report.detail}: {os.strerror(report.error)}"
        return report

    def ask(self, op: int, arg: int = 0, name: str = "") -> control.Reply:
        return control.ask(str(self.run), op, arg=arg, name=name)

    def attach(
        self, name: str, source: str, path: str, *, user: str = "0", group: str = "0", kind: str = "char"
    ) -> control.Reply:
        fd = os.open(source, os.O_PATH)
        try:
            number = os.fstat(fd).st_rdev
            device = control.Device(
                name, kind, path, (os.major(number), os.minor(number)), user=user, group=group, mode=0o660, access="rw"
            )
            return control.ask(str(self.run), control.ATTACH, device=device.pack(), fd=fd)
        finally:
            os.close(fd)

    def sh(self, script: str) -> subprocess.CompletedProcess[str]:
        words = [helper.find("ctrmgr-exec"), "--control", f"{self.run}/control", "--", "sh", "-c", script]
        return subprocess.run(words, capture_output=True, text=True, timeout=30)

    def exit(self) -> list[str]:
        """How the last run ended: `exited` or `signaled`, the number, the time in nanoseconds."""
        first, end = (self.home / "exit").read_text().splitlines()
        assert end == "end"
        return first.split("\t")

    def console(self) -> str:
        return "".join(
            path.read_text() for path in (self.home / "console.log.1", self.home / "console.log") if path.exists()
        )

    def gone(self) -> bool:
        return not (self.cgroup.exists() or list(self.run.iterdir()))

    def close(self) -> None:
        if not self.gone():
            try:
                self.ask(control.KILL)
            except control.ConflictError:
                assert self.monitor("clean").error in (0, errno.EAGAIN)
            wait_for(self.gone)
        for parent in glob.glob(f"/sys/fs/cgroup/*/{self.parent}"):
            os.rmdir(parent)
        if (cgroup2() / self.parent).exists():
            (cgroup2() / self.parent).rmdir()
