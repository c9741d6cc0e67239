# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance on disk: what the user asked for (`config`) and the compiled plan, changed together or not at all. Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANEW = "device-as-it-was"
"""In an instance's directory while a device of it is taken and given anew with other keys."""
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def check_name(name: str) -> str:
    """An instance's name is a hostname label, as LXD has it. Raises SpecError."""
    if not name or len(name) > 63 or not LETTERS.issuperset(name) or name[0] in "-0123456789" or name[-1] == "-":
        raise SpecError(
            f"`{name}` cannot be the name of an instance",
            hint="1 to 63 letters, digits and hyphens; it begins with a letter and does not end with a hyphen",
        )
    return name


def instances_dir() -> str:
    return f"{state.state_dir()}/instances"


def close_instances() -> None:
    """Nobody but root gets at instances' files: what an instance's root makes set-id is root's on the disk, and so would be
    whoever of the host ran it. Raises HostError."""
    folder = instances_dir()
    state.make_dir(folder, 0o700)
    try:
        os.chmod(folder, 0o700)  # it may be there from before
    except OSError as error:
        raise state.unwritable(folder, error) from error


def home(name: str) -> str:
    return f"{instances_dir()}/{name}"


def run_home(name: str) -> str:
    return f"{state.run_dir()}/{name}"


def notes(name: str) -> str:
    """The file with limits of devices that are there for this run only."""
    return f"{state.run_dir()}/.limits/{name}"


def is_running(name: str) -> bool:
    """Whether the instance has a living monitor."""
    return state.is_locked(f"{run_home(name)}/state")


def names() -> list[str]:
    """All instances, sorted."""
    return sorted(name for name in state.entries(instances_dir()) if name[0] != ".")


def unknown(name: str) -> NotFoundError:
    """The error for an instance that is not there; the hint is the nearest name."""
    from difflib import get_close_matches

    try:
        near = get_close_matches(name, names(), 1)
    except HostError:  # others' instances: none of the caller's business
        near = []
    hint = f"did you mean `{near[0]}`?" if near else "`ctrmgr list` shows what there is"
    return NotFoundError(f"no instance `{name}`", hint=hint)


def running(name: str) -> str:
    """The run directory of a running instance. Raises NotFoundError, ConflictError."""
    check_name(name)
    if not is_running(name):
        if not os.path.isdir(home(name)):
            raise unknown(name)
        raise ConflictError(f"`{name}` is not running", hint=f"`ctrmgr start {name}`")
    return run_home(name)


class Record:
    """The `config` file of an instance, in memory. Rows that this version does not know are kept."""

    __slots__ = ("config", "devices", "ephemeral", "image", "name", "path", "profiles", "ref", "rows")

    def __init__(self, name: str) -> None:
        self.name, self.path = name, home(check_name(name))
        try:
            self.rows = state.read_flat(f"{self.path}/config")
        except (FileNotFoundError, NotADirectoryError):
            raise unknown(name) from None
        self.config: dict[str, str] = {}
        self.devices: dict[str, dict[str, str]] = {}
        self.profiles: list[str] = []
        self.image = self.ref = ""
        self.ephemeral = False
        for number, row in enumerate(self.rows, 1):
            try:
                self._row(row)
            except IndexError:
                raise state.corrupt(f"{self.path}/config", number, "has too few fields") from None
        if not self.image:
            raise state.corrupt(f"{self.path}/config", len(self.rows), "ends without an image")

    def _row(self, row: Sequence[str]) -> None:
        if row[0] == "config":
            self.config[row[1]] = row[2]
        elif row[0] == "device":
            self.devices.setdefault(row[1], {})[row[2]] = row[3]
        elif row[0] == "profile":
            self.profiles.append(row[1])
        elif row[0] == "image":
            self.image, self.ref = row[1], row[2]
        elif row[0] == "ephemeral":
            self.ephemeral = row[1] == "1"

    def flat(self) -> list[list[str]]:
        """The file's rows with the keys and devices as they are now."""
        rows = [row for row in self.rows if row[0] not in ("config", "device")]
        rows += [["config", key, value] for key, value in self.config.items()]
        rows += [["device", name, key, value] for name, given in self.devices.items() for key, value in given.items()]
        return rows

    def plan(self) -> list[list[str]]:
        """The compiled plan. Raises CtrmgrError when it is missing or corrupt."""
        return read_plan(self.path)


def left_out(name: str) -> list[str]:
    """Why limits of an instance that is just made are not in force; nothing when it is gone already."""
    try:
        with open(f"{home(name)}/plan", "rb") as file:
            text = file.read()
    except OSError:
        return []
    if b"\nleft-out\t" not in text and b"\ngpu-limit\t" not in text:
        return []
    from ctrmgr.backend import limits

    return limits.left_out(read_plan(home(name)))


FIELDS = {"device": 10, "uidmap": 4, "gidmap": 4, "layer": 2, "cgroup": 2, "cgroup-file": 4, "link": 6, "address": 4,
          "name": 2, "hostname": 2, "bind": 5, "filesystem": 7, "device-group": 3, "device-env": 4, "identity": 4, "lease": 4, "device-limit": 5, "link-limit": 5,
          "shares": 3, "request": 6, "follows-devices": 2, "left-out": 4}  # fmt: skip
"""How many fields the rows have that are looked at here; the monitor checks them all."""


def read_plan(path: str, name: str = "plan") -> list[list[str]]:
    """The rows of a plan. Raises CtrmgrError when it is missing or corrupt, HostError when it cannot be read."""
    file = f"{path}/{name}"
    try:
        rows = state.read_flat(file)
        if not rows or rows[0] != ["ctrmgr-plan", "1"]:
            raise state.corrupt(file, 1, "is not a run plan of version 1")
        for number, row in enumerate(rows, 1):
            if len(row) != FIELDS.get(row[0], len(row)):
                raise state.corrupt(file, number, f"has {len(row)} fields")
    except FileNotFoundError:
        raise CtrmgrError(f"`{file}` is missing", hint=_again(path)) from None
    except HostError:
        raise
    except CtrmgrError as error:
        raise CtrmgrError(error.message, hint=_again(path)) from None
    return rows


def _again(path: str) -> str:
    return f"`ctrmgr restart {path.rpartition('/')[2]}` makes it again from the instance's own keys and its profiles"


# A change of both files, or (`Added`) more of both. The order of the steps is the journal: `plan.new` alone, or with a `config.new` that is cut off, was
# never complete; both together may be finished or dropped; `config.new` alone must be finished.


def stage(record: Record, plan: Sequence[Sequence[str]]) -> None:
    """Write both files aside."""
    # With its blocks given beforehand: where a rename replaces a file, ext4 writes the new one out at once (0.3 ms), which
    # only the config needs. A plan that a power cut has damaged is compiled again from it.
    _aside(f"{record.path}/plan.new", plan, allocated=True)
    _aside(f"{record.path}/config.new", record.flat(), allocated=False)


def _aside(path: str, rows: Sequence[Sequence[str]], *, allocated: bool) -> None:
    data = state.dump_flat(rows)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if allocated:
                os.posix_fallocate(fd, 0, len(data))
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
    except OSError as error:
        raise state.unwritable(path, error) from error


class Added:
    """A device that comes: its keys and its rows at the end of both files, which only count when `finish` has said so.

    Whatever is half done, `config` has a tail: it is written first, and counts last.
    """

    __slots__ = ("parts",)

    def __init__(self, record: Record, device: str, values: Mapping[str, str], rows: Sequence[Sequence[str]]) -> None:
        keys = [["device", device, key, value] for key, value in values.items()]
        config = state.Addition(f"{record.path}/config", keys)
        try:
            self.parts = (state.Addition(f"{record.path}/plan", rows), config)
        except BaseException:
            config.drop()
            raise

    def finish(self) -> None:
        for part in self.parts:
            part.count()

    def drop(self) -> None:
        for part in self.parts:
            part.drop()


def finish(path: str) -> None:
    """Put both in place."""
    for name in ("plan", "config"):
        try:
            os.rename(f"{path}/{name}.new", f"{path}/{name}")
        except FileNotFoundError:
            pass


def drop(path: str) -> None:
    """Forget both."""
    state.unlink(f"{path}/config.new")
    state.unlink(f"{path}/plan.new")


def lock(name: str) -> state.Lock:
    """The instance's lock: commands on one instance follow each other. Raises NotFoundError, SpecError."""
    return InstanceLock(name)


class InstanceLock(state.Lock):
    """A lock on the instance's directory that speaks of the instance."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(home(check_name(name)))
        self.name = name

    def __enter__(self) -> state.Lock:
        try:
            return super().__enter__()
        except (FileNotFoundError, NotADirectoryError):
            raise unknown(self.name) from None


def crash(step: str) -> None:
    """Die here when a test asks for it by `CTRMGR_CRASH_AT`: a command must be killable between any two steps."""
    if os.environ.get("CTRMGR_CRASH_AT") == step:
        os.kill(os.getpid(), 9)


def remove_tree(path: str) -> None:
    """Remove a directory and all below it. Symlinks are removed, not followed. Raises HostError."""
    try:
        _empty(path)
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise state.unwritable(path, error) from error


def _empty(path: str) -> None:
    # By descriptors: an instance may have made paths longer than PATH_MAX.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    stack = [(fd, "")]
    try:
        while stack:
            fd, _ = stack[-1]
            below = None
            with os.scandir(fd) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=fd)
                        continue
                    try:
                        os.rmdir(entry.name, dir_fd=fd)
                    except OSError:
                        below = entry.name
                        break
            if below is not None:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                stack.append((os.open(below, flags, dir_fd=fd), below))
                continue
            fd, name = stack.pop()
            os.close(fd)
            if stack:
                os.rmdir(name, dir_fd=stack[-1][0])
    finally:
        for fd, _ in stack:
            os.close(fd)
