# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles of a server's, and how they come there and from there."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.cli import distant, distant_config, table
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.remote import registry
from ctrmgr.remote.server import Server, UnknownError, open_server, quoted, retried

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ctrmgr.cli.command import Args


def _at(word: str) -> tuple[Server, str]:
    remote, name = registry.split(word) or ("", "")
    return open_server(remote), name


def profile_list(args: Args) -> None:
    rows: list[dict[str, object]] = []
    for word in args.positional:
        server, part = _at(word)
        rows += [
            {
                "name": f"{server.name}:{each['name']}",
                "description": each["description"],
                "used by": len(each["used_by"] or []),
            }
            for each in sorted(server.get("/profiles", query={"recursion": "1"}), key=lambda each: str(each["name"]))
            if part in each["name"]
        ]
    table.print_rows(("name", "description", "used by"), rows, args.one("format", "table"))


def get(server: Server, name: str) -> tuple[dict[str, Any], str]:
    """One, and its entity tag. Raises NotFoundError."""
    try:
        return server.get_tagged(f"/profiles/{quoted(name)}")
    except UnknownError:
        known = ", ".join(str(each["name"]) for each in server.get("/profiles", query={"recursion": "1"}))
        raise NotFoundError(f"no profile `{server.name}:{name}`", hint=f"it has: {known}") from None


def text(found: dict[str, Any], name: str) -> str:
    """A profile as YAML: what `profile create` takes."""
    import yaml

    data = {
        "name": name,
        "description": found["description"],
        "config": found["config"],
        "devices": found["devices"],
    }
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def profile_show(args: Args) -> None:
    if args.flag("oci"):
        raise SpecError("`--oci` is for what is on this machine", hint="`ctrmgr profile pull` takes a profile over")
    server, name = _at(args.positional[0])
    table.print_text(text(get(server, name)[0], name), args.one("format", "table"))


def profile_push(args: Args) -> None:
    """One of ours, translated whole or refused."""
    from ctrmgr.plan.compile import find

    ours = args.positional[0]
    plain = distant_config.load(ours if "/" in ours else find(ours))
    server, name = _at(args.positional[1])
    name = name or os.path.basename(ours).removesuffix(".yaml")
    made = distant_config.translated(server, plain.config, plain.devices)
    for note in made.notes:
        distant.talk(args, f"note: {note}")
    made.problems += [
        (f"{device}.{key}", f"`{word}` is a name in an image, and a profile has none: give its number")
        for device, key, word in made.names
    ]
    if not args.flag("ignore-unsupported"):
        distant_config.check_places(server, made)
    else:
        for note in made.go_on():
            distant.talk(args, f"note: {note}")
    data = {"description": plain.description, "config": made.config, "devices": made.devices}
    if args.flag("dry-run"):
        print(text(data, name), end="")
        return
    _put(args, server, name, data)
    distant.talk(args, f"`{ours}` is now `{server.name}:{name}`")


def _translated(server: Server, ours: str) -> dict[str, Any]:
    """One of ours as a server would have it; what it cannot do is in it as it is."""
    from ctrmgr.plan.compile import find

    plain = distant_config.load(ours if "/" in ours else find(ours))
    made = distant_config.translated(server, plain.config, plain.devices)
    for device, key, word in made.names:
        made.devices[device][key] = word
    for key, _ in made.problems:
        if key in plain.config:
            made.config[key] = plain.config[key]
        elif key in plain.devices:
            made.devices[key] = dict(plain.devices[key])
    return {"description": plain.description, "config": made.config, "devices": made.devices}


def profile_diff(args: Args) -> int:
    """Ours is compared in the words of the other's server."""
    from difflib import unified_diff

    sides = []
    servers = [_at(word) if ":" in word and not word.startswith("local:") else None for word in args.positional]
    speaks = next(side[0] for side in servers if side)
    for word, side in zip(args.positional, servers, strict=True):
        if side:
            name = side[1] or os.path.basename(args.positional[0].rpartition(":")[2])
            found, label = get(side[0], name)[0], f"{side[0].name}:{name}"
        else:
            found, label = _translated(speaks, word.removeprefix("local:")), word
        whole = {
            "description": found["description"],
            "config": dict(sorted(found["config"].items())),
            "devices": {name: dict(sorted(keys.items())) for name, keys in sorted(found["devices"].items())},
        }
        sides.append((label, text(whole, "").partition("\n")[2]))
    (one, ours), (other, theirs) = sides
    lines = list(unified_diff(ours.splitlines(), theirs.splitlines(), one, other, lineterm=""))
    for line in lines:
        print(line)
    return 1 if lines else 0


def _put(args: Args, server: Server, name: str, data: dict[str, Any]) -> None:
    try:
        server.change("POST", "/profiles", {"name": name, **data})
        return
    except CtrmgrError as error:
        if "already exists" not in error.message and not isinstance(error, ConflictError):
            raise
    if not args.flag("force"):
        raise ConflictError(f"`{server.name}` has a profile `{name}`", hint="--force replaces it")

    def once(_: Any, etag: str) -> None:
        server.change("PUT", f"/profiles/{quoted(name)}", data, etag=etag)

    retried(server, once, f"/profiles/{quoted(name)}")


def profile_pull(args: Args) -> None:
    """One of a server's, as it is."""
    from ctrmgr import source
    from ctrmgr.plan import folders
    from ctrmgr.spec import profile

    server, name = _at(args.positional[0])
    if not name:
        raise SpecError(f"`{args.positional[0]}`: a profile is missing", hint="REMOTE:PROFILE")
    new = profile.check_name(args.positional[1] if len(args.positional) > 1 else name)
    path = f"{folders.search()[-1]}/{new}.yaml"
    if (os.path.exists(path) or folders.find(new)) and not args.flag("force"):
        raise ConflictError(f"profile `{new}` exists", hint="give another name, or --force")
    found = text(get(server, name)[0], new)
    if args.flag("dry-run"):
        print(found, end="")
        return
    state.make_dir(os.path.dirname(path), 0o755)
    state.write_file(path, found.encode())
    distant.talk(args, f"`{server.name}:{name}` is now profile `{new}`: {path}")
    try:
        profile.validate(source.parse(path, found))
    except SpecError as error:
        distant.talk(args, f"note: this machine cannot use it: {error.message}")


def profile_delete(args: Args) -> None:
    """Of servers; instances that use one keep it from being deleted."""
    for word in args.positional:
        server, name = _at(word)
        if not name:
            raise SpecError(f"`{word}`: a profile is missing", hint="REMOTE:PROFILE")
        with server:
            users = get(server, name)[0].get("used_by") or ()
            if users:
                names = ", ".join(str(url).rpartition("/")[2].partition("?")[0] for url in users)
                raise ConflictError(f"`{word}` is in use: {names}", hint="only one that nothing uses can be deleted")
            if args.flag("dry-run"):
                print(f"delete profile `{word}`")
            else:
                server.change("DELETE", f"/profiles/{quoted(name)}")


RUN: dict[str, Callable[[Args], int | None]] = {
    "profile delete": profile_delete,
    "profile diff": profile_diff,
    "profile list": profile_list,
    "profile pull": profile_pull,
    "profile push": profile_push,
    "profile show": profile_show,
}
