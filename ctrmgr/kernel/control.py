# SPDX-License-Identifier: GPL-3.0-or-later
"""The monitors' control protocol: the other end of `native_helpers/control.h`, with which a test compares it.

Uses `_socket` and not `socket`, which would import `enum` and `selectors` and cost more than the whole request.
"""

from __future__ import annotations

import _socket
import os
import struct
import sys

from ctrmgr import kernel, state
from ctrmgr.errors import ConflictError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctrmgr.errors import CtrmgrError

VERSION = 1
STATUS, ATTACH, DETACH, DEVICES, STOP, KILL, FREEZE, THAW, ENTER, SIGNAL, WAIT, LIMIT = range(1, 13)
PART, COMMIT, SUSPEND, RESUME, TEXT = range(13, 18)
RLIMIT, SYSCTL, MEND_FILTER, MEND_NODE, TRACE, OOM = range(18, 24)
AGAIN_S = 10.0
"""Seconds in which a monitor that begins anew is there again."""
NAMES = (
    " status attach detach devices stop kill freeze thaw enter signal wait limit part commit suspend resume text"
    " rlimit sysctl mend_filter mend_node trace oom"
).split(" ")
HOLDERS = ("report", "refuse", "freeze", "kill")
OPEN_FDS = ("untried", "revoked", "held")
TYPES = {"char": 1, "block": 2, "bind": 3, "env": 4, "hook": 5, "share": 6, "rule": 7, "netdev": 8, "rdma": 9,
         "filesystem": 10, "group": 11, "resctrl": 12}  # fmt: skip
KINDS = {number: name for name, number in TYPES.items()}
ACCESS = {"m": 1, "r": 2, "w": 4, "x": 8, "s": 32, "R": 64}
"""The last two are of mounts: ids are shifted to the instance's, and what is mounted below comes along."""
SUSPENDED = 16
WINDOW = 32
"""Requests that may be under way at once: the monitor waits for no client, and drops the reply that does not fit."""

HEADER = struct.Struct("=IIii256s")
DEVICE = struct.Struct("=64s256s64s64s7I")
REPLY = struct.Struct("=Iiii64s256s")
HOLDER = struct.Struct("=4i16s")
STATUS_DATA = struct.Struct("=4iQI68s")
STATUS_FIRST = struct.Struct("=4iQ")
REPORT = struct.Struct("=Iiii64s256s")
EMPTY_DEVICE = bytes(DEVICE.size)


class Device:
    """One part of a device as the monitor knows it: a node (`char`, `block`), a mount (`bind`) or file system of its own (`filesystem`), a variable (`env`), a `hook`, the wish for a part of another device's (`share`), a
    link of the host's that moves in (`netdev`), an RDMA device that does where the host keeps those apart (`rdma`), or a class of cache and
    memory bandwidth (`resctrl`).

    `uid` and `gid` are as seen inside, known after it was attached. `path` of a variable is its name, of a hook its kind, of a link its name inside, whose `user` is its name on the host.
    """

    __slots__ = ("access", "gid", "group", "kind", "major", "minor", "mode", "name", "path", "suspended", "uid", "user")

    def __init__(
        self,
        name: str,
        kind: str,
        path: str,
        number: tuple[int, int] = (0, 0),
        *,
        user: str = "",
        group: str = "",
        mode: int = 0,
        access: str = "",
        uid: int = 0,
        gid: int = 0,
        suspended: bool = False,
    ) -> None:
        self.name, self.kind, self.path, self.user, self.group = name, kind, path, user, group
        self.major, self.minor = number
        self.mode, self.access, self.uid, self.gid, self.suspended = mode, access, uid, gid, suspended

    def pack(self) -> bytes:
        return DEVICE.pack(
            self.name.encode(),
            self.path.encode(),
            self.user.encode(),
            self.group.encode(),
            TYPES[self.kind],
            self.major,
            self.minor,
            self.mode,
            sum(bit for letter, bit in ACCESS.items() if letter in self.access),
            0,
            0,
        )


def unpack_device(data: bytes, offset: int) -> Device:
    name, path, user, group, kind, major, minor, mode, access, uid, gid = DEVICE.unpack_from(data, offset)
    return Device(
        text(name),
        KINDS.get(kind, ""),
        text(path),
        (major, minor),
        user=text(user),
        group=text(group),
        mode=mode,
        access="".join(letter for letter in "rwmxsR" if access & ACCESS[letter]),
        uid=uid,
        gid=gid,
        suspended=bool(access & SUSPENDED),
    )


class Part:
    """What one request of a transaction brings: a packed `Device`, the host's node or file, a variable's or hook's text."""

    __slots__ = ("device", "fd", "text")

    def __init__(self, device: bytes, fd: int = -1, text: bytes = b"") -> None:
        self.device, self.fd, self.text = device, fd, text


def link(row: Sequence[str]) -> Part:
    """The part that a plan's row `netdev` or `rdma` becomes."""
    if row[0] == "rdma":
        return Part(Device(row[1], "rdma", row[2]).pack())
    words = "".join(word + "\0" for word in (row[2], row[4], row[5]))
    return Part(Device(row[1], "netdev", row[3]).pack(), text=words.encode(errors="surrogateescape"))


class Holder:
    """A process of the instance that still has a device: `pid` on the host, `inner_pid` inside."""

    __slots__ = ("comm", "fds", "inner_pid", "maps", "pid")

    def __init__(self, pid: int, inner_pid: int, fds: int, maps: int, comm: str) -> None:
        self.pid, self.inner_pid, self.fds, self.maps, self.comm = pid, inner_pid, fds, maps, comm


class Reply:
    """What a monitor answered. `error` is an errno, 0 for success."""

    __slots__ = ("count", "data", "detail", "error", "step", "value")

    def __init__(self, packet: bytes) -> None:
        _, self.error, self.count, self.value, step, detail = REPLY.unpack_from(packet)
        self.step, self.detail, self.data = text(step), text(detail), packet[REPLY.size :]

    def devices(self) -> list[Device]:
        return [unpack_device(self.data, index * DEVICE.size) for index in range(self.count)]

    def holders(self) -> list[Holder]:
        found = (HOLDER.unpack_from(self.data, index * HOLDER.size) for index in range(self.count))
        return [Holder(pid, inner, fds, maps, shown(comm)) for pid, inner, fds, maps, comm in found]

    def hooks(self) -> list[list[str]]:
        """Kind and arguments of each."""
        found, offset = [], 0
        for _ in range(self.count):
            (size,) = struct.unpack_from("=I", self.data, offset)
            words = self.data[offset + 4 : offset + 4 + size]
            found.append([word.decode(errors="surrogateescape") for word in words.split(b"\0")[:-1]])
            offset += 4 + size
        return found

    def status(self) -> tuple[int, int, bool, int]:
        """Pids of the monitor and of init, whether it is frozen, and when it was started (ns since 1970)."""
        monitor, init, frozen, _, started = STATUS_FIRST.unpack_from(self.data)
        return monitor, init, bool(frozen), started

    def open_fds(self) -> tuple[str, str]:
        """What becomes of descriptors that are open when a device is taken away, as `status` says: `untried`, `revoked`, or
        `held` and why."""
        if len(self.data) < STATUS_DATA.size:
            return "held", "the monitor is an older one"
        *_, number, reason = STATUS_DATA.unpack_from(self.data)
        return OPEN_FDS[number], text(reason)


def text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


def shown(field: bytes) -> str:
    """A text of the instance's own choice, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text(field))


def ask(
    run: str,
    op: int,
    *,
    arg: int = 0,
    name: str = "",
    path: str = "",
    value: str = "",
    device: bytes = b"",
    fd: int = -1,
    timeout: float | None = None,
) -> Reply:
    """Send one request to the monitor whose run directory is `run` and wait for its reply, at most `timeout` seconds.

    Raises ConflictError when no monitor answers. A reply that says failure is returned, not raised.
    """
    if kernel.debug:
        kernel.say(f"ask {run}: {NAMES[op]} {name}")
    payload = device or (
        DEVICE.pack(name.encode(), path.encode(), b"", b"", *[0] * 7) if name or path else EMPTY_DEVICE
    )
    packet = HEADER.pack(VERSION, op, arg, 0, value.encode()) + payload
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.settimeout(timeout)
    try:
        _connect(connection, run)
        if kernel.debug:
            _trace(connection, run)
        connection.sendmsg([packet], _rights(fd))
        return _hear(connection, run)
    except OSError as error:
        raise gone(run) from error
    finally:
        connection.close()


def _rights(fd: int) -> list[tuple[int, int, bytes]]:
    return [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", fd))] if fd >= 0 else []


def _trace(connection: _socket.socket, run: str) -> None:
    """From now on the monitor names what it does, before its replies; an old one does not know how, which is no failure."""
    connection.send(HEADER.pack(VERSION, TRACE, 0, 0, b"") + EMPTY_DEVICE)
    _hear(connection, run)


def _hear(connection: _socket.socket, run: str) -> Reply:
    while True:
        size = connection.recv_into(
            bytearray(1), 0, _socket.MSG_PEEK | _socket.MSG_TRUNC
        )  # mostly small, seldom 128 KiB
        answer = connection.recv(size)
        if len(answer) >= REPLY.size:
            return Reply(answer)
        if not answer:
            raise gone(run)
        sys.stderr.write(answer.decode(errors="replace"))


def commit(run: str, parts: Sequence[Part], prepared: Callable[[], None]) -> Reply:
    """All parts in one go, or none of them; `prepared` is called between. Returns the reply to what failed, or the last.

    Whatever ends the connection before its end leaves nothing. Raises ConflictError when no monitor answers.
    """
    if kernel.debug:
        kernel.say(f"ask {run}: {len(parts)} parts")
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    header = HEADER.pack(VERSION, PART, 0, 0, b"")
    try:
        _connect(connection, run)
        if kernel.debug:
            _trace(connection, run)
        for first in range(0, len(parts), WINDOW):
            window = parts[first : first + WINDOW]
            for part in window:
                connection.sendmsg([header, part.device, part.text], _rights(part.fd))
            for _ in window:
                reply = _hear(connection, run)
                if reply.error:
                    return reply
        prepared()
        connection.send(HEADER.pack(VERSION, COMMIT, 0, 0, b"") + EMPTY_DEVICE)
        return _hear(connection, run)
    except OSError as error:
        raise gone(run) from error
    finally:
        connection.close()


def gone(run: str) -> ConflictError:
    name = run.rpartition("/")[2]
    return ConflictError(f"the monitor of `{name}` does not answer", hint=f"is it still running? `ctrmgr info {name}`")


def _connect(connection: _socket.socket, run: str) -> None:
    """A monitor that begins anew, because its instance was rebooted, hears nobody for a moment: it has its lock, and is waited for."""
    until = 0.0
    while True:
        try:
            _reach(connection, run)
            return
        except (ConnectionRefusedError, FileNotFoundError):
            import time

            until = until or time.monotonic() + (connection.gettimeout() or AGAIN_S)
            if not state.is_locked(f"{run}/state") or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _reach(connection: _socket.socket, run: str) -> None:
    # A path may be longer than a socket's address: then through a descriptor of its directory.
    if len(run) < 90:
        connection.connect(f"{run}/control")
        return
    fd = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{fd}/control")
    finally:
        os.close(fd)


def failure(subject: str, step: str, detail: str, code: int) -> CtrmgrError:
    """The error that a monitor's or helper's report becomes. `subject` is what the user named."""
    from ctrmgr.kernel import failures

    return failures.error(subject, step, shown(detail.encode()), code)
