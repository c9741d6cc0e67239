# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers for programs: handles with the verbs that instances of this machine have. `ctrmgr.connect` makes them."""

from __future__ import annotations

import os

from ctrmgr import entries
from ctrmgr.errors import SpecError
from ctrmgr.remote import devices, execute, files, images, instances, looking, owners, snapshots, translate
from ctrmgr.remote.server import Server, open_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from ctrmgr.remote.devices import Detached


class Exec:
    """How a command ended: its exit code (128+n after signal n) and what it wrote."""

    __slots__ = ("code", "stderr", "stdout")

    def __init__(self, code: int, stdout: bytes, stderr: bytes) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr


class Remote:
    """A server, over one connection that stays open. A context manager closes it. Not for several threads at once."""

    def __init__(self, name: str) -> None:
        self.server: Server = open_server(name)

    def __repr__(self) -> str:
        return f"Remote({self.server.name!r})"

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.server.connection.close()

    def instances(self) -> list[RemoteInstance]:
        """All of them, by name."""
        found = self.server.get("/instances", query={"recursion": "1"})
        return [RemoteInstance(self.server, name) for name in sorted(str(each["name"]) for each in found)]

    def instance(self, name: str) -> RemoteInstance:
        """One, which need not be there."""
        return RemoteInstance(self.server, name)

    def create(
        self,
        image: str,
        name: str,
        *,
        profiles: Sequence[str] = ("default",),
        config: Mapping[str, str] | None = None,
        devices: Mapping[str, Mapping[str, str]] | None = None,
        ephemeral: bool = False,
    ) -> RemoteInstance:
        """Make an instance of the server's image (or `REMOTE:IMAGE`) and leave it stopped; the profiles are the server's.

        Raises UnsupportedError, before anything is made, for keys that the server does not have.
        """
        server = self.server
        made = translate.translate(config or {}, devices or {}, translate.Live(server))
        made.refuse(server.name)
        if made.names:
            device, key, word = made.names[0]
            raise SpecError(f"device `{device}`: `{key}` is `{word}`", hint="give the number")
        source = images.source(server, image)
        instances.create(
            server, name, source, profiles=profiles, config=made.config, devices=made.devices, ephemeral=ephemeral
        )
        return RemoteInstance(server, name)

    def launch(
        self,
        image: str,
        name: str,
        *,
        profiles: Sequence[str] = ("default",),
        config: Mapping[str, str] | None = None,
        devices: Mapping[str, Mapping[str, str]] | None = None,
        ephemeral: bool = False,
    ) -> RemoteInstance:
        """The same, started; one that does not start is deleted again."""
        made = self.create(image, name, profiles=profiles, config=config, devices=devices, ephemeral=ephemeral)
        instances.finish(self.server, name, made.start)
        return made


class RemoteInstance:
    """A handle on an instance of a server. As a context manager it deletes the instance at the end."""

    __slots__ = ("name", "server")

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name

    def __repr__(self) -> str:
        return f"RemoteInstance({instances.label(self.server, self.name)!r})"

    def __enter__(self) -> RemoteInstance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete(force=True)

    def start(self) -> None:
        """Raises ConflictError when it runs already."""
        instances.start(self.server, self.name)

    def stop(self, *, timeout: float | None = None, force: bool = False) -> None:
        """Ask init to end, kill what is left after `timeout` seconds, or at once with `force`."""
        instances.stop(self.server, self.name, timeout=timeout, force=force)

    def restart(self, *, timeout: float | None = None, force: bool = False) -> None:
        """Stop, if it runs, and start."""
        instances.restart(self.server, self.name, timeout=timeout, force=force)

    def delete(self, *, force: bool = False) -> None:
        """Remove it; with `force` also while it runs."""
        instances.delete(self.server, self.name, force=force)

    def rename(self, name: str) -> None:
        """Rename it while it is stopped; the handle follows."""
        instances.rename(self.server, self.name, name)
        self.name = name

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        instances.freeze(self.server, self.name)

    def unfreeze(self) -> None:
        """Let them go on."""
        instances.freeze(self.server, self.name, thaw=True)

    def configure(self, config: Mapping[str, str | None]) -> None:
        """Set its own keys; None takes one away. Keys that others change at the same time stay."""
        wanted = {key: value for key, value in config.items() if value is not None}
        made = translate.translate(wanted, {}, translate.Live(self.server))
        made.refuse(self.server.name)

        def change(_: object, data: dict[str, dict[str, str]]) -> None:
            kept = {key: value for key, value in data["config"].items() if key not in config}
            data["config"] = kept | made.config

        instances.update(self.server, self.name, change)

    def attach(self, device: str, **keys: str) -> bool:
        """Give it a device of the server's machine. True: it is there now. False: it comes with the next start."""
        return devices.attach(self.server, self.name, device, keys)

    def detach(self, device: str) -> Detached:
        """Take a device away."""
        return devices.detach(self.server, self.name, device)

    def exec(
        self,
        command: Sequence[str],
        *,
        user: str = "",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Exec:
        """Run a command in it and wait for its end; its output is complete. Raises ConflictError when it is not running."""
        execute.refuse_if_stopped(self.server, self.name)
        whose = owners.user(self.server, self.name, user) if user else None
        out: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        given = os.memfd_create("stdin", os.MFD_CLOEXEC)
        try:
            execute.write_all(given, stdin)
            os.lseek(given, 0, os.SEEK_SET)
            code = execute.run(
                self.server,
                self.name,
                command,
                env=env or {},
                uid=whose.uid if whose else 0,
                gid=whose.gid if whose else 0,
                cwd=cwd,
                streams=execute.Streams(given, lambda fd, data: out[fd].extend(data)),
            )
        except execute.NotRunError as error:
            return Exec(error.exit_code, bytes(out[1]), f"{error.message}\n".encode())
        finally:
            os.close(given)
        return Exec(code, bytes(out[1]), bytes(out[2]))

    def read(self, path: str) -> bytes:
        """The bytes of a file in it. Raises NotFoundError."""
        (found,) = (
            b"".join(each.data)
            for each in files.pull(self.server, self.name, path, recursive=False, say=lambda text: None)
        )
        return found

    def write(self, path: str, data: bytes, *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """Make a file in it, or replace it."""
        entry = entries.Entry("", entries.FILE, mode=mode, uid=uid, gid=gid, size=len(data), data=[data])
        files.push(self.server, self.name, path, [entry], parents=False)

    def snapshot(self, name: str = "") -> str:
        """Keep how it is now; returns the snapshot's name."""
        return snapshots.create(self.server, self.name, name)

    def restore(self, snapshot: str) -> None:
        """Put it back while it is stopped."""
        snapshots.restore(self.server, self.name, snapshot)

    def info(self) -> dict[str, object]:
        """What it is and what it uses."""
        return looking.info(self.server, self.name)
