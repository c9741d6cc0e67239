# SPDX-License-Identifier: GPL-3.0-or-later
"""From a template to the plan of one instance: what it must claim, and the rows that only it has. Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import ConflictError, SpecError
from ctrmgr.host import net, subid
from ctrmgr.plan import idmap, network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Take = Callable[[str, Iterable[str], str], str | None]
    Load = Callable[[str], network.Network]

SHARED = ".shared"
"""Owner of the id range of all instances that are not isolated from each other."""


class Link:
    """A network device that the template asks for. `address` and `mac` are "" when they are to be chosen."""

    __slots__ = ("address", "bridge", "inside", "mac", "mtu")

    def __init__(self, bridge: str, inside: str, mac: str, mtu: str, address: str) -> None:
        self.bridge, self.inside, self.mac, self.mtu, self.address = bridge, inside, mac, mtu, address


class Needs:
    """What an instance needs of its own before it can be planned."""

    __slots__ = ("base", "isolated", "links", "size")

    def __init__(self, size: int, base: int, isolated: bool, links: list[Link]) -> None:
        self.size, self.isolated, self.links = size, isolated, links
        self.base = base
        """The first host id that was asked for; 0: any."""


class Claims:
    """What an instance holds: its id range, and one IPv4 address for each of its links."""

    __slots__ = ("addresses", "base", "size")

    def __init__(self, base: int, size: int, addresses: list[str]) -> None:
        self.base, self.size, self.addresses = base, size, addresses


def needs(template: Sequence[Sequence[str]]) -> Needs:
    """What `fill` will have to be given."""
    size, base, isolated = 65536, 0, True
    links = []
    for row in template:
        if row[0] == "@ids":
            size, base, isolated = int(row[1]), int(row[2]), row[3] == "1"
        elif row[0] == "@link":
            links.append(Link(*row[1:6]))
    return Needs(size, base, isolated, links)


def claim(wanted: Needs, owner: str) -> Claims:
    """Claim it all for the instance `owner`, or nothing.

    Raises ConflictError when the ids or addresses are used up or held by another instance, SpecError for an id range or
    address that cannot be given.
    """
    made: list[tuple[str, str]] = []

    def take(kind: str, keys: Iterable[str], holder: str) -> str | None:
        key = state.claim(kind, keys, holder)
        if key is not None:
            made.append((kind, key))
        return key

    try:
        return choose(wanted, owner, take, network.load)
    except BaseException:
        # Only what this call took: the name may belong to an instance that holds others.
        for kind, key in made:
            state.unlink(f"{state.state_dir()}/{kind}/{key}")
        raise


def choose(wanted: Needs, owner: str, take: Take, load: Load) -> Claims:
    """What the instance `owner` gets: `take` takes the first that is free, `load` knows the networks."""
    base = _choose_ids(wanted, owner, take)
    return Claims(base, wanted.size, [_choose_address(link, owner, take, load) for link in wanted.links])


def held(wanted: Needs, owner: str, plan: Sequence[Sequence[str]]) -> Claims:
    """What the instance with this plan holds already, to plan it again. Raises ConflictError when it needs other things."""
    holder = owner if wanted.isolated else SHARED
    addresses = [row[2] for row in plan if row[0] == "address" and row[1] == "4"]
    fits = len(addresses) == len(wanted.links) and all(
        link.address in ("", address) for link, address in zip(wanted.links, addresses, strict=False)
    )
    for base, size, name in _ranges():
        if fits and name == holder and size == wanted.size and wanted.base in (0, base):
            return Claims(base, wanted.size, addresses)
    raise ConflictError(
        f"`{owner}` would need other host ids or addresses than it has",
        hint="its files are owned by the old ones: delete it and launch it anew with the new keys",
    )


def unclaim(owner: str) -> None:
    """Give back all that `owner` holds."""
    state.release("ids", owner)
    state.release("addresses", owner)


def _choose_ids(wanted: Needs, owner: str, take: Take) -> int:
    holder = owner if wanted.isolated else SHARED
    if not wanted.isolated:
        for base, size, name in _ranges():
            if name == SHARED and size == wanted.size:
                return base
    claimed = take("ids", _id_keys(wanted), holder)
    if claimed is not None:
        return int(claimed.partition("-")[0])
    if wanted.base:
        raise ConflictError(
            f"host ids {wanted.base} … {wanted.base + wanted.size - 1} are not free for `{owner}`",
            hint="leave `security.idmap.base` out, or see `ctrmgr list` for who has them",
        )
    raise ConflictError(
        f"no {wanted.size} host ids are left for `{owner}`",
        hint="give root a larger range in /etc/subuid and /etc/subgid, or delete an instance",
    )


def _id_keys(wanted: Needs) -> Iterator[str]:
    # A generator, so that the claims are read under the lock that `state.claim` holds: ranges of different sizes may
    # overlap without having the same key.
    taken = [(base, size) for base, size, _ in _ranges()]
    ranges = subid.mine()
    if wanted.base:
        if not any(first <= wanted.base and wanted.base + wanted.size <= first + count for first, count in ranges):
            raise SpecError(
                f"`security.idmap.base`: host ids {wanted.base} … {wanted.base + wanted.size - 1} are not yours to give",
                hint="add the range to /etc/subuid and /etc/subgid",
            )
        ranges = ((wanted.base, wanted.size),)
    for base in subid.free(ranges, taken, wanted.size):
        yield f"{base}-{wanted.size}"


def _ranges() -> list[tuple[int, int, str]]:
    """(first id, count, owner) of all claims. What has no such name is nobody's claim."""
    found = []
    for key, owner in state.claims("ids").items():
        base, _, size = key.partition("-")
        if base.isdecimal() and size.isdecimal():
            found.append((int(base), int(size), owner))
    return found


def _choose_address(link: Link, owner: str, take: Take, load: Load) -> str:
    bridge = load(link.bridge)
    if link.address and not bridge.holds(link.address):
        raise SpecError(
            f"`{link.inside}`: `{link.address}` is not an address of `{link.bridge}`",
            hint=f"its network is {net.dotted(bridge.first)}/{bridge.prefix}",
        )
    wanted = (link.address,) if link.address else bridge.candidates(owner)
    found = take("addresses", wanted, owner)
    if found is None and link.address:
        raise ConflictError(f"`{link.inside}`: `{link.address}` belongs to another instance")
    if found is None:
        raise ConflictError(f"`{link.bridge}` has no address left for `{owner}`", hint="delete an instance")
    return found


def fill(
    template: Sequence[Sequence[str]],
    *,
    name: str,
    claims: Claims,
    old: Sequence[Sequence[str]] = (),
    load: Load = network.load,
) -> list[list[str]]:
    """The whole plan of the instance `name`.

    `old` is the plan that it had before, whose MAC addresses, host links and copied layers it keeps. Raises SpecError when `raw.idmap`
    does not fit the range that was claimed.
    """
    # "/" in a name or a tab in a hostname was refused when the name was parsed.
    ours: list[list[str]] = []
    if not any(row[0] == "hostname" for row in template):
        ours.append(["hostname", name])
    ours += _maps(template, claims)
    ours.append(["cgroup", f"{state.cgroup_parent()}/{name}"])
    kept = {row[3]: row for row in old if row[0] == "link"}
    links = []
    for link, address in zip(needs(template).links, claims.addresses, strict=True):
        links += _link(link, address, kept.get(link.inside), load(link.bridge))
    copied = _copied_layers(ours, old)
    plan = [["ctrmgr-plan", "1"], ["name", name], *ours]
    for row in template:
        if row[0] == "layer" and copied:
            continue
        if row[0] in ("@cpus", "@numa") or row[0][0] != "@":
            plan.append(chosen(row, claims))
        if row[0] == "net":
            plan += links
    return plan + copied


def chosen(row: Sequence[str], claims: Claims) -> list[str]:
    """A row of a template as it is in the plan of the instance that has these claims."""
    if row[0] == "@cpus":
        return _cpus(row, claims)
    return _numa(row, claims) if row[0] == "@numa" else list(row)


def range_of(owner: str) -> Claims:
    """The ids that an instance has, alone or with others."""
    held = {name: (base, size) for base, size, name in reversed(_ranges())}
    return Claims(*held.get(owner) or held.get(SHARED, (0, 65536)), [])


def _copied_layers(ours: Sequence[Sequence[str]], old: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows of layers that were copied with shifted owners, as long as the owners are the same."""
    maps = [[row for row in rows if row[0] in ("uidmap", "gidmap")] for rows in (ours, old)]
    if ["shifted", "1"] not in old or maps[0] != maps[1]:
        return []
    return [list(row) for row in old if row[0] in ("layer", "shifted")]


def _cpus(row: Sequence[str], claims: Claims) -> list[str]:
    # Ranges of ids are given out one after the other, so their number spreads instances evenly without any shared state.
    online, count = row[3].split(","), int(row[1])
    first = claims.base // claims.size * count
    chosen = sorted({int(online[(first + step) % len(online)]) for step in range(count)})
    return ["cgroup-file", row[2], "cpuset.cpus", ",".join(map(str, chosen))]


def _numa(row: Sequence[str], claims: Claims) -> list[str]:
    """One node for all that is written about it, in turn; of its CPUs those that the next instance on it does not get."""
    nodes = [word.split("=") for word in row[4].split(";")]
    turn, count = claims.base // claims.size, int(row[2])
    node, cpus = nodes[turn % len(nodes)]
    if row[1] == "cpuset.mems":
        return ["cgroup-file", row[3], row[1], node]
    if count:
        return _cpus(["@cpus", str(count), row[3], cpus], Claims(turn // len(nodes), 1, []))
    return ["cgroup-file", row[3], row[1], cpus]


def _maps(template: Sequence[Sequence[str]], claims: Claims) -> list[list[str]]:
    raw: dict[str, list[tuple[int, int, int]]] = {"uid": [], "gid": []}
    for row in template:
        if row[0] == "@idmap":
            raw[row[1]].append((int(row[2]), int(row[3]), int(row[4])))
    return [
        [f"{kind}map", *map(str, extent)]
        for kind, holes in raw.items()
        for extent in idmap.build(claims.size, claims.base, holes)
    ]


def _link(link: Link, address: str, kept: Sequence[str] | None, bridge: network.Network) -> list[list[str]]:
    noise = os.urandom(5).hex()
    if kept is not None:
        host, mac = kept[2], link.mac or kept[4]
    else:
        # 40 random bits, the same in both names, so that one leads to the other. Locally administered, unicast, and
        # high, so that a bridge never takes an instance's address for its own (it takes the lowest).
        host = f"ct{noise}"
        mac = link.mac or ":".join(("fe", *(noise[i : i + 2] for i in range(0, 10, 2))))
    return [
        ["link", link.bridge, host, link.inside, mac, link.mtu],
        ["address", "4", address, str(bridge.prefix)],
        ["address", "6", bridge.address6(address), str(bridge.prefix6)],
        ["gateway", "4", bridge.gateway],
        ["gateway", "6", bridge.gateway6],
    ]
