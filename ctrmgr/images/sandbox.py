# SPDX-License-Identifier: GPL-3.0-or-later
"""Where foreign archives are read: a process that sees one directory and nothing else.

It has its own user, mount, pid, network, ipc and uts namespaces; its root directory is the staging directory; of root's
powers it keeps those over owners and modes of that directory's files. It can make no device node, reach no other file,
signal no process. An exploited decompressor finds itself in an empty room.

The ids 0–65535 are mapped to themselves, so that the files get the image's own owners.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal

from ctrmgr import errors
from ctrmgr.errors import CtrmgrError, HostError
from ctrmgr.kernel import prctl
from ctrmgr.kernel import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

IDS = 65536
MEMORY = 2 << 30
"""Bytes that a task may allocate: decoders of hostile input ask for anything."""
KEPT = (sc.CAP_CHOWN, sc.CAP_DAC_OVERRIDE, sc.CAP_FOWNER, sc.CAP_FSETID, sc.CAP_SYS_CHROOT, sc.CAP_SETFCAP)
NAMESPACES = sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS

Result = dict[str, str]


class Sandbox:
    """A running task. `wait()` returns what it returned, or raises what it raised.

    `fds` stay open inside, every other descriptor but the standard three is closed there. `tools` are directories
    or files of the host that are seen, read-only, at `/NAME` (`{"usr": "/usr"}`); the staging directory is then
    `/image`, else `/`.
    Raises HostError when the host cannot make the namespaces.
    """

    def __init__(
        self, root: str, task: Callable[[], Result], *, fds: Sequence[int] = (), tools: dict[str, str] | None = None
    ) -> None:
        if os.geteuid() != 0:
            raise HostError("unpacking an image needs root", hint="run it with sudo")
        go_read, go_write = os.pipe()
        self._result, result_write = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go_write)
            os.close(self._result)
            _outer(root, task, (*fds, go_read, result_write), go_read, result_write, tools or {}, parent)
        os.close(go_read)
        os.close(result_write)
        self._go = go_write

    def wait(self, tick: Callable[[], None] | None = None) -> Result:
        """Let it run to its end; `tick` is called ten times a second.

        Raises what the task raised; HostError when it died.
        """
        try:
            reply = os.read(self._result, 1)
            if reply == b"u":  # its namespaces are made; anything else is the reason why not
                reply = b""
                self._map_ids()
            self._close_go()
            while True:
                if tick and not select.select([self._result], [], [], 0.1)[0]:
                    tick()
                    continue
                data = os.read(self._result, 65536)
                if not data:
                    break
                reply += data
        except BaseException:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise
        finally:
            self._close_go()
            os.close(self._result)
        _, status = os.waitpid(self.pid, 0)
        return _answer(reply, status)

    def _close_go(self) -> None:
        if self._go >= 0:
            os.close(self._go)
            self._go = -1

    def _map_ids(self) -> None:
        try:
            for name in ("gid_map", "uid_map"):
                with open(f"/proc/{self.pid}/{name}", "w") as file:
                    file.write(f"0 0 {IDS}")
        except OSError as error:
            raise HostError(
                f"cannot map the ids 0–{IDS - 1} for unpacking: {error.strerror}",
                hint="inside another container, give that one at least 65536 ids",
            ) from error
        os.write(self._go, b"g")


def _answer(reply: bytes, status: int) -> Result:
    if not reply:
        number = os.waitstatus_to_exitcode(status)
        raise HostError(f"the unpacking process died ({number})", hint="is there enough memory?")
    answer = json.loads(reply)
    if "error" not in answer:
        return {str(key): str(value) for key, value in answer.items()}
    kind = getattr(errors, answer["error"], CtrmgrError)
    raise kind(answer["message"], hint=answer["hint"])


def _outer(
    root: str,
    task: Callable[[], Result],
    fds: Sequence[int],
    go: int,
    result: int,
    tools: dict[str, str],
    parent: int,
) -> NoReturn:
    """First child: makes the namespaces, then waits for the second, which is pid 1 in them."""
    code = 1
    try:
        _close_others(fds)
        os.setsid()
        sc.unshare(NAMESPACES)
        os.write(result, b"u")
        if os.read(go, 1) != b"g":
            os._exit(1)
        os.close(go)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # The credentials changed, which clears it; and the parent may be gone by now.
        prctl.set_pdeathsig(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        _enter(root, tools)
        inner = os.fork()
        if inner == 0:
            _inner(task, result)
        os.close(result)
        code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
    except OSError as error:
        text = f"the host cannot isolate the unpacking: {error.strerror} ({error.filename or 'namespaces'})"
        _report(result, {"error": "UnsupportedError", "message": text, "hint": "user namespaces must be allowed"})
    finally:
        os._exit(code & 0xFF)


def _inner(task: Callable[[], Result], result: int) -> NoReturn:
    """Second child: gives up what it does not need and does the work."""
    code = 1
    try:
        prctl.set_pdeathsig(signal.SIGKILL)
        for signum in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_DFL)
        prctl.set_no_new_privs()
        for capability in range(64):
            try:
                if capability not in KEPT:
                    prctl.capbset_drop(capability)
            except OSError:
                break  # beyond the kernel's last one
        sc.capset(sum(1 << capability for capability in KEPT))
        os.umask(0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _report(result, task())
        code = 0
    except CtrmgrError as error:
        _report(result, {"error": type(error).__name__, "message": error.message, "hint": error.hint})
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = "the disk is full" if full else f"{error.strerror}: `{error.filename}`"
        hint = "free some space where ctrmgr keeps its state" if full else None
        _report(result, {"error": "HostError", "message": f"unpacking failed: {text}", "hint": hint})
    finally:
        os._exit(code)


def _report(fd: int, answer: object) -> None:
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(fd, data) :]


def _close_others(fds: Sequence[int]) -> None:
    last = 2
    for fd in sorted(fds):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, 1 << 20)


def _enter(root: str, tools: dict[str, str]) -> None:
    """Make `root` (with the tools, a tmpfs that holds them and it) the root directory; unmount everything else."""
    sc.mount("", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
    top = root
    if tools:
        top = root + "/.room"
        os.mkdir(top)
        sc.mount("tmpfs", top, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=16m")
        for name, source in tools.items():
            _show(source, f"{top}/{name}")
        os.mkdir(top + "/image")
        sc.mount(root, top + "/image", flags=sc.MS_BIND)
    else:
        sc.mount(root, root, flags=sc.MS_BIND)
    os.chdir(top)
    sc.pivot_root(".", ".")
    sc.umount2(".", sc.MNT_DETACH)
    os.chdir("/")


def _show(source: str, target: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    # Recursive: what is mounted below is locked to it in a new user namespace and cannot be left out.
    sc.mount(source, target, flags=sc.MS_BIND | sc.MS_REC)
    # With every id mapped to itself, root in here could otherwise write to the host's files.
    sc.mount_setattr(target, sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV)
