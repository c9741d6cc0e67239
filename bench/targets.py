# SPDX-License-Identifier: GPL-3.0-or-later
"""What ctrmgr promises about its speed, and whether a run kept it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench import many, one
from bench.timing import Results, number

OURS = "ctrmgr"


class Verdict(NamedTuple):
    promise: str
    measured: str
    kept: bool


def verdicts(tables: list[Results]) -> list[Verdict]:
    """One for each promise that this run has numbers for."""
    return [verdict for results in tables for verdict in judged(results)]


def judged(results: Results) -> Iterator[Verdict]:
    for rows, most in (((one.EXEC, one.ATTACH, one.DETACH, one.STOP, one.LIST), 2.5), ((one.LAUNCH,), 3.5)):
        for row in rows:
            ours, bare = results.median(row, OURS), results.median(one.BARE, OURS)
            if ours and bare:
                yield Verdict(f"{row} ≤ {most} × a bare Python", f"{ours / bare:.2f}", ours / bare <= most)
    for row, peers, least in (
        (one.LAUNCH, ("lxd", "incus"), 4),
        (one.LAUNCH, ("podman",), 2),
        (one.START, ("lxd", "incus", "podman"), 2),
        (one.EXEC, ("lxd", "incus", "podman"), 2),
        (one.STOP_DELETE, ("lxd", "incus", "podman"), 2),
        (one.ATTACH, ("lxd", "incus"), 1.5),
        (one.DETACH, ("lxd", "incus"), 2),
        (one.API_LAUNCH, ("crun",), 1),
    ):
        for peer in peers:
            ours, theirs = results.median(row, OURS), results.median(row, peer)
            if ours and theirs:
                yield Verdict(
                    f"{row}: {peer} takes ≥ {least} times as long", f"{theirs / ours:.2f}", theirs / ours >= least
                )
    for row, most, unit in ((one.API_ATTACH, 1, "ms"), (many.PRIVATE, 100, "kB"), (many.LIST, 60, "ms")):
        ours = results.median(row, OURS)
        if ours:
            yield Verdict(f"{row} ≤ {most} {unit}", number(ours), ours <= most)


def markdown(found: list[Verdict]) -> str:
    lines = ["| promise | measured | kept |", "|---|---|---|"]
    lines += [f"| {row.promise} | {row.measured} | {'yes' if row.kept else '**no**'} |" for row in found]
    return "\n".join(lines)
