# SPDX-License-Identifier: GPL-3.0-or-later
"""Managed bridges: which addresses they have and give, and what an instance's network files say.

A managed bridge is a file, `STATE/networks/NAME`, chosen once and never moved: instances keep their addresses. The device
itself is made on first use. (The seam for other network models: `link`, `address` and `gateway` rows are all that a start
knows.)
"""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import CtrmgrError, HostError
from ctrmgr.host.net import dotted, free_subnet, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MANAGED = "ctrbr0"
PREFIX = 22
"""1022 addresses: a Linux bridge has at most 1024 ports."""


class Network:
    """A managed bridge. `first` is the network's number, `gateway` the bridge's own IPv4 address."""

    __slots__ = ("first", "gateway", "gateway6", "name", "prefix", "prefix6")

    def __init__(self, name: str, gateway: str, prefix: int, gateway6: str, prefix6: int) -> None:
        self.name, self.gateway, self.prefix = name, gateway, prefix
        self.gateway6, self.prefix6 = gateway6, prefix6
        self.first = number(gateway) & ~((1 << (32 - prefix)) - 1)

    def candidates(self, owner: str) -> Iterator[str]:
        """Every address an instance may have. It begins at one that depends on the name alone, so that an instance that
        is made again under its old name gets its old address, if it is still free."""
        count = (1 << (32 - self.prefix)) - 3
        start = 0
        for letter in owner.encode():
            start = (start * 31 + letter) % count
        for step in range(count):
            yield dotted(self.first + 2 + (start + step) % count)

    def address6(self, address: str) -> str:
        """The IPv6 address that goes with an IPv4 one: the same host number, so that one claim covers both."""
        return f"{self.gateway6[:-1]}{number(address) - self.first:x}"

    def holds(self, address: str) -> bool:
        """Whether an instance may have `address`."""
        host = number(address) - self.first
        return 1 < host < (1 << (32 - self.prefix)) - 1


def path(name: str) -> str:
    return f"{state.state_dir()}/networks/{name}"


def load(name: str) -> Network:
    """The managed bridge `name`, chosen now if it was never used. Raises HostError, CtrmgrError for a corrupt file."""
    try:
        rows = {row[0]: row[1:] for row in state.read_flat(path(name))}
    except FileNotFoundError:
        return define(name)
    try:
        (gateway, prefix), (gateway6, prefix6) = rows["ipv4"], rows["ipv6"]
        return Network(name, gateway, int(prefix), gateway6, int(prefix6))
    except (KeyError, ValueError):
        raise CtrmgrError(
            f"`{path(name)}` is corrupt", hint="it has a row `ipv4` and one `ipv6`: address, prefix"
        ) from None


def define(name: str) -> Network:
    """Choose networks that this host does not use, and keep the choice. Raises HostError when there are none."""
    folder = f"{state.state_dir()}/networks"
    state.make_dir(folder)
    with state.Lock(folder):
        if os.path.exists(path(name)):
            return load(name)
        chosen = choose(name)
        rows = (("ipv4", chosen.gateway, str(chosen.prefix)), ("ipv6", chosen.gateway6, str(chosen.prefix6)))
        state.write_flat(path(name), rows)
        return chosen


def choose(name: str) -> Network:
    """What `define` would keep. Raises HostError."""
    from ctrmgr.host import routes

    first = free_subnet(routes.used(), prefix=PREFIX)
    if not first:
        raise HostError(f"no private IPv4 network is free for `{name}`", hint=f"write one to `{path(name)}`")
    # RFC 4193: 40 random bits make a network that meets nobody's.
    noise = os.urandom(5).hex()
    return Network(name, dotted(number(first) + 1), PREFIX, f"fd{noise[:2]}:{noise[2:6]}:{noise[6:]}::1", 64)


def files(
    name: str, addresses: Sequence[str], nameservers: Sequence[str], search: Sequence[str] = ()
) -> dict[str, str]:
    """What `/etc/hostname`, `/etc/hosts` and `/etc/resolv.conf` of a new instance say; the last only with name servers,
    since an image's own is better than an empty one."""
    hosts = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    hosts += [f"{address}\t{name}" for address in addresses] or [f"127.0.1.1\t{name}"]
    found = {"etc/hostname": name + "\n", "etc/hosts": "\n".join(hosts) + "\n"}
    if nameservers:
        lines = [f"nameserver {server}" for server in nameservers]
        lines += [f"search {' '.join(search)}"] if search else []
        found["etc/resolv.conf"] = "\n".join(lines) + "\n"
    return found
