# SPDX-License-Identifier: GPL-3.0-or-later
"""Which member of a cluster an instance goes to. Pure: members and a request in, a choice and its reasons out.

What does not fit is never chosen, the same question has the same answer, and every refusal has a reason.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PACKING, SPREADING = "packing", "spreading"
POLICIES = (PACKING, SPREADING)
EXCLUSIVE = 1
ANYBODY = 1 << 30
FAR = 1 << 20
"""The distance of two devices at different NUMA nodes: more than that of any two PCI buses."""


def bus(address: str) -> int:
    """Domain and bus of a PCI address as one number: what is below one switch has numbers near each other."""
    try:
        domain, number, _ = address.split(":")
        return (int(domain, 16) << 8 | int(number, 16)) % FAR
    except ValueError:
        return 0


class Unit:
    """A device of a member that is given to instances: at most `limit` have it (EXCLUSIVE until somebody shares it)."""

    __slots__ = ("address", "at", "held", "limit", "model", "names", "numa", "product", "taken", "vendor")

    def __init__(
        self, address: str, *, vendor: str = "", product: str = "", model: str = "", numa: int = 0,
        names: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.address, self.at, self.numa = address, bus(address), numa
        self.vendor, self.product, self.model = vendor, product, model
        self.names = tuple(names)
        """What else it is called: a card's number and UUID, an HCA's links."""
        self.held, self.limit = 0, EXCLUSIVE
        self.taken: frozenset[str] = frozenset()
        """Those of its parts that somebody has."""

    @property
    def free(self) -> bool:
        return not self.held and not self.taken

    def far(self, other: Unit) -> int:
        return abs(self.at - other.at) + (FAR if self.numa != other.numa else 0)


class Gpu(Unit):
    """`parts` are its slices by name, None when the server does not tell; `renders`: it is for more than a screen."""

    __slots__ = ("parts", "renders")

    def __init__(
        self, address: str, *, renders: bool = True, parts: Iterable[str] | None = None, **about: object
    ) -> None:
        super().__init__(address, **about)  # type: ignore[arg-type]
        self.renders, self.parts = renders, None if parts is None else frozenset(parts)


class Hca(Unit):
    """`functions` is how many virtual functions it has for `nictype: sriov`, `lent` how many of them somebody has."""

    __slots__ = ("functions", "lent")

    def __init__(self, address: str, *, functions: int = 0, **about: object) -> None:
        super().__init__(address, **about)  # type: ignore[arg-type]
        self.functions, self.lent = functions, 0

    @property
    def free(self) -> bool:
        return not self.held and not self.lent


class Wish:
    """What a device of an instance asks for. `count` 0 is all that fit; `share` is how many may have it then.

    `part` is the name of a slice of a GPU; `function`: a virtual function of an HCA will do.
    """

    __slots__ = ("address", "count", "device", "function", "id", "key", "part", "product", "share", "vendor")

    def __init__(
        self, device: str, *, address: str = "", vendor: str = "", product: str = "", id: str = "", count: int = 1,
        share: int = EXCLUSIVE, part: str = "", function: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.address, self.vendor, self.product, self.id = device, address, vendor, product, id
        self.count, self.share, self.part, self.function = count, share, part, function
        self.key = (address, vendor, product, id, count, share, part, function)

    def means(self, unit: Unit) -> bool:
        return (
            (not self.vendor or unit.vendor == self.vendor)
            and (not self.product or unit.product == self.product)
            and (not self.address or unit.address == self.address)
            and (not self.id or self.id == unit.address or self.id in unit.names)
        )

    def open(self, unit: Unit) -> bool:
        """Whether it could have this one now."""
        if isinstance(unit, Hca):
            return unit.lent < unit.functions and not unit.held if self.function else unit.free
        if self.part:
            known = unit.parts if isinstance(unit, Gpu) else None
            return not unit.held and self.part not in unit.taken and (known is None or self.part in known)
        return unit.free or (not unit.taken and unit.held < min(unit.limit, self.share))

    def said(self) -> str:
        words = (("pci", self.address), ("vendorid", self.vendor), ("productid", self.product), ("id", self.id),
                 ("part", self.part))  # fmt: skip
        return " ".join(f"{name}={value}" for name, value in words if value)


class Request:
    """All that an instance needs. `memory` and `cpus` are guarantees; `memory_share` is memory as hundredths of the member's."""

    __slots__ = ("architecture", "blocks", "cpu_set", "cpus", "gpus", "group", "hcas", "key", "memory", "memory_share",
                 "only", "pools", "usbs")  # fmt: skip

    def __init__(
        self, *, gpus: Iterable[Wish] = (), hcas: Iterable[Wish] = (), memory: int = 0, memory_share: int = 0,
        cpus: int = 0, cpu_set: Iterable[int] = (), pools: Iterable[tuple[str, int]] = (), blocks: Iterable[str] = (),
        usbs: Iterable[tuple[str, str]] = (), group: str = "", only: str = "", architecture: str = "",
    ) -> None:  # fmt: skip
        self.gpus, self.hcas = tuple(gpus), tuple(hcas)
        self.memory, self.memory_share = memory, memory_share
        self.cpu_set = frozenset(cpu_set)
        self.cpus = cpus or len(self.cpu_set)
        self.pools, self.blocks, self.usbs = tuple(pools), tuple(blocks), tuple(usbs)
        self.group, self.only, self.architecture = group, only, architecture
        self.key = (
            tuple(wish.key for wish in self.gpus), tuple(wish.key for wish in self.hcas), memory, memory_share, cpus,
            self.cpu_set, self.pools, self.blocks, self.usbs, group, only, architecture,
        )  # fmt: skip
        """Equal requests have equal keys, whatever their devices are called."""

    def memory_of(self, member: Member) -> int:
        return self.memory or member.memory * self.memory_share // 100


class Member:
    """A member of the cluster: what it has, what of that is promised to instances, and what cannot be taken (`used`)."""

    __slots__ = ("architecture", "blocks", "closed", "cpu_ids", "cpus", "gpus", "groups", "hcas", "load", "memory", "name",
                 "pools", "promised", "promised_cpus", "taken_blocks", "usbs", "used", "version", "wait")  # fmt: skip

    def __init__(
        self, name: str, *, groups: Iterable[str] = ("default",), closed: str = "", gpus: Iterable[Gpu] = (),
        hcas: Iterable[Hca] = (), memory: int = 0, used: int = 0, cpus: int = 0, cpu_ids: Iterable[int] | None = None,
        pools: dict[str, int] | None = None, blocks: Iterable[str] = (), usbs: Iterable[tuple[str, str]] = (),
        load: float = 0.0, architecture: str = "", wait: str = "",
    ) -> None:  # fmt: skip
        self.name, self.groups, self.closed, self.wait = name, frozenset(groups), closed, wait
        """`closed` says why nothing may go there. `wait`: only who names its group (`group`) or itself (`manual`) gets there."""
        self.gpus, self.hcas = sorted(gpus, key=_place), sorted(hcas, key=_place)
        self.memory, self.used, self.promised = memory, used, 0
        self.cpus, self.promised_cpus = cpus, 0
        self.cpu_ids = frozenset(range(cpus) if cpu_ids is None else cpu_ids)
        self.pools, self.blocks, self.taken_blocks = dict(pools or {}), frozenset(blocks), frozenset[str]()
        self.usbs, self.load, self.architecture = frozenset(usbs), load, architecture
        self.version = 0

    @property
    def free_memory(self) -> int:
        return self.memory - max(self.promised, self.used)

    @property
    def free_cpus(self) -> int:
        return self.cpus - self.promised_cpus

    def take(self, placed: Verdict, request: Request) -> None:
        """What was chosen is an instance's now."""
        self._change(placed, request, 1)

    def give(self, placed: Verdict, request: Request) -> None:
        """It is free again."""
        self._change(placed, request, -1)

    def _change(self, placed: Verdict, request: Request, by: int) -> None:
        self.version += 1
        self.promised += by * request.memory_of(self)
        self.promised_cpus += by * request.cpus
        for pool, size in request.pools:
            self.pools[pool] -= by * size
        self.taken_blocks = (
            self.taken_blocks | set(request.blocks) if by > 0 else self.taken_blocks - set(request.blocks)
        )
        for wish, unit in placed.units:
            hold(unit, wish, by)


def hold(unit: Unit, wish: Wish, by: int = 1) -> None:
    """Somebody has a device as the wish says; with `by` -1 no longer."""
    if isinstance(unit, Hca) and wish.function:
        unit.lent += by
    elif wish.part:
        unit.taken = unit.taken | {wish.part} if by > 0 else unit.taken - {wish.part}
    else:
        unit.held += by
        if by > 0:
            unit.limit = min(unit.limit, wish.share) if unit.held > 1 else wish.share
        elif not unit.held:
            unit.limit = EXCLUSIVE


class Verdict:
    """What became of one member: `why` it cannot be, or its `score` (0 to 100) and the devices that were chosen."""

    __slots__ = ("member", "score", "units", "why")

    def __init__(
        self, member: Member, why: str = "", score: float = 0.0, units: Sequence[tuple[Wish, Unit]] = ()
    ) -> None:
        self.member, self.why, self.score, self.units = member, why, score, tuple(units)

    @property
    def fits(self) -> bool:
        return not self.why


def _place(unit: Unit) -> tuple[int, int, str]:
    return unit.numa, unit.at, unit.address


# Whether it fits


def refusal(member: Member, request: Request) -> str:
    """Why a member cannot be, by everything but the GPUs and HCAs; "" when it can."""
    if member.closed:
        return member.closed
    if request.only:
        if member.name != request.only:
            return "is not the one that was named"
    elif request.group:
        if request.group not in member.groups:
            return f"is not in the group `{request.group}`"
        if member.wait == "manual":
            return "is only for who names it (scheduler.instance=manual)"
    elif member.wait:
        return f"is only for who names it{' or its group' if member.wait == 'group' else ''} (scheduler.instance={member.wait})"
    if request.architecture and member.architecture and request.architecture != member.architecture:
        return f"is {member.architecture}, and the image is {request.architecture}"
    asked = request.memory_of(member)
    if asked and asked > member.free_memory:
        return f"has {amount(max(member.free_memory, 0))} of memory left, and not {amount(asked)}"
    if request.cpus and request.cpus > member.free_cpus:
        return f"has {max(member.free_cpus, 0)} of {member.cpus} CPUs left, and not {request.cpus}"
    if not request.cpu_set <= member.cpu_ids:
        return f"has no CPU {min(request.cpu_set - member.cpu_ids)}"
    for pool, size in request.pools:
        if pool not in member.pools:
            return f"has no storage pool `{pool}`"
        if size > member.pools[pool]:
            return f"has {amount(max(member.pools[pool], 0))} left in the pool `{pool}`, and not {amount(size)}"
    for block in request.blocks:
        if block not in member.blocks:
            return f"has no disk `{block}`"
        if block in member.taken_blocks:
            return f"has given its disk `{block}` away"
    for vendor, product in request.usbs:
        if not any(v == (vendor or v) and p == (product or p) for v, p in member.usbs):
            return f"has no USB device {vendor}:{product}"
    return ""


def amount(count: int) -> str:
    """Bytes for people."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}".replace(".0 ", " ")


def _usable(units: Sequence[Unit], wishes: Sequence[Wish], what: str) -> tuple[list[list[Unit]], str]:
    """For each wish those that it could have, and why one of them has too few."""
    found = []
    for wish in wishes:
        plain = not (wish.vendor or wish.product or wish.address or wish.id)
        among = [
            unit for unit in units if wish.means(unit) and not (plain and isinstance(unit, Gpu) and not unit.renders)
        ]
        if not among:
            return [], f"has no {what}{' with ' + wish.said() if wish.said() else ''}"
        usable = [unit for unit in among if wish.open(unit)]
        need = wish.count or len(among)
        if len(usable) < need:
            such = f" with {wish.said()}" if wish.said() else ""
            return [], f"has {len(usable)} of {len(among)} {what}s{such} free, and not {need}"
        found.append(usable if wish.count else among)
    return found, ""


def choose(
    units: Sequence[Unit], wishes: Sequence[Wish], what: str, near: Sequence[Unit] = (), simple: bool = False
) -> tuple[list[tuple[Wish, Unit]], str]:
    """Devices for all wishes, near each other and to one of `near`; or why there are none.

    `simple`: the first that fit, in the order of their addresses.
    """
    usable, why = _usable(units, wishes, what)
    if why:
        return [], why
    order = sorted(
        range(len(wishes)), key=lambda index: len(usable[index]) - (wishes[index].count or len(usable[index]))
    )
    used: set[Unit] = set()
    found: dict[int, list[Unit]] = {}
    for index in order:
        wish = wishes[index]
        shared = wish.part or wish.function
        left = usable[index] if shared else [unit for unit in usable[index] if unit not in used]
        need = wish.count or len(usable[index])
        if len(left) < need:
            found = {}
            break
        anchors = [unit for group in found.values() for unit in group]
        found[index] = left[:need] if simple else _nearest(left, need, near, anchors)
        if not shared:
            used.update(found[index])
    if not found and wishes:
        found = _matched(usable, wishes)
        if not found:
            return [], f"has too few {what}s free for {' and '.join(f'`{wish.device}`' for wish in wishes)} together"
    return [(wishes[index], unit) for index in sorted(found) for unit in found[index]], ""


def _nearest(left: list[Unit], need: int, near: Sequence[Unit], anchors: Sequence[Unit]) -> list[Unit]:
    """`need` of them: at one NUMA node if one has as many, at the node that is the most nearly full, in a row of the buses,
    and where one of `near` is free."""
    if len(left) == need:
        return left
    nodes: dict[int, list[Unit]] = {}
    for unit in left:
        nodes.setdefault(unit.numa, []).append(unit)
    whole = [group for group in nodes.values() if len(group) >= need]
    if not whole:
        groups = sorted(nodes.values(), key=lambda group: (-len(group), group[0].numa))
        return [unit for group in groups for unit in group][:need]
    best: tuple[int, int, int] | None = None
    chosen: list[Unit] = []
    for group in whole:
        for start in range(len(group) - need + 1):
            row = group[start : start + need]
            apart = row[-1].at - row[0].at
            if near:
                apart += min(row[0].far(other) for other in near)
            if anchors:
                apart += min(row[0].far(other) for other in anchors)
            rank = (apart // FAR, len(group), apart)
            if best is None or rank < best:
                best, chosen = rank, row
    return chosen


def _matched(usable: list[list[Unit]], wishes: Sequence[Wish]) -> dict[int, list[Unit]]:
    """Devices for wishes that want the same ones: a matching by augmenting paths, so that what is possible is found."""
    slots = [index for index, wish in enumerate(wishes) for _ in range(wish.count or len(usable[index]))]
    owner: dict[Unit, int] = {}

    def give(slot: int, seen: set[Unit]) -> bool:
        for unit in usable[slots[slot]]:
            if unit not in seen:
                seen.add(unit)
                if unit not in owner or give(owner[unit], seen):
                    owner[unit] = slot
                    return True
        return False

    for slot in range(len(slots)):
        if not give(slot, set()):
            return {}
    found: dict[int, list[Unit]] = {}
    for unit, slot in sorted(owner.items(), key=lambda item: _place(item[0])):
        found.setdefault(slots[slot], []).append(unit)
    return found


# How good it is


def judge(member: Member, request: Request, policy: str = PACKING) -> Verdict:
    """Whether the instance fits there, with which devices, and how well."""
    why = refusal(member, request)
    if why:
        return Verdict(member, why)
    hcas: list[Unit] = []
    if request.hcas and request.gpus:
        usable, why = _usable(member.hcas, request.hcas, "HCA")
        if why:
            return Verdict(member, why)
        hcas = usable[0]
    units, why = choose(member.gpus, request.gpus, "GPU", hcas) if request.gpus else ([], "")
    if not why and request.hcas:
        links, why = choose(member.hcas, request.hcas, "HCA", [unit for _, unit in units])
        units = [*units, *links]
    if why:
        return Verdict(member, why)
    return Verdict(member, "", _score(member, request, policy, units), units)


def _score(member: Member, request: Request, policy: str, units: Sequence[tuple[Wish, Unit]]) -> float:
    """60 points for how full it is then (packing) or how empty (spreading), 30 for devices at one NUMA node, 10 for
    an idle machine. One without need of a GPU had better leave members alone that have some to give."""
    left = weight = 0.0
    if member.memory:
        left += (member.free_memory - request.memory_of(member)) / member.memory
        weight += 1
    if member.cpus:
        left += (member.free_cpus - request.cpus) / member.cpus
        weight += 1
    free = sum(unit.free for unit in member.gpus)
    if request.gpus:
        taken = sum(isinstance(unit, Gpu) and unit.free for _, unit in units)
        left += 4 * (free - taken) / len(member.gpus)
        weight += 4
    left = min(max(left / weight, 0.0), 1.0) if weight else 1.0  # what runs may use more than was promised
    nodes = len({unit.numa for _, unit in units}) or 1
    busy = min(member.load / member.cpus, 1.0) if member.cpus else 0.0
    score = 60 * (left if policy == SPREADING else 1 - left) + 30 / nodes + 10 * (1 - busy)
    if free and not request.gpus:
        score -= 30 * free / len(member.gpus)
    return round(max(score, 0.0), 3)


def rank(members: Iterable[Member], request: Request, policy: str = PACKING) -> list[Verdict]:
    """Every member: those that fit from the best on, and then the others, by name."""
    verdicts = [judge(member, request, policy) for member in members]
    return sorted(verdicts, key=lambda each: (bool(each.why), -each.score, each.member.name))


def first_fit(members: Iterable[Member], request: Request) -> Verdict | None:
    """The first member that has everything, with the first devices: what one does without thinking, to compare with."""
    for member in members:
        if not refusal(member, request):
            gpus, why = choose(member.gpus, request.gpus, "GPU", simple=True)
            hcas, other = choose(member.hcas, request.hcas, "HCA", simple=True)
            if not why and not other:
                return Verdict(member, "", 0.0, [*gpus, *hcas])
    return None
