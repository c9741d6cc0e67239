# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's own announcements of devices that come, go and change."""

from __future__ import annotations

import _socket
import errno

NETLINK_KOBJECT_UEVENT, KERNEL_GROUP = 15, 1
BUFFER = 1 << 21


class Uevents:
    """Raises OSError where there is no such socket."""

    __slots__ = ("_socket",)

    def __init__(self) -> None:
        self._socket = _socket.socket(
            _socket.AF_NETLINK, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT
        )
        self._socket.setblocking(False)
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, BUFFER)
        self._socket.bind((0, KERNEL_GROUP))

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[dict[str, str]] | None:
        """All that was announced since the last call; None when announcements were lost."""
        found: list[dict[str, str]] = []
        while True:
            try:
                data, sender = self._socket.recvfrom(1 << 16)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return None
                raise
            if sender[0] == 0:  # anyone may send to the group; 0 is the kernel
                found.append(parse(data))

    def close(self) -> None:
        self._socket.close()


def parse(data: bytes) -> dict[str, str]:
    """`KEY=value` fields after the first, which is for people."""
    words = data.decode(errors="replace").split("\0")[1:]
    return {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
