# SPDX-License-Identifier: GPL-3.0-or-later
"""pylxd with a remote's address, project, pinned certificate and our key: for programs, and for what nobody waits for.

Verbs do not use it: its import alone takes longer than an attach, it cuts the output of commands, and its `save()` overwrites
what others have changed meanwhile.
"""

from __future__ import annotations

import os

import pylxd
import requests

from ctrmgr.errors import BackendError
from ctrmgr.remote import registry, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def client(name: str) -> Any:
    """A `pylxd.Client` for a registered remote. Raises NotFoundError, BackendError."""
    remote = registry.load().get(name)
    if remote.kind == registry.IMAGES:
        raise BackendError(f"`{remote.name}` has images only")
    os.environ.setdefault("PYLXD_WARNINGS", "none")  # Incus has attributes that it does not know
    target = remote.target()
    try:
        if target.path:
            return pylxd.Client(endpoint=target.path, project=remote.project or None)
        # pylxd takes a path as what to compare the server's certificate with, and compares it whole.
        return pylxd.Client(
            endpoint=target.url,
            cert=target.identity,
            verify=registry.certificate_path(remote.name),
            project=remote.project or None,
            timeout=wire.ANSWER_SECONDS,
        )
    except (
        pylxd.exceptions.ClientConnectionFailed,
        pylxd.exceptions.LXDAPIException,
        requests.RequestException,
    ) as error:
        raise BackendError(f"`{remote.name}` cannot be reached by pylxd: {error}") from error
