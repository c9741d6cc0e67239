# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine has for emulated TPMs. Hot."""

from __future__ import annotations

import os

PROGRAM = "swtpm"
FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin")


def proxy() -> str:
    """The node by which the kernel is asked for a TPM that a program answers for."""
    return os.environ.get("CTRMGR_VTPMX") or "/dev/vtpmx"


def emulator(root: str = "/") -> str:
    """The program that answers; "" when it is not installed."""
    given = os.environ.get("CTRMGR_SWTPM")
    places = [given] if given else [f"{root.rstrip('/')}{folder}/{PROGRAM}" for folder in FOLDERS]
    return next((path for path in places if os.access(path, os.X_OK)), "")


def missing(root: str = "/") -> tuple[str, str]:
    """Why no TPM can be emulated here, and what helps; both "" when one can."""
    node = proxy()
    if not os.path.exists(root.rstrip("/") + node):
        cure = "`modprobe tpm_vtpm_proxy`; a kernel without this module (CONFIG_TCG_VTPM_PROXY) cannot"
        return f"there is no `{node}` on this host, by which the kernel makes one", cure
    if not emulator(root):
        return f"the program `{PROGRAM}`, which emulates it, is not installed", f"install the package `{PROGRAM}`"
    return "", ""


def is_emulated(path: str) -> bool:
    """Whether a TPM, by its folder in sysfs, is a program's: such a one hangs on no other device."""
    return "/devices/virtual/tpm" in path
