# SPDX-License-Identifier: GPL-3.0-or-later
"""What instances on a server are, have and use."""

from __future__ import annotations

from ctrmgr.errors import BackendError, CtrmgrError, NotFoundError
from ctrmgr.remote import instances
from ctrmgr.remote.body import loads
from ctrmgr.remote.server import Server, UnknownError, quoted
from ctrmgr.remote.wire import GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


def listing(server: Server) -> list[dict[str, str]]:
    """name, status, ipv4 and image of each. The servers' own lists ask the kernel about every instance; addresses are in the
    leases of their networks, and only who is in none of these is asked about."""
    found = sorted(server.get("/instances", query={"recursion": "1"}), key=lambda each: str(each["name"]))
    if not found:
        server.check_project()
    leases = _leases(server, found)
    rows = []
    for each in found:
        config = each.get("expanded_config") or {}
        address = ""
        nics = [name for name, keys in (each.get("expanded_devices") or {}).items() if keys["type"] == "nic"]
        if each["status"] == "Running" and nics:
            macs = [config.get(f"volatile.{nic}.hwaddr", "").lower() for nic in nics]
            known = [leases[mac] for mac in macs if mac in leases]
            address = known[0] if known else _asked_address(server, str(each["name"]))
        rows.append(
            {
                "name": instances.label(server, str(each["name"])),
                "status": str(each["status"]).upper(),
                "ipv4": address,
                "image": image_of(config),
            }
        )
    return rows


def image_of(config: Mapping[str, str]) -> str:
    """What people know an instance's image by."""
    return config.get("image.description") or config.get("volatile.base_image", "")[:12]


def _leases(server: Server, found: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Hardware address → IPv4 address, of the managed networks that running instances are on."""
    networks = {
        keys.get("network") or keys.get("parent")
        for each in found
        if each["status"] == "Running"
        for keys in (each.get("expanded_devices") or {}).values()
        if keys["type"] == "nic"
    }
    leases: dict[str, str] = {}
    for network in sorted(filter(None, networks)):
        try:
            rows = server.get(f"/networks/{quoted(network)}/leases")
        except (NotFoundError, BackendError) as error:
            if isinstance(error, GoneError):
                raise
            continue
        leases |= {row["hwaddr"].lower(): row["address"] for row in rows if "." in row["address"]}
    return leases


def _asked_address(server: Server, name: str) -> str:
    try:
        state = server.get(f"{instances.path(name)}/state")
    except (NotFoundError, BackendError) as error:
        if isinstance(error, GoneError):
            raise
        return ""
    return next(iter(addresses(state, ("inet",))), "").partition("/")[0]


def addresses(state: Mapping[str, Any], families: Sequence[str] = ("inet", "inet6")) -> list[str]:
    """Those that others can reach."""
    return [
        f"{each['address']}/{each['netmask']}"
        for link, keys in (state.get("network") or {}).items()
        if link != "lo"
        for each in keys["addresses"]
        if each["family"] in families and each["scope"] == "global"
    ]


def info(server: Server, name: str) -> dict[str, object]:
    """What one is, has and uses, by the names that a local one's have."""
    found = instances.get(server, name)
    now = instances.state(server, name)
    config = found["expanded_config"]
    fields: dict[str, object] = {
        "name": instances.label(server, name),
        "status": str(found["status"]).upper(),
        "image": image_of(config),
        "fingerprint": config.get("volatile.base_image", ""),
        "profiles": found["profiles"],
        "ids": [
            {
                "type": "uid" if row["Isuid"] else "gid",
                "inside": row["Nsid"],
                "host": row["Hostid"],
                "count": row["Maprange"],
            }
            for row in loads(config.get("volatile.idmap.current") or "[]")
        ],
        "addresses": addresses(now),
        "devices": [_device(key, keys) for key, keys in found["expanded_devices"].items()],
        "server": f"{server.info['environment']['server']} {server.info['environment']['server_version']}",
        "location": found["location"] if found["location"] != "none" else "",
        "project": found.get("project", "default"),
        "architecture": found["architecture"],
        "ephemeral": found["ephemeral"],
        "created": str(found["created_at"])[:19] + "Z",
    }
    if now.get("pid"):
        fields |= {
            "pid": now["pid"],
            "processes": now["processes"],
            "cpu-usec": now["cpu"]["usage"] // 1000,
            "memory": now["memory"]["usage"],
        }
    return fields


def _device(name: str, keys: Mapping[str, str]) -> dict[str, str]:
    """A link has a name of its own inside, which is not the device's."""
    return {"name": name, **{"link" if key == "name" else key: value for key, value in keys.items()}}


def console(server: Server, name: str) -> bytes:
    """What init wrote to its console."""
    try:
        return server.send("GET", f"{instances.path(name)}/console").body
    except CtrmgrError as error:
        instances.get(server, name)
        if isinstance(error, UnknownError) or "no such file" in error.message:
            return b""  # it never ran, or the server has thrown it away
        raise instances.translated(server, name, error) from None
