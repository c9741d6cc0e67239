# SPDX-License-Identifier: GPL-3.0-or-later
"""Images come and go by a rename: `.new-…` is being filled, `.del-…` removed, by who holds its lock.

A directory of those names without a lock is what a killed command left; the next one that works on images removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import subprocess

from ctrmgr import state
from ctrmgr.errors import HostError
from ctrmgr.images import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Staging:
    """A directory that becomes an image by `commit`, or vanishes when the `with` block ends.

    Raises OSError (disk full, no permission) from its constructor and from commit().
    """

    def __init__(self) -> None:
        store.make_dirs()
        repair()
        self.path, self.fd = _locked_directory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove_tree(self.path)
        os.close(self.fd)

    def commit(self, fingerprint: str, metadata: dict[str, str]) -> bool:
        """Give it its name. False when somebody else made the same image meanwhile: theirs stays."""
        os.chmod(self.path, 0o700)
        os.chmod(self.path + "/rootfs", 0o755)
        state.write_flat(self.path + "/metadata", [(key, value) for key, value in metadata.items() if value])
        try:
            os.rename(self.path, f"{store.images_dir()}/{fingerprint}")
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True


def _locked_directory() -> tuple[str, int]:
    while True:
        path = f"{store.images_dir()}/.new-{secrets.token_hex(8)}"
        os.mkdir(path, 0o700)
        # Until the flock holds, somebody's repair may take it for a left-over: before the open and after it.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return path, fd
        os.close(fd)


def repair() -> list[str]:
    """Remove what killed commands left in the store; returns the names."""
    removed = []
    for name in state.entries(store.images_dir()):
        if not name.startswith((".new-", ".del-")):
            continue
        path = f"{store.images_dir()}/{name}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)
            removed.append(name)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
    return removed


def discard(path: str) -> None:
    """Take an image out of the store at once, then remove it. Raises OSError; the caller has its lock."""
    aside = f"{store.images_dir()}/.del-{secrets.token_hex(8)}"
    os.rename(path, aside)
    remove_tree(aside)


def remove_tree(path: str) -> None:
    """Remove a tree of any depth; no error when it is gone already. Raises HostError."""
    if not os.path.lexists(path):
        return
    # rmtree keeps a descriptor and a stack frame a level; a hostile archive is deeper than both.
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"cannot remove `{path}`: {done.stderr.strip()}")
