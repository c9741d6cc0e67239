# SPDX-License-Identifier: GPL-3.0-or-later
"""What looks into an instance on a server is woken before it is needed."""

from __future__ import annotations

from ctrmgr.remote import instances
from ctrmgr.remote.wire import Connection, GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.remote.server import Server


class Look:
    """A server starts a program to look into an instance, which takes as long as an attach and stays for some seconds. It is asked to
    while it does something else; what it sees then does not matter."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.connection: Connection | None = None

    def wake(self, path: str) -> None:
        if self.connection is not None:
            return
        self.connection = Connection(self.server.target)
        try:
            self.connection.ask("HEAD", self.server.url(f"{instances.path(self.name)}/files", {"path": path}))
        except GoneError:
            pass  # then it only takes longer

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        if self.connection:
            self.connection.close()
