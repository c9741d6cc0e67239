# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions that have names: made and ended by who says so, and not with an instance. Cold."""

from __future__ import annotations

import os

from ctrmgr import partition as back_ends
from ctrmgr import state
from ctrmgr.backend import allocations, dividing, leases, machine_lock, partitions, repair
from ctrmgr.backend.held import NAMED, Held, everything, of
from ctrmgr.devices.partition import Asked
from ctrmgr.errors import ConflictError, HelperError, NotFoundError, SpecError
from ctrmgr.plugins import registry


def create(name: str, device: str, sizes: str, kind: str = "") -> Held:
    """Make a partition that lasts until it is deleted. Raises SpecError, NotFoundError, ConflictError, HostError."""
    asked = Asked(sizes)
    with machine_lock.taken():
        dividing.take_back(repair.instance)
        held = Held(NAMED, name)
        if os.path.exists(held.path):
            raise ConflictError(f"there is a partition `{name}` already", hint="`ctrmgr partition list` shows it")
        found, wrong = partitions.places(kind or registry.ANY)
        fitting = [place for place in found if place.found.id == device]
        if not fitting:
            there = ", ".join(f"`{place.found.id}`" for place in found)
            reasons = [error.message for error in wrong] + ([] if there else back_ends.reasons(registry.ANY))
            hint = f"there are {there}" if there else "; ".join(reasons[:4])
            raise NotFoundError(f"`{device}` is no device that can be divided", hint=hint or None)
        if len(fitting) > 1:
            raise SpecError(
                f"`{device}` is of several types",
                hint="say which: " + ", ".join(f"--type={place.type}" for place in fitting),
            )
        held.values, held.token = {"partition": sizes, "id": device}, os.urandom(8).hex()
        state.make_dir(os.path.dirname(held.path), 0o700)
        with state.Lock(os.path.dirname(held.path)):
            partitions.carved(held, asked, fitting[0].type, {"id": device}, everything())
            held.life = "named"
            held.write()
        allocations.prepare(held)
        return held


def delete(name: str) -> None:
    """End a partition that has a name. Raises NotFoundError, ConflictError when an instance has it, HelperError."""
    with machine_lock.taken():
        half = name in of(NAMED)
        dividing.take_back(repair.instance)
        held = of(NAMED).get(name)
        if held is None and half:
            return  # what was killed at it is finished now
        if held is None:
            named = sorted(of(NAMED))
            raise NotFoundError(
                f"there is no partition `{name}`",
                hint=f"there are {', '.join(named)}" if named else "what an instance was given goes when it is stopped",
            )
        user = next((each for each in everything() if each.uses == name), None)
        if user is not None:
            raise ConflictError(f"partition `{name}` is in use", hint=f"{user.owner} has it")
        own = {row[2] for row in held.rows if row[0] == "lease"}
        gone = {lease.file for lease in leases.stale()} if own else set()
        lease = next((each for each in leases.held() if each.id in own and each.file not in gone), None)
        if lease is not None:  # by keys that say which slice or function, not by its name
            raise ConflictError(f"partition `{name}` is in use", hint=f"{lease.instance}/{lease.device} has it")
        rows, held.rows = held.rows, []
        held.write()  # from now on `take_back` ends it, whatever kills us
        try:
            allocations.release(held)
        except (ConflictError, HelperError):
            held.rows = rows
            held.write()
            raise
