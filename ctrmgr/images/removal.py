# SPDX-License-Identifier: GPL-3.0-or-later
"""Take images out of the store, unless an instance stands on them."""

from __future__ import annotations

import fcntl
import os

from ctrmgr import state
from ctrmgr.errors import ConflictError, HostError
from ctrmgr.images import store
from ctrmgr.images.staging import discard, repair


def users(fingerprint: str) -> list[str]:
    """Names of the instances made of the image, those that are just being made included."""
    top = state.state_dir() + "/instances"
    found = []
    for name in sorted(state.entries(top)):
        if name.startswith(".del-"):
            continue
        try:
            rows = state.read_flat(f"{top}/{name}/config")
        except (FileNotFoundError, NotADirectoryError):
            continue
        if any(row[0] == "image" and len(row) > 1 and row[1] == fingerprint for row in rows):
            found.append(name.removeprefix(".new-"))
    return found


def delete(ref: str) -> str:
    """Delete the image and its aliases; returns its fingerprint.

    An exclusive lock on the image keeps out who holds a shared one: an instance that is being made.
    Raises NotFoundError, ConflictError naming the instances that use it, HostError.
    """
    repair()
    # Not load(): an image without metadata must be deletable.
    target = store.alias_target(ref)
    fingerprint = target if target is not None else store.complete(ref) if store.is_hex(ref) else ""
    path = f"{store.images_dir()}/{fingerprint}"
    if not fingerprint or not os.path.isdir(path):
        raise store.not_found(ref)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if names := users(fingerprint):
            shown = ", ".join(f"`{name}`" for name in names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            raise ConflictError(f"image `{ref}` is used by {shown}", hint="delete these instances first")
        for alias, target in list(store.aliases()):
            if target == fingerprint:
                store.drop_alias(alias)
        discard(path)
    except BlockingIOError:
        raise ConflictError(f"image `{ref}` is being used", hint="an instance is made of it just now") from None
    except OSError as error:
        raise HostError(f"cannot delete image `{ref}`: {error.strerror}: `{error.filename}`") from error
    finally:
        os.close(fd)
    return fingerprint
