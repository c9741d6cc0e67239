# SPDX-License-Identifier: GPL-3.0-or-later
"""What is made, configured, attached and translated on `REMOTE:NAME`."""

from __future__ import annotations

from ctrmgr.cli import distant, table
from ctrmgr.cli.command import pairs
from ctrmgr.errors import ConflictError, NotFoundError, SpecError
from ctrmgr.remote import devices, instances, making, owners, registry, translate
from ctrmgr.remote.server import Server, open_server, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from ctrmgr.cli.command import Args
    from ctrmgr.remote.translate import Translated
    from ctrmgr.source import Document

NOTES = ("volatile.", "image.")
"""Keys that are the server's own."""

# Making


class Asked:
    """A launch, as the server gets it."""

    def __init__(self, server: Server, name: str, image: str, profiles: list[str], made: Translated) -> None:
        self.server, self.name, self.image, self.profiles, self.made = server, name, image, profiles, made
        self.target = ""
        """The member of a cluster that it goes to; "": the server chooses."""
        self.verify: Callable[[], None] | None = None
        """Asked once it is there; when it raises, the instance goes again."""


def asked(args: Args) -> Asked:
    """Everything is looked up and translated here, before anything is made."""
    remote, name = registry.split(args.positional[1]) or ("", "")
    if not name:
        from ctrmgr.backend import words

        name = words.pick()
    server = open_server(remote)
    names = [] if args.flag("no-profiles") else args.all("profile") or ["default"]
    theirs, ours = profiles(server, names)
    config, own = merged(ours, pairs(args.all("config"), "KEY=VALUE"), given_devices(args))
    made = translated(server, config, own, placing=args.flag("target"))
    settle(args, server, made)
    return Asked(server, name, args.positional[0], theirs, made)


def settle(args: Args, server: Server, made: Translated) -> None:
    """What a server cannot do is left out on demand, or refused. Raises UnsupportedError."""
    for note in made.notes:
        distant.talk(args, f"note: {note}")
    if args.flag("ignore-unsupported"):
        for note in made.go_on():
            distant.talk(args, f"note: {note}")
    made.refuse(server.name)
    check_places(server, made)


def given_devices(args: Args) -> dict[str, dict[str, str]]:
    """`-d NAME,KEY=VALUE,…`; which keys there are the server knows."""
    found: dict[str, dict[str, str]] = {}
    for word in args.all("device"):
        name, comma, keys = word.partition(",")
        if not comma:
            raise SpecError(f"`-d {word}` is not NAME,KEY=VALUE,…", hint="-d fuse,type=unix-char,source=/dev/fuse")
        found.setdefault(name, {}).update(pairs(keys.split(","), "KEY=VALUE"))
    return found


class Plain:
    """A profile as it is written: what this machine could make of it does not matter."""

    def __init__(self, config: dict[str, str], devices: dict[str, dict[str, str]], description: str = "") -> None:
        self.config, self.devices, self.description = config, devices, description


def load(path: str) -> Plain:
    """Raises SpecError for what is no profile."""
    from ctrmgr import source

    return plain(source.load(path))


def plain(document: Document) -> Plain:
    """Raises SpecError for what is no profile."""
    data = document.data or {}
    if not isinstance(data, dict):
        raise document.error((), "is not a profile: it has no keys")
    config, own = data.get("config") or {}, data.get("devices") or {}
    for part, values in (("config", [config]), ("devices", [own, *(own.values() if isinstance(own, dict) else ())])):
        for each in values:
            if not isinstance(each, dict):
                raise document.error((part,), "is not a map")
    every: list[tuple[tuple[str, ...], object]] = [(("config", key), value) for key, value in config.items()]
    every += [(("devices", name, key), value) for name, keys in own.items() for key, value in keys.items()]
    for place, value in every:
        if not isinstance(value, str):
            raise document.error(place, "is not text")
    return Plain(
        {key: str(value) for key, value in config.items()},
        {name: {key: str(value) for key, value in keys.items()} for name, keys in own.items()},
        str(data.get("description") or ""),
    )


def merged(
    profiles: list[Plain], config: Mapping[str, str], own: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Ours in their order, then the instance's own; what takes away is kept, because the server's profiles have it."""
    keys: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    for profile in profiles:
        keys |= profile.config
        found |= profile.devices
    keys |= config
    found |= {name: dict(values) for name, values in own.items()}
    return keys, found


def profiles(server: Server, names: list[str]) -> tuple[list[str], list[Plain]]:
    """The server's by name, and then (as the instance's own keys) ours that it does not have."""
    if not set(names) - {"default"}:
        return names, []  # every server has it
    known = {str(url).rpartition("/")[2].partition("?")[0] for url in server.get("/profiles")}
    theirs: list[str] = []
    ours: list[Plain] = []
    for name in names:
        if name not in known:
            from ctrmgr.plan.compile import find

            ours.append(load(find(name)))
        elif ours:
            raise SpecError(
                f"profile `{name}` is the server's and comes after one of ours",
                hint=f"name ours last, or bring them to it: `ctrmgr profile push NAME {server.name}:`",
            )
        else:
            theirs.append(name)
    return theirs, ours


def translated(
    server: Server, config: Mapping[str, str], own: Mapping[str, Mapping[str, str]], *, placing: bool = False
) -> Translated:
    return translate.translate(config, own, translate.Live(server, placing=placing))


def check_places(server: Server, made: Translated) -> None:
    """Networks and pools that the server does not have: it would say so only when half is done."""
    for name, keys in made.devices.items():
        for kind, key, where in (("nic", "network", "networks"), ("disk", "pool", "storage-pools")):
            if keys.get("type") == kind and keys.get(key):
                try:
                    server.get(f"/{where}/{quoted(keys[key])}")
                except NotFoundError:
                    known = [str(url).rpartition("/")[2] for url in server.get(f"/{where}")]
                    made.problems.append(
                        (f"{name}.{key}", f"it has no `{keys[key]}`; there are: {', '.join(known) or 'none'}")
                    )
    made.refuse(server.name)


def _create(args: Args, wanted: Asked) -> None:
    make(wanted, _source(wanted.server, wanted.image), ephemeral=args.flag("ephemeral"))


def make(wanted: Asked, source: Mapping[str, object], *, ephemeral: bool) -> None:
    """Raises ConflictError, BackendError; then nothing is left, or it is said what is."""
    made = wanted.made
    later = {name for name, _, _ in made.names}
    first = {name: keys for name, keys in made.devices.items() if name not in later}
    instances.create(
        wanted.server,
        wanted.name,
        source,
        profiles=wanted.profiles,
        config=made.config,
        devices=first,
        ephemeral=ephemeral,
        target=wanted.target,
    )
    if wanted.verify:
        instances.finish(wanted.server, wanted.name, wanted.verify)
    if later:
        instances.finish(wanted.server, wanted.name, lambda: _named(wanted, later))


def _named(wanted: Asked, later: set[str]) -> None:
    """Devices whose owner is a name in the image, which is there now."""
    made = wanted.made
    for name, key, word in made.names:
        made.devices[name][key] = str(owners.number(wanted.server, wanted.name, key, word))

    def change(_: dict[str, object], data: dict[str, object]) -> None:
        data["devices"] |= {name: made.devices[name] for name in later}  # type: ignore[operator]

    instances.update(wanted.server, wanted.name, change)


def _source(server: Server, word: str) -> dict[str, object]:
    """`builtin:…` and `local:…` are brought to the server when it does not have them yet."""
    from ctrmgr.remote import images

    remote, colon, image = word.partition(":")
    if not colon or remote not in ("builtin", registry.LOCAL):
        return images.source(server, word)
    from ctrmgr.images import store

    found = store.find(word if remote == "builtin" else image)
    alias = f"ctrmgr-{found.fingerprint[:16]}"
    fingerprint = images.known(server, alias) or _uploaded(server, found, alias)
    return {"type": "image", "fingerprint": fingerprint}


def _uploaded(server: Server, found: object, alias: str) -> str:
    from ctrmgr.images import exporting
    from ctrmgr.remote import images
    from ctrmgr.remote.passing import Passage

    with Passage() as passage:
        path = f"{passage.path}/image.tar.gz"
        exporting.export(found, path)  # type: ignore[arg-type]
        return images.upload(server, path, alias)


def run_create(args: Args) -> None:
    _made(args, lambda wanted: _create(args, wanted))


def run_launch(args: Args) -> None:
    def launch(wanted: Asked) -> None:
        for name, why in wanted.made.absent:
            raise NotFoundError(f"`{wanted.server.name}` cannot start with `{name}`: {why}", hint="nothing was made")
        _create(args, wanted)
        instances.finish(wanted.server, wanted.name, lambda: instances.start(wanted.server, wanted.name))

    _made(args, launch)


def _made(args: Args, action: Callable[[Asked], None]) -> None:
    wanted = asked(args)
    if args.flag("target"):
        from ctrmgr.cli import distant_target

        distant_target.place(args, wanted, lambda placed: _noted(placed, action), _show)
    elif args.flag("policy") or args.flag("explain"):
        raise SpecError("`--policy` and `--explain` are about a cluster", hint="`--target auto` chooses a member")
    elif args.flag("dry-run"):
        _show(wanted)
    else:
        _noted(wanted, action)
    if not args.flag("dry-run"):
        print(instances.label(wanted.server, wanted.name))


def _noted(wanted: Asked, action: Callable[[Asked], None]) -> None:
    """Make it; whoever finds one of the name that a killed command was making is told so."""
    server, name = wanted.server, wanted.name
    try:
        with making.Making(server, name):
            action(wanted)
    except ConflictError as error:
        if making.is_any_left() and _passing().was_being_made(server, name):
            label = instances.label(server, name)
            error.hint = f"a command that was killed was making it: `ctrmgr delete --force {label}`, and again"
        raise
    if making.is_any_left():
        _passing().was_being_made(server, name, forget=True)


def _passing() -> ModuleType:
    from ctrmgr.remote import passing

    return passing


def _show(wanted: Asked) -> None:
    """What the server would get."""
    print(_yaml(wanted.profiles, wanted.made.config, wanted.made.devices), end="")
    if wanted.target:
        print(f"target: {wanted.target}")


def _yaml(profiles: object, config: object, own: object) -> str:
    import yaml

    data = {"profiles": profiles, "config": config, "devices": own}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


# Keys


def config_show(args: Args) -> None:
    if args.flag("oci"):
        raise SpecError("`--oci` is for what is on this machine", hint="`ctrmgr profile pull` takes a profile over")
    server, name = distant.one(args.positional[0])
    table.print_text(shown(instances.get(server, name)), args.one("format", "table"))


def shown(found: Mapping[str, Any]) -> str:
    """An instance's own keys and devices, without what the server notes for itself."""
    config = {key: value for key, value in found["config"].items() if not key.startswith(NOTES)}
    return _yaml(found["profiles"], config, found["devices"])


def config_get(args: Args) -> None:
    server, name = distant.one(args.positional[0])
    value = instances.get(server, name)["expanded_config"].get(args.positional[1], "")
    table.print_value(value, args.one("format", "table"))


def config_set(args: Args) -> None:
    word, *given = args.positional
    if len(given) == 2 and "=" not in given[0]:
        given = ["=".join(given)]
    if not given:
        raise SpecError("`ctrmgr config set`: KEY=VALUE is missing")
    server, name = distant.one(word)
    made = translated(server, pairs(given, "KEY=VALUE"), {})
    made.refuse(server.name)
    if args.flag("dry-run"):
        instances.get(server, name)
        print(_yaml([], made.config, {}), end="")
        return
    instances.update(server, name, lambda _, data: data["config"].update(made.config))


def config_unset(args: Args) -> None:
    word, *names = args.positional
    server, name = distant.one(word)

    def change(_: object, data: dict[str, dict[str, str]]) -> None:
        for key in names:
            if data["config"].pop(key, None) is None:
                raise NotFoundError(f"`{key}` is not set on `{word}` itself", hint="KEY= hides what a profile says")

    if args.flag("dry-run"):
        change(None, instances.get(server, name))
        return
    instances.update(server, name, change)


# Devices


def run_attach(args: Args) -> None:
    if len(args.positional) == 1:
        raise SpecError(
            "which device? A server's are not listed here", hint="NAME KEY=VALUE…, or a node of its machine"
        )
    word, device, *given = args.positional
    keys = pairs(given, "KEY=VALUE")
    if device.startswith("/"):
        # Which kind of node it is only the server's machine knows.
        keys = {"type": "unix-char", "source": device, **keys}
        device = device.removeprefix("/dev/").replace("/", "-")
    elif "/" in device:
        keys = {"type": "gpu", "id": device, **keys}
        device = device.partition("/")[2].replace("=", "-")
    if args.flag("volatile"):
        raise SpecError("`--volatile`: a server keeps what it attaches", hint="detach it again")
    if args.flag("wait"):
        raise SpecError("`--wait`: a server is believed only when the device is there", hint="it is waited for anyway")
    server, name = distant.one(word)
    if args.flag("dry-run"):
        instances.get(server, name)
        devices.check(device, keys)
        print("\t".join([device, *(f"{key}={value}" for key, value in keys.items())]))
        return
    if not devices.attach(server, name, device, keys):
        distant.talk(args, f"`{word}` is stopped: `{device}` comes with its next start")


def run_detach(args: Args) -> None:
    from ctrmgr.cli.device import named

    word, device = named(args)
    if args.flag("volatile") or args.one("holders", "report") != "report":
        option = "--volatile" if args.flag("volatile") else "--holders"
        raise SpecError(f"`{option}`: a server does not tell who has a device open", hint="leave it out")
    server, name = distant.one(word)
    if args.flag("dry-run"):
        print(f"detach {device} from {word}")
        return
    if not devices.detach(server, name, device).live:
        distant.talk(args, f"`{device}` is taken out of the configuration; it was not attached")


RUN: dict[str, Callable[[Args], int | None]] = {
    "attach-device": run_attach,
    "config get": config_get,
    "config set": config_set,
    "config show": config_show,
    "config unset": config_unset,
    "create": run_create,
    "detach-device": run_detach,
    "launch": run_launch,
}
