# SPDX-License-Identifier: GPL-3.0-or-later
"""The modes of devices that decide how they can be divided. Cold."""

from __future__ import annotations

from ctrmgr import partition as back_ends
from ctrmgr.backend import catalog, dividing, held, leases, machine_lock, repair
from ctrmgr.errors import ConflictError, NotFoundError, SpecError, UnsupportedError


def mode(device: str) -> str:
    """The mode of a device that decides how it can be divided. Raises NotFoundError, UnsupportedError when it has none."""
    return _switchable(device)[1]


def already(device: str) -> str:
    """What to say when a device is in the mode that it is asked into. Raises what `mode` does."""
    maker, now = _switchable(device)
    more = maker.pending(device)
    return f"`{device}` is {now} already{more and '; '}{more}"


def _switchable(device: str) -> tuple[back_ends.BackEnd, str]:
    known = []
    for maker in back_ends.every():
        now = maker.mode(device)
        if now is not None:
            return maker, now
        known += [gpu.id for gpu in maker.gpus()]
    if device in known:
        raise UnsupportedError(
            f"`{device}` has no mode that decides how it can be divided",
            hint="`ctrmgr partition list --pools` shows what can be divided as it is",
        )
    there = ", ".join(f"`{each}`" for each in dict.fromkeys(known))
    raise NotFoundError(f"this machine has no GPU `{device}`", hint=f"there are {there}" if there else None)


def switch(device: str, wanted: str, *, dry_run: bool = False) -> str | None:
    """Take a device into a mode: None when it is in it already, "" when it is in it now, and otherwise when it will be. Raises what
    `mode` does, SpecError for no mode of it, ConflictError when anybody has it, a part of it or a device whose mode is the same one,
    HostError."""
    with machine_lock.taken():
        dividing.take_back(repair.instance)
        maker, now = _switchable(device)
        modes = maker.modes(device)
        chosen = next((each for each in modes if each.lower() == wanted.lower()), None)
        if chosen is None:
            raise SpecError(f"`{device}` has no mode `{wanted}`", hint=f"it has {', '.join(modes)}")
        if chosen == now:
            return None
        for each in maker.together(device):
            users = _users(each)
            if users:
                raise ConflictError(
                    f"`{each}` is in use, and only one that nobody has is switched", hint=", ".join(users)
                )
        return "" if dry_run else maker.switch(device, chosen)


def _users(device: str) -> list[str]:
    """Who has a device or a part of it: by a partition, a lease, or a node."""
    found = [each.owner for each in held.everything() if each.found_id == device]
    own = [lease for lease in leases.held() if lease.id.partition("%2F")[0] == f"pci:{device}"]
    found += [f"{lease.instance}/{lease.device}" for lease in own if not leases.is_stale(lease, "")]
    for gpu in catalog.devices(kinds=("gpu",)):
        if device in (gpu.id, gpu.part_of):
            found += [f"{each.instance}/{each.device}" for each in gpu.holders if each.live]
    return list(dict.fromkeys(found))
