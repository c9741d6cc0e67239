# SPDX-License-Identifier: GPL-3.0-or-later
"""An `infiniband` device on an LXD or Incus server: its network link, or its nodes out of what the server tells. Cold."""

from __future__ import annotations

from ctrmgr.devices import lxd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ctrmgr.devices.lxd import Made, There, Ways

    Card = Mapping[str, Any]

CHOICE = ("id", "pci", "vendorid", "productid")
NODES = ("uid", "gid", "user", "group", "mode")
PLACED = (*CHOICE, "count", "lease")
"""Keys that whoever chooses a member of a cluster reads, and takes out."""


def device(name: str, values: Mapping[str, str], there: There, ways: Ways) -> Made:
    """With a `nictype`, or where a member of a cluster is chosen by its devices, LXD's own type; else the nodes."""
    if not values.get("nictype") and not there.placing:
        return _nodes(name, values, there, ways)
    own = {key: value for key, value in values.items() if not (there.placing and key == "lease")}
    made = lxd.plain("infiniband", name, own, there, ways)
    keys = made.devices[name]
    for key in NODES:
        keys.pop({"user": "uid", "group": "gid"}.get(key, key), None)
        if values.get(key):
            made.problems.append((f"{name}.{key}", "its nodes are as the server makes them"))
    made.names = []
    if values.get("access", "verbs") != "verbs":
        made.problems.append((f"{name}.access", "a server gives the verbs nodes alone"))
    optional = lxd.is_false(values.get("required", "true"))
    if there.placing:
        keys |= {key: values[key] for key in PLACED if values.get(key)}
        if optional:
            made.problems.append((f"{name}.required", "a member is chosen that has one"))
        return made
    cards = fitting(values, there)
    if optional and cards is None:
        made.problems.append((f"{name}.required", "a server always requires it, and whether it has one is not known"))
    elif optional and not cards:
        return lxd.spared(name, "its machine has no such RDMA device")
    if values.get("count", "1") != "1":
        made.problems.append((f"{name}.count", "with a `nictype` it is one device"))
    asked = [key for key in CHOICE if values.get(key)]
    if asked and cards is None:
        made.problems.append((f"{name}.{asked[0]}", "which of its network cards that is is not known: say `parent`"))
    elif asked and cards is not None:
        links = [str(port["id"]) for card in cards for port in card.get("ports") or () if port.get("id")]
        if len(links) == 1:
            keys["parent"] = links[0]
        else:
            there_are = f"that fits {len(links)}: {', '.join(links)}" if links else "there is none like that"
            made.problems.append((f"{name}.{asked[0]}", f"{there_are}; say `parent`"))
    return made


def fitting(values: Mapping[str, str], there: There) -> list[Card] | None:
    """The network cards of the server's machine with RDMA that are meant; None when it does not tell."""
    if there.resources is None:
        return None
    found: list[Card] = list((there.resources.get("network") or {}).get("cards") or ())
    return [each for each in found if _verbs(each) and _fits(each, values)]


def _fits(card: Card, values: Mapping[str, str]) -> bool:
    address = str(card.get("pci_address", "")).lower()
    for key, has in (("vendorid", card.get("vendor_id")), ("productid", card.get("product_id"))):
        wanted = values.get(key, "").lower().removeprefix("0x")
        if wanted and wanted != str(has).lower():
            return False
    for key in ("pci", "id"):
        wanted = values.get(key, "").lower()
        if wanted and wanted not in (address, address.removeprefix("0000:")):
            return False
    parent = values.get("parent", "")
    return not parent or parent in [port.get("id") for port in card.get("ports") or ()]


def _verbs(card: Card, access: str = "verbs") -> list[str]:
    """The names of its nodes below /dev/infiniband."""
    wanted = ("verb_name", "mad_name", "issm_name") if access == "full" else ("verb_name",)
    ports = [port.get("infiniband") or {} for port in card.get("ports") or ()]
    return list(dict.fromkeys(str(port[key]) for key in wanted for port in ports if port.get(key)))


def _nodes(name: str, values: Mapping[str, str], there: There, ways: Ways) -> Made:
    if there.root:
        if _apart(there.root):
            return lxd.refuse(
                name, "its machine keeps RDMA devices apart (`rdma system`), and a server moves none without `nictype`"
            )
        return lxd.of_this_machine("infiniband", name, values, there)
    made = lxd.plain("infiniband", name, values, there, ways)
    link = [key for key in ("name", "hwaddr", "mtu", "node_guid", "port_guid") if values.get(key)]
    if link:
        made.problems.append((f"{name}.{link[0]}", "it is of the network link, which moves in with `nictype` only"))
    owner = {key: value for key, value in made.devices[name].items() if key in ("uid", "gid", "mode")}
    owner |= {key: word for _, key, word in made.names}
    made.devices, made.names = {}, []
    cards, count = fitting(values, there), values.get("count", "")
    if cards is None:
        made.problems.append((name, f"{lxd.ELSEWHERE}: say `nictype` and `parent`, or give its nodes as `unix-char`"))
        return made
    if not cards and lxd.is_false(values.get("required", "true")):
        return lxd.spared(name, "its machine has no such RDMA device")
    if not cards or (count != "all" and len(cards) != int(count if count.isdecimal() else "1")):
        have = f"{len(cards)} RDMA devices that fit" if cards else "no such RDMA device"
        made.problems.append((name, f"its machine has {have}"))
        return made
    nodes = [node for card in cards for node in _verbs(card, values.get("access", "verbs"))]
    mode = {} if "mode" in owner else {"mode": "0666"}  # what the kernel gives them
    found = [{"type": "unix-char", "source": f"/dev/infiniband/{node}", **owner, **mode} for node in nodes]
    found.append({"type": "unix-char", "source": "/dev/infiniband/rdma_cm", **owner, **mode, "required": "false"})
    lxd.several(made, name, found)
    return made


def _apart(root: str) -> bool:
    from ctrmgr.host import rdma, sysfs

    return sysfs.text(root.rstrip("/") + rdma.MODE).strip() == "N"
