# SPDX-License-Identifier: GPL-3.0-or-later
"""`nic`: an end of the managed bridge, a link of the host's that moves in, or (`nictype: host`, ours) the host's own network."""

from __future__ import annotations

from ctrmgr.devices import fields, links
from ctrmgr.devices.driver import Field
from ctrmgr.units import bit_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways

BRIDGE = "ctrbr0"


def _mac(value: str) -> str:
    parts = value.lower().split(":")
    if len(parts) != 6 or any(len(part) != 2 or part.strip("0123456789abcdef") for part in parts):
        raise ValueError("is not a MAC address, such as fe:12:34:56:78:9a")
    if int(parts[0], 16) & 1:
        raise ValueError("is a multicast address")
    return ":".join(parts)


def _mtu(value: str) -> str:
    if not value.isdecimal() or not 1280 <= int(value) <= 65535:
        raise ValueError("is not an MTU between 1280 (what IPv6 needs) and 65535")
    return str(int(value))


def _address4(value: str) -> str:
    parts = value.split(".")
    if len(parts) != 4 or not all(part.isdecimal() and int(part) < 256 for part in parts):
        raise ValueError("is not an IPv4 address")
    return ".".join(str(int(part)) for part in parts)


def _address6(value: str) -> str:
    raise ValueError("cannot be chosen: the IPv6 address goes with the IPv4 one")


def _type(value: str) -> str:
    if value not in ("bridged", "physical", "host"):
        raise ValueError("is not done yet: bridged, physical and host are")
    return value


def _bridge(value: str) -> str:
    if value != BRIDGE:
        raise ValueError(f"is not a managed network: there is `{BRIDGE}`")
    return value


def rate(value: str) -> str:
    """Bits in a second, 8000 or more."""
    found = bit_rate(value)
    if found < 8000:
        raise ValueError("is less than 8kbit: that carries no packet")
    return str(found)


def _priority(value: str) -> str:
    if not (value.isascii() and value.isdecimal()) or int(value) > 0xFFFFFFFE:
        raise ValueError("is not a number of 32 bits")
    return str(int(value))


def _flag(value: str) -> str:
    if value not in ("true", "false"):
        raise ValueError("is not a boolean: true or false")
    return value


LATER = "it is not done yet"
FIELDS = {
    "limits.ingress": Field(rate, "bits in a second that reach it (`100Mbit`); what is more waits"),
    "limits.egress": Field(rate, "bits in a second that it may send; what is more is dropped"),
    "limits.max": Field(rate, "the same for both, each"),
    "limits.priority": Field(_priority, "priority of the packets that it sends"),
    "network": Field(_bridge, f"managed network to be on: `{BRIDGE}`"),
    "nictype": Field(_type, "`bridged` (with `parent`), `physical`: `parent` itself moves in, or `host`: no network of its own (ours)"),
    "parent": Field(fields.link, f"for `nictype: bridged` the bridge, `{BRIDGE}`; for `physical` the host's link"),
    "name": Field(fields.link, "name inside; without it `eth0`, and of a physical one the host's"),
    "hwaddr": Field(_mac, "MAC address; without it one is made up and kept, and a physical one keeps its own"),
    "mtu": Field(_mtu, "maximum packet; without it the bridge's, and a physical one keeps its own"),
    "required": fields.REQUIRED,
    "failover": Field(
        fields.FAILOVER.parse,
        "of a physical one, what takes its place when it disappears while the instance runs: `same-model`, a link of the host's that is down and "
        "of the same vendor and product",
        default="none",
    ),
    "ipv4.address": Field(_address4, "IPv4 address; without it a free one is taken and kept"),
    "ipv6.address": Field(_address6, "refused: it goes with the IPv4 address"),
    **{
        name: Field(str, "known from LXD and Incus", refused=LATER)
        for name in (
            "boot.priority", "gvrp", "host_name", "ipv4.gateway", "ipv4.host_address", "ipv4.host_table", "ipv4.neighbor_probe", "ipv4.routes",
            "ipv4.routes.external", "ipv6.gateway", "ipv6.host_address", "ipv6.host_table", "ipv6.neighbor_probe", "ipv6.routes", "ipv6.routes.external", "maas.subnet.ipv4", "maas.subnet.ipv6", "mode", "queue.tx.length",
            "security.acls", "security.acls.default.egress.action", "security.acls.default.egress.logged", "security.acls.default.ingress.action",
            "security.acls.default.ingress.logged", "vlan", "vlan.tagged", "acceleration", "nested", "io.bus", "attached", "connected",
            "security.promiscuous", "security.trusted",
        )
    },
    **{
        name: Field(_flag, "known from LXD and Incus", refused=LATER, default="false")
        for name in ("security.ipv4_filtering", "security.ipv6_filtering", "security.mac_filtering", "security.port_isolation")
    },
}  # fmt: skip


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """`net` and `@link` rows (the address and the host's end are the instance's own). Raises ValueError."""
    kind = values.get("nictype", "")
    if kind == "host":
        if len(values) > 1 and set(values) - {"nictype", "name", "type", "required"}:
            raise ValueError("`nictype: host` takes no other key")
        return [["net", "host"]]
    if kind == "physical":
        return _physical(name, values)
    if values.get("failover", "none") != "none":
        raise ValueError("`failover` is for `nictype: physical`")
    bridge = values.get("network") or values.get("parent")
    if bridge and bridge != BRIDGE:
        raise ValueError(f"`parent`: `{bridge}` is not a managed network: there is `{BRIDGE}`")
    if not bridge:
        raise ValueError(f"it says neither `network: {BRIDGE}` nor `nictype: bridged` with `parent: {BRIDGE}`")
    inside = values.get("name") or "eth0"
    if "limits.max" in values and ("limits.ingress" in values or "limits.egress" in values):
        raise ValueError("`limits.max` says what `limits.ingress` and `limits.egress` say")
    most = values.get("limits.max", "")
    ingress, egress = (values.get(f"limits.{direction}", most) for direction in ("ingress", "egress"))
    return [
        ["net", "bridge"],
        ["@limit", inside, ingress, egress, values.get("limits.priority", "")],
        ["@link", bridge, inside, values.get("hwaddr", ""), values.get("mtu", "0"), values.get("ipv4.address", "")],
    ]


def live(values: Mapping[str, str]) -> bool:
    """A link of the host's moves; one to a bridge is made at the start. What is neither is refused later, by name."""
    return values.get("nictype", "bridged") not in ("bridged", "host")


def _physical(name: str, values: Mapping[str, str]) -> list[list[str]]:
    parent = values.get("parent")
    if not parent:
        raise ValueError("`nictype: physical` needs `parent`, a network link of the host's")
    other = sorted(set(values) - {"type", "nictype", "parent", "name", "hwaddr", "mtu", "required", "failover"})
    if other:
        raise ValueError(f"`{other[0]}` is for a nic on a bridge")
    need = "optional" if values.get("required") == "false" else "required"
    inside = values.get("name") or parent
    return links.netdev(name, parent, inside, values.get("hwaddr", ""), values.get("mtu", "0"), need)


# On servers


def lxd_ways() -> Ways:
    """What becomes of each key on a server: all that is LXD's."""
    from ctrmgr.devices import lxd

    needs = {
        "limits.priority": "instances_nic_limits_priority",
        "queue.tx.length": "network_txqueuelen",
        "gvrp": "network_gvrp",
        "security.acls": "network_acl",
        "acceleration": "ovn_nic_acceleration",
        "nested": "ovn_nic_nesting",
        "io.bus": "network_io_bus",
        "security.promiscuous": "ovn_nic_promiscuous",
        "security.trusted": "nic_sriov_security_trusted",
        "attached": "nic_attached_connected",
        "connected": "nic_attached_connected",
        "vlan.tagged": "instance_nic_bridged_vlan",
        "security.port_isolation": "instance_nic_bridged_port_isolation",
    }
    return {
        **{key: lxd.native(needs.get(key, "")) for key in FIELDS},
        "nictype": lxd.native(why="`host` is refused", judge=_own_network),
        "required": lxd.refused("a server always requires it", *lxd.TRUE),
        "failover": lxd.FAILOVER,
    }


def _own_network(value: str, there: There) -> str:
    return "a server gives no instance its own network" if value == "host" else ""


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers have this type; the networks of this machine are not theirs."""
    from ctrmgr.devices import lxd

    return lxd.plain("nic", name, values, there, lxd_ways())
