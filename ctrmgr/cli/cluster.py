# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr cluster …`: who is in a cluster of LXD or Incus servers, and what all of them have."""

from __future__ import annotations

import sys

from ctrmgr.cli import table
from ctrmgr.cli.command import Argument, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.cli.command import Args
    from ctrmgr.remote.cluster import Answers
    from ctrmgr.remote.placement import Member, Unit
    from ctrmgr.remote.server import Server


def opened(args: Args) -> Server:
    """The remote that is named, or the default one."""
    from ctrmgr.remote.server import open_server

    return open_server(args.positional[0].removesuffix(":") if args.positional else "")


def cluster_list(args: Args) -> None:
    from ctrmgr.remote import cluster

    with opened(args) as server:
        rows = [row.fields() for row in cluster.members(server)]
    columns = ("name", "status", "roles", "groups", "domain", "architecture", "scheduler", "url", "message")
    table.print_rows(columns, rows, args.one("format", "table"))


def cluster_resources(args: Args) -> int:
    from ctrmgr.errors import BackendError
    from ctrmgr.remote import cluster

    form = args.one("format", "table")
    with opened(args) as server:
        asked = cluster.ask(server, cluster.members(server))
        there = cluster.instances(server)
    rows: list[dict[str, object]] = []
    code = 0
    for found in asked:
        if found.why:
            if not found.row.closed:
                code = BackendError.exit_code
            if code or not args.flag("quiet"):
                print(f"`{found.row.name}` {found.why}", file=sys.stderr)
        else:
            rows += of_member(found, cluster.member(found, there))
    if form == "table":
        rows = [{**row, **{key: _human(row, key) for key in ("total", "free")}} for row in rows]
    table.print_rows(("member", "kind", "device", "vendor", "product", "total", "free"), rows, form)
    return code


def of_member(found: Answers, member: Member) -> list[dict[str, object]]:
    """What one member has, each kind of device in a row of its own."""
    from ctrmgr.remote import cluster

    name = member.name
    rows = [*_units(name, "gpu", member.gpus), *_units(name, "hca", member.hcas)]
    rows += [
        {
            "member": name,
            "kind": "disk",
            "device": " ".join(filter(None, (str(disk["id"]), disk.get("model", "")))),
            "total": int(disk.get("size", 0)),
            "free": 0 if disk["id"] in member.taken_blocks else int(disk.get("size", 0)),
            "unit": "bytes",
        }
        for disk in cluster.disks(found.resources)
    ]
    rows += [
        {"member": name, "kind": "pool", "device": pool, "total": total, "free": free, "unit": "bytes"}
        for pool, (free, total) in sorted(found.pools.items())
    ]
    sockets = (found.resources.get("cpu") or {}).get("sockets") or [{}]
    rows += [
        {"member": name, "kind": "memory", "device": "", "total": member.memory, "free": max(member.free_memory, 0), "unit": "bytes"},
        {"member": name, "kind": "cpu", "device": str(sockets[0].get("name", "")), "total": member.cpus,
         "free": max(member.free_cpus, 0), "unit": "threads", "load": member.load},
    ]  # fmt: skip
    return rows


def _units(name: str, kind: str, units: Sequence[Unit]) -> list[dict[str, object]]:
    """GPUs or HCAs by model; those of a model are one row."""
    models: dict[tuple[str, str, str], list[Unit]] = {}
    for unit in units:
        models.setdefault((unit.vendor, unit.product, unit.model), []).append(unit)
    return [
        {
            "member": name,
            "kind": kind,
            "device": model or f"{vendor}:{product}",
            "vendor": vendor,
            "product": product,
            "total": len(each),
            "free": sum(unit.free for unit in each),
            "unit": "devices",
            "devices": [
                {"address": unit.address, "numa": unit.numa, "free": unit.free, "names": list(unit.names)} for unit in each
            ],
        }
        for (vendor, product, model), each in models.items()
    ]  # fmt: skip


def _human(row: dict[str, object], key: str) -> str:
    value = row[key]
    if row["unit"] == "bytes" and isinstance(value, int):
        return table.size(value)
    load = row.get("load")
    return f"{value} (load {load:.2f})" if key == "free" and isinstance(load, float) else str(value)


REMOTE = Argument("REMOTE", "a member of the cluster; without it the default remote", required=False, complete="remote")
COMMANDS = (
    Command("cluster list", "the members of a cluster: state, roles and groups", cluster_list, arguments=(REMOTE,)),
    Command(
        "cluster resources",
        "what the members have and what is free: GPUs, HCAs, disks, pools, memory, CPUs and load",
        cluster_resources,
        arguments=(REMOTE,),
        help="Every member is asked at the same time. Free is what no instance holds: a GPU or HCA that none was given, "
        "memory and CPUs that none has as its limit.",
    ),
)
