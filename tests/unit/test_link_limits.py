# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of an instance's links have its limits, and which cannot."""

from __future__ import annotations

import pytest

from ctrmgr.errors import UnsupportedError
from ctrmgr.plan import compile, limits


def test_a_link_that_cannot_be_limited() -> None:
    """The host's network, and a link of the host's that moves in, are refused; without any there is nothing to limit."""
    wish = {"limits.ingress": "1000000"}
    moved = [["netdev", "n", "eth1", "eth1", "", "0", "required"]]
    for rows, why in ((moved, "link of the host's that moves in"), ([["net", "host"]], "no link of its own")):
        with pytest.raises(UnsupportedError, match=f"`limits.ingress` cannot be enforced here: .*{why}"):
            compile._network(rows, wish)
        (row,) = compile._network(rows, {**wish, "limits.enforcement": "best-effort"})[1:]
        assert row[0] == "left-out" and row[2] == "limits.ingress" and why in row[3]
    assert compile._network([], wish) == [
        ["net", "none"],
        limits.left_out("limits.ingress", "`limits.ingress` has nothing to limit: it has no link"),
    ]
    bridged = [["net", "bridge"], ["@limit", "eth0", "", "", ""], ["@link", "br", "eth0", "", "0", ""]]
    limited = ["link-limit", "eth0", "1000000", "0", "4294967295"]
    assert compile._network(bridged, wish)[2:] == [limited]
    with pytest.raises(UnsupportedError, match="`eth1` of device `n` is a link of the host's that moves in"):
        compile._network([*bridged, *moved], wish)
    found = compile._network([*bridged, *moved], {**wish, "limits.enforcement": "best-effort"})[2:]
    assert found[0] == limited and [row[:3] for row in found[1:]] == [["left-out", "n", "limits.ingress"]]
    bridged[1][2] = "1000000"  # what a nic says is of that nic alone
    assert compile._network([*bridged, *moved], {})[2:] == [limited]
