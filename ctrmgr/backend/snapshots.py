# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots of local instances: what an instance has written (its own layer, and in its TPMs) and its own keys and devices, copied. Cold.

    INSTANCE/snapshots/NAME/{upper/,tpm/,config,created}

On a filesystem with reflinks a copy shares its blocks. What is incomplete is named `.new-…`, what is being removed `.del-…`.
A restore copies aside first (`upper.restored`, `tpm.restored`, `config.restored`, `plan.restored`), writes the name `restore`, and then moves
each to its place; `repair` goes on from there.
"""

from __future__ import annotations

import os
import subprocess
import time

from ctrmgr import state
from ctrmgr.backend import configure, record, repair, restoring
from ctrmgr.backend.record import crash
from ctrmgr.errors import ConflictError, HostError, NotFoundError, SpecError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def folder(name: str) -> str:
    return f"{record.home(name)}/snapshots"


def check_name(snapshot: str) -> str:
    """Raises SpecError."""
    if (
        not snapshot
        or len(snapshot.encode()) > 63
        or snapshot[0] in ".-"
        or not set(snapshot) <= record.LETTERS | set("._")
    ):
        raise SpecError(f"`{snapshot}` cannot be the name of a snapshot", hint="letters, digits, `-`, `_` and `.`")
    return snapshot


def listing(name: str) -> list[dict[str, str]]:
    """name and time of each, the oldest first. Raises NotFoundError."""
    record.Record(name)
    rows = []
    for snapshot in state.entries(folder(name)):
        if snapshot[0] != ".":
            created = dict(row[:2] for row in state.read_flat(f"{folder(name)}/{snapshot}/created"))["created"]
            rows.append({"name": snapshot, "created": created})
    return sorted(rows, key=lambda row: (row["created"], row["name"]))


def create(name: str, snapshot: str = "") -> str:
    """Make one and return its name; a running instance is frozen meanwhile. Raises ConflictError, HostError."""
    with record.lock(name):
        running = repair.instance(name)
        _tidy(name)
        taken = {row["name"] for row in listing(name)}
        snapshot = check_name(snapshot) if snapshot else _free(taken)
        if snapshot in taken:
            raise ConflictError(
                f"`{name}` has a snapshot `{snapshot}` already", hint="delete it, or choose another name"
            )
        aside, path = f"{folder(name)}/.new-{snapshot}", f"{folder(name)}/{snapshot}"
        state.make_dir(folder(name), 0o700)
        try:
            os.mkdir(aside, 0o700)
            with _Still(name) if running else _Still(""):
                copy(record.home(name), aside)
                state.write_flat(f"{aside}/config", record.Record(name).rows)
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            state.write_flat(f"{aside}/created", [["created", created]])
            crash("snapshot-written")
            os.rename(aside, path)
        except BaseException as error:
            record.remove_tree(aside)
            if isinstance(error, OSError):
                raise state.unwritable(path, error) from error
            raise
    return snapshot


def _free(taken: set[str]) -> str:
    number = 0
    while f"snap{number}" in taken:
        number += 1
    return f"snap{number}"


class _Still:
    """`with _Still(name)`: an instance that runs is frozen, unless it is already. It goes on even if this process is killed."""

    def __init__(self, name: str) -> None:
        self.name, self.pid = name, 0

    def __enter__(self) -> None:
        if not self.name:
            return
        run = record.run_home(self.name)
        if control.ask(run, control.STATUS).status()[2]:
            return
        read, self.write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.close(self.write)
                os.read(read, 1)
                control.ask(run, control.THAW)
            finally:
                os._exit(0)
        os.close(read)
        reply = control.ask(run, control.FREEZE)
        if reply.error:
            self.__exit__(None, None, None)
            raise control.failure(self.name, reply.step, reply.detail, reply.error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pid:
            os.close(self.write)
            os.waitpid(self.pid, 0)
            self.pid = 0


def copy(source: str, target: str, suffix: str = "") -> None:
    """What an instance or a snapshot of one has written. Raises HostError."""
    for tree in restoring.TREES:
        if tree == "upper" or os.path.isdir(f"{source}/{tree}"):
            copy_tree(f"{source}/{tree}", f"{target}/{tree}{suffix}")


def copy_tree(source: str, target: str) -> None:
    """All of a tree with owners, links, nodes and attributes; blocks are shared where the filesystem can. Raises HostError."""
    done = subprocess.run(
        ["cp", "--archive", "--reflink=auto", "--no-target-directory", source, target],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostError(f"`{source}` cannot be copied: {said.removeprefix('cp: ')}", hint="is there space left?")


def _path(name: str, snapshot: str) -> str:
    path = f"{folder(name)}/{check_name(snapshot)}"
    if not os.path.isdir(path):
        known = ", ".join(row["name"] for row in listing(name))
        raise NotFoundError(
            f"`{name}` has no snapshot `{snapshot}`", hint=f"there are: {known}" if known else "it has none"
        )
    return path


def restore(name: str, snapshot: str) -> None:
    """Put a stopped instance's files, keys and devices back to what they were. Raises NotFoundError, ConflictError, SpecError."""
    with record.lock(name):
        running = repair.instance(name)
        _tidy(name)
        source = _path(name, snapshot)
        if running:
            raise ConflictError(f"`{name}` is running", hint=f"ctrmgr stop {name}")
        own = record.Record(name)
        rows = state.read_flat(f"{source}/config")
        own.config = {row[1]: row[2] for row in rows if row[0] == "config"}
        own.devices = {}
        for row in rows:
            if row[0] == "device":
                own.devices.setdefault(row[1], {})[row[2]] = row[3]
        plan = configure.compiled(own)
        try:
            copy(source, own.path, restoring.RESTORED)
            if os.path.isdir(f"{own.path}/tpm"):
                state.make_dir(f"{own.path}/tpm{restoring.RESTORED}", 0o700)  # it may have had none then
            state.write_flat(f"{own.path}/config{restoring.RESTORED}", own.flat())
            state.write_flat(f"{own.path}/plan{restoring.RESTORED}", plan)
            crash("restore-copied")
            state.write_flat(f"{own.path}/restore", [["snapshot", snapshot]])
        except BaseException:
            _tidy(name)
            raise
        crash("restore-decided")
        restoring.finish(own.path)


def _tidy(name: str) -> None:
    """Remove what dead commands left; the caller holds the lock."""
    home = record.home(name)
    for left in [entry for entry in state.entries(folder(name)) if entry[0] == "."]:
        record.remove_tree(f"{folder(name)}/{left}")
    if not os.path.exists(f"{home}/restore"):
        for tree in restoring.TREES:
            record.remove_tree(f"{home}/{tree}{restoring.RESTORED}")
        for each in ("plan", "config"):
            state.unlink(f"{home}/{each}{restoring.RESTORED}")


def delete(name: str, snapshot: str) -> None:
    """Raises NotFoundError."""
    with record.lock(name):
        repair.instance(name)
        _tidy(name)
        path = _path(name, snapshot)
        aside = f"{folder(name)}/.del-{snapshot}"
        os.rename(path, aside)
        crash("snapshot-del")
        record.remove_tree(aside)
