# SPDX-License-Identifier: GPL-3.0-or-later
"""Which IPv4 networks this host already talks to, and the name servers that it asks. Hot."""

from __future__ import annotations

import os
import struct


def used(root: str = "/") -> list[tuple[int, int]]:
    """(network, netmask) of each IPv4 route except the default one; the kernel keeps one for each address."""
    found = []
    for line in _lines(root, "proc/net/route")[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        # The file holds the raw big-endian words printed as native integers.
        network, mask = (struct.unpack(">I", struct.pack("=I", int(field, 16)))[0] for field in (fields[1], fields[7]))
        if mask:
            found.append((network, mask))
    return found


def free_subnet(root: str = "/", *, prefix: int = 22, avoid: list[tuple[int, int]] | None = None) -> str:
    """The first address of a private IPv4 network that no route of this host meets, or "" when all are in use.

    `10.113.0.0` upwards first: far from what home routers and clouds start with.
    """
    taken = used(root) + (avoid or [])
    size = 1 << (32 - prefix)
    mask = 0xFFFFFFFF & ~(size - 1)
    for first, last in (("10.113.0.0", "10.255.255.255"), ("172.16.0.0", "172.31.255.255"),
                        ("192.168.0.0", "192.168.255.255")):  # fmt: skip
        for network in range(number(first), number(last), size):
            if not any(network & other & mask == base & mask & other for base, other in taken):
                return dotted(network)
    return ""


def number(address: str) -> int:
    """A dotted IPv4 address as an integer. Raises ValueError."""
    parts = address.split(".")
    if len(parts) != 4 or not all(part.isdecimal() and int(part) < 256 for part in parts):
        raise ValueError(f"`{address}` is not an IPv4 address")
    return int(parts[0]) << 24 | int(parts[1]) << 16 | int(parts[2]) << 8 | int(parts[3])


def dotted(value: int) -> str:
    return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


def nameservers(root: str = "/") -> tuple[list[str], list[str]]:
    """(name servers, search domains) that an instance can use: loopback ones answer only on the host.

    systemd-resolved writes its stub's loopback address into resolv.conf and the real servers into a file of its own.
    """
    servers, search = _resolv(root, "etc/resolv.conf")
    if not servers:
        servers, real_search = _resolv(root, "run/systemd/resolve/resolv.conf")
        search = search or real_search
    return servers, search


def _resolv(root: str, path: str) -> tuple[list[str], list[str]]:
    servers, search = [], []
    for line in _lines(root, path):
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver" and not _loopback(words[1]):
            servers.append(words[1])
        elif words and words[0] in ("search", "domain"):
            search = words[1:]
    return servers, search


def _loopback(address: str) -> bool:
    return address.startswith(("127.", "::1", "fe80:")) or address == "0.0.0.0"


def _lines(root: str, path: str) -> list[str]:
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []
