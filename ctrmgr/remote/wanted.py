# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance's keys and devices ask of a cluster's member, and what it is given of it. Pure."""

from __future__ import annotations

from ctrmgr import units
from ctrmgr.errors import SpecError
from ctrmgr.remote.placement import ANYBODY, EXCLUSIVE, Gpu, Hca, Request, Verdict, Wish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LEASE = "user.ctrmgr.lease."
"""+ device: who else may have it. Servers have no such key of a device."""
CDI = {"nvidia.com": "10de", "amd.com": "1002", "intel.com": "8086"}
"""Whose GPUs a CDI name is about, as the vendor's number on PCI."""
SELECTORS = ("pci", "vendorid", "productid", "id", "uuid")
VM_MEMORY, VM_CPUS = 1 << 30, 1
"""What servers give a virtual machine that does not say."""


def request(
    config: Mapping[str, str],
    devices: Mapping[str, Mapping[str, str]],
    *,
    group: str = "",
    only: str = "",
    architecture: str = "",
    guarantees: bool = True,
) -> Request:
    """All that it needs. Without `guarantees` memory and CPUs are limits and nothing more. Raises SpecError."""
    memory, share = memory_of(config) if guarantees else (0, 0)
    cpus, cpu_set = cpus_of(config)
    kinds: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for name, keys in devices.items():
        kinds.setdefault(keys.get("type", ""), []).append((name, keys))
    return Request(
        gpus=[wish for name, keys in kinds.get("gpu", ()) for wish in gpu_wishes(name, keys, lease(name, keys, config))],
        hcas=[hca_wish(name, keys) for name, keys in kinds.get("infiniband", ())],
        memory=memory,
        memory_share=share,
        cpus=cpus if guarantees else 0,
        cpu_set=cpu_set if guarantees else (),
        pools=[(keys["pool"], _size(name, keys.get("size", ""))) for name, keys in kinds.get("disk", ()) if keys.get("pool")],
        blocks=[block for _, keys in kinds.get("unix-block", ()) if (block := _block(keys))],
        usbs=[
            (keys.get("vendorid", ""), keys.get("productid", ""))
            for _, keys in kinds.get("usb", ())
            if keys.get("required") == "true"
        ],
        group=group,
        only=only,
        architecture=architecture,
    )  # fmt: skip


def _size(what: str, value: str) -> int:
    try:
        return units.size_bytes(value) if value else 0
    except ValueError as error:
        raise SpecError(f"`{what}`: `{value}` {error}") from None


def memory_of(config: Mapping[str, str]) -> tuple[int, int]:
    """Bytes, or hundredths of what the member has. Raises SpecError."""
    value = config.get("limits.memory", "")
    if value.endswith("%") and value[:-1].isdecimal():
        return 0, int(value[:-1])
    return _size("limits.memory", value), 0


def cpus_of(config: Mapping[str, str]) -> tuple[int, frozenset[int]]:
    """`4`: so many; `0-3,8`: these. Raises SpecError."""
    value = config.get("limits.cpu", "")
    if value.isdecimal():
        return int(value), frozenset()
    found: set[int] = set()
    for part in value.split(",") if value else ():
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 1 << 16):
            raise SpecError(f"`limits.cpu`: `{value}` is neither a number of CPUs nor a set such as 0-3,8")
        found.update(range(int(first), int(last) + 1))
    return 0, frozenset(found)


def lease(name: str, keys: Mapping[str, str], config: Mapping[str, str]) -> int:
    """How many may have the device. On one machine devices are shared unless somebody says otherwise; what is placed on a
    cluster is its own unless somebody says that it is shared."""
    value = keys.get("lease") or config.get(LEASE + name, "")
    kind, _, most = value.partition(":")
    if kind != "shared":
        return EXCLUSIVE
    return int(most) if most.isdecimal() else ANYBODY


def gpu_wishes(name: str, keys: Mapping[str, str], share: int = EXCLUSIVE) -> list[Wish]:
    """What a `gpu` device asks for: by a selector one, without any all. None for what only virtual machines have."""
    kind = keys.get("gputype") or "physical"
    if kind not in ("physical", "mig"):
        return []
    vendor, product, uuid = keys.get("vendorid", ""), keys.get("productid", ""), keys.get("uuid", "")
    address, number = full(keys.get("pci", "")), keys.get("id", "")
    given = keys.get("count", "")
    if kind == "mig":
        part = keys.get("mig.uuid") or f"{keys.get('mig.gi', '')}/{keys.get('mig.ci', '')}"
        return [Wish(name, address=address, vendor=vendor or "10de", product=product, id=number or uuid, part=part)]
    if "=" in number:
        maker, _, one = number.partition("/")
        vendor = CDI.get(maker, "")
        if not vendor:
            return []
        if one.endswith("=all"):
            return [Wish(name, vendor=vendor, count=0, share=share)]
        return [Wish(name, vendor=vendor, id=number, share=share)]
    if given and given != "all" and not given.isdecimal():
        raise SpecError(f"device `{name}`: `count={given}` is neither a number nor `all`")
    named = any(keys.get(key) for key in SELECTORS)
    count = int(given) if given.isdecimal() else 0 if given == "all" or not named else 1
    return [Wish(name, address=address, vendor=vendor, product=product, id=number or uuid, count=count, share=share)]


def hca_wish(name: str, keys: Mapping[str, str]) -> Wish:
    """What an `infiniband` device asks for: one, or `count`. Raises SpecError."""
    given = keys.get("count", "") or "1"
    if given != "all" and not given.isdecimal():
        raise SpecError(f"device `{name}`: `count={given}` is neither a number nor `all`")
    return Wish(
        name,
        address=full(keys.get("pci", "")),
        vendor=keys.get("vendorid", ""),
        product=keys.get("productid", ""),
        id=keys.get("parent", "") or keys.get("id", ""),
        count=0 if given == "all" else int(given),
        function=keys.get("nictype") == "sriov",
    )


def full(address: str) -> str:
    """A PCI address with its domain, in small letters, as servers tell them."""
    return (address if address.count(":") != 1 else f"0000:{address}").lower()


def _block(keys: Mapping[str, str]) -> str:
    """The name of a whole disk or partition below /dev, where servers tell which there are."""
    path = keys.get("source") or keys.get("path", "")
    name = path.removeprefix("/dev/")
    plain = path.startswith("/dev/") and "/" not in name and name.startswith(("sd", "vd", "nvme", "mmcblk"))
    return name if plain and keys.get("required") != "false" else ""


# What an instance on a member holds


def held(instance: Mapping[str, object]) -> Request:
    """What one that is there has: the same words, but a selector means all that fit, as servers take it."""
    config: Mapping[str, str] = instance.get("expanded_config") or {}  # type: ignore[assignment]
    devices: Mapping[str, Mapping[str, str]] = instance.get("expanded_devices") or {}  # type: ignore[assignment]
    meant = {
        name: {**keys, "count": "all"} if keys.get("type") in ("gpu", "infiniband") else keys
        for name, keys in devices.items()
        if keys.get("type") != "disk"
    }
    try:
        found = request(config, meant)
    except SpecError:  # another client's idea of a limit
        found = request({}, meant)
    if instance.get("type") == "virtual-machine" and not (found.memory and found.cpus):
        return request(
            {"limits.memory": str(VM_MEMORY), "limits.cpu": str(VM_CPUS), **{k: v for k, v in config.items() if v}},
            meant,
        )
    return found


# What was chosen, as the server gets it


def pinned(
    devices: Mapping[str, Mapping[str, str]], placed: Verdict
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Devices that name what was chosen, one by one, where they did not; and keys that record who may share it.

    Several GPUs of one device become NAME, NAME-2, NAME-3, …
    """
    found: dict[str, dict[str, str]] = {}
    config: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for wish, unit in placed.units:
        keys = dict(devices[wish.device])
        if keys.get("lease"):
            config[LEASE + wish.device] = keys["lease"]
        if "=" in keys.get("id", ""):
            own = {key: value for key, value in keys.items() if key != "lease"}
            found[wish.device] = own
            continue
        number = numbers[wish.device] = numbers.get(wish.device, 0) + 1
        name = wish.device if number == 1 else f"{wish.device}-{number}"
        while number > 1 and name in devices:
            name += "-"
        own = {key: value for key, value in keys.items() if key not in (*SELECTORS, "count", "lease", "parent")}
        if isinstance(unit, Gpu):
            own["pci"] = unit.address
        elif isinstance(unit, Hca):
            own |= {
                "parent": unit.names[0] if unit.names else unit.address,
                "nictype": keys.get("nictype") or "physical",
            }
        if number > 1 and LEASE + wish.device in config:
            config[LEASE + name] = config[LEASE + wish.device]
        found[name] = own
    return found, config
