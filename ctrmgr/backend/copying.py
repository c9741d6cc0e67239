# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of local instances. Cold."""

from __future__ import annotations

from ctrmgr.backend import create, record, repair
from ctrmgr.errors import ConflictError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def copy(old: str, new: str, *, profiles: Sequence[str] | None = None) -> str:
    """Another instance with all that a stopped one has written, its keys and its devices; ids, addresses and name are its own.

    Raises NotFoundError, ConflictError, and what `create` does.
    """
    record.check_name(new)
    with record.lock(old):
        if repair.instance(old):
            raise ConflictError(f"`{old}` is running", hint=f"ctrmgr stop {old}")
        own = record.Record(old)
        wish = create.Wish(
            own.image,
            new,
            profiles=own.profiles if profiles is None else profiles,
            config=own.config,
            devices=own.devices,
            ephemeral=own.ephemeral,
        )
        wish.ref, wish.source = own.ref, own.path
        return create.create(wish)
