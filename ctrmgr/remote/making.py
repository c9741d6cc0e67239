# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance that a command is making on a server is noted until it is there, or it is said what is: see `passing`. Hot."""

from __future__ import annotations

import os

from ctrmgr import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.remote.server import Server

INSTANCE = "instance"


def folder() -> str:
    return f"{state.state_dir()}/passing"


class Making:
    """`with Making(server, name):`"""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name

    def __enter__(self) -> None:
        state.make_dir(folder(), 0o700)
        while True:
            self.path = f"{folder()}/{os.urandom(8).hex()}"
            state.make_dir(self.path, 0o700)
            self.lock = state.Lock(self.path)
            try:
                self.lock.__enter__()
                break
            except FileNotFoundError:  # before it was locked, somebody took it for a left-over
                continue
        row = [INSTANCE, self.server.target.url, self.server.project, self.name]
        state.write_flat(f"{self.path}/record", [row])

    def __exit__(self, *_: object) -> None:
        try:
            os.unlink(f"{self.path}/record")
            os.rmdir(self.path)
        finally:
            self.lock.__exit__(None, None, None)


def is_any_left() -> bool:
    """Whether there are notes of others, alive or killed."""
    return bool(state.entries(folder()))
