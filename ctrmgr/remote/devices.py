# SPDX-License-Identifier: GPL-3.0-or-later
"""Attach and detach on a server: live, with nobody else's device lost, and believed only when the node is there."""

from __future__ import annotations

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.remote import instances, owners, translate
from ctrmgr.remote.server import Server, quoted, retried
from ctrmgr.remote.waking import Look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from ctrmgr.remote.translate import Translated


EVERYBODYS = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"))
"""What every program counts on. (Servers also show the host's /dev/fuse and /dev/net/tun, which a device may hide.)"""
BROUGHT = {"gpu": ("/dev/dri/", "/dev/nvidia"), "infiniband": ("/dev/infiniband/",)}
"""Types whose nodes the server chooses: how the paths of those begin."""
LINKS = ("nic", "infiniband")
NET = "/sys/class/net"
ALWAYS = f"{NET}/lo"


def attach(server: Server, name: str, device: str, keys: Mapping[str, str]) -> bool:
    """Give an instance a device of the server's machine. True: it is there now; False: it comes with the next start.

    Raises NotFoundError, SpecError, ConflictError, UnsupportedError, BackendError; then nothing has changed.
    """
    check(device, keys)
    made = translate.translate({}, {device: keys}, translate.Live(server))
    made.refuse(server.name)
    if not made.devices:
        why = made.notes[0].partition(" was left out: ")[2]
        raise NotFoundError(
            f"device `{device}`: {why}", hint="it is not required, so an instance would be made without it"
        )
    for part, key, word in made.names:
        made.devices[part][key] = str(owners.number(server, name, key, word))
    places = {part: _inside(values) for part, values in made.devices.items()}
    mounts = {part: path for part, values in made.devices.items() if (path := _mount(values))}
    for inside in places.values():
        if inside in EVERYBODYS:
            raise ConflictError(
                f"device `{device}`: there is a `{inside}` in `{server.name}:{name}` already", hint="choose a `path`"
            )
    running = False
    begun = Moment()
    look = Look(server, name)
    others: set[str] = set()
    before: dict[str, dict[str, str]] = {}

    def once(found: dict[str, Any], etag: str) -> None:
        nonlocal running, begun, others
        others = {keys["type"] for keys in found["expanded_devices"].values()}
        running, begun = found["status"] in ("Running", "Frozen"), Moment.of_http(server.date)
        for part, inside in places.items():
            _check_free(server, name, part, inside, found)
        config = _keys(server, name, device, made, found, running)
        for inside in filter(None, places.values() if running else ()):
            look.wake(inside)
        if running and any(values["type"] in LINKS for values in made.devices.values()):
            look.wake(ALWAYS)
        for part, path in mounts.items() if running else ():
            if _may_be_nothing(made.devices[part]):
                before[part] = node(server, name, path)
            else:
                look.wake(path)
        # PATCH adds to the devices that are there: one that somebody else attaches now stays.
        data = {"devices": made.devices, **({"config": config} if config else {})}
        doubt = instances.doubt(server, name, "changed")
        server.change("PATCH", instances.path(name), data, etag=etag, doubt=doubt)

    with look:
        try:
            retried(server, once, instances.path(name))
        except (BackendError, NotFoundError) as error:
            raise instances.translated(server, name, error) from None
        if running:
            for part, inside in places.items():
                values = made.devices[part]
                if inside:
                    _verify(server, name, device, inside, values, begun)
                elif _chosen(values) and values["type"] not in others and not _brought(server, name, values, begun):
                    where = " or ".join(f"`{path}…`" for path in BROUGHT[values["type"]])
                    _take_out(server, name, device, f"nothing new is at {where}")
            for part, path in mounts.items():
                _verify_mount(server, name, device, path, made.devices[part], before.get(part))
            _verify_links(
                server, name, device, {part: keys for part, keys in made.devices.items() if keys["type"] in LINKS}
            )
    return running


def _mount(values: Mapping[str, str]) -> str:
    """Where a disk is mounted in an instance; "" for its root and for what is none."""
    path = "/" + values.get("path", "").strip("/") if values["type"] == "disk" else "/"
    return "" if path == "/" else path


def _may_be_nothing(values: Mapping[str, str]) -> bool:
    """Servers pass over what is not required and not there, and say that all is well."""
    return values.get("required") == "false"


def _inside(values: Mapping[str, str]) -> str:
    """Where a node is in an instance; "" for what is none."""
    return values.get("path") or values.get("source", "") if values["type"] in translate.NODES else ""


def _keys(
    server: Server, name: str, device: str, made: Translated, found: Mapping[str, Any], running: bool
) -> dict[str, str]:
    """Keys of the instance that come with a device. What somebody has said stays, and only variables come while it runs."""
    has: Mapping[str, str] = found["expanded_config"]
    record = translate.PARTS + device
    config = {key: value for key, value in made.config.items() if key not in has or key == record}
    if record in config:
        ours = {part for key, value in has.items() if key.startswith(translate.PARTS) for part in value.split()}
        kept = [part for part in config[record].split() if part in made.devices or part in config or part in ours]
        config[record] = " ".join(kept)
    later = [key for key in config if not key.startswith(("environment.", "user."))]
    if running and later:
        raise ConflictError(
            f"device `{device}`: it needs `{later[0]}={config[later[0]]}` of `{server.name}:{name}`, which runs",
            hint=f"stop it first, or `ctrmgr config set {server.name}:{name} {later[0]}={config[later[0]]}` and restart it",
        )
    return config


class Moment(tuple[int, ...]):
    """Year to second, of a server's clock: to be compared with others of the same. The library's parsers of dates take as long to
    import as a request takes."""

    __slots__ = ()

    @classmethod
    def of_http(cls, text: str) -> Moment:
        """`Sat, 21 Nov 2026 09:05:11 GMT`; the beginning of time for what is none."""
        words = text.split()
        if len(words) < 5 or words[2] not in MONTHS:
            return cls()
        return cls((int(words[3]), MONTHS.index(words[2]) + 1, int(words[1]), *map(int, words[4].split(":"))))

    @classmethod
    def of(cls, text: str) -> Moment:
        """`2026-11-21 09:05:11 +0000 UTC`, `2026-11-21T09:05:11.48Z`."""
        digits = text[:19].replace("T", " ").replace("-", " ").replace(":", " ").split()
        return cls(map(int, digits)) if len(digits) == 6 and "".join(digits).isdecimal() else cls()


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def check(device: str, keys: Mapping[str, str]) -> None:
    """Raises SpecError for what cannot be a device; the server judges the rest."""
    if not device or len(device.encode()) > 63 or any(letter in "/\t\n\0" or letter.isspace() for letter in device):
        raise SpecError(f"`{device}` cannot be the name of a device", hint="no spaces or slashes, at most 63 bytes")
    if not keys.get("type"):
        raise SpecError(f"device `{device}` has no `type`", hint="type=unix-char or type=unix-block, …")
    if keys["type"] in translate.NODES and not (keys.get("source") or keys.get("path")):
        raise SpecError(f"device `{device}`: it says neither `source` nor `path`")


def _check_free(server: Server, name: str, device: str, inside: str, found: Mapping[str, Any]) -> None:
    devices: dict[str, dict[str, str]] = found["expanded_devices"]
    if device in devices:
        raise ConflictError(
            f"`{server.name}:{name}` has a device `{device}` already", hint="detach it first, or choose another name"
        )
    for other, keys in devices.items():
        if inside and keys["type"] in translate.NODES and (keys.get("path") or keys.get("source")) == inside:
            raise ConflictError(f"device `{device}`: `{inside}` is where device `{other}` is", hint="choose a `path`")


def node(server: Server, name: str, path: str) -> dict[str, str]:
    """What is at a path in an instance, as headers of the server's; nothing when nothing is there."""
    try:
        answer = server.send("HEAD", f"/instances/{quoted(name)}/files", query={"path": path})
    except NotFoundError:
        return {}
    return {
        key.partition("-")[2].partition("-")[2]: value for key, value in answer.headers.items() if key.startswith("x-")
    }


def _verify(server: Server, name: str, device: str, inside: str, values: Mapping[str, str], begun: Moment) -> None:
    """Servers have said that a device is attached when nothing was inside. Then it is taken out again: BackendError.

    What was at the path before (the host's /dev/fuse, which servers show) is older than our request.
    """
    found = node(server, name, inside)
    wanted = int(values.get("mode") or "0660", 8)
    if not found:
        reason = f"`{inside}` is not there"
        if _may_be_nothing(values):
            reason += ", because the server's machine has no such device"
    elif found.get("type") == "directory" or int(found.get("mode", "0"), 8) & 0o777 != wanted:
        reason = f"`{inside}` is another file"
    elif Moment.of(found.get("modified", "")) < begun:
        reason = f"`{inside}` is the file that was there before"
    else:
        return
    _take_out(server, name, device, reason)


def _verify_mount(
    server: Server, name: str, device: str, path: str, values: Mapping[str, str], before: dict[str, str] | None
) -> None:
    """The same of a disk. `before` is what was there, if that is in doubt."""
    found = node(server, name, path)
    if not found:
        reason = f"nothing is at `{path}`"
    elif found == before and not _is_mounted(server, name, path):
        reason = f"`{path}` is what was there before"
    else:
        return
    if _may_be_nothing(values):
        reason += f", because the server's machine has no `{values.get('source', '')}`"
    _take_out(server, name, device, reason)


class Link:
    """One inside: its name, and the hardware address that it was given ("": none that is known)."""

    __slots__ = ("address", "name")

    def __init__(self, part: str, keys: Mapping[str, str], config: Mapping[str, str]) -> None:
        own = f"volatile.{part}."
        self.name = keys.get("name") or config.get(own + "name", "")
        known = keys.get("hwaddr") or config.get(own + "hwaddr") or config.get(own + "last_state.hwaddr", "")
        # Of InfiniBand's twenty bytes some are the kernel's choice.
        self.address = known.lower() if keys["type"] == "nic" else ""

    def shows(self, server: Server, name: str) -> bool:
        """Whether the instance's own /sys has its name."""
        return bool(self.name and node(server, name, f"{NET}/{self.name}"))


def _links(server: Server, name: str) -> dict[str, str]:
    """Name → hardware address, as the server finds them: right for whatever is mounted inside, and slower than to look there."""
    found = instances.state(server, name).get("network") or {}
    return {str(link): str(keys["hwaddr"]).lower() for link, keys in found.items()}


def _verify_links(server: Server, name: str, device: str, parts: Mapping[str, Mapping[str, str]]) -> None:
    """The same of network links. One that the instance has renamed already is known by its address."""
    if not parts:
        return
    config = instances.get(server, name)["config"]
    for link in (Link(part, keys, config) for part, keys in parts.items()):
        if link.shows(server, name):
            continue
        there = _links(server, name)
        if link.name not in there and (link.address or "-") not in there.values():
            _take_out(server, name, device, f"there is no link `{link.name or link.address}`")


def _is_left(server: Server, name: str, link: Link) -> bool:
    """Whether one that was taken away is still inside: by its name, which another may have by now."""
    if not link.shows(server, name) and node(server, name, ALWAYS):
        return False
    address = _links(server, name).get(link.name)
    return address is not None and address == (link.address or address)


def _is_mounted(server: Server, name: str, path: str) -> bool:
    """As the instance's own `grep` says; one without is believed."""
    from ctrmgr.remote import execute

    word = path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    try:
        return execute.record(server, name, ["grep", "-qF", f" {word} ", "/proc/self/mountinfo"]) != 1
    except CtrmgrError:
        return True


def _take_out(server: Server, name: str, device: str, reason: str) -> NoReturn:
    """Of the configuration, what is not there although the server says so. Raises BackendError."""
    try:
        remove(server, name, device)
    except CtrmgrError as error:
        raise BackendError(
            f"`{server.name}` says that `{device}` is attached, but in `{name}` {reason}",
            hint=f"it could not be taken out again: {error.message}",
        ) from None
    raise BackendError(
        f"`{server.name}` says that `{device}` is attached, but in `{name}` {reason}", hint="it was taken out again"
    )


def _chosen(keys: Mapping[str, str]) -> bool:
    """Whether its nodes are the server's choice, and known: a name of CDI, or a slice, brings what nobody can tell."""
    return keys["type"] in BROUGHT and keys.get("gputype", "physical") == "physical" and "=" not in keys.get("id", "")


def _brought(server: Server, name: str, keys: Mapping[str, str], since: Moment) -> bool:
    """Whether a node of the type is in an instance that is not older than that."""
    for begin in BROUGHT[keys["type"]]:
        folder, _, start = begin.rpartition("/")
        try:
            names = server.get(f"/instances/{quoted(name)}/files", query={"path": folder}) or ()
        except NotFoundError:
            continue
        for each in names:
            if str(each).startswith(start):
                found = node(server, name, f"{folder}/{each}")
                if found and found.get("type") != "directory" and Moment.of(found.get("modified", "")) >= since:
                    return True
    return False


def remove(server: Server, name: str, device: str) -> None:
    """Take one out of the configuration; it may be gone already."""

    def change(found: dict[str, Any], data: dict[str, Any]) -> None:
        _take(device, data)

    instances.update(server, name, change)


def _take(device: str, data: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Out of an instance's devices, and its parts and keys with it, but for keys that another device needs, too. Returns all that
    went."""
    config = data["config"]
    parts = config.pop(translate.PARTS + device, device).split()
    others = {part for key, value in config.items() if key.startswith(translate.PARTS) for part in value.split()}
    for key in parts:
        if key not in others:
            config.pop(key, None)
    return {part: keys for part in {device, *parts} if (keys := data["devices"].pop(part, None))}


class Detached:
    """`live`: it was taken from a running instance."""

    __slots__ = ("live",)

    def __init__(self, live: bool) -> None:
        self.live = live


def detach(server: Server, name: str, device: str) -> Detached:
    """Take a device away. Raises NotFoundError when there is no such device, BackendError when it is still inside."""
    live, started = False, Moment()
    places: list[str] = []
    links: list[Link] = []
    look = Look(server, name)

    def change(found: dict[str, Any], data: dict[str, Any]) -> None:
        nonlocal live, places, links, started
        if device not in found["devices"]:
            raise _missing(server, name, device, found)
        gone = _take(device, data)
        places = [inside for keys in gone.values() if (inside := _inside(keys))]
        links = [Link(part, keys, found["config"]) for part, keys in gone.items() if keys["type"] in LINKS]
        live = found["status"] in ("Running", "Frozen")
        started = Moment.of(str(found["last_used_at"]))
        for inside in [*places, *(ALWAYS for _ in links)] if live else ():
            look.wake(inside)

    with look:
        instances.update(server, name, change)
        for inside in places if live else ():
            # What was there before the instance began is not ours: servers show the host's /dev/fuse.
            left = node(server, name, inside)
            if left and Moment.of(left.get("modified", "")) >= started:
                raise _still_there(server, name, device, inside)
        for link in links if live else ():
            if _is_left(server, name, link):
                raise _still_there(server, name, device, link.name)
    return Detached(live)


def _still_there(server: Server, name: str, device: str, what: str) -> BackendError:
    return BackendError(
        f"`{server.name}` says that `{device}` is detached, but `{what}` is still in `{name}`",
        hint="it is out of the configuration: a restart takes it away",
    )


def _missing(server: Server, name: str, device: str, found: Mapping[str, Any]) -> CtrmgrError:
    if device in found["expanded_devices"]:
        return ConflictError(
            f"`{server.name}:{name}` has `{device}` from a profile", hint="its profile is what to change"
        )
    return NotFoundError(
        f"`{server.name}:{name}` has no device `{device}`", hint=f"`ctrmgr info {server.name}:{name}` lists them"
    )
