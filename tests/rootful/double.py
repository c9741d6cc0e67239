# SPDX-License-Identifier: GPL-3.0-or-later
"""A namespaced process with a control socket that knows only `enter`: what ctrmgr-exec needs of a monitor.

It makes the programs testable one by one; the tests of the whole go through `ctrmgr` itself.
"""

from __future__ import annotations

import array
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "native_helpers"
WARNINGS = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
BASE = 1_900_000_000
"""First host id of the double's range; far from what tests of the allocator use."""

REQUEST = struct.Struct("=IIii256s64s256s64s64s7I")
REPLY = struct.Struct("=Iiii64s256s")
ENTER = 9


def build(target: Path, sources: list[str], *flags: str) -> Path:
    """Compile a program for this test run, or take the one that the build under test has made."""
    ready = Path(os.environ.get("CTRMGR_LIBEXEC", "/nonexistent")) / target.name
    if ready.exists():
        return ready
    subprocess.run(["cc", *WARNINGS, "-o", target, *(SOURCES / s for s in sources), *flags], check=True)
    return target


def cgroup2() -> Path:
    """Where the unified hierarchy is mounted on this host."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] == "cgroup2":
            return Path(left.split()[4])
    raise RuntimeError("this host has no cgroup2")


class Double:
    """`rows` are the plan's; `passwd` and `group` stand in for the image's."""

    def __init__(self, rows: str = "", passwd: str = "root:x:0:0:root:/root:/bin/sh\n", group: str = "") -> None:
        # pytest's own folder is closed to others, the instance's root among them
        self.folder = folder = Path(tempfile.mkdtemp(prefix="ctrmgr-double-"))
        folder.chmod(0o755)
        self.control = folder / ("long-" * 20) / "control"
        self.control.parent.mkdir()
        self.cgroup = cgroup2() / f"ctrmgr-double-{os.getpid()}-{time.monotonic_ns()}"
        self.cgroup.mkdir()
        self.plan = folder / "plan"
        self.plan.write_text("ctrmgr-plan\t1\nname\tdouble\n" + rows + "end\n")
        self._start(passwd, group)
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = os.open(self.control.parent, os.O_PATH)
        self.server.bind(f"/proc/self/fd/{here}/control")
        os.close(here)
        self.server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _start(self, passwd: str, group: str) -> None:
        every = ["--user", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup"]
        self.process = subprocess.Popen(["unshare", *every, "--fork", "--kill-child", "sleep", "infinity"])
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not children.read_text().split():
            time.sleep(0.01)
        self.init = int(children.read_text().split()[0])
        while Path(f"/proc/{self.init}/comm").read_text().strip() != "sleep":
            time.sleep(0.01)
        for kind in ("uid", "gid"):
            Path(f"/proc/{self.init}/{kind}_map").write_text(f"0 {BASE} 65536\n")
        etc = self.folder / "etc"
        etc.mkdir()
        (etc / "passwd").write_text(passwd)
        (etc / "group").write_text(group)
        script = f"""set -e
        mount -t proc proc /proc
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts /dev/pts
        mount -t tmpfs tmpfs /root; chmod 755 /root
        mount --bind {etc}/passwd /etc/passwd
        mount --bind {etc}/group /etc/group"""
        enter = ["nsenter", "-t", str(self.init), "-a", "-S", "0", "-G", "0"]
        subprocess.run([*enter, "sh", "-c", script], check=True)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.server.accept()
            except OSError:
                return
            with peer:
                request = REQUEST.unpack(peer.recv(REQUEST.size))
                assert request[:2] == (1, ENTER)
                fds = [
                    os.pidfd_open(self.init),
                    os.open(self.cgroup, os.O_RDONLY | os.O_DIRECTORY),
                    os.open(self.plan, os.O_RDONLY),
                ]
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
                peer.sendmsg([REPLY.pack(1, 0, 0, 0, b"", b"")], [rights])
                for fd in fds:
                    os.close(fd)

    def pids(self) -> list[int]:
        """The processes in the instance's cgroup, as the host numbers them (init itself is outside of it)."""
        return [int(pid) for file in self.cgroup.rglob("cgroup.procs") for pid in file.read_text().split()]

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        os.kill(self.init, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 5
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.01)
        for folder in sorted(self.cgroup.rglob("*/"), reverse=True):
            folder.rmdir()
        self.cgroup.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)
