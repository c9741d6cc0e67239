# SPDX-License-Identifier: GPL-3.0-or-later
"""What is on disk: where it lies, how it is read, written, locked and claimed.

Everything here is on the hot path. There is no log to replay after a crash: names are the journal (see
`docs/concepts/design.md`, "Crash only").
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ctrmgr.errors import ConflictError, CtrmgrError, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType


def state_dir() -> str:
    """Instances, images and claims: what outlives a reboot."""
    return _place("CTRMGR_STATE_DIR", "/var/lib/ctrmgr", "XDG_DATA_HOME", ".local/share")


def run_dir() -> str:
    """What runs now. Gone after a reboot."""
    if os.geteuid() == 0:
        return os.environ.get("CTRMGR_RUN_DIR") or "/run/ctrmgr"
    return _place("CTRMGR_RUN_DIR", "", "XDG_RUNTIME_DIR", ".cache")


def config_dir() -> str:
    """The administrator's, or the user's own, profiles and settings."""
    return _place("CTRMGR_CONFIG_DIR", "/etc/ctrmgr", "XDG_CONFIG_HOME", ".config")


def _place(override: str, roots: str, xdg: str, home: str) -> str:
    chosen = os.environ.get(override)
    if chosen:
        return os.path.abspath(chosen)
    if os.geteuid() == 0 and roots:
        return roots
    base = os.environ.get(xdg) or os.path.join(os.path.expanduser("~"), home)
    return os.path.join(base, "ctrmgr")


def libexec_dir() -> str:
    """Where the native helpers are: beside the installed package, or where `CTRMGR_LIBEXEC` says."""
    return os.environ.get("CTRMGR_LIBEXEC") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "_libexec")


def cgroup_parent() -> str:
    """The cgroup below which instances get theirs, relative to each hierarchy."""
    return os.environ.get("CTRMGR_CGROUP_PARENT") or "ctrmgr"


# Flat files


END = "end\n"
"""The last line of every flat file: one that was cut off, even between two lines, is told from a whole one."""
COUNTED = b"\n" + END.encode()


def read_flat(path: str) -> list[list[str]]:
    """The rows of a flat file, as far as they count: what was added after the last `end` does not yet.

    Raises FileNotFoundError, HostError when it cannot be read, and CtrmgrError naming file and line when it is corrupt.
    """
    data = _read(path)
    if COUNTED in data:
        data = data[: data.rfind(COUNTED) + len(COUNTED)]
    text = _text(path, data)
    if text == END:
        return []
    if not text.endswith("\n" + END):
        raise corrupt(path, text.count("\n") + 1, "is cut off")
    rows = _rows(path, text[: -len(END) - 1])
    return [row for row in rows if row != ["end"]] if data.count(COUNTED) > 1 else rows


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = block = os.read(fd, 1 << 16)
            while len(block) == 1 << 16:
                block = os.read(fd, 1 << 16)
                data += block
            return data
        finally:
            os.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def _text(path: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise corrupt(path, data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None
    if "\0" in text:
        raise corrupt(path, text[: text.index("\0")].count("\n") + 1, "holds a NUL")
    return text


def _rows(path: str, text: str) -> list[list[str]]:
    rows = [line.split("\t") for line in text.split("\n")]
    if "\\" in text:
        rows = [[_unescape(field, path, number) for field in row] for number, row in enumerate(rows, 1)]
    return rows


class Addition:
    """Rows behind the last `end` of a flat file: they count once `count` has written theirs, and `drop` takes them away.

    Nothing is replaced, so that nothing waits for a disk; and whatever kills us, or the power, leaves a file that is whole, perhaps
    with a tail that does not count. The caller holds a lock. Raises HostError.
    """

    __slots__ = ("fd", "path", "size")

    def __init__(self, path: str, rows: Iterable[Sequence[str]]) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise unwritable(path, error) from error
        self.size = os.fstat(self.fd).st_size
        if os.pread(self.fd, len(COUNTED), self.size - len(COUNTED)) != COUNTED:
            os.close(self.fd)
            raise corrupt(path, 1, "does not end with `end`")
        try:
            self._write(dump_flat(rows)[: -len(END)])
        except BaseException:
            self.drop()
            raise

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except OSError as error:
            raise unwritable(self.path, error) from error

    def count(self) -> None:
        try:
            self._write(END.encode())
        finally:
            os.close(self.fd)

    def drop(self) -> None:
        try:
            os.ftruncate(self.fd, self.size)
        finally:
            os.close(self.fd)


def has_tail(path: str) -> bool:
    """Whether there is something behind the last `end` of a flat file: its writer is at it, or died."""
    try:
        data = _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return COUNTED in data and not data.endswith(COUNTED)


def tail(path: str) -> list[list[str]]:
    """The rows that do not count yet. Raises CtrmgrError when they were not written to their end, as `read_flat` does."""
    text = _text(path, _read(path).rpartition(COUNTED)[2])
    if not text.endswith("\n"):
        raise corrupt(path, text.count("\n") + 1, "is cut off")
    return _rows(path, text[:-1])


def end_tail(path: str, *, counts: bool) -> None:
    """What a dead writer has added counts from now on, or is taken away. Raises HostError."""
    data, counted, more = _read(path).rpartition(COUNTED)
    if not counted or not more:
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if counts:
                os.write(fd, END.encode())
            else:
                os.ftruncate(fd, len(data) + len(counted))
        finally:
            os.close(fd)
    except OSError as error:
        raise unwritable(path, error) from error


def corrupt(path: str, line: int, reason: str) -> CtrmgrError:
    """The error for a state file that cannot be understood. The file is left as it is."""
    return CtrmgrError(
        f"`{path}` is corrupt: line {line} {reason}",
        hint="nothing was changed; restore the file from a backup, or move it away and make the object again",
    )


def _unescape(field: str, path: str, line: int) -> str:
    if "\\" not in field:
        return field
    out, index = [], 0
    while index < len(field):
        letter = field[index]
        if letter == "\\":
            index += 1
            letter = {"\\": "\\", "t": "\t", "n": "\n"}.get(field[index : index + 1], "")
            if not letter:
                raise corrupt(path, line, "has an unknown escape")
        out.append(letter)
        index += 1
    return "".join(out)


def dump_flat(rows: Iterable[Sequence[str]]) -> bytes:
    """The bytes of a flat file. Raises ValueError for a NUL, which no field may hold."""
    rows = list(rows)
    lines = ["\t".join(row) for row in rows]
    text = "\n".join([*lines, END])
    if "\\" in text or text.count("\n") != len(rows) + 1 or text.count("\t") != sum(map(len, rows)) - len(rows):
        text = "\n".join([*("\t".join(map(_escape, row)) for row in rows), END])
    if "\0" in text:
        raise ValueError("a NUL in a flat file")
    return text.encode()


def _escape(field: str) -> str:
    if "\\" in field or "\t" in field or "\n" in field:
        return field.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
    return field


def write_flat(path: str, rows: Iterable[Sequence[str]]) -> None:
    """Replace `path` whole: a reader sees the old rows or the new ones. Raises HostError when it cannot be written."""
    write_file(path, dump_flat(rows))


def write_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace a file whole, by a rename. Raises HostError."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        unlink(temporary)
        raise unwritable(path, error) from error


def replaceable(path: str) -> bool:
    """Whether a rename may take the place of `path`: nothing is there, or a plain file. A device is written to."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return True


def write_output(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write where the user says: a file is replaced whole; what is no plain file (`/dev/stdout`, a pipe, a link) is written
    to, never replaced. Raises HostError."""
    if replaceable(path):
        write_file(path, data, mode)
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise unwritable(path, error) from error


CURES = {
    errno.EACCES: "run it as root",
    errno.EPERM: "run it as root",
    errno.EROFS: "the filesystem is read-only; set CTRMGR_STATE_DIR to another place",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EIO: "see the kernel's log: the disk may be failing",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "the whole machine has too many open files",
    errno.ENOMEM: "free some memory",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ELOOP: "look for a symlink that leads to itself",
}
"""What the world, and not a bug, may answer to anything; with the cure."""


def unwritable(path: str, error: OSError) -> HostError:
    """The error for a state file or directory that the kernel does not let us change."""
    return HostError(f"`{path}` cannot be written: {error.strerror}", hint=CURES.get(error.errno or 0))


def unreadable(path: str, error: OSError) -> HostError:
    """The error for one that it does not let us read."""
    return HostError(f"`{path}` cannot be read: {error.strerror}", hint=CURES.get(error.errno or 0))


def entries(folder: str) -> list[str]:
    """What is in a folder; nothing when there is none. Raises HostError."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def unlink(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def make_dir(path: str, mode: int = 0o711) -> None:
    """Make a directory and its parents. Raises HostError."""
    try:
        os.makedirs(path, mode, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


# Locks and claims


class Lock:
    """`flock` on a directory, for as long as the `with` block runs; the kernel releases it whatever kills us.

    A directory that was renamed or removed while we waited is not the one that was asked for: FileNotFoundError.
    With `wait=False` a lock that somebody else holds is a ConflictError. HostError when we may not open it.
    """

    __slots__ = ("fd", "path", "shared", "wait")

    def __init__(self, path: str, *, shared: bool = False, wait: bool = True) -> None:
        self.path, self.shared, self.wait = path, shared, wait
        self.fd = -1

    def __enter__(self) -> Lock:
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise unwritable(self.path, error) from error
        how = (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | (0 if self.wait else fcntl.LOCK_NB)
        try:
            fcntl.flock(self.fd, how)
            held, named = os.fstat(self.fd), os.stat(self.path)
            if (held.st_ino, held.st_dev) != (named.st_ino, named.st_dev):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        except BlockingIOError:
            self._close()
            raise ConflictError(
                f"`{self.path}` is in use by another command", hint="try again when it is done"
            ) from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        os.close(self.fd)
        self.fd = -1


def is_locked(path: str) -> bool:
    """Whether somebody holds an exclusive `flock` on `path`; False when there is no such file.

    This is how a running instance is told from a dead one: its monitor holds the lock on `RUN/NAME/state`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def claim(kind: str, keys: Iterable[str], owner: str) -> str | None:
    """Take the first key of `keys` that nobody has, for `owner`; None when all are taken.

    A claim is a symlink `STATE/<kind>/<key>` to the owner's name: made in one step, and it says who holds it.
    """
    folder = f"{state_dir()}/{kind}"
    make_dir(folder)
    with Lock(folder):
        taken = set(os.listdir(folder))
        for key in keys:
            if key not in taken:
                try:
                    os.symlink(owner, f"{folder}/{key}")
                except OSError as error:
                    raise unwritable(f"{folder}/{key}", error) from error
                return key
    return None


def claims(kind: str) -> dict[str, str]:
    """All claims of a kind: key to owner. Who holds one that is no symlink (any more) is not known: ""."""
    folder = f"{state_dir()}/{kind}"
    return {key: _owner(f"{folder}/{key}") for key in entries(folder)}


def _owner(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""  # given back since it was listed
    except OSError as error:
        if error.errno == errno.EINVAL:
            return ""
        raise unreadable(path, error) from error


def release(kind: str, owner: str) -> None:
    """Give back whatever `owner` holds of a kind."""
    folder = f"{state_dir()}/{kind}"
    for key, holder in claims(kind).items():
        if holder == owner:
            unlink(f"{folder}/{key}")
