# SPDX-License-Identifier: GPL-3.0-or-later
"""What an unpacked root filesystem is: its init, its distribution, its architecture.

Runs in the sandbox, chrooted into the image: symlinks lead where they would inside.
"""

from __future__ import annotations

import os
import shlex
import signal

from ctrmgr.images import elf

BUILTIN = ("builtin", int(signal.SIGPWR))
SYSTEMD_HALT = 37
"""SIGRTMIN+3 by the kernel's count with glibc's two reserved ones: `systemctl poweroff` to systemd."""
HALT_SIGNALS = {
    "systemd": SYSTEMD_HALT,
    "busybox": int(signal.SIGUSR2),
    "openrc-init": int(signal.SIGTERM),
    "s6-svscan": int(signal.SIGUSR2),
}
INITS = ("/sbin/init", "/usr/sbin/init", "/usr/lib/systemd/systemd", "/lib/systemd/systemd", "/sbin/openrc-init")


def inspect() -> dict[str, str]:
    """Metadata of the tree at `/`."""
    init, halt = find_init()
    release = os_release()
    return {
        "init": init,
        "halt-signal": str(halt),
        "os": release.get("NAME", "").removesuffix(" GNU/Linux") or release.get("ID", ""),
        "release": release.get("VERSION_CODENAME") or release.get("VERSION_ID", ""),
        "description": release.get("PRETTY_NAME", ""),
        "architecture": architecture(),
    }


def find_init() -> tuple[str, int]:
    """(path or `builtin`, the signal that asks it to shut down)."""
    for path in INITS:
        real = os.path.realpath(path)
        if os.path.isfile(real) and os.access(real, os.X_OK):
            # sysvinit, upstart and what else follows them: SIGPWR runs the powerfail line of inittab.
            return path, HALT_SIGNALS.get(os.path.basename(real), int(signal.SIGPWR))
    return BUILTIN


def os_release() -> dict[str, str]:
    """The fields of os-release(5), unquoted; what cannot be read is left out."""
    fields: dict[str, str] = {}
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        with open(fd, encoding="utf-8", errors="replace") as file:
            text = file.read(65536)
        for line in text.splitlines():
            key, equals, value = line.partition("=")
            try:
                words = shlex.split(value)
            except ValueError:
                continue
            if equals and key.isidentifier():
                fields[key] = " ".join(words)[:200]
        break
    return fields


def architecture() -> str:
    """By the first program found, as `uname -m` has it; empty when there is none."""
    for path in ("/bin/sh", "/usr/bin/sh", "/sbin/init", "/bin/busybox", "/usr/bin/env"):
        try:
            program = elf.read(path)
        except OSError:
            continue
        if program:
            return program.machine
    return ""
