# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr copy` from, to and between servers."""

from __future__ import annotations

import contextlib
import os

from ctrmgr.cli import distant, distant_config
from ctrmgr.cli.copy import profiles
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.remote import copying, images, instances, migration, passing, registry, snapshots
from ctrmgr.remote.passing import Passage
from ctrmgr.remote.server import Server, open_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ctrmgr.cli.command import Args
    from ctrmgr.cli.distant_move import Move


class End:
    """Where something is, or is to be: `server` is None for this machine."""

    def __init__(self, word: str, name: str = "") -> None:
        self.server: Server | None = None
        self.name = word.removeprefix("local:") or name
        if not distant.is_local(word):
            remote, given = registry.split(word) or ("", "")
            self.server, self.name = open_server(remote), given or name
        if not self.name:
            raise SpecError(f"`{word}`: an instance is missing", hint="REMOTE:NAME")

    @property
    def label(self) -> str:
        return instances.label(self.server, self.name) if self.server else self.name


def _note(args: Args) -> Callable[[str], None]:
    return lambda text: distant.talk(args, f"note: {text}")


def run_copy(args: Args) -> None:
    source = End(args.positional[0])
    target = End(args.positional[1], source.name)
    copy(args, source, target)
    if not args.flag("dry-run"):
        print(target.label)


def copy(args: Args, source: End, target: End, move: Move | None = None) -> None:
    """Raises what the target's side of it does; then nothing is there, or it is said what is."""
    moving = move is not None
    with contextlib.ExitStack() as stack:
        for end in (source, target):
            if end.server:
                stack.enter_context(end.server)
        if source.server:
            copying.refuse_if_running(source.server, source.name, instances.get(source.server, source.name))
        if not args.flag("dry-run"):
            sweep(args, source.server, target.server)
        if target.server:
            copying.refuse_if_there(target.server, target.name)
        ways = _ways(args, source, target)
        kept = [] if args.flag("instance-only") else _snapshots(source)
        if ways == [IMAGE]:
            _say_what_stays(args, source, kept, moving=moving)
        if args.flag("dry-run"):
            print(f"{'move' if moving else 'copy'} {source.label} {target.label} {', or '.join(ways)}")
            return
        passage = stack.enter_context(Passage())
        if move:
            move.begins()
        with passage.making(target.server, target.name) if target.server else contextlib.nullcontext():
            _carry(args, ways, source, target, kept, passage, moving=moving)
            if move:
                move.arrived(passage)
        if move:
            move.ends(passage)


def _carry(
    args: Args, ways: list[str], source: End, target: End, kept: list[str], passage: Passage, *, moving: bool
) -> None:
    """By the first of the ways that there is."""
    for number, way in enumerate(ways, 1):
        try:
            _go(args, way, source, target, kept, passage)
            return
        except migration.NoWayError as error:
            # The servers do not get together, and nothing is left of the attempt.
            _note(args)(f"not {way}: {error.message}; it goes {ways[number]}")
            if ways[number] == IMAGE:
                _say_what_stays(args, source, kept, moving=moving)


ON_IT, DIRECT, BACKUP, IMAGE = "on the server", "directly", "as a backup", "as an image"


def _ways(args: Args, source: End, target: End) -> list[str]:
    """How it can go, the best first; all but an image bring everything."""
    if not source.server or not target.server:
        return [IMAGE]
    names = profiles(args)
    if migration.same(source.server, target.server):
        ways = [ON_IT]
    elif images.server_kind(source.server) != images.server_kind(target.server):
        return [IMAGE]
    else:
        ways = [DIRECT, BACKUP if names is None else IMAGE]
    copying.check_profiles(target.server, _wanted(source.server, source.name, names))
    return ways


def _wanted(server: Server, name: str, names: list[str] | None) -> list[str]:
    return list(instances.get(server, name)["profiles"]) if names is None else names


def _say_what_stays(args: Args, source: End, kept: list[str], *, moving: bool) -> None:
    """An image has no snapshots. Raises ConflictError when the source is to go."""
    if not kept:
        return
    text = f"its snapshots ({', '.join(kept)}) stay behind"
    if moving:
        raise ConflictError(f"`{source.label}` cannot be moved whole: {text}", hint="--instance-only goes without them")
    _note(args)(text)


def begun(args: Args, *servers: Server | None) -> Passage:
    """To be entered. What a killed command has left goes first."""
    sweep(args, *servers)
    return Passage()


def sweep(args: Args, *servers: Server | None) -> None:
    def forget(fingerprint: str) -> None:
        from ctrmgr.images import removal

        with contextlib.suppress(CtrmgrError):  # it is used, or never came
            removal.delete(fingerprint)

    def here(name: str) -> bool:
        from ctrmgr.backend import record

        return os.path.exists(record.home(name))

    passing.sweep((server for server in servers if server), _note(args), forget, here)


def _go(args: Args, way: str, source: End, target: End, kept: list[str], passage: Passage) -> None:
    """Raises migration.NoWayError when another way may do."""
    if way == IMAGE:
        if target.server:
            _to_server(args, source, target.server, target.name, passage)
        elif source.server:
            _from_server(args, source.server, source.name, target.name, passage)
        return
    assert source.server and target.server
    ends = (source.server, source.name, target.server, target.name)
    alone, names = args.flag("instance-only"), profiles(args)
    if way == ON_IT:
        copying.on_the_server(*ends, alone=alone, profiles=names)
    elif way == DIRECT:
        migration.carry(*ends, alone=alone, profiles=_wanted(source.server, source.name, names))
    else:
        copying.by_backup(*ends, passage, alone=alone)
    copying.verify(target.server, target.name, kept=kept)


def _snapshots(source: End) -> list[str]:
    from ctrmgr.backend import snapshots as local

    rows = snapshots.listing(source.server, source.name) if source.server else local.listing(source.name)
    return [row["name"] for row in rows]


def _to_server(args: Args, source: End, server: Server, name: str, passage: Passage) -> None:
    """As an image that is there for this alone. Keys, devices and profiles are looked at first."""
    if source.server:
        found = instances.get(source.server, source.name)
        config, own = copying.own_keys(found)
        names = profiles(args)
        theirs = list(found["profiles"]) if names is None else names
        copying.check_profiles(server, theirs)
        ephemeral = bool(found["ephemeral"])
        made = distant_config.translated(server, config, own)
    else:
        from ctrmgr.backend import record

        here = record.Record(source.name)
        names = profiles(args)
        theirs, ours = distant_config.profiles(server, here.profiles if names is None else names)
        config, own = distant_config.merged(ours, here.config, here.devices)
        ephemeral = here.ephemeral
        made = distant_config.translated(server, config, own)
    distant_config.settle(args, server, made)
    with contextlib.ExitStack() as stack:
        fingerprint = copying.send_image(server, stack.enter_context(as_image(args, source, passage)), passage)
        stack.enter_context(copying.Passing(server, fingerprint, passage, _note(args)))
        wanted = distant_config.Asked(server, name, "", theirs, made)
        distant_config.make(wanted, {"type": "image", "fingerprint": fingerprint}, ephemeral=ephemeral)
        instances.finish(server, name, lambda: copying.verify(server, name, fingerprint))


@contextlib.contextmanager
def as_image(args: Args, source: End, passage: Passage) -> Iterator[Iterator[bytes]]:
    """A stopped instance as the bytes of a unified image."""
    said = args.one("description")
    if source.server:
        fingerprint = copying.publish(source.server, source.name, description=said, passage=passage)
        with copying.Passing(source.server, fingerprint, passage, _note(args)):
            yield copying.export_image(source.server, fingerprint)
        return
    from ctrmgr.backend import record, within
    from ctrmgr.images import exporting, store

    image = store.load(record.Record(source.name).image)
    metadata = exporting.metadata_yaml(image, copying.properties(said, passage.mark))
    blocks = within.tar(source.name, metadata)
    with contextlib.closing(blocks):  # type: ignore[type-var]
        yield blocks


def _from_server(args: Args, server: Server, name: str, new: str, passage: Passage) -> None:
    from ctrmgr.backend import create, record
    from ctrmgr.images import importing, removal
    from ctrmgr.plan.compile import find

    record.check_name(new)
    if os.path.exists(record.home(new)):
        raise ConflictError(f"an instance `{new}` exists already", hint="choose another name, or delete it first")
    found = instances.get(server, name)
    config, own = copying.own_keys(found)
    names = profiles(args)
    if names is None:
        names = [str(each) for each in found["profiles"]]
    for each in names:
        try:
            find(each)
        except NotFoundError as error:
            error.hint = "-p PROFILE names others, --no-profiles none"
            raise
    fingerprint = copying.publish(server, name, passage=passage)
    path = f"{passage.path}/image"
    with copying.Passing(server, fingerprint, passage, _note(args)), open(path, "wb") as file:
        for block in copying.export_image(server, fingerprint):
            file.write(block)
    passage.note(passing.HERE, None, fingerprint)
    image, fresh = importing.import_image([path], fingerprint=fingerprint, description=f"{server.name}:{name}")
    try:
        wish = create.Wish(
            image.fingerprint,
            new,
            profiles=names,
            config=config,
            devices=own,
            ephemeral=bool(found["ephemeral"]),
            ignore_unsupported=args.flag("ignore-unsupported"),
        )
        create.create(wish)
    except BaseException:
        if fresh:
            with contextlib.suppress(CtrmgrError):
                removal.delete(image.fingerprint)
        raise
    finally:
        passage.gone(passing.HERE, None, fingerprint)


RUN: dict[str, Callable[[Args], int | None]] = {"copy": run_copy}
