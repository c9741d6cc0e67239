# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the host's shared libraries are: by the loader's cache, and in the usual folders. Hot."""

from __future__ import annotations

import os
import struct

from ctrmgr.host import sysfs

MAGIC = b"glibc-ld.so.cache1.1"
HEADER, ENTRY = struct.Struct("=20sII20x"), struct.Struct("=iIIIQ")
NATIVE = {"x86_64": 0x0303, "aarch64": 0x0A03, "ppc64le": 0x0503, "riscv64": 0x1003}
"""The cache's word for libraries of a machine: that of libc6 and of its ABI."""
LINKS_MAX = 40


def folders(machine: str = "") -> tuple[str, ...]:
    """The usual places, the distribution's own first."""
    triple = f"{machine or os.uname().machine}-linux-gnu"
    return (f"/usr/lib/{triple}", f"/lib/{triple}", "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib",
            f"/usr/lib/{triple}/nvidia/current")  # fmt: skip


def cache(root: str = "/", machine: str = "") -> dict[str, str]:
    """Name → path of the libraries in `/etc/ld.so.cache` that programs of this machine can load; empty when it cannot be read."""
    try:
        with open(root.rstrip("/") + "/etc/ld.so.cache", "rb") as file:
            data = file.read()
    except OSError:
        return {}
    start = data.find(MAGIC)  # an older table may come before it
    wanted = NATIVE.get(machine or os.uname().machine)
    found: dict[str, str] = {}
    if start < 0 or len(data) < start + HEADER.size:
        return found
    _, count, _ = HEADER.unpack_from(data, start)
    for index in range(min(count, (len(data) - start - HEADER.size) // ENTRY.size)):
        flags, key, value, _, hardware = ENTRY.unpack_from(data, start + HEADER.size + index * ENTRY.size)
        if flags == wanted and not hardware:
            found.setdefault(_text(data, start + key), _text(data, start + value))
    return found


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start : end if end >= 0 else len(data)].decode("utf-8", "replace")


def real(path: str, root: str = "/") -> str:
    """The path without symbolic links as a program below `root` would see it; "" when there is nothing."""
    top = root.rstrip("/")
    done, left, links = "", path.split("/"), 0
    while left:
        part = left.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        try:
            target = os.readlink(f"{top}{done}/{part}")
        except OSError:
            done = f"{done}/{part}"
            continue
        links += 1
        if links > LINKS_MAX:
            return ""
        done = "" if target.startswith("/") else done
        left = target.split("/") + left
    return done if os.path.lexists(top + done) else ""


def find(names: set[str], version: str, root: str = "/", machine: str = "") -> dict[str, str]:
    """Name (`libcuda.so`) → the file of it with this version (`/usr/lib/…/libcuda.so.535.129.03`)."""
    found: dict[str, str] = {}
    for key, path in cache(root, machine).items():
        name = key[: key.find(".so") + 3]
        if name in names and name not in found:
            file = real(path, root)
            if file.endswith(f"{name}.{version}"):
                found[name] = file
    for folder in folders(machine):
        for name in names.difference(found):
            file = real(f"{folder}/{name}.{version}", root)
            if file:
                found[name] = file
    return found


def versions(name: str, root: str = "/", machine: str = "") -> list[str]:
    """The versions of a library that the usual folders have."""
    found = {
        entry[len(name) + 1 :]
        for folder in folders(machine)
        for entry in sysfs.names(root.rstrip("/") + folder)
        if entry.startswith(f"{name}.") and entry.count(".") > 2
    }
    return sorted(found, key=sysfs.natural)
