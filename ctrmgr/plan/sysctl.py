# SPDX-License-Identifier: GPL-3.0-or-later
"""`linux.sysctl.*` → rows of kernel parameters that belong to the instance's own namespaces; no other is ever set."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ctrmgr.errors import SpecError, UnsupportedError
from ctrmgr.host.machine import Host

PREFIX = "linux.sysctl."
NAMESPACED = ("net/", "fs/mqueue/", "kernel/msg", "kernel/sem", "kernel/shm")
"""Below /proc/sys; the monitor has the same list (`native_helpers/priv_sysctl.c`)."""
OWN_NAMES = ("/conf/", "/neigh/")
"""Folders with one entry for each link: what the instance will have there, the host need not."""


def path(name: str) -> str:
    """Below /proc/sys, of a name with dots or, as sysctl(8) has it, one whose first separator is a slash."""
    if "/" in name and name.index("/") < (name + ".").index("."):
        return name
    return name.translate({ord("."): "/", ord("/"): "."})


def rows(config: Mapping[str, str], host: Host, *, is_host_network: bool) -> list[list[str]]:
    """`sysctl` rows. Raises UnsupportedError for what is not an instance's own, SpecError for what this kernel does not have."""
    found = []
    for key, value in sorted(config.items()):
        if not key.startswith(PREFIX):
            continue
        file = path(key.removeprefix(PREFIX))
        if any(part in ("", ".", "..") for part in file.split("/")) or len(file) > 255:
            raise SpecError(f"`{key}` is not the name of a kernel parameter")
        if not file.startswith(NAMESPACED):
            raise UnsupportedError(
                f"`{key}` cannot be set for an instance: it is one for the whole machine",
                hint="those of its own are net.*, fs.mqueue.*, kernel.msg*, kernel.sem and kernel.shm*; set others on the host",
            )
        if is_host_network and file.startswith("net/"):
            raise UnsupportedError(f"`{key}` cannot be set: the network is the host's own", hint="set it on the host")
        if not any(folder in file for folder in OWN_NAMES) and not os.path.exists(
            f"{host.root.rstrip('/')}/proc/sys/{file}"
        ):
            raise SpecError(
                f"`{key}`: this kernel has no such parameter", hint=f"`ls /proc/sys/{file.rpartition('/')[0]}`"
            )
        found.append(["sysctl", file, value])
    return found
