# SPDX-License-Identifier: GPL-3.0-or-later
"""Something between a client and a server that does with the requests what a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

Rule = Callable[[bytes], str | bytes]


class Middle:
    """A unix socket in front of a server's. `rule` sees every block that a client sends, and says `pass`, `cut` (the request
    does not arrive), `deaf` (it arrives, and the answer is cut off) or `slow`; or bytes, which the client gets instead of what
    the server would have said."""

    def __init__(self, path: Path, behind: Path) -> None:
        self.rule: Rule = lambda data: "pass"
        self.behind = behind
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self.behind))
            except OSError:
                client.close()
                continue
            deaf = threading.Event()
            threading.Thread(target=self._there, args=(client, server, deaf), daemon=True).start()
            threading.Thread(target=self._back, args=(client, server, deaf), daemon=True).start()

    def _there(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                what = self.rule(data)
                if what == "cut":
                    break
                if what == "deaf":
                    deaf.set()
                if what == "slow":
                    time.sleep(1)
                if isinstance(what, bytes):
                    client.sendall(what)
                    continue
                server.sendall(data)
        self._end(client, server)

    def _back(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if deaf.is_set():
                    break
                client.sendall(data)
        self._end(client, server)

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for each in ends:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
