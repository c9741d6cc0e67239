# SPDX-License-Identifier: GPL-3.0-or-later
"""IPv4 numbers, and the name servers that this host asks. Hot."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def free_subnet(taken: Sequence[tuple[int, int]], *, prefix: int = 22) -> str:
    """The first address of a private IPv4 network that meets none of `taken` (network, netmask), or "" when all do.

    `10.113.0.0` upwards first: far from what home routers and clouds start with.
    """
    size = 1 << (32 - prefix)
    mask = mask_of(prefix)
    for first, last in (("10.113.0.0", "10.255.255.255"), ("172.16.0.0", "172.31.255.255"),
                        ("192.168.0.0", "192.168.255.255")):  # fmt: skip
        for network in range(number(first), number(last), size):
            if not any(network & other & mask == base & mask & other for base, other in taken):
                return dotted(network)
    return ""


def mask_of(prefix: int) -> int:
    """The netmask of a prefix length, as an integer."""
    return 0xFFFFFFFF ^ (0xFFFFFFFF >> prefix)


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
