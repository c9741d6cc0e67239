# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster: its members, what each has and what instances hold of it, asked for at the same time."""

from __future__ import annotations

from ctrmgr.errors import BackendError, CtrmgrError, NotFoundError
from ctrmgr.remote import wanted
from ctrmgr.remote.placement import FAR, Gpu, Hca, Member, Unit, Wish, hold
from ctrmgr.remote.server import Server, quoted
from ctrmgr.remote.wire import GoneError, connect_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

AT_ONCE = 32
"""Connections. What they wait for is the members, which answer beside each other."""
MEMBER_TIMES = 1.5
"""How much longer than a connection the answer of a member may take: one that is gone is called so by its cluster only after a while."""


class Row:
    """A member as its cluster tells it."""

    __slots__ = ("architecture", "closed", "domain", "groups", "message", "name", "roles", "status", "url", "wait")

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.name = str(found["server_name"])
        self.url, self.status = str(found.get("url", "")), str(found.get("status", "")).upper()
        self.roles: list[str] = list(found.get("roles") or ())
        self.groups: list[str] = list(found.get("groups") or ("default",))
        self.domain, self.architecture = str(found.get("failure_domain", "")), str(found.get("architecture", ""))
        self.message = str(found.get("message", ""))
        self.wait = str((found.get("config") or {}).get("scheduler.instance", ""))
        self.wait = "" if self.wait == "all" else self.wait
        self.closed = "" if self.status == "ONLINE" else f"is {self.status.lower() or 'of unknown state'}"

    def fields(self) -> dict[str, object]:
        return {
            "name": self.name,
            "status": self.status,
            "roles": self.roles,
            "groups": self.groups,
            "domain": self.domain,
            "architecture": self.architecture,
            "scheduler": self.wait or "all",
            "url": self.url,
            "message": self.message,
        }


class Answers:
    """What one member says of itself: `resources`, free bytes and size of each pool, load; or `why` it does not."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.resources: dict[str, Any] = {}
        self.pools: dict[str, tuple[int, int]] = {}
        self.load = 0.0
        self.why = row.closed


def members(server: Server, hint: str = "") -> list[Row]:
    """By name. Raises BackendError for a server that is alone; its `hint` is what to do then.

    A cluster calls offline whom its leader has not heard of for `cluster.offline_threshold` seconds. All of them cannot be,
    as one of them says so: there is no leader just now, and whoever answers is there.
    """
    if not server.info["environment"].get("server_clustered"):
        usual = f"`ctrmgr list {server.name}:` shows its instances; `ctrmgr remote list`, which servers are known"
        raise BackendError(f"`{server.name}` is no cluster", hint=hint or usual)
    rows = [Row(found) for found in server.get("/cluster/members", query={"recursion": "1"})]
    if all(row.status == "OFFLINE" for row in rows):
        for row in rows:
            row.closed = ""
    return sorted(rows, key=lambda row: row.name)


def at_once(server: Server, items: Iterable[T], ask: Callable[[Server, T], None]) -> None:
    """`ask` about each over connections of their own, all at the same time."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import local

    items = list(items)
    mine = local()
    opened: list[Server] = []

    def work(item: T) -> None:
        if not hasattr(mine, "server"):
            mine.server = Server(server.name, server.target, server.project)
            opened.append(mine.server)
        ask(mine.server, item)

    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(items)))) as pool:
        list(pool.map(work, items))
    for each in opened:
        each.connection.close()


def ask(server: Server, rows: Iterable[Row]) -> list[Answers]:
    """What the members have. One that does not answer says why, and does not hide the others."""
    asked = [Answers(row) for row in rows]
    tells_state = "cluster_member_state" in server.extensions
    pools = [str(url).rpartition("/")[2].partition("?")[0] for url in server.get("/storage-pools")]

    def one(there: Server, found: Answers) -> None:
        name = found.row.name
        try:
            found.resources = _get(there, "/resources", target=name)
            if tells_state:
                state = _get(there, f"/cluster/members/{quoted(name)}/state")
                found.load = float(((state.get("sysinfo") or {}).get("load_averages") or [0.0])[0])
                spaces = {pool: each["space"] for pool, each in (state.get("storage_pools") or {}).items()}
            else:
                spaces = {
                    pool: _get(there, f"/storage-pools/{quoted(pool)}/resources", target=name)["space"]
                    for pool in pools
                }
            found.pools = {
                pool: (int(space["total"]) - int(space.get("used", 0)), int(space["total"]))
                for pool, space in spaces.items()
            }
            load = found.resources.get("load") or {}
            found.load = float(load.get("Average1Min", found.load))
        except GoneError as error:
            found.why = f"does not answer: {error.message.partition(': ')[2] or error.message}"
        except CtrmgrError as error:
            found.why = f"cannot be asked: {error.message.partition(': ')[2] or error.message}"

    at_once(server, [found for found in asked if not found.why], one)
    return asked


def _get(server: Server, path: str, **query: str) -> Any:
    return server.decoded(server.send("GET", path, query=query, timeout=MEMBER_TIMES * connect_seconds()))


def instances(server: Server) -> list[dict[str, Any]]:
    """All that are there, in every project that we may see."""
    query = {"recursion": "1"}
    if "instance_all_projects" in server.extensions:
        try:
            alone = Server(server.name, server.target)
            with alone:
                return list(alone.get("/instances", query={**query, "all-projects": "true"}))
        except (BackendError, NotFoundError) as error:
            if isinstance(error, GoneError):
                raise
    return list(server.get("/instances", query=query))


# Members as placement sees them


def gpus(resources: Mapping[str, Any]) -> list[Gpu]:
    """The cards that are there, virtual functions aside. Names: the card's number, UUID, and what CDI calls it."""
    found = []
    order: dict[str, int] = {}
    for card in sorted(
        (resources.get("gpu") or {}).get("cards") or (), key=lambda card: str(card.get("pci_address", ""))
    ):
        vendor = str(card.get("vendor_id", "")).lower()
        nvidia, drm = card.get("nvidia") or {}, card.get("drm") or {}
        names = [str(drm["id"])] if "id" in drm else []
        uuid = str(nvidia.get("uuid", ""))
        names += [uuid] if uuid else []
        maker = next((maker for maker, number in wanted.CDI.items() if number == vendor), "")
        if maker:
            index = order[vendor] = order.get(vendor, -1) + 1
            names += [f"{maker}/gpu={index}", *([f"{maker}/gpu={uuid}"] if uuid else [])]
        found.append(
            Gpu(
                str(card.get("pci_address") or card.get("usb_address", "")).lower(),
                vendor=vendor,
                product=str(card.get("product_id", "")).lower(),
                model=str(nvidia.get("model") or card.get("product", "")),
                numa=int(card.get("numa_node", 0)) % FAR,
                names=names,
                renders=bool(nvidia or drm.get("render_name")),
            )
        )
    return found


def hcas(resources: Mapping[str, Any]) -> list[Hca]:
    """Cards of which a port speaks InfiniBand. Names: its links."""
    found = []
    for card in (resources.get("network") or {}).get("cards") or ():
        ports = card.get("ports") or ()
        if any(port.get("infiniband") or port.get("protocol") == "infiniband" for port in ports):
            found.append(
                Hca(
                    str(card.get("pci_address", "")).lower(),
                    vendor=str(card.get("vendor_id", "")).lower(),
                    product=str(card.get("product_id", "")).lower(),
                    model=str(card.get("product", "")),
                    numa=int(card.get("numa_node", 0)) % FAR,
                    names=[str(port["id"]) for port in ports if port.get("id")],
                    functions=int((card.get("sriov") or {}).get("current_vfs", 0)),
                )
            )
    return found


def disks(resources: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((resources.get("storage") or {}).get("disks") or ())


def member(found: Answers, there: Iterable[Mapping[str, Any]] = ()) -> Member:
    """One of the fleet, with what the instances on it hold."""
    resources, row = found.resources, found.row
    memory, cpu = resources.get("memory") or {}, resources.get("cpu") or {}
    threads = [
        thread
        for socket in cpu.get("sockets") or ()
        for core in socket.get("cores") or ()
        for thread in core.get("threads") or ()
        if thread.get("online")
    ]
    blocks = [str(each["id"]) for disk in disks(resources) for each in (disk, *(disk.get("partitions") or ()))]
    usbs = [
        (str(each.get("vendor_id", "")), str(each.get("product_id", "")))
        for each in (resources.get("usb") or {}).get("devices") or ()
    ]
    made = Member(
        row.name,
        groups=row.groups,
        closed=found.why,
        wait=row.wait,
        gpus=gpus(resources),
        hcas=hcas(resources),
        memory=int(memory.get("total", 0)),
        used=int(memory.get("used", 0)),
        cpus=len(threads) or int(cpu.get("total", 0)),
        cpu_ids=[int(thread["id"]) for thread in threads] or None,
        pools={pool: free for pool, (free, _) in found.pools.items()},
        blocks=blocks,
        usbs=usbs,
        load=found.load,
        architecture=row.architecture,
    )
    for instance in there:
        if instance.get("location") == row.name:
            occupy(made, instance)
    return made


def occupy(there: Member, instance: Mapping[str, Any]) -> None:
    """An instance has what its keys and devices say."""
    has = wanted.held(instance)
    there.promised += has.memory_of(there)
    there.promised_cpus += has.cpus
    there.taken_blocks = there.taken_blocks | set(has.blocks)
    for unit, wish in holdings(there, instance):
        hold(unit, wish)


def holdings(there: Member, instance: Mapping[str, Any]) -> list[tuple[Unit, Wish]]:
    """The GPUs and HCAs of a member that an instance has."""
    has = wanted.held(instance)
    pairs: list[tuple[Unit, Wish]] = [(gpu, wish) for wish in has.gpus for gpu in there.gpus if wish.means(gpu)]
    return [*pairs, *((hca, wish) for wish in has.hcas for hca in there.hcas if wish.means(hca))]


def fleet(asked: Iterable[Answers], there: Iterable[Mapping[str, Any]]) -> list[Member]:
    there = list(there)
    return [member(found, there) for found in asked]
