# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan that an instance would have if it were made now; nothing is taken. Cold."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.plan import instance, network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def plan(template: Sequence[Sequence[str]], name: str) -> list[list[str]]:
    """Raises what `instance.claim` does."""
    thought: set[tuple[str, str]] = set()
    networks: dict[str, network.Network] = {}

    def take(kind: str, keys: Iterable[str], _: str) -> str | None:
        taken = state.claims(kind)
        for key in keys:
            if key not in taken and (kind, key) not in thought:
                thought.add((kind, key))
                return key
        return None

    def load(bridge: str) -> network.Network:
        if bridge not in networks:
            known = os.path.exists(network.path(bridge))
            networks[bridge] = network.load(bridge) if known else network.choose(bridge)
        return networks[bridge]

    claims = instance.choose(instance.needs(template), name, take, load)
    return instance.fill(template, name=name, claims=claims, load=load)
