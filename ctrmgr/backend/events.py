# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to instances, as it happens, without anybody who would have to report it. Cold.

Notifications (inotify, pidfds, eventfds, uevents) only say where to look again; an event is a difference between two looks.
"""

from __future__ import annotations

import os
import select
import time

from ctrmgr import state
from ctrmgr.backend import given, record
from ctrmgr.backend.hearing import Hearing
from ctrmgr.errors import CtrmgrError
from ctrmgr.host import cgroup, counters
from ctrmgr.kernel import inotify, uevent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

TYPES = ("lifecycle", "device", "limit", "host")
PATIENCE = 0.5
"""Seconds that a monitor has to say which devices its instance has."""
CALM = 1.0
"""Seconds between two events of one counter: a limit may be hit a thousand times a second."""
SWEEP = 2.0
"""Seconds between looks at counters that the kernel does not notify of: those of cgroup v1."""
SILENT = ("memory.failcnt", "memory.memsw.failcnt")
MOVES = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO


class Event:
    """`type` is one of TYPES, or `monitor` for what concerns the watching itself; `event` says what happened."""

    __slots__ = ("details", "event", "instance", "type", "when")

    def __init__(self, type: str, event: str, instance: str = "", **details: object) -> None:
        self.when = time.time()
        self.type, self.event, self.instance, self.details = type, event, instance, details

    def fields(self) -> dict[str, object]:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.when))
        found: dict[str, object] = {
            "time": f"{whole}.{int(self.when % 1 * 1000):03d}Z",
            "type": self.type,
            "event": self.event,
        }
        if self.instance:
            found["instance"] = self.instance
        return {**found, **self.details}


class Seen:
    """An instance as it was at the last look. `started` is 0 when it does not run."""

    __slots__ = ("counts", "devices", "frozen", "inode", "monitor", "nodes", "started")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.started = self.monitor = 0
        self.frozen = False
        self.devices: given.Devices = {}
        self.nodes: given.Nodes = {}
        self.counts: dict[tuple[str, str], int] = {}


class Watcher:
    """Watches from its making on; `wait` gives what has happened since."""

    def __init__(self, wanted: Collection[str] = (), types: Collection[str] = TYPES) -> None:
        self.wanted = frozenset(map(record.check_name, wanted))
        self.types = frozenset(types)
        host = cgroup.read()
        self._mounts = {**host.v1, **({cgroup.UNIFIED: host.unified} if host.unified else {})}
        self._inotify = inotify.Inotify()
        self._poll = select.poll()
        self._poll.register(self._inotify.fd, select.POLLIN)
        self._uevents: uevent.Uevents | None = None
        if "host" in self.types:
            try:
                self._uevents = uevent.Uevents()
                self._poll.register(self._uevents, select.POLLIN)
            except OSError:
                pass  # nothing announces devices here
        self._hearing = Hearing("device" in self.types)
        self._poll.register(self._hearing.fd, select.POLLIN)
        self._tags: dict[int, tuple[str, str]] = {}
        self._fds: dict[int, tuple[str, str]] = {}
        self._seen: dict[str, Seen] = {}
        self._limits: dict[str, float] = {}
        self._silent: set[str] = set()
        self._swept = time.monotonic()
        for folder in (record.instances_dir(), state.run_dir()):
            state.make_dir(folder)
            self._watch(folder, MOVES, ("names", ""))
        self._refresh(record.names())

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._inotify.close()
        if self._uevents:
            self._uevents.close()
        self._hearing.close()

    # Waiting

    def wait(self, also: int = -1, timeout: float | None = None) -> list[Event] | None:
        """What has happened, once something has, and nothing after `timeout` seconds; None when the pipe `also` has lost its
        reader."""
        end = None if timeout is None else time.monotonic() + timeout
        if also >= 0:
            self._poll.register(also, 0)
        while True:
            found: list[Event] = []
            dirty: set[str] = set()
            self._hearing.ask()
            for fd, _ in self._poll.poll(self._timeout(end)):
                if fd == also:
                    return None
                if fd == self._inotify.fd:
                    self._files(found, dirty)
                elif fd in self._fds:
                    self._ready(fd, dirty)
                elif fd == self._hearing.fd:
                    found += [
                        Event("device", each.kind, each.instance, **each.details()) for each in self._hearing.read()
                    ]
                elif self._uevents:
                    self._host(found, self._uevents.read())
            found += self._refresh(dirty)
            found += self._due()
            found = [event for event in found if self._asked(event)]
            if found or (end is not None and time.monotonic() >= end):
                return found

    def _asked(self, event: Event) -> bool:
        if event.type == "monitor":
            return True
        if event.type not in self.types:
            return False
        return not self.wanted or event.instance in self.wanted or event.details.get("to") in self.wanted

    def _timeout(self, end: float | None) -> float | None:
        """Milliseconds; None is until something happens."""
        due = [
            *self._limits.values(),
            *([self._swept + SWEEP] if self._silent else []),
            *self._hearing.due(),
            *([] if end is None else [end]),
        ]
        return max(0.0, 1000 * (min(due) - time.monotonic())) + 1 if due else None

    def _watch(self, path: str, mask: int, tag: tuple[str, str]) -> None:
        try:
            self._tags[self._inotify.watch(path, mask)] = tag
        except FileNotFoundError:
            pass  # gone already: whatever watches its folder knows
        except OSError as error:
            raise state.unreadable(path, error) from error

    def _files(self, found: list[Event], dirty: set[str]) -> None:
        for number, mask, name in self._inotify.read():
            if mask & inotify.OVERFLOW:
                found.append(Event("monitor", "lost"))
                dirty.update(record.names(), self._seen)
                continue
            kind, instance = self._tags.get(number, ("", ""))
            if mask & inotify.IGNORED:
                self._tags.pop(number, None)
            elif kind == "names":
                if name[:1] != ".":
                    dirty.add(name)
            elif kind == "limit":
                self._limits.setdefault(instance, 0.0)
            elif kind:
                dirty.add(instance)

    def _ready(self, fd: int, dirty: set[str]) -> None:
        kind, name = self._fds[fd]
        if kind == "oom":
            try:
                os.eventfd_read(fd)
            except BlockingIOError:
                pass
            self._limits.setdefault(name, 0.0)
        else:
            dirty.add(name)
        if kind == "pid":
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._fds[fd]
        os.close(fd)

    # Looking

    def _refresh(self, names: Iterable[str]) -> list[Event]:
        before = {name: self._seen.get(name) for name in sorted(names)}
        now = {name: self._look(name, seen) for name, seen in before.items()}
        gone = {}
        for name, old in before.items():
            after = now[name]
            if old and (after is None or after.inode != old.inode):
                gone[old.inode] = name
        found: list[Event] = []
        for name, seen in now.items():
            old = before[name]
            if seen is None or (old and old.inode == seen.inode):
                continue
            if seen.inode in gone:
                found.append(Event("lifecycle", "renamed", gone.pop(seen.inode), to=name))
            elif name not in gone.values():
                found.append(Event("lifecycle", "created", name))
            else:
                found += self._ended(name, old)
                found += [Event("lifecycle", "deleted", name), Event("lifecycle", "created", name)]
                del gone[next(inode for inode, other in gone.items() if other == name)]
        for name in gone.values():
            found += [*self._ended(name, before[name]), Event("lifecycle", "deleted", name)]
        for name, seen in now.items():
            old = before[name]
            if seen is None:
                self._seen.pop(name, None)
                self._forget(name)
                continue
            self._seen[name] = seen
            found += self._changes(name, old if old and old.inode == seen.inode else Seen(seen.inode), seen)
        return found

    def _look(self, name: str, before: Seen | None) -> Seen | None:
        try:
            seen = Seen(os.stat(record.home(name)).st_ino)
        except OSError:
            return None
        try:
            self._watch(record.home(name), inotify.MOVED_TO, ("home", name))
            self._watch(record.run_home(name), MOVES | inotify.MODIFY, ("run", name))
            if record.is_running(name):
                _state(name, seen, before)
        except CtrmgrError:
            pass  # not ours to read
        if not seen.started:
            return seen
        if before:
            seen.devices, seen.nodes, seen.counts = before.devices, before.nodes, before.counts
        try:
            seen.devices, seen.nodes = given.now(name, PATIENCE)
        except CtrmgrError:
            pass  # busy, or ended since: there is more to come
        return seen

    def _changes(self, name: str, old: Seen, seen: Seen) -> list[Event]:
        found: list[Event] = []
        if old.started and old.started != seen.started:
            found += self._ended(name, old)
        if seen.started and old.started != seen.started:
            seen.counts = {}
            self._follow(name, seen)
            found.append(Event("lifecycle", "started", name))
            return found
        if seen.started:
            self._look_inside(name, seen)
            for device in old.devices.keys() - seen.devices.keys():
                found.append(Event("device", "detached", name, device=device, **old.devices[device]))
            for device in seen.devices.keys() - old.devices.keys():
                found.append(Event("device", "attached", name, device=device, **seen.devices[device]))
            for event, details in given.moved(old.nodes, seen.nodes, old.devices.keys() & seen.devices.keys()):
                found.append(Event("device", event, name, **details))
            if seen.frozen != old.frozen:
                found.append(Event("lifecycle", "frozen" if seen.frozen else "unfrozen", name))
        return found

    def _ended(self, name: str, old: Seen | None) -> list[Event]:
        if not old or not old.started:
            return []
        self._forget(name)
        return [Event("lifecycle", "stopped", name, **_how(name, old.started))]

    def _follow(self, name: str, seen: Seen) -> None:
        """A run that has begun: its monitor's end, its device folder, its limits."""
        self._forget(name)
        try:
            fd = os.pidfd_open(seen.monitor)
            self._fds[fd] = ("pid", name)
            self._poll.register(fd, select.POLLIN)
        except OSError:
            pass  # it has ended: its run directory says so
        self._look_inside(name, seen)
        seen.counts = self._counts(name)
        folder = self._folders(name).get("memory", "")
        if os.path.exists(f"{folder}/cgroup.event_control"):
            self._oom(name, folder)

    def _look_inside(self, name: str, seen: Seen) -> None:
        """Nodes are made in the instance's `/dev`, which is reached by its monitor; new files of limits may be there."""
        top = f"/proc/{seen.monitor}/root/dev"
        for below, folders, _ in os.walk(top):
            folders[:] = [
                each for each in folders if below != top or each not in ("pts", "shm", "mqueue", ".ctrmgr-empty")
            ]
            try:
                self._watch(below, MOVES, ("dev", name))
            except CtrmgrError:
                break
        for path in self._limit_files(name).values():
            if path.endswith("events"):
                self._watch(path, inotify.MODIFY, ("limit", name))
            # Not every kernel notifies of v1's pids.events.
            if not path.endswith("events") or path.startswith(f"{self._mounts.get('pids', 'none')}/"):
                self._silent.add(name)

    def _oom(self, name: str, folder: str) -> None:
        """Cgroup v1 tells of a cgroup that is out of memory by an eventfd."""
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            with (
                open(f"{folder}/memory.oom_control", "rb") as file,
                open(f"{folder}/cgroup.event_control", "w") as register,
            ):
                register.write(f"{fd} {file.fileno()}")
        except OSError:
            os.close(fd)
            return  # then it is looked at now and then
        self._fds[fd] = ("oom", name)
        self._poll.register(fd, select.POLLIN)

    def _forget(self, name: str) -> None:
        for fd in [fd for fd, (_, owner) in self._fds.items() if owner == name]:
            self._drop(fd)
        for number in [
            number for number, (kind, owner) in self._tags.items() if owner == name and kind in ("dev", "limit")
        ]:
            self._inotify.forget(number)
            del self._tags[number]
        self._silent.discard(name)
        self._limits.pop(name, None)

    # Limits

    def _folders(self, name: str) -> dict[str, str]:
        path = f"{state.cgroup_parent()}/{name}"
        try:
            path = next((row[1] for row in record.read_plan(record.home(name)) if row[0] == "cgroup"), path)
        except CtrmgrError:
            pass
        return {hierarchy: f"{mount}/{path}" for hierarchy, mount in self._mounts.items()}

    def _limit_files(self, name: str) -> dict[str, str]:
        """What counts hits: name of the file → where it is."""
        found = {}
        for hierarchy, folder in self._folders(name).items():
            try:
                files = os.listdir(folder)
            except OSError:
                continue
            for file in files:
                v1 = hierarchy == "memory" and file in (*SILENT, "memory.oom_control")
                v1 = v1 or (hierarchy == "hugetlb" and file.endswith(".failcnt"))
                if v1 or (file.endswith(".events") and file != "cgroup.events"):
                    found[file] = f"{folder}/{file}"
        return found

    def _counts(self, name: str) -> dict[tuple[str, str], int]:
        """(what is limited, what happened) → how often."""
        found = {}
        for file, path in self._limit_files(name).items():
            what = file.rpartition(".")[0].replace("memory.memsw", "memory.swap")
            text = counters.long_text(path)
            if file.endswith(".failcnt"):
                found[what, "max"] = int(text) if text.strip().isdecimal() else 0
                continue
            for event, count in counters.pairs(text).items():
                if event in ("oom_kill_disable", "under_oom", "low", "min"):
                    continue  # settings, and guarantees that were not needed
                region, _, last = event.rpartition(" ")
                found[f"{what} {region}".strip(), last] = count
        return found

    def _due(self) -> list[Event]:
        """The limits whose counters may have moved, each at most once in CALM seconds."""
        now = time.monotonic()
        if now >= self._swept + SWEEP:
            self._swept = now
            for name in self._silent:
                self._limits.setdefault(name, now)
        found: list[Event] = []
        for name in [name for name, due in self._limits.items() if due <= now]:
            seen = self._seen.get(name)
            after = self._counts(name) if seen else {}
            moved = False
            for (what, event), total in after.items():
                more = total - (seen.counts.get((what, event), 0) if seen else 0)
                if more > 0:
                    moved = True
                    found.append(Event("limit", event, name, resource=what, count=more, total=total))
            if seen and after:
                seen.counts = after
            if moved:
                self._limits[name] = now + CALM  # and look once more then
            else:
                del self._limits[name]
        return found

    # The machine's devices

    def _host(self, found: list[Event], announced: list[dict[str, str]] | None) -> None:
        if announced is None:
            found.append(Event("monitor", "lost"))
        for told in announced or ():
            if "DEVNAME" in told and told.get("ACTION") in ("add", "remove", "change"):
                event = {"add": "added", "remove": "removed", "change": "changed"}[told["ACTION"]]
                number = f"{told.get('MAJOR', '')}:{told.get('MINOR', '')}"
                path = "/dev/" + told["DEVNAME"].removeprefix("/dev/")
                found.append(Event("host", event, path=path, subsystem=told.get("SUBSYSTEM", ""), number=number))


def _state(name: str, seen: Seen, before: Seen | None) -> None:
    """What the monitor has written of its run, in place: of one that is not whole yet, all is as it was `before`."""
    words = {}
    for line in counters.long_text(f"{record.run_home(name)}/state").splitlines():
        key, _, value = line.partition("\t")
        words[key] = value
    if words.get("started", "").isdecimal() and words.get("monitor", "").isdecimal() and "frozen" in words:
        seen.started, seen.monitor, seen.frozen = int(words["started"]), int(words["monitor"]), words["frozen"] == "1"
    elif before:
        seen.started, seen.monitor, seen.frozen = before.started, before.monitor, before.frozen


def _how(name: str, started: int) -> dict[str, object]:
    """How a run has ended: `exited` or `signaled` with a number, `powered-off`, or `lost` when its monitor was killed."""
    for home in (record.home(name), f"{record.instances_dir()}/.del-{name}"):
        try:
            ((kind, number, when),) = state.read_flat(f"{home}/exit")
            if int(when) >= started:
                # reboot(2) in a pid namespace ends its init by SIGINT for a power-off
                return (
                    {"how": "powered-off"}
                    if (kind, number) == ("signaled", "2")
                    else {"how": kind, "number": int(number)}
                )
        except (CtrmgrError, OSError, ValueError):
            continue
    return {"how": "lost"}
