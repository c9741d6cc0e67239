# SPDX-License-Identifier: GPL-3.0-or-later
"""`failover: same-model`: the rules by which a monitor finds other hardware of the same model for what is gone. Cold."""

from __future__ import annotations

import os

from ctrmgr.devices import choose
from ctrmgr.errors import NotFoundError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = (("idVendor", "idProduct"), ("vendor", "device"))
"""Files that say what model a directory of sysfs is: of USB, of PCI and other buses."""


NVIDIA = "/dev/nvidia"
"""How paths of NVIDIA's nodes begin, which sysfs does not have."""
HARDWARE = ("pci:", "rdma:")
"""How leases of a whole piece of hardware begin, by its name in sysfs."""
SOFTWARE = "software"
"""The vendor of RDMA devices that are none's (`rxe`, `siw`)."""


NOBODY = ("0", "0", "0000", "rwm")
"""The owner and rights of what is no node."""


class _Hardware:
    """What a node belongs to: its directory in sysfs, or what stands for that, and its model."""

    __slots__ = ("model", "place", "vendor")

    def __init__(self, place: str, vendor: str, model: str) -> None:
        self.place, self.vendor, self.model = place, vendor, model


def rules(name: str, found: Sequence[Sequence[str]], root: str = "/", leases: Sequence[str] = ()) -> list[list[str]]:
    """One for each node of a device's rows that belongs to hardware, and for each RDMA device; `unit` says which of them are of one
    piece, `names` that each goes by the name that it has on the host, `holds` what is leased besides the nodes.

    Raises NotFoundError when there is none yet, UnsupportedError for nodes that the kernel does not tell of.
    """
    nodes = [row for row in found if row[0] == "device"]
    if not nodes:
        raise NotFoundError("`failover` needs the device at first: there is nothing yet whose model could be known")
    _refuse(found)
    pieces = [(row, *_piece(row, root)) for row in nodes]
    known = [(row, of, kind) for row, of, kind in pieces if of]  # not a node that is everybody's, such as /dev/kfd
    units = list(dict.fromkeys(of.place for _, of, _ in known))
    own = {of.place for row, of, kind in known if row[3].startswith(NVIDIA) or kind.startswith("infiniband")}
    made: list[list[str]] = []

    def add(owner: Sequence[str], kind: str, stem: str, of: _Hardware, path: str) -> None:
        words = {"class": kind, "name": stem, "vendor": of.vendor, "model": of.model, "unit": units.index(of.place)}
        rule = ["hotplug", name, *owner, "model", *(f"{key}={value}" for key, value in words.items()), f"path={path}"]
        made.append([*rule, "names=own"] if of.place in own else rule)

    for row, of, kind in known:
        stem = "" if kind in ("usb", "pci") else os.path.basename(_place(row, root)).rstrip("0123456789")
        add(row[5:9], kind, stem, of, row[4].removeprefix("/dev/"))
    for device in (row[2] for row in found if row[0] == "rdma"):
        of = next(of for row, of, kind in known if kind.startswith("infiniband") and _rdma(row, root) == device)
        add(NOBODY, "rdma", "", of, device)
    for parent, inside, address, mtu in (row[2:6] for row in found if row[0] == "netdev"):
        of, port = _link(parent, units, known, root)
        add(NOBODY, "net", "", of, inside)
        made[-1] = [word for word in made[-1] if word != "names=own"]
        made[-1] += [f"address={address}", f"mtu={mtu}", f"port={port}", f"holds=link:{parent}"]
    if not made:
        raise UnsupportedError("`failover`: none of its nodes belongs to hardware whose model the kernel knows")
    for index, unit in enumerate(units):
        held = [id for id in leases if id.partition(":")[2] == os.path.basename(unit) and id.startswith(HARDWARE)]
        first = next(rule for rule in made if f"unit={index}" in rule)
        first += [f"holds={id}" for id in held[:1]]
    return made


def link_rules(name: str, found: Sequence[Sequence[str]], root: str = "/") -> list[list[str]]:
    """The same for links of the host's without nodes, and what they are known by. Raises NotFoundError and UnsupportedError."""
    made: list[list[str]] = []
    for index, (parent, inside, address, mtu) in enumerate(row[2:6] for row in found if row[0] == "netdev"):
        top = f"{root.rstrip('/')}/sys/class/net/{parent}"
        if not os.path.isdir(top):
            raise NotFoundError(f"`failover` needs `{parent}` at first: its model could not be known")
        of = _model(os.path.realpath(f"{top}/device"), root)
        if not of or os.path.realpath(f"{top}/device") != of.place:
            raise UnsupportedError(f"`failover`: `{parent}` is no hardware whose model the kernel knows")
        words = {"class": "net", "name": "", "vendor": of.vendor, "model": of.model, "unit": index, "path": inside}
        words |= {"address": address, "mtu": mtu, "port": _text(f"{top}/dev_port"), "holds": f"link:{parent}"}
        made.append(["hotplug", name, *NOBODY, "model", *(f"{key}={value}" for key, value in words.items())])
        files = [f"/sys/class/net/{parent}/device/{file}" for file in ("vendor", "device")]
        made += [["identity", name, *each] for each in choose.identity(root, *files)]
    return made


def _refuse(found: Sequence[Sequence[str]]) -> None:
    if any(row[0] == "device" and row[3].startswith(f"{NVIDIA}-caps/") for row in found):
        raise UnsupportedError(
            "`failover`: a MIG slice goes without a word of the kernel's, and which others are of its size only NVIDIA's library knows",
            hint="whole GPUs have it",
        )
    if any(row[0] == "vf-guid" for row in found):
        raise UnsupportedError(
            "`failover`: another virtual function has other GUIDs, and reads new ones only when its driver takes it anew: what is to be "
            "given goes then",
            hint="without `node_guid` and `port_guid` it has it",
        )


def _piece(row: Sequence[str], root: str) -> tuple[_Hardware | None, str]:
    """What a node belongs to, and the class that it is found by."""
    if row[3].startswith(NVIDIA):
        return _card(row[3].removeprefix(NVIDIA), root), "pci"
    place = _place(row, root)
    if row[2] == "block":
        raise UnsupportedError(f"`failover`: `{row[3]}` is a disk, and another disk has other data")
    kind = os.path.basename(os.path.realpath(f"{place}/subsystem"))
    rdma = _rdma(row, root) if kind.startswith("infiniband") else ""
    if rdma and "/virtual/infiniband" in place:
        type_of = _text(f"{root.rstrip('/')}/sys/class/infiniband/{rdma}/node_type")
        return _Hardware(f"infiniband/{rdma}", SOFTWARE, type_of), kind
    of = _model(place, root)
    if rdma and of and os.path.dirname(os.path.dirname(place)) != of.place:
        raise UnsupportedError(f"`failover`: `{rdma}` is a part of hardware that is others' too")
    return of, kind


def _card(minor: str, root: str) -> _Hardware | None:
    """The GPU with this number; nothing when the node is none's alone."""
    from ctrmgr.host import nvidia, pci

    for card in nvidia.cards(root):
        function = pci.read(card.address, root) if minor == str(card.minor) else None
        if function:
            vendor, model = (_text(f"{function.path}/{file}") for file in ("vendor", "device"))
            return _Hardware(function.path, vendor, model)
    return None


def _rdma(row: Sequence[str], root: str) -> str:
    """The RDMA device that a node is of."""
    try:
        return _text(f"{_place(row, root)}/ibdev")
    except OSError:
        return ""


def _link(
    parent: str, units: Sequence[str], known: Sequence[tuple[Sequence[str], _Hardware, str]], root: str
) -> tuple[_Hardware, str]:
    """What a link is of, and which of its ports it is."""
    top = f"{root.rstrip('/')}/sys/class/net/{parent}"
    place = os.path.realpath(f"{top}/device")
    if place not in units:
        raise UnsupportedError(f"`failover`: `{parent}` does not belong to the hardware of the nodes alone")
    return next(of for _, of, _ in known if of.place == place), _text(f"{top}/dev_port")


def _place(row: Sequence[str], root: str) -> str:
    """The directory of a node in sysfs."""
    top = root.rstrip("/")
    try:
        number = os.stat(top + row[3]).st_rdev
        return os.path.realpath(f"{top}/sys/dev/{row[2]}/{os.major(number)}:{os.minor(number)}", strict=True)
    except OSError:
        raise UnsupportedError(
            f"`failover`: the kernel tells nobody when `{row[3]}` comes or goes", hint="its driver is not in sysfs"
        ) from None


def _model(place: str, root: str) -> _Hardware | None:
    """The nearest directory above that has a model; nothing when there is none."""
    top = os.path.realpath(f"{root.rstrip('/')}/sys/devices")
    while place.startswith(f"{top}/"):
        for files in MODELS:
            try:
                vendor, model = (_text(f"{place}/{file}") for file in files)
            except OSError:
                continue
            return _Hardware(place, vendor, model)
        place = os.path.dirname(place)
    return None


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()
