# SPDX-License-Identifier: GPL-3.0-or-later
"""The devices that plugins report, as `device list` shows them. Cold.

All plugins are asked at the same time, and one that does not answer soon is named and waited for no longer: a list of the
machine's devices is not the place to hang for one of them.
"""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor

from ctrmgr.backend import held, record
from ctrmgr.backend.inventory import Device, Holder
from ctrmgr.errors import CtrmgrError
from ctrmgr.host import pci, sysfs
from ctrmgr.plugins import call, registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.held import Held
    from ctrmgr.devices.plugin import Found
    from ctrmgr.plugins.registry import Source

PATIENCE = 5.0
"""Seconds that a plugin has, however long it says that it may take; CTRMGR_PLUGIN_SECONDS gives it longer."""


def types() -> list[str]:
    return list(registry.sources())


def devices(kinds: Sequence[str] = ()) -> tuple[list[Device], list[CtrmgrError]]:
    """What the plugins of these types, or all, have found, and which of them could not be asked."""
    asked = [source for source in registry.sources().values() if not kinds or source.type in kinds]
    if not asked:
        return [], []
    taken = held.everything()
    found: list[Device] = []
    wrong: list[CtrmgrError] = []
    with ThreadPoolExecutor(len(asked)) as pool:
        for source, said in zip(asked, pool.map(_ask, asked), strict=True):
            if isinstance(said, CtrmgrError):
                wrong.append(said)
            else:
                found += [_device(source.type, each, taken) for each in said]
    return found, wrong


def _ask(source: Source) -> list[Found] | CtrmgrError:
    try:
        return call.identify(source, most=PATIENCE)
    except CtrmgrError as error:
        return error


def _device(kind: str, found: Found, taken: Sequence[Held]) -> Device:
    nodes = [node for path in found.nodes if (node := _node(path))]
    above = (pci.above(f"/sys/dev/{node.kind}/{node.major}:{node.minor}") for node in nodes)
    function = next((pci.read(address) for address in above if address), None)
    device = Device(
        kind,
        found.id,
        found.id,
        model=found.model,
        vendor=found.vendor,
        driver=function.driver if function else "",
        driver_version=function.driver_version if function else "",
        function=function,
        nodes=nodes,
        aliases=[f"{kind}/{found.id}"],
        details={
            "functions": {name: dict(given) for name, given in found.functions.items()} or None,
            "shared": found.shared,
            "pools": dict(found.pools) or None,
            "partitions": found.partitions or None,
            "profiles": {name: dict(takes) for name, takes in found.profiles.items()} or None,
        },
    )
    device.numa = found.numa if found.numa >= 0 else device.numa
    device.holders = [
        Holder(each.instance, each.device, record.is_running(each.instance))
        for each in taken
        if (each.type, each.found_id) == (kind, found.id) and each.instance != held.NAMED
    ]
    return device


def _node(path: str) -> sysfs.Node | None:
    """None for what is no node."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    kind = "char" if stat.S_ISCHR(status.st_mode) else "block" if stat.S_ISBLK(status.st_mode) else ""
    if not kind:
        return None
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return sysfs.Node(path, kind, major, minor, "node", present=True)
