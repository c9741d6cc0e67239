# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes between ctrmgr and a plugin's process, as plain data; what comes from there is looked at bit by bit."""

from __future__ import annotations

from ctrmgr.devices.plugin import Allocation, DeviceEvent, Found, Holder, Partition
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")

ID_MAX = 200
MANY = 4096
"""No plugin has more of anything."""
NUMBER_MAX = 1 << 63


def plain(value: object) -> object:
    """A value as JSON can hold it. Raises TypeError for what it cannot."""
    if isinstance(value, Value):
        return {name: plain(each) for name, each in value.fields().items()}
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {_word(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    raise TypeError(f"{type(value).__name__} `{value!r:.40}` is no plain data")


def _word(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{type(key).__name__} `{key!r:.40}` is no name")
    return key


# Reading. Each raises ValueError that says what is wrong.


def text(value: object, what: str, *, empty: bool = True) -> str:
    """Words that fit into a flat file and on a terminal."""
    if not isinstance(value, str) or (not value and not empty):
        raise ValueError(f"{what} is {'empty' if value == '' else 'no text'}")
    if not value.isprintable() and value:
        raise ValueError(f"{what} has letters that cannot be printed")
    if len(value) > MANY:
        raise ValueError(f"{what} is longer than {MANY} letters")
    return value


def number(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= NUMBER_MAX:
        raise ValueError(f"{what} is no whole number")
    return value


def table(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict) or len(value) > MANY:
        raise ValueError(f"{what} is no dict")
    return {text(key, f"a name in {what}", empty=False): each for key, each in value.items()}


def rows(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, (list, tuple)) or len(value) > MANY:
        raise ValueError(f"{what} is no list")
    return value


def texts(value: object, what: str) -> dict[str, str]:
    return {key: text(each, f"{what}[{key}]") for key, each in table(value, what).items()}


def amounts(value: object, what: str) -> dict[str, int]:
    found = {key: number(each, f"{what}[{key}]") for key, each in table(value, what).items()}
    for key, amount in found.items():
        if amount < 0:
            raise ValueError(f"{what}[{key}] is below zero")
    return found


def found(value: object) -> Found:
    given = table(value, "what was found")
    id = text(given.get("id"), "`id`", empty=False)
    if len(id) > ID_MAX or id != id.strip():
        raise ValueError(f"`id` ({id!r:.60}) has blanks around it or is longer than {ID_MAX} letters")
    nodes = [_node(each, f"`nodes` of {id}") for each in rows(given.get("nodes"), f"`nodes` of {id}")]
    functions: dict[str, dict[str, int | str]] = {}
    for name, properties in table(given.get("functions"), f"`functions` of {id}").items():
        functions[name] = {}
        for key, each in table(properties, f"`functions[{name}]` of {id}").items():
            what = f"`functions[{name}][{key}]` of {id}"
            functions[name][key] = number(each, what) if isinstance(each, int) else text(each, what)
    identity = []
    for each in rows(given.get("identity"), f"`identity` of {id}"):
        pair = rows(each, f"`identity` of {id}")
        if len(pair) != 2:
            raise ValueError(f"`identity` of {id} has something else than (file, text)")
        identity.append((_path(pair[0], f"`identity` of {id}"), text(pair[1], f"`identity` of {id}")))
    shared = number(given.get("shared"), f"`shared` of {id}")
    if shared < 0:
        raise ValueError(f"`shared` of {id} is below zero")
    return Found(
        id,
        model=text(given.get("model"), f"`model` of {id}"),
        vendor=text(given.get("vendor"), f"`vendor` of {id}"),
        nodes=nodes,
        functions=functions,
        shared=shared,
        pools=amounts(given.get("pools"), f"`pools` of {id}"),
        identity=identity,
        numa=number(given.get("numa"), f"`numa` of {id}"),
        partitions=_count(given.get("partitions"), f"`partitions` of {id}"),
        profiles={
            name: amounts(each, f"`profiles[{name}]` of {id}")
            for name, each in table(given.get("profiles"), f"`profiles` of {id}").items()
        },
    )


def _count(value: object, what: str) -> int:
    if number(value, what) < 0:
        raise ValueError(f"{what} is below zero")
    return number(value, what)


def partition(value: object) -> Partition:
    given = table(value, "a partition")
    return Partition(
        text(given.get("found"), "`found`", empty=False),
        text(given.get("id"), "`id`", empty=False),
        amounts(given.get("takes"), "`takes`"),
        texts(given.get("state"), "`state`"),
    )


def partitions(value: object) -> list[Partition] | None:
    """The answer of `partitions`: None where the hardware does not say."""
    return None if value is None else [partition(each) for each in rows(value, "the answer")]


def _path(value: object, what: str) -> str:
    path = text(value, what, empty=False)
    if path[0] != "/" or ".." in path.split("/"):
        raise ValueError(f"{what}: `{path}` is no plain absolute path")
    return path


def _node(value: object, what: str) -> str:
    path = _path(value, what)
    if not path.startswith("/dev/"):
        raise ValueError(f"{what}: `{path}` is not below /dev")
    return path


def all_found(value: object) -> list[Found]:
    """The answer of `identify`; every id once."""
    listed = [found(each) for each in rows(value, "the answer")]
    ids = [each.id for each in listed]
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"two devices have the id `{id}`")
    return listed


def holder(value: object) -> Holder:
    given = table(value, "a holder")
    return Holder(
        text(given.get("instance"), "`instance`"),
        text(given.get("device"), "`device`"),
        text(given.get("found"), "`found`"),
        amounts(given.get("takes"), "`takes`"),
    )


def allocation(value: object) -> Allocation:
    given = table(value, "the allocation")
    return Allocation(
        found(given.get("found")),
        takes=amounts(given.get("takes"), "`takes`"),
        state=texts(given.get("state"), "`state`"),
        id=text(given.get("id"), "`id`"),
        values=texts(given.get("values"), "`values`"),
    )


def events(value: object) -> list[DeviceEvent]:
    listed = []
    for each in rows(value, "the answer"):
        given = table(each, "an event")
        listed.append(
            DeviceEvent(
                text(given.get("found"), "`found`", empty=False),
                text(given.get("kind"), "`kind`", empty=False),
                text(given.get("detail"), "`detail`"),
                text(given.get("mark"), "`mark`"),
            )
        )
    return listed


def edits(value: object) -> ContainerEdits:
    """The answer of `prepare`."""
    given = table(value, "the edits")
    rdt = given.get("intel_rdt")
    return ContainerEdits(
        env=[_variable(each) for each in rows(given.get("env"), "`env`")],
        device_nodes=_many(given.get("device_nodes"), "`device_nodes`", _device_node),
        net_devices=_many(given.get("net_devices"), "`net_devices`", _net_device),
        mounts=_many(given.get("mounts"), "`mounts`", _mount),
        hooks=_many(given.get("hooks"), "`hooks`", _hook),
        intel_rdt=_built(IntelRdt, table(rdt, "`intel_rdt`")) if rdt is not None else None,
        additional_gids=[number(each, "`additional_gids`") for each in rows(given.get("additional_gids"), "`gids`")],
    )


def _variable(value: object) -> str:
    word = text(value, "`env`", empty=False)
    name, equals, _ = word.partition("=")
    if not name or not equals:
        raise ValueError(f"`env`: `{word}` is not NAME=VALUE")
    return word


def _many(value: object, what: str, read: Callable[[dict[str, object]], T]) -> list[T]:
    return [read(table(each, f"one of {what}")) for each in rows(value, what)]


def _built(make: Callable[..., T], given: Mapping[str, object]) -> T:
    try:
        return make(**given)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _device_node(given: dict[str, object]) -> DeviceNode:
    for key in ("path", "host_path"):
        if given.get(key):
            _node(given[key], f"`{key}`")
    for key in ("major", "minor", "file_mode", "uid", "gid"):
        if given.get(key) is not None:
            number(given[key], f"`{key}`")
    for key in ("type", "permissions"):
        text(given.get(key), f"`{key}`")
    text(given.get("path"), "`path`", empty=False)
    return _built(DeviceNode, given)


def _net_device(given: dict[str, object]) -> NetDevice:
    return NetDevice(
        text(given.get("host_interface_name"), "`host_interface_name`", empty=False),
        text(given.get("name"), "`name`", empty=False),
    )


def _mount(given: dict[str, object]) -> Mount:
    options = [text(each, "`options`") for each in rows(given.get("options"), "`options`")]
    return Mount(
        text(given.get("host_path"), "`host_path`", empty=False),
        _path(given.get("container_path"), "`container_path`"),
        options,
        text(given.get("type"), "`type`"),
    )


def _hook(given: dict[str, object]) -> Hook:
    timeout = given.get("timeout")
    return Hook(
        text(given.get("hook_name"), "`hook_name`", empty=False),
        _path(given.get("path"), "`path`"),
        [text(each, "`args`") for each in rows(given.get("args"), "`args`")],
        [text(each, "`env`") for each in rows(given.get("env"), "`env`")],
        number(timeout, "`timeout`") if timeout is not None else None,
    )
