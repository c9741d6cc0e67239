# SPDX-License-Identifier: GPL-3.0-or-later
"""Placement for many members and many requests: an index, so that a decision does not look at all of them. Pure."""

from __future__ import annotations

import heapq

from ctrmgr.remote.placement import PACKING, Member, Request, Verdict, judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Fleet:
    """Many members and many requests: the answers of `rank`, without looking at every member each time.

    For each kind of request there is a heap of the members that fit, by score. A member that has changed since is judged
    again, so a decision costs what has changed since the last one of its kind, whatever the size of the fleet.
    """

    def __init__(self, members: Iterable[Member], policy: str = PACKING) -> None:
        self.members = {member.name: member for member in members}
        self.policy = policy
        self._kinds: dict[object, _Kind] = {}
        self._changed: list[Member] = []
        self._forgotten = 0
        """How many changes are no longer in the list."""

    def best(self, request: Request) -> Verdict | None:
        """The first of `rank` if it fits."""
        now = self._forgotten + len(self._changed)
        kind = self._kinds.get(request.key)
        judged: Callable[[Member], Verdict] = lambda member: judge(member, request, self.policy)  # noqa: E731
        if kind is None or now - kind.seen > len(self.members) or len(kind.heap) > 4 * len(self.members) + 64:
            kind = self._kinds[request.key] = _Kind(now)
            kind.heap = [entry for member in self.members.values() if (entry := _entry(judged(member)))]
            heapq.heapify(kind.heap)
        for member in set(self._changed[kind.seen - self._forgotten :]):
            if entry := _entry(judged(member)):
                heapq.heappush(kind.heap, entry)
        kind.seen = now
        while kind.heap:
            _, name, version = kind.heap[0]
            if self.members[name].version == version:
                return judged(self.members[name])
            heapq.heappop(kind.heap)
        return None

    def take(self, placed: Verdict, request: Request) -> None:
        placed.member.take(placed, request)
        self._note(placed.member)

    def give(self, placed: Verdict, request: Request) -> None:
        placed.member.give(placed, request)
        self._note(placed.member)

    def _note(self, member: Member) -> None:
        self._changed.append(member)
        if len(self._changed) > 2 * len(self.members) + 64:
            cut = len(self._changed) - len(self.members)
            del self._changed[:cut]
            self._forgotten += cut
            self._kinds = {key: kind for key, kind in self._kinds.items() if kind.seen >= self._forgotten}


class _Kind:
    """Requests of one key: the heap, and up to which change it is current."""

    __slots__ = ("heap", "seen")

    def __init__(self, seen: int) -> None:
        self.heap: list[tuple[float, str, int]] = []
        self.seen = seen


def _entry(verdict: Verdict) -> tuple[float, str, int] | None:
    return (-verdict.score, verdict.member.name, verdict.member.version) if verdict.fits else None
