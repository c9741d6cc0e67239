# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a `createContainer` hook runs: a program of the host's, as the instance's root. Cold.

OCI has these run in the container's namespaces while the host's tree is still the root directory. An instance is in its own tree from
the start, so a room is made: a mount namespace with the host's tree, read-only, without device nodes, and without what is in `/run`,
where the bundle is instead, whose `rootfs` is the instance's tree. User, network, IPC, UTS and cgroup namespaces are the instance's.

The instance's root must not get at the program, which has the host's files in sight: it is in a process namespace of its own, where it
is process 1. Nobody inside sees it, and all that it has started ends with it.
"""

from __future__ import annotations

import os
import signal

from ctrmgr.kernel import prctl
from ctrmgr.kernel import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

BUNDLE = "/run/ctrmgr"
ROOT = "rootfs"
"""The instance's tree, in the bundle."""
NODES = ("null", "zero", "full", "random", "urandom")
JOINED = sc.CLONE_NEWUSER | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | sc.CLONE_NEWCGROUP
FAILED = 125
CONFIG = b'{"ociVersion": "1.0.2", "root": {"path": "rootfs"}}\n'


class Room:
    """`with Room(…) as room`: `room.enter()` is called in a process that is to become the hook. `tree` is a process that has the
    instance's tree for its root, `init` the one whose namespaces are joined. Raises OSError when one of them is gone."""

    def __init__(self, tree: int, init: int) -> None:
        self._opened: list[int] = []
        try:
            for pid in (tree, init):
                self._opened.append(sc.pidfd_open(pid))
            self._opened.append(os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self.__exit__()
            raise

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._opened:
            os.close(fd)

    def enter(self) -> None:
        """Returns in the process that execs; the one that it was called in waits for that, and ends as it does."""
        try:
            self._mounts()
            self._become()
            pid = os.fork()
            if pid:
                _wait(pid)
            prctl.set_pdeathsig(signal.SIGKILL)
            os.chdir(BUNDLE)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            os.write(2, f"the instance cannot be entered: {error.strerror}{where}\n".encode())
            os._exit(FAILED)

    def _mounts(self) -> None:
        tree_of, _, host = self._opened
        sc.setns(tree_of, sc.CLONE_NEWNS)
        tree = sc.open_tree("/")
        sc.setns(host, sc.CLONE_NEWNS)
        sc.unshare(sc.CLONE_NEWNS)
        sc.mount("", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
        sc.mount_setattr("/", sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV)
        for name in NODES:
            sc.mount(f"/dev/{name}", f"/dev/{name}", flags=sc.MS_BIND)
            sc.mount_setattr(f"/dev/{name}", 0, sc.MOUNT_ATTR_NODEV)
        sc.mount("tmpfs", "/run", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=1m")
        os.umask(0o022)
        os.makedirs(f"{BUNDLE}/{ROOT}")
        with open(f"{BUNDLE}/config.json", "xb") as file:
            file.write(CONFIG)
        sc.move_mount(tree, f"{BUNDLE}/{ROOT}")
        sc.mount("", f"{BUNDLE}/{ROOT}", flags=sc.MS_REC | sc.MS_PRIVATE)

    def _become(self) -> None:
        sc.join_session_keyring()  # not the caller's: root's keys are in it
        sc.setns(self._opened[1], JOINED)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # From here on the mounts are the instance's root's as well, and those of above locked.
        sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWPID)
        prctl.set_pdeathsig(signal.SIGKILL)


def _wait(pid: int) -> NoReturn:
    os.closerange(0, 1 << 20)  # among them what tells the caller that the program runs
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
