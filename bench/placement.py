#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""A made-up fleet, and what becomes of requests that come and go: what a decision costs, who is refused, how broken up the rest is.

The same requests meet `packing`, `spreading` and the first member that fits. Prints Markdown.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ctrmgr.remote.fleet import Fleet
from ctrmgr.remote.placement import (
    PACKING,
    SPREADING,
    Gpu,
    Hca,
    Member,
    Request,
    Verdict,
    Wish,
    first_fit,
    rank,
)

GIB = 1 << 30
SLICES = tuple(f"{number}/0" for number in range(1, 8))
FIRST_FIT = "first fit"


class Model:
    """A kind of machine: its GPUs (vendor, product, how many, how many of them in slices) and HCAs."""

    def __init__(
        self, share: int, cpus: int, memory: int, gpu: tuple[str, str] = ("", ""), gpus: int = 0, hcas: int = 0,
        sliced: int = 0,
    ) -> None:  # fmt: skip
        self.share, self.cpus, self.memory, self.gpu = share, cpus, memory, gpu
        self.gpus, self.hcas, self.sliced = gpus, hcas, sliced


A100, L40S, T4, H100, MI300X = ("10de", "20b2"), ("10de", "26b9"), ("10de", "1eb8"), ("10de", "2330"), ("1002", "74a1")
MODELS = (
    Model(35, 64, 256),
    Model(30, 128, 1024, A100, 8, 4),
    Model(15, 64, 512, L40S, 4, 1),
    Model(10, 192, 2048, MI300X, 8, 8),
    Model(5, 192, 2048, H100, 8, 8, sliced=2),
    Model(5, 32, 128, T4, 2),
)
"""`share` is of a hundred machines."""


def member(number: int, model: Model) -> Member:
    """Two sockets; a switch on each has its half of the GPUs and HCAs, as the big machines are built."""
    gpus, hcas = [], []
    for index in range(model.gpus):
        numa = index * 2 // model.gpus
        parts = SLICES if index < model.sliced else ()
        address = f"0000:{numa * 0x80 + 4 + index % 4 * 2:02x}:00.0"
        gpus.append(Gpu(address, vendor=model.gpu[0], product=model.gpu[1], numa=numa, parts=parts))
    for index in range(model.hcas):
        numa = index * 2 // model.hcas
        hcas.append(
            Hca(f"0000:{numa * 0x80 + 5 + index % 4 * 2:02x}:00.0", vendor="15b3", numa=numa, names=[f"ib{index}"])
        )
    return Member(f"m{number:04}", gpus=gpus, hcas=hcas, cpus=model.cpus, memory=model.memory * GIB)


def fleet(count: int, seed: int) -> list[Member]:
    """In the shares of the models, in no order."""
    models = [model for model in MODELS for _ in range(model.share)]
    chosen = [models[number * 37 % len(models)] for number in range(count)]
    random.Random(seed).shuffle(chosen)
    return [member(number, model) for number, model in enumerate(chosen)]


def asked(draw: random.Random) -> Request:
    """One request. Who takes GPUs takes CPUs and memory with them."""

    def gpu(model: tuple[str, str], count: int, hcas: int = 0) -> Request:
        wishes = [Wish("gpu", vendor=model[0], product=model[1], count=count)]
        links = [Wish("ib", count=hcas)] if hcas else []
        return Request(gpus=wishes, hcas=links, cpus=8 * count, memory=32 * count * GIB)

    kinds: list[tuple[int, Callable[[], Request]]] = [
        (30, lambda: Request(cpus=draw.choice((2, 4, 8, 16)), memory=draw.choice((4, 8, 16, 32, 64)) * GIB)),
        (18, lambda: gpu(("10de", ""), 1)),
        (10, lambda: gpu(A100, 1)),
        (9, lambda: gpu(A100, 2)),
        (6, lambda: gpu(A100, 4, 1)),
        (5, lambda: gpu(A100, 8, 4)),
        (8, lambda: gpu(L40S, 1)),
        (5, lambda: gpu(MI300X, 4, 4)),
        (3, lambda: gpu(MI300X, 8, 8)),
        (6, lambda: Request(gpus=[Wish("gpu", vendor="10de", product="2330", part=draw.choice(SLICES))], cpus=4)),
    ]
    return draw.choices([make for _, make in kinds], [weight for weight, _ in kinds])[0]()


def arrivals(requests: int, gpus: int, load: float, seed: int) -> Iterator[tuple[float, Request, float]]:
    """When, what, and for how long: one each unit of time on average, for so long that together they want `load` of the GPUs."""
    draw = random.Random(seed)
    sample = random.Random(seed)
    each = statistics.mean(weight(asked(sample)) for _ in range(2000))
    now, life = 0.0, load * gpus / each
    for _ in range(requests):
        now += draw.expovariate(1)
        yield now, asked(draw), draw.expovariate(1 / life)


class Outcome:
    """What happened to the requests under one policy."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.refused: list[Request] = []
        self.broken: list[float] = []
        """At some moments: the part of the free GPUs that is on machines of which a part is taken."""
        self.used: list[float] = []
        self.several = self.together = self.pairs = self.near = 0
        """Placements of several GPUs, those of them at one NUMA node; GPUs with HCAs, those at one NUMA node."""

    def note(self, placed: Verdict) -> None:
        gpus = [unit for _, unit in placed.units if isinstance(unit, Gpu)]
        links = [unit for _, unit in placed.units if isinstance(unit, Hca)]
        if 1 < len(gpus) <= len(placed.member.gpus) // 2:
            self.several += 1
            self.together += len({unit.numa for unit in gpus}) == 1
            if links and len(links) <= len(placed.member.hcas) // 2:
                self.pairs += 1
                self.near += len({unit.numa for unit in (*gpus, *links)}) == 1

    def look(self, members: list[Member]) -> None:
        free = whole = total = 0
        for each in members:
            count = sum(unit.free for unit in each.gpus)
            free, total = free + count, total + len(each.gpus)
            whole += count if count == len(each.gpus) else 0
        self.used.append(1 - free / total)
        self.broken.append(1 - whole / free if free else 0.0)


def simulate(policy: str, members: list[Member], coming: Iterator[tuple[float, Request, float]]) -> Outcome:
    """Every request once: placed where the policy says until its time is over, or refused."""
    outcome = Outcome()
    index = Fleet(members, policy if policy != FIRST_FIT else PACKING)
    ends: list[tuple[float, int, Verdict, Request]] = []
    for number, (now, request, life) in enumerate(coming):
        while ends and ends[0][0] <= now:
            _, _, placed, was = heapq.heappop(ends)
            index.give(placed, was)
        begin = time.process_time()
        found = first_fit(members, request) if policy == FIRST_FIT else index.best(request)
        outcome.seconds.append(time.process_time() - begin)
        if number % 100 == 99:
            outcome.look(members)
        if found is None:
            outcome.refused.append(request)
            continue
        index.take(found, request)
        outcome.note(found)
        heapq.heappush(ends, (now + life, number, found, request))
    return outcome


def whole_scan(members: list[Member], requests: int, seed: int) -> list[float]:
    """What a decision costs that looks at every member, as one does that has just asked them all."""
    draw = random.Random(seed)
    seconds = []
    for _ in range(requests):
        request = asked(draw)
        begin = time.process_time()
        rank(members, request)
        seconds.append(time.process_time() - begin)
    return seconds


def weight(request: Request) -> int:
    return sum(wish.count for wish in request.gpus if not wish.part)


def micro(seconds: list[float]) -> str:
    row = sorted(seconds)
    return f"{statistics.median(row) * 1e6:.0f} ({row[len(row) * 99 // 100] * 1e6:.0f})"


def report(count: int, requests: int, load: float, seed: int) -> str:
    policies = (PACKING, SPREADING, FIRST_FIT)
    gpus = sum(len(each.gpus) for each in fleet(count, seed))
    found = {name: simulate(name, fleet(count, seed), arrivals(requests, gpus, load, seed)) for name in policies}

    def percent(part: float, whole: float) -> str:
        return f"{100 * part / whole:.1f} %" if whole else "–"

    half = {name: len(outcome.used) // 2 for name, outcome in found.items()}  # the fleet has filled by then
    rows: list[tuple[str, Callable[[str, Outcome], str]]] = [
        ("refused", lambda _, o: percent(len(o.refused), requests)),
        ("… of those that want 8 GPUs", lambda _, o: str(sum(weight(r) == 8 for r in o.refused))),
        ("… GPUs asked for by those that were refused", lambda _, o: str(sum(map(weight, o.refused)))),
        ("GPUs in use, mean", lambda n, o: percent(statistics.mean(o.used[half[n]:]), 1)),
        ("free GPUs on machines that are partly taken, mean", lambda n, o: percent(statistics.mean(o.broken[half[n]:]), 1)),
        ("2 or more GPUs that fit one NUMA node: placed so", lambda _, o: percent(o.together, o.several)),
        ("… with HCAs: all at one NUMA node", lambda _, o: percent(o.near, o.pairs)),
        ("µs of CPU a decision, median (99th percentile)", lambda _, o: micro(o.seconds)),
    ]  # fmt: skip
    lines = ["| | " + " | ".join(policies) + " |", "|---" * (len(policies) + 1) + "|"]
    lines += [f"| {title} | " + " | ".join(make(name, found[name]) for name in policies) + " |" for title, make in rows]
    scan = micro(whole_scan(fleet(count, seed), 100, seed))
    head = f"{requests} requests on {count} members with {gpus} GPUs, of which they want {load:.0%} together; seed {seed}.\n"
    return "\n".join([head, *lines, "", f"A decision that looks at every member: {scan} µs of CPU."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(report(args.members, args.requests, args.load, args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
