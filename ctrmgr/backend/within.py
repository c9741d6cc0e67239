# SPDX-License-Identifier: GPL-3.0-or-later
"""Work on an instance's files, done by a process that sees these and nothing else, with the owners that they have inside.

In a running instance it joins the user and mount namespaces of init: what container root may do is what it may do, and symlinks lead
where they lead inside. The tree of a stopped one is mounted for it alone. Of root's powers it keeps those over owners and modes,
and it can load no code: what lies where Python's modules would be is the instance's. Cold.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import signal
import sys

from ctrmgr import entries
from ctrmgr.backend import record, repair
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, SpecError, UnsupportedError
from ctrmgr.images import store
from ctrmgr.images.treetar import TreeTar
from ctrmgr.kernel import control, prctl
from ctrmgr.kernel import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import NoReturn, TypeVar

    T = TypeVar("T")

KEPT = (sc.CAP_CHOWN, sc.CAP_DAC_OVERRIDE, sc.CAP_FOWNER, sc.CAP_FSETID)
CODECS = ("ascii", "latin-1", "utf-8")


def pull(name: str, path: str, *, recursive: bool, say: Callable[[str], None]) -> Iterator[entries.Entry]:
    """What is at a path in an instance. Raises NotFoundError, SpecError, HostError."""
    read_fd, write_fd = os.pipe()

    def task(notes: Callable[[str], None]) -> None:
        found = entries.read(_rooted(path), recursive=recursive, say=notes)
        entries.send(lambda data: _write_all(write_fd, data), found)

    yield from _reading(name, task, read_fd, write_fd, lambda fd: entries.Receiver(fd).entries(), say)


def push(name: str, path: str, found: Iterable[entries.Entry], *, parents: bool) -> None:
    """Write files to a path in an instance, with their owners. Raises NotFoundError, ConflictError, SpecError, HostError."""
    read_fd, write_fd = os.pipe()

    def task(notes: Callable[[str], None]) -> None:
        top = _rooted(path)
        if path.endswith("/") or os.path.isdir(top):
            raise ConflictError(f"`{path}` is a directory")
        entries.write(top, entries.Receiver(read_fd).entries(), owners=True, parents=parents)

    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(_Process(name, task, (read_fd,)))
        finally:
            os.close(read_fd)
        try:
            entries.send(lambda data: _write_all(write_fd, data), _owned(name, found))
        except BrokenPipeError:
            pass  # its own error says why
        finally:
            os.close(write_fd)
        process.wait()


def _owned(name: str, found: Iterable[entries.Entry]) -> Iterator[entries.Entry]:
    """The entries, all with owners that the instance has: of a stopped one the kernel would take any. Raises SpecError."""
    rows = [row for row in record.read_plan(record.home(name)) if row[0] in ("uidmap", "gidmap")]
    ranges = {
        kind: [range(int(row[1]), int(row[1]) + int(row[3])) for row in rows if row[0] == kind]
        for kind in ("uidmap", "gidmap")
    }
    for each in found:
        for number, kind, what in ((each.uid, "uidmap", "user"), (each.gid, "gidmap", "group")):
            if number >= 0 and not any(number in part for part in ranges[kind]):
                hint = "`ctrmgr info` shows its ids; --uid and --gid say others"
                raise SpecError(f"`{name}` has no {what} {number}", hint=hint)
        yield each


def is_directory(name: str, path: str) -> bool:
    """Whether there is a directory at a path in an instance. Raises NotFoundError, HostError."""
    found = False

    def task(notes: Callable[[str], None]) -> None:
        if os.path.isdir(_rooted(path)):
            notes("yes")

    def heard(_: str) -> None:
        nonlocal found
        found = True

    with _Process(name, task, ()) as process:
        process.wait(heard)
    return found


def tar(name: str, metadata: str) -> Iterator[bytes]:
    """A stopped instance as a unified image tarball, without compression. Raises ConflictError, HostError."""
    read_fd, write_fd = os.pipe()

    def task(notes: Callable[[str], None]) -> None:
        out = TreeTar(lambda data: _write_all(write_fd, data))
        out.text("metadata.yaml", metadata, 0)
        out.tree("/", "rootfs")
        out.end()

    def blocks(fd: int) -> Iterator[bytes]:
        while block := os.read(fd, entries.BLOCK):
            yield block

    return _reading(name, task, read_fd, write_fd, blocks, lambda text: None, stopped=True)


def _rooted(path: str) -> str:
    return "/" + path.strip("/")


def _reading(
    name: str,
    task: Callable[[Callable[[str], None]], None],
    read_fd: int,
    write_fd: int,
    read: Callable[[int], Iterator[T]],
    say: Callable[[str], None],
    *,
    stopped: bool = False,
) -> Iterator[T]:
    try:
        with contextlib.ExitStack() as stack:
            try:
                process = stack.enter_context(_Process(name, task, (write_fd,), stopped=stopped))
            finally:
                os.close(write_fd)
            try:
                yield from read(read_fd)
            except HostError:
                process.wait(say)  # which knows why the stream broke off
                raise
            process.wait(say)
    finally:
        os.close(read_fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class _Process:
    """The process. While it works on a stopped instance, that cannot start. `wait` raises what the task raised."""

    def __init__(
        self,
        name: str,
        task: Callable[[Callable[[str], None]], None],
        fds: Sequence[int],
        *,
        stopped: bool = False,
    ) -> None:
        self.name, self.task, self.fds, self.stopped = name, task, fds, stopped
        self.stack = contextlib.ExitStack()
        self.done = False

    def __enter__(self) -> _Process:
        if os.geteuid():
            raise HostError("an instance's files are root's to open", hint="run it with sudo")
        with self.stack:
            lock = self.stack.enter_context(contextlib.ExitStack())
            lock.enter_context(record.lock(self.name))
            running = repair.instance(self.name)
            if running and self.stopped:
                raise ConflictError(f"`{self.name}` is running", hint=f"ctrmgr stop {self.name}")
            enter = self._running() if running else self._mounted()
            self.answer, write = os.pipe()
            self.stack.callback(os.close, self.answer)
            for word in CODECS:
                codecs.lookup(word)
            self.pid = os.fork()
            if self.pid == 0:
                _work(enter, self.task, write, (*self.fds, write, *([self.pidfd] if running else [])))
            os.close(write)
            if running:
                lock.close()  # it may be stopped meanwhile, as it may under any command in it
            kept = self.stack.pop_all()
        self.stack = kept
        return self

    def _running(self) -> Callable[[], None]:
        _, init, *_ = control.ask(record.run_home(self.name), control.STATUS).status()
        if not init:
            raise ConflictError(f"`{self.name}` is not running")
        self.pidfd = sc.pidfd_open(init)
        self.stack.callback(os.close, self.pidfd)
        # Asked again: what was opened is its init, and nobody who has got the number since.
        if control.ask(record.run_home(self.name), control.STATUS).status()[1] != init:
            raise ConflictError(f"`{self.name}` is not running")
        return lambda: sc.setns(self.pidfd, sc.CLONE_NEWUSER | sc.CLONE_NEWNS)

    def _mounted(self) -> Callable[[], None]:
        own = record.Record(self.name)
        plan = own.plan()
        if ["shifted", "1"] in plan:
            raise UnsupportedError(
                f"`{self.name}` is stopped, and its files have the owners that they have on this host",
                hint="start it first: this kernel cannot map the owners of its image",
            )
        lower = store.load(own.image).rootfs
        return lambda: _mount(own.path, lower)

    def wait(self, say: Callable[[str], None] = lambda text: None) -> None:
        if self.done:
            return
        self.done = True
        told = b""
        while block := os.read(self.answer, 1 << 16):
            told += block
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        for line in told.splitlines():
            found = json.loads(line)
            if isinstance(found, str):
                say(found)
            else:
                raise entries.failure(found)
        if status:
            raise HostError(f"the process in `{self.name}` died ({status})")

    def __exit__(self, *_: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.stack.close()


def _mount(path: str, lower: str) -> None:
    """The tree of a stopped instance as this process' root."""
    sc.unshare(sc.CLONE_NEWNS)
    sc.mount("", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
    places = {"lowerdir": lower, "upperdir": f"{path}/upper", "workdir": f"{path}/work"}
    flags = sc.MS_NOSUID | sc.MS_NODEV
    if os.statvfs(path).f_flag & os.ST_RDONLY:  # it can be read all the same
        places = {"lowerdir": f"{_escaped(places['upperdir'])}:{_escaped(lower)}"}
        flags |= sc.MS_RDONLY
    else:
        places = {key: _escaped(place) for key, place in places.items()}
    sc.mount("overlay", path, "overlay", flags, ",".join(f"{key}={place}" for key, place in places.items()))
    os.chdir(path)
    sc.pivot_root(".", ".")
    sc.umount2(".", sc.MNT_DETACH)
    os.chdir("/")


def _escaped(path: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\,:" else letter for letter in path)


def _work(
    enter: Callable[[], None], task: Callable[[Callable[[str], None]], None], answer: int, fds: Sequence[int]
) -> NoReturn:
    code = 1
    try:
        prctl.set_pdeathsig(signal.SIGKILL)
        last = 2
        for fd in sorted(fds):
            os.closerange(last + 1, fd)
            last = fd
        os.closerange(last + 1, 1 << 20)
        enter()
        sys.path.clear()
        sys.meta_path.clear()
        sys.path_hooks.clear()
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        prctl.set_no_new_privs()
        sc.capset(sum(1 << capability for capability in KEPT))
        os.umask(0o022)
        prctl.set_pdeathsig(signal.SIGKILL)
        task(lambda text: _write_all(answer, json.dumps(text).encode() + b"\n"))
        code = 0
    except CtrmgrError as error:
        _tell(answer, error)
    except OSError as error:
        where = f"`{error.filename}`: " if error.filename else ""
        _tell(answer, HostError(f"{where}{error.strerror or error}"))
    except BaseException as error:
        _tell(answer, HostError(f"in the instance: {type(error).__name__}: {error}"))
    finally:
        os._exit(code)


def _tell(answer: int, error: CtrmgrError) -> None:
    entries.send_error(lambda data: _write_all(answer, data), error)
