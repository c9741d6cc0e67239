# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Linux security modules are on."""

from __future__ import annotations

import os


def active(root: str = "/") -> frozenset[str]:
    """Names as in `/sys/kernel/security/lsm`; where securityfs is not mounted, what their own files say."""
    prefix = root.rstrip("/")
    try:
        with open(prefix + "/sys/kernel/security/lsm", encoding="ascii") as file:
            return frozenset(file.read().strip().split(","))
    except OSError:
        pass
    found = set()
    if _text(prefix + "/sys/module/apparmor/parameters/enabled") == "Y":
        found.add("apparmor")
    if os.path.exists(prefix + "/sys/fs/selinux/enforce"):
        found.add("selinux")
    return frozenset(found)


def apparmor_profiles(root: str = "/") -> frozenset[str]:
    """The AppArmor profiles that are loaded: only such a one can be entered."""
    text = _text(root.rstrip("/") + "/sys/kernel/security/apparmor/profiles")
    return frozenset(line.rpartition(" (")[0] for line in text.splitlines() if line.endswith(")"))


def no_fence(root: str = "/") -> str:
    """Why descriptors that are open when a device is taken away keep working here; nothing: they are refused.

    The monitor finds out by itself, at the first device that it takes away; this is what it will find.
    """
    prefix = root.rstrip("/")
    if not os.path.exists(prefix + "/sys/kernel/security/lsm"):
        return "securityfs is not mounted"
    if "bpf" not in active(root):
        return "`bpf` is no active security module"
    if not os.path.exists(prefix + "/sys/kernel/btf/vmlinux"):
        return "the kernel does not describe its types (BTF)"
    return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
