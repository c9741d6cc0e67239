# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that is killed right before the Nth of its system calls by which anything changes: between any two of its steps."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable

SEIZE, INTERRUPT, SYSCALL, DETACH, SYSCALL_INFO = 0x4206, 0x4207, 24, 17, 0x420E
"""Requests of ptrace(2)."""
TELL_APART, WALL, ENTRY = 1, 0x40000000, 1
CHANGES = {
    "x86_64": "openat 257 write 1 pwrite64 18 sendto 44 sendmsg 46 fchmod 91 fchown 93 mount 165 mkdirat 258 mknodat 259 fchownat 260 "
    "unlinkat 263 renameat 264 symlinkat 266 fchmodat 268 setns 308 renameat2 316 bpf 321 move_mount 429",
    "aarch64": "openat 56 write 64 pwrite64 68 sendto 206 sendmsg 211 fchmod 52 fchown 55 mount 40 mkdirat 34 mknodat 33 fchownat 54 "
    "unlinkat 35 renameat 38 symlinkat 36 fchmodat 53 setns 268 renameat2 276 bpf 280 move_mount 429",
}
"""Calls, with their numbers."""
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class Traced:
    """`ptrace` is of one thread: who makes it goes on with it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        words = CHANGES[os.uname().machine].split()
        self.names = {int(number): name for name, number in zip(words[::2], words[1::2], strict=True)}
        self._ask(SEIZE, TELL_APART)
        self._stop()
        self._ask(SYSCALL)

    def run(self, until: Callable[[], object], last: int = 0) -> list[str]:
        """What it changes things by, until that is so and it waits again; before call number `last` it is killed."""
        made: list[str] = []
        quiet = 0
        while quiet < 20:
            pid, _ = os.waitpid(self.pid, WALL | os.WNOHANG)
            if not pid:
                quiet = quiet + 1 if until() else 0
                time.sleep(0.0005)
                continue
            name = self._entered()
            if name:
                made.append(name)
                if len(made) == last:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, WALL)
                    return made
            quiet = 0
            self._ask(SYSCALL)
        self._stop()
        self._ask(DETACH)
        return made

    def _entered(self) -> str:
        """The call that it is about to make, if that can change anything."""
        info = ctypes.create_string_buffer(88)
        self._ask(SYSCALL_INFO, ctypes.addressof(info), len(info))
        op, number, _, _, flags = struct.unpack_from("=B23x4Q", info)
        name = self.names.get(number, "") if op == ENTRY else ""
        return "" if name == "openat" and not flags & os.O_CREAT else name

    def _stop(self) -> None:
        self._ask(INTERRUPT)
        os.waitpid(self.pid, WALL)

    def _ask(self, request: int, data: int = 0, address: int = 0) -> None:
        result = libc.ptrace(request, self.pid, address, data)
        assert result >= 0, f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}"


def killed(pid: int, words: list[str], last: int, env: dict[str, str]) -> list[str]:
    """While a command runs."""
    traced = Traced(pid)
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        return traced.run(lambda: command.poll() is not None, last)
