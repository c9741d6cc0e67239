# SPDX-License-Identifier: GPL-3.0-or-later
"""Placement: what does not fit is never chosen, what fits is found, refusals have reasons, and the same question has one answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import placement as simulation
from ctrmgr.remote.fleet import Fleet
from ctrmgr.remote.placement import (
    ANYBODY,
    FAR,
    PACKING,
    POLICIES,
    SPREADING,
    Gpu,
    Hca,
    Member,
    Request,
    Unit,
    Verdict,
    Wish,
    bus,
    first_fit,
    hold,
    judge,
    rank,
)

GIB = 1 << 30
VENDORS = ("10de", "1002")
PRODUCTS = ("a", "b")
PARTS = ("1/0", "2/0")


@st.composite
def gpus(draw: st.DrawFn) -> list[Gpu]:
    found = []
    for index in range(draw(st.integers(0, 5))):
        gpu = Gpu(
            f"0000:{index:02x}:00.0",
            vendor=draw(st.sampled_from(VENDORS)),
            product=draw(st.sampled_from(PRODUCTS)),
            numa=draw(st.integers(0, 1)),
            names=[str(index)],
            renders=draw(st.booleans()),
            parts=draw(st.sampled_from([None, (), PARTS])),
        )
        state = draw(st.sampled_from(["free", "free", "held", "shared", "sliced"]))
        if state in ("held", "shared"):
            hold(gpu, Wish("x", share=2 if state == "shared" else 1))
        elif state == "sliced":
            hold(gpu, Wish("x", part=PARTS[0]))
        found.append(gpu)
    return found


@st.composite
def hcas(draw: st.DrawFn) -> list[Hca]:
    return [
        Hca(f"0000:{index + 16:02x}:00.0", numa=draw(st.integers(0, 1)), functions=draw(st.integers(0, 2)))
        for index in range(draw(st.integers(0, 3)))
    ]


@st.composite
def member(draw: st.DrawFn, name: str = "m1") -> Member:
    return Member(
        name,
        groups=draw(st.sets(st.sampled_from(["default", "fast"]))),
        closed=draw(st.sampled_from(["", "", "", "is offline"])),
        wait=draw(st.sampled_from(["", "", "group", "manual"])),
        gpus=draw(gpus()),
        hcas=draw(hcas()),
        memory=draw(st.integers(0, 8)) * GIB,
        used=draw(st.integers(0, 4)) * GIB,
        cpus=draw(st.integers(0, 8)),
        pools={"default": draw(st.integers(0, 8)) * GIB},
        blocks=draw(st.sets(st.sampled_from(["sda", "sdb"]))),
        usbs=draw(st.sets(st.sampled_from([("1", "2"), ("1", "3")]))),
        load=draw(st.floats(0, 16)),
        architecture=draw(st.sampled_from(["", "x86_64", "aarch64"])),
    )


wishes = st.builds(
    Wish,
    st.sampled_from(["gpu0", "gpu1"]),
    vendor=st.sampled_from(["", *VENDORS]),
    product=st.sampled_from(["", *PRODUCTS]),
    id=st.sampled_from(["", "", "1"]),
    count=st.integers(0, 3),
    share=st.sampled_from([1, 1, 2, ANYBODY]),
    part=st.sampled_from(["", "", PARTS[0]]),
)
links = st.builds(Wish, st.just("ib"), count=st.integers(1, 2), function=st.booleans())
requests = st.builds(
    Request,
    gpus=st.lists(wishes, max_size=2),
    hcas=st.lists(links, max_size=2),
    memory=st.integers(0, 6).map(lambda count: count * GIB),
    memory_share=st.sampled_from([0, 0, 50]),
    cpus=st.integers(0, 6),
    cpu_set=st.sets(st.integers(0, 7), max_size=2),
    pools=st.sampled_from([(), (("default", GIB),), (("other", 0),)]),
    blocks=st.sampled_from([(), ("sda",)]),
    usbs=st.sampled_from([(), (("1", ""),)]),
    group=st.sampled_from(["", "", "fast"]),
    only=st.sampled_from(["", "", "m1"]),
    architecture=st.sampled_from(["", "x86_64"]),
)
fleets = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).flatmap(
    lambda numbers: st.tuples(*(member(f"m{number}") for number in numbers)).map(list)
)


def check(placed: Verdict, request: Request) -> None:
    """All that the request asks for is there. Said another way than the code says it."""
    there = placed.member
    assert not there.closed
    assert not request.only or there.name == request.only
    assert request.only or not request.group or request.group in there.groups
    assert request.memory_of(there) + there.promised <= there.memory or not request.memory_of(there)
    assert request.cpus + there.promised_cpus <= there.cpus or not request.cpus
    for wishes_of, units_of in ((request.gpus, there.gpus), (request.hcas, there.hcas)):
        for wish in wishes_of:
            given = [unit for asked, unit in placed.units if asked is wish]
            among = [unit for unit in units_of if wish.means(unit)]
            assert len(given) == len(set(given)) and set(given) <= set(among)
            assert len(given) == wish.count or wish.count == 0
            for unit in given:
                if isinstance(unit, Hca):
                    assert unit.lent < unit.functions if wish.function else unit.held == unit.lent == 0
                elif wish.part:
                    assert isinstance(unit, Gpu) and unit.held == 0 and wish.part not in unit.taken
                    assert unit.parts is None or wish.part in unit.parts
                else:
                    assert not unit.taken
                    assert unit.held == 0 or (wish.share > unit.held and unit.limit > unit.held)
    whole = [unit for wish, unit in placed.units if not wish.part and not wish.function]
    assert len(whole) == len(set(whole))


@given(member(), requests, st.sampled_from(POLICIES))
@settings(max_examples=200, deadline=None)
def test_what_is_chosen_fits_and_the_rest_has_a_reason(there: Member, request: Request, policy: str) -> None:
    placed = judge(there, request, policy)
    if placed.fits:
        check(placed, request)
        assert 0 <= placed.score <= 100
    else:
        assert placed.why.split()[0] in ("is", "has") and not placed.units


@given(member(), requests)
@settings(max_examples=100, deadline=None)
def test_what_is_taken_and_given_back_is_as_before(there: Member, request: Request) -> None:
    def state() -> list[object]:
        units = [(unit.held, unit.taken, unit.limit, unit.free) for unit in (*there.gpus, *there.hcas)]
        return [units, there.promised, there.promised_cpus, dict(there.pools), there.taken_blocks]

    placed = judge(there, request)
    if placed.fits and all(wish.share == 1 for wish in request.gpus):
        before = state()
        there.take(placed, request)
        there.give(placed, request)
        assert state() == before


def possible(units: Sequence[Unit], wishes: Sequence[Wish]) -> bool:
    """By trying everything."""
    slots = [wish for wish in wishes for _ in range(wish.count)]
    return any(
        all(wish.means(unit) and wish.open(unit) for wish, unit in zip(slots, row, strict=True))
        for row in itertools.permutations(units, len(slots))
    )


plain = st.builds(
    Wish,
    st.just("gpu"),
    vendor=st.sampled_from(VENDORS),
    product=st.sampled_from(["", *PRODUCTS]),
    id=st.sampled_from(["", "", "1", "2"]),
    count=st.integers(1, 2),
)


@given(gpus(), st.lists(plain, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_what_is_possible_is_found(cards: list[Gpu], asked: list[Wish]) -> None:
    """Also where wishes want the same GPUs, and the first that fit would leave another wish without."""
    assert judge(Member("m1", gpus=cards), Request(gpus=asked)).fits == possible(cards, asked)


@given(fleets, requests, st.sampled_from(POLICIES))
@settings(max_examples=50, deadline=None)
def test_the_order_of_the_question_does_not_matter(members: list[Member], request: Request, policy: str) -> None:
    def said(found: list[Verdict]) -> list[object]:
        return [(v.member.name, v.why, v.score, [unit.address for _, unit in v.units]) for v in found]

    answer = said(rank(members, request, policy))
    assert answer == said(rank(members[::-1], request, policy)) == said(rank(members, request, policy))
    assert len(answer) == len(members)


@given(fleets, st.lists(st.tuples(requests, st.booleans()), max_size=30), st.sampled_from(POLICIES))
@settings(max_examples=40, deadline=None)
def test_the_index_answers_as_who_looks_at_all(
    members: list[Member], coming: list[tuple[Request, bool]], policy: str
) -> None:
    fleet = Fleet(members, policy)
    placed: list[tuple[Verdict, Request]] = []
    for request, leave in coming * 3:
        if leave and placed:
            fleet.give(*placed.pop(0))
        best = rank(members, request, policy)[0]
        found = fleet.best(request)
        assert (found.member.name if found else None) == (best.member.name if best.fits else None)
        if found:
            assert (found.score, [u.address for _, u in found.units]) == (
                best.score,
                [u.address for _, u in best.units],
            )
            fleet.take(found, request)
            placed.append((found, request))


def box(name: str = "m1", taken: Sequence[int] = ()) -> Member:
    """Two sockets with four GPUs and two HCAs each."""
    gpus = [Gpu(f"0000:{numa * 0x80 + 4 + 2 * index:02x}:00.0", vendor="10de", numa=numa)
            for numa in (0, 1) for index in range(4)]  # fmt: skip
    hcas = [Hca(f"0000:{numa * 0x80 + 5 + 4 * index:02x}:00.0", numa=numa) for numa in (0, 1) for index in range(2)]
    found = Member(name, gpus=gpus, hcas=hcas, memory=64 * GIB, cpus=32)
    for index in taken:
        hold(found.gpus[index], Wish("x"))
    return found


def addresses(placed: Verdict) -> list[str]:
    assert placed.fits, placed.why
    return [unit.address for _, unit in placed.units]


def test_devices_are_near_each_other() -> None:
    pair = Request(gpus=[Wish("gpu")], hcas=[Wish("ib")])
    assert addresses(judge(box(), pair)) == ["0000:04:00.0", "0000:05:00.0"]
    there = box()
    hold(there.hcas[0], Wish("x"))
    assert addresses(judge(there, pair)) == ["0000:08:00.0", "0000:09:00.0"]
    for index in (0, 1):
        hold(there.hcas[index], Wish("x"), 1 - there.hcas[index].held)
    assert addresses(judge(there, pair)) == ["0000:84:00.0", "0000:85:00.0"]
    # the node that is the most nearly full, and not half here and half there
    assert {unit.numa for _, unit in judge(box(taken=(0, 1)), Request(gpus=[Wish("g", count=2)])).units} == {0}
    assert {unit.numa for _, unit in judge(box(taken=(0, 1, 2)), Request(gpus=[Wish("g", count=2)])).units} == {1}
    four = Request(gpus=[Wish("g", count=4)])
    split, whole = judge(box(taken=(0, 1, 4, 5)), four), judge(box(taken=(0, 1, 2, 3)), four)
    assert len(split.units) == 4 and split.score == whole.score - 15


def test_packing_fills_and_spreading_levels() -> None:
    members = [box("m1"), box("m2", taken=(0, 1)), box("m3", taken=range(8))]
    request = Request(gpus=[Wish("gpu")])
    assert [each.member.name for each in rank(members, request, PACKING)] == ["m2", "m1", "m3"]
    assert [each.member.name for each in rank(members, request, SPREADING)] == ["m1", "m2", "m3"]
    assert rank(members, request)[2].why == "has 0 of 8 GPUs free, and not 1"


def test_who_needs_no_gpu_leaves_them_alone() -> None:
    members = [box("m1"), Member("m2", memory=64 * GIB, cpus=32)]
    for policy in POLICIES:
        assert rank(members, Request(memory=GIB), policy)[0].member.name == "m2"


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request(memory=65 * GIB), "has 64 GiB of memory left, and not 65 GiB"),
        (Request(cpus=33), "has 32 of 32 CPUs left, and not 33"),
        (Request(cpu_set=[40]), "has no CPU 40"),
        (Request(gpus=[Wish("gpu", vendor="1002")]), "has no GPU with vendorid=1002"),
        (Request(gpus=[Wish("gpu", count=9)]), "has 8 of 8 GPUs free, and not 9"),
        (Request(hcas=[Wish("ib", id="ib7")]), "has no HCA with id=ib7"),
        (Request(pools=[("fast", 0)]), "has no storage pool `fast`"),
        (Request(blocks=["sda"]), "has no disk `sda`"),
        (Request(usbs=[("1050", "0407")]), "has no USB device 1050:0407"),
        (Request(group="fast"), "is not in the group `fast`"),
        (Request(only="m2"), "is not the one that was named"),
        (
            Request(gpus=[Wish("a", count=5), Wish("b", count=4)]),
            "has too few GPUs free for `a` and `b` together",
        ),
    ],
)
def test_reasons(request_: Request, why: str) -> None:
    assert judge(box(), request_).why == why


def test_who_may_share_and_who_not() -> None:
    gpu = Gpu("0000:01:00.0")
    both, alone = Wish("x", share=2), Wish("x")
    hold(gpu, both)
    assert both.open(gpu) and not alone.open(gpu) and not Wish("x", part="1/0").open(gpu)
    hold(gpu, Wish("x", share=5))
    assert gpu.limit == 2 and not Wish("x", share=5).open(gpu)
    hold(gpu, both, -1)
    hold(gpu, both, -1)
    assert gpu.free and gpu.limit == 1
    hold(gpu, alone)
    assert not both.open(gpu)


def test_members_that_wait_to_be_named() -> None:
    grouped, manual = Member("m1", groups=["fast"], wait="group"), Member("m2", groups=["fast"], wait="manual")
    assert not judge(grouped, Request()).fits and judge(grouped, Request(group="fast")).fits
    assert not judge(manual, Request(group="fast")).fits and judge(manual, Request(only="m2")).fits


def test_addresses() -> None:
    assert bus("0000:81:00.0") == 0x81 and bus("0001:00:00.0") == 0x100 and bus("2:7") == bus("") == 0
    assert 0 <= bus("ffffffff:ff:00.0") < FAR


def test_the_simulation() -> None:
    """A smaller one of what the documentation shows: nothing is ever over-committed, and packing refuses no more than the first that fits."""
    counts = {}
    for policy in (PACKING, SPREADING, simulation.FIRST_FIT):
        members = simulation.fleet(60, 3)
        gpus = sum(len(each.gpus) for each in members)
        outcome = simulation.simulate(policy, members, simulation.arrivals(600, gpus, 1.0, 3))
        counts[policy] = sum(map(simulation.weight, outcome.refused))
        assert len(outcome.seconds) == 600 and outcome.refused and outcome.several and outcome.pairs
        for each in members:
            assert 0 <= each.promised <= each.memory and 0 <= each.promised_cpus <= each.cpus
            assert all(unit.held <= 1 and not (unit.held and unit.taken) for unit in (*each.gpus, *each.hcas))
        if policy != simulation.FIRST_FIT:
            assert outcome.together / outcome.several > 0.9 and outcome.near / outcome.pairs > 0.9
    assert counts[PACKING] <= counts[simulation.FIRST_FIT]
    assert simulation.report(20, 100, 1.0, 1).count("\n") == 13


def test_first_fit_is_the_first() -> None:
    members = [box("m1", taken=range(8)), box("m2"), box("m3", taken=(0,))]
    found = first_fit(members, Request(gpus=[Wish("gpu", count=2)]))
    assert found and found.member.name == "m2" and addresses(found) == ["0000:04:00.0", "0000:06:00.0"]
    assert first_fit(members, Request(gpus=[Wish("gpu", count=9)])) is None
