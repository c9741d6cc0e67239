# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr image …` on servers and image servers, and `publish`."""

from __future__ import annotations

import contextlib
import os

from ctrmgr import state
from ctrmgr.cli import distant
from ctrmgr.errors import ConflictError, NotFoundError, SpecError
from ctrmgr.remote import copying, images, passing, registry
from ctrmgr.remote.server import of, open_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ctrmgr.cli.command import Args
    from ctrmgr.cli.distant_copy import End
    from ctrmgr.remote.passing import Passage
    from ctrmgr.remote.server import Server


def _split(word: str) -> tuple[registry.Remote | None, str]:
    """The remote (None for this machine) and the image."""
    remote, image = registry.split(word) or (registry.LOCAL, word)
    return (None, image) if remote == registry.LOCAL else (registry.load().get(remote), image)


def _server(word: str) -> tuple[Server, str]:
    remote, image = registry.split(word) or ("", word)
    return open_server(remote), image


def is_stream(remote: registry.Remote) -> bool:
    return remote.kind == registry.IMAGES


def image_list(args: Args) -> None:
    from ctrmgr.cli import image_rows, table

    people = args.one("format", "table") == "table"
    rows: list[dict[str, object]] = []
    for word in args.positional:
        remote, part = _split(word)
        if remote is None:
            found = image_rows.rows(people)
        elif is_stream(remote):
            found = _stream_rows(remote, people)
        else:
            found = _server_rows(args, remote, people)
        rows += [row for row in found if not part or any(part in name for name in row["alias"])]  # type: ignore[attr-defined]
    table.print_rows(image_rows.COLUMNS, rows, args.one("format", "table"), spare=image_rows.SPARE)


def _server_rows(args: Args, remote: registry.Remote, people: bool) -> list[dict[str, object]]:
    from ctrmgr.cli import distant_copy, table

    with of(remote) as server:
        distant_copy.sweep(args, server)
        return [
            {
                "alias": [f"{server.name}:{alias['name']}" for alias in each["aliases"]],
                "fingerprint": each["fingerprint"][:12] if people else each["fingerprint"],
                "description": each["properties"].get("description", ""),
                "architecture": each["architecture"],
                "size": table.size(each["size"]) if people else each["size"],
                "created": _created(each)[: 10 if people else None],
            }
            for each in images.listing(server)
        ]


def _stream_rows(remote: registry.Remote, people: bool) -> list[dict[str, object]]:
    from ctrmgr.cli import table
    from ctrmgr.remote import streams

    rows: list[dict[str, object]] = []
    for each in streams.listing(remote):
        size = sum(item.size for item in each.files)
        rows.append(
            {
                "alias": [f"{remote.name}:{alias}" for alias in each.aliases],
                "fingerprint": each.fingerprint[:12] if people else each.fingerprint,
                "description": each.description,
                "architecture": each.architecture,
                "size": table.size(size) if people else size,
                "created": _day(each.version),
            }
        )
    return rows


def _created(image: Mapping[str, Any]) -> str:
    return str(image["created_at"])[:19] + "Z"


def _day(version: str) -> str:
    """The day in a version as image servers count them (`20241122_05:24`); one that is another word is left as it is."""
    day = version[:8]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}" if len(day) == 8 and day.isdecimal() else version


def image_info(args: Args) -> None:
    from ctrmgr.cli import table

    remote, word = _split(args.positional[0])
    assert remote
    if is_stream(remote):
        from ctrmgr.remote import streams

        image = streams.find(remote, word)
        fields: dict[str, object] = {
            "fingerprint": image.fingerprint,
            "aliases": image.aliases,
            "description": image.description,
            "architecture": image.architecture,
            "version": image.version,
            "size": sum(item.size for item in image.files),
        }
    else:
        with of(remote) as server:
            found = images.get(server, word)
        fields = {
            "fingerprint": found["fingerprint"],
            "aliases": [alias["name"] for alias in found["aliases"]],
            **found["properties"],
            "architecture": found["architecture"],
            "size": found["size"],
            "public": found["public"],
            "created": _created(found),
        }
    form = args.one("format", "table")
    if form == "table":
        fields["size"] = table.size(int(str(fields["size"])))
    table.print_object(fields, form)


@contextlib.contextmanager
def files(args: Args, remote: registry.Remote | None, word: str) -> Iterator[tuple[str, list[str]]]:
    """An image's fingerprint (hash of its files) and these, on this machine for as long as the block runs."""
    from ctrmgr.cli import distant_copy

    with distant_copy.begun(args) as passage:
        folder = passage.path
        if remote is None:
            from ctrmgr.images import exporting, store

            path = f"{folder}/image.tar"
            exporting.export(store.find(word), path)
            yield "", [path]
        elif is_stream(remote):
            from ctrmgr.remote import streams

            found = streams.find(remote, word)
            yield found.fingerprint, streams.fetch(remote, found, folder)
        else:
            with of(remote) as server:
                fingerprint = images.find(server, word)
                paths = images.fetch(server, fingerprint, folder)
            yield fingerprint, paths


def bring(args: Args, word: str) -> str:
    """The fingerprint of another machine's image, which is in the store then. What is there already is not fetched again."""
    from ctrmgr.images import importing, store

    remote, name = _split(word)
    if remote is None:
        return store.find(name).fingerprint
    if is_stream(remote):
        from ctrmgr.remote import streams

        wanted = streams.find(remote, name).fingerprint
    else:
        with of(remote) as server:
            wanted = images.find(server, name)
    if wanted not in store.fingerprints():
        distant.talk(args, f"image `{wanted[:12]}` comes from `{remote.name}`")
        with files(args, remote, name) as (fingerprint, paths):
            importing.import_image(paths, fingerprint=fingerprint, description=word)
    return wanted


def image_copy(args: Args) -> None:
    remote, word = _split(args.positional[0])
    there, rest = _split(args.positional[1])
    if rest:
        raise SpecError(f"`{args.positional[1]}`: an image is copied to a whole server", hint=f"--alias {rest}")
    if remote is None and there is None:
        raise ConflictError("it is on this machine already", hint="`ctrmgr image alias create` gives it another name")
    if args.flag("dry-run"):
        print(f"copy image {args.positional[0]} to {args.positional[1]}")
        return
    alias = args.one("alias")
    with files(args, remote, word) as (fingerprint, paths):
        if there is None:
            from ctrmgr.images import importing

            description = args.positional[0]
            image, _ = importing.import_image(paths, alias=alias, fingerprint=fingerprint, description=description)
            print(image.fingerprint)
            return
        with of(there) as server:
            print(_give(server, fingerprint, paths, alias))


def _give(server: Server, fingerprint: str, paths: list[str], alias: str) -> str:
    """An image that is there already only gets its alias."""
    if alias and (taken := images.known(server, alias)) and taken != fingerprint:
        raise ConflictError(
            f"on `{server.name}` alias `{alias}` stands for image `{taken[:12]}`", hint="choose another name"
        )
    if fingerprint in images.fingerprints(server):
        if alias:
            images.set_alias(server, alias, fingerprint)
        return fingerprint
    fingerprint = images.send(server, paths)
    if alias:
        images.name_it(server, fingerprint, alias)
    return fingerprint


def image_export(args: Args) -> None:
    import shutil

    remote, word = _split(args.positional[0])
    assert remote
    given = args.positional[1] if len(args.positional) > 1 else ""
    if args.flag("dry-run"):
        print(f"export image `{args.positional[0]}` to `{given or '.'}`")
        return
    with files(args, remote, word) as (fingerprint, paths):
        path = given or fingerprint[:12]
        targets = [path, f"{path}.root"][: len(paths)]
        for target in targets:
            if os.path.lexists(target) and not args.flag("force"):
                raise ConflictError(f"`{target}` is there already", hint="--force replaces it")
        for source, target in zip(paths, targets, strict=True):
            if not state.replaceable(target):
                raise ConflictError(f"`{target}` is no file", hint="only a file is replaced")
            aside = f"{target}.{os.getpid()}.part"
            try:
                shutil.copyfile(source, aside)
                os.rename(aside, target)
            finally:
                state.unlink(aside)
            print(target)


def image_import(args: Args) -> None:
    *paths, word = args.positional
    server, rest = _server(word)
    if rest or not 1 <= len(paths) <= 2:
        raise SpecError("`ctrmgr image import`: one file or two, and then `REMOTE:`")
    for path in paths:
        if not os.path.isfile(path):
            raise NotFoundError(f"no file `{path}`", hint="a server takes a tarball, or metadata and root filesystem")
    if args.flag("dry-run"):
        print(f"import {' and '.join(paths)} to {word}")
        return
    alias = args.one("alias")
    with server:
        fingerprint = images.hashed(paths)
        if not alias and fingerprint in images.fingerprints(server):
            raise ConflictError(f"`{server.name}` has this image already: {fingerprint[:12]}")
        print(_give(server, fingerprint, paths, alias))


def image_delete(args: Args) -> None:
    for word in args.positional:
        server, image = _server(word)
        with server:
            if args.flag("dry-run"):
                print(f"delete image `{server.name}:{images.find(server, image)[:12]}`")
            else:
                images.delete(server, image)


def alias_list(args: Args) -> None:
    from ctrmgr.cli import table

    rows = []
    for word in args.positional:
        server, part = _server(word)
        with server:
            found = server.get("/images/aliases", query={"recursion": "1"})
        rows += [
            {"alias": f"{server.name}:{each['name']}", "fingerprint": each["target"]}
            for each in sorted(found, key=lambda each: str(each["name"]))
            if part in each["name"]
        ]
    table.print_rows(("alias", "fingerprint"), rows, args.one("format", "table"))


def alias_create(args: Args) -> None:
    server, alias = _server(args.positional[0])
    image = args.positional[1].removeprefix(f"{server.name}:")
    with server:
        fingerprint = images.find(server, image)
        if args.flag("dry-run"):
            print(f"alias `{server.name}:{alias}` for image `{fingerprint[:12]}`")
            return
        images.set_alias(server, alias, fingerprint, force=args.flag("force"))


def alias_delete(args: Args) -> None:
    server, alias = _server(args.positional[0])
    with server:
        if args.flag("dry-run"):
            print(f"delete alias `{server.name}:{alias}`")
            return
        images.drop_alias(server, alias)


def publish(args: Args) -> None:
    """By the server itself when the image stays there; else it is made for this alone, and sent."""
    from ctrmgr.cli import distant_copy

    source = distant_copy.End(args.positional[0])
    word = args.positional[1] if len(args.positional) > 1 else f"{source.server.name}:" if source.server else "local:"
    remote, rest = _split(word)
    if rest:
        raise SpecError(f"`{word}`: an image goes to a whole server", hint=f"`REMOTE: --alias {rest}`")
    alias = args.one("alias")
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(of(remote)) if remote else None
        if target and alias and images.known(target, alias):
            raise ConflictError(f"`{target.name}` has an image `{alias}`", hint="choose another alias")
        if source.server:
            from ctrmgr.remote import instances

            stack.enter_context(source.server)
            found = instances.get(source.server, source.name)
            copying.refuse_if_running(source.server, source.name, found)
        if args.flag("dry-run"):
            print(f"publish {source.label} to {word}")
            return
        if source.server and target and source.server.name == target.name:
            names = [alias] if alias else []
            said = args.one("description")
            print(copying.publish(source.server, source.name, aliases=names, description=said))
            return
        with distant_copy.begun(args, source.server, target) as passage:
            if target:
                with distant_copy.as_image(args, source, passage) as blocks:
                    fingerprint = copying.send_image(target, blocks, passage)
                if alias:
                    images.name_it(target, fingerprint, alias)
                passage.gone(passing.IMAGE, target)
            else:
                fingerprint = publish_here(args, source, alias, passage)
        print(fingerprint)


def publish_here(args: Args, source: End, alias: str, passage: Passage) -> str:
    from ctrmgr.cli import distant_copy
    from ctrmgr.images import importing

    path = f"{passage.path}/image.tar"
    with distant_copy.as_image(args, source, passage) as blocks, open(path, "wb") as file:
        for block in blocks:
            file.write(block)
    image, _ = importing.import_image([path], alias=alias, description=args.one("description") or source.label)
    return image.fingerprint


RUN: dict[str, Callable[[Args], int | None]] = {
    "image alias create": alias_create,
    "image alias delete": alias_delete,
    "image alias list": alias_list,
    "image copy": image_copy,
    "image delete": image_delete,
    "image export": image_export,
    "image import": image_import,
    "image info": image_info,
    "image list": image_list,
    "publish": publish,
}
