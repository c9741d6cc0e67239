# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of local instances. Cold."""

from __future__ import annotations

import contextlib
import os

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


def stamp(name: str) -> str:
    """What changes whenever a stopped instance does: its keys, that it ran, any file of its own layer, of its snapshots and of what its
    TPMs know. "" when not all of it can be read. Raises NotFoundError."""
    own = record.Record(name)
    if record.is_running(name):
        return "running"
    unreadable: list[OSError] = []
    count, newest = 0, 0
    paths = [own.path + "/config", own.path + "/exit"]
    for folder in ("upper", "snapshots", "tpm"):
        for here, folders, files in os.walk(f"{own.path}/{folder}", onerror=unreadable.append):
            paths += [f"{here}/{each}" for each in (*folders, *files)]
            for path in (here, *paths):
                with contextlib.suppress(FileNotFoundError):
                    newest = max(newest, os.lstat(path).st_ctime_ns)
                    count += 1
            paths.clear()
    return "" if any(not isinstance(each, FileNotFoundError) for each in unreadable) else f"{count} {newest}"
