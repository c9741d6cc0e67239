# SPDX-License-Identifier: GPL-3.0-or-later
"""Which IPv4 networks this host talks to, in all its routing tables. Cold: pyroute2 is slow to load."""

from __future__ import annotations

import socket

from ctrmgr.errors import HostError
from ctrmgr.host.net import mask_of, number


def used() -> list[tuple[int, int]]:
    """(network, netmask) of every IPv4 route but the default ones; those of policy tables too, where VPNs put theirs.

    Raises HostError when the kernel does not answer.
    """
    from pyroute2 import IPRoute

    try:
        with IPRoute() as netlink:
            routes = list(netlink.get_routes(family=socket.AF_INET))
    except OSError as error:
        raise HostError(f"the kernel does not list its routes: {error.strerror}") from error
    return [(number(route.get_attr("RTA_DST")), mask_of(route["dst_len"])) for route in routes if route["dst_len"]]
