# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr image …`: what is in the store, what comes in and goes out."""

from __future__ import annotations

import sys

from ctrmgr.cli import image_rows
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import ConflictError, NotFoundError
from ctrmgr.images import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ctrmgr.cli.command import Args


def _talk(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(text, file=sys.stderr)


def _dry(args: Args, text: str) -> bool:
    if args.flag("dry-run"):
        print(text)
        return True
    return False


def names_remote(word: str) -> bool:
    """Whether a word for an image means another machine: names of our own may have a colon as well (`debian:trixie`)."""
    remote, colon, _ = word.partition(":")
    if not colon or remote == "builtin" or store.alias_target(word) is not None:
        return False
    from ctrmgr.remote import registry

    return remote in ("", registry.LOCAL) or remote in registry.load().by_name


def here_or_there(
    name: str, function: Callable[[Args], None], first: int = 0, last: int | None = None
) -> Callable[[Args], int | None]:
    """A verb of an image, done on the servers that its words (`first` to `last`) name."""

    def run(args: Args) -> int | None:
        if not any(names_remote(word) for word in args.positional[first:last]):
            function(args)
            return None
        from ctrmgr.cli import distant_image

        return distant_image.RUN[name](args)

    return run


def image_list(args: Args) -> None:
    from ctrmgr.cli import table

    if args.positional:
        raise NotFoundError(f"no remote `{args.positional[0].partition(':')[0]}`", hint="`ctrmgr remote list`")
    form = args.one("format", "table")
    table.print_rows(image_rows.COLUMNS, image_rows.rows(form == "table"), form, spare=image_rows.SPARE)


def image_info(args: Args) -> None:
    from ctrmgr.cli import table
    from ctrmgr.images import removal

    image = store.find(args.positional[0])
    fields: dict[str, object] = {"fingerprint": image.fingerprint}
    fields["aliases"] = [alias for alias, target in store.aliases() if target == image.fingerprint]
    fields.update(image.metadata)
    fields["rootfs"] = image.rootfs
    fields["used by"] = removal.users(image.fingerprint)
    form = args.one("format", "table")
    fields["created"] = image_rows.created(image)
    size = int(image.metadata.get("size", "0"))
    fields["size"] = table.size(size) if form == "table" else size
    if image.metadata.get("halt-signal", "").isdecimal():
        fields["halt-signal"] = int(image.metadata["halt-signal"])
    table.print_object(fields, form)


def image_import(args: Args) -> None:
    from ctrmgr.cli.progress import Bar
    from ctrmgr.images import importing

    if args.positional[-1].endswith(":") and len(args.positional) > 1:
        from ctrmgr.remote import registry

        registry.load().get(args.positional[-1][:-1])  # it says that there is none
    if _dry(args, f"import {' and '.join(f'`{path}`' for path in args.positional)}"):
        return
    with Bar(args.flag("quiet")) as bar:
        image, new = importing.import_image(
            args.positional,
            alias=args.one("alias"),
            fingerprint=args.one("fingerprint"),
            description=args.one("description"),
            progress=bar.update,
        )
    if not new:
        _talk(args, f"image `{image.fingerprint[:12]}` was there already")
    print(image.fingerprint)


def image_build(args: Args) -> None:
    from ctrmgr.cli.progress import Bar
    from ctrmgr.images import build

    what = args.positional[0]
    if _dry(args, f"build `{what}` with mmdebstrap"):
        return
    include = [package for word in args.all("include") for package in word.split(",") if package]
    with Bar(args.flag("quiet")) as bar:
        image = build.build(what, include=include, alias=args.one("alias"), progress=bar.update)
    print(image.fingerprint)


def image_export(args: Args) -> None:
    from ctrmgr.cli.progress import Bar
    from ctrmgr.images import exporting

    image = store.find(args.positional[0])
    path = args.positional[1] if len(args.positional) > 1 else image.fingerprint[:12] + ".tar.gz"
    if _dry(args, f"export image `{image.fingerprint[:12]}` to `{path}`"):
        return
    with Bar(args.flag("quiet")) as bar:
        exporting.export(image, path, force=args.flag("force"), progress=bar.update)
    print(path)


def image_delete(args: Args) -> None:
    from ctrmgr.images import removal

    for ref in args.positional:
        if not _dry(args, f"delete image `{ref}`"):
            removal.delete(ref)


def image_copy(args: Args) -> None:
    from ctrmgr.remote import registry

    word = next((word for word in args.positional if ":" in word), args.positional[1])
    registry.load().get(word.partition(":")[0])
    raise NotFoundError(f"no image `{args.positional[0]}`", hint="REMOTE:IMAGE, or an image of the store")


def publish(args: Args) -> None:
    from ctrmgr.cli import distant_image

    distant_image.publish(args)


def alias_list(args: Args) -> None:
    from ctrmgr.cli import table

    rows = [{"alias": alias, "fingerprint": fingerprint} for alias, fingerprint in store.aliases()]
    table.print_rows(("alias", "fingerprint"), rows, args.one("format", "table"))


def alias_create(args: Args) -> None:
    alias, ref = args.positional
    image = store.find(ref)
    taken = store.alias_target(alias)
    if taken and taken != image.fingerprint and not args.flag("force"):
        raise ConflictError(f"alias `{alias}` stands for image `{taken[:12]}`", hint="--force moves it")
    if not _dry(args, f"alias `{alias}` for image `{image.fingerprint[:12]}`"):
        store.make_dirs()
        store.set_alias(alias, image.fingerprint)


def alias_delete(args: Args) -> None:
    alias = args.positional[0]
    if store.alias_target(alias) is None:
        raise NotFoundError(f"no image alias `{alias}`", hint="`ctrmgr image alias list` shows what there is")
    if not _dry(args, f"delete alias `{alias}`"):
        store.drop_alias(alias)


IMAGE = Argument("IMAGE", "an alias, a fingerprint or its beginning; REMOTE:IMAGE", complete="image")
REMOTES = Argument(
    "REMOTE:", "of these servers, `local:` is this machine", required=False, repeat=True, complete="remote"
)
COMMANDS = (
    Command(
        "image list",
        "the images of the store",
        here_or_there("image list", image_list),
        arguments=(REMOTES,),
        help="REMOTE:WORD lists those whose alias has the word in it. A remote may be an image server.",
    ),
    Command(
        "image info", "everything known about an image", here_or_there("image info", image_info), arguments=(IMAGE,)
    ),
    Command(
        "image import",
        "bring an image into the store",
        here_or_there("image import", image_import, -1),
        arguments=(
            Argument(
                "PATH", "a directory, a tar or squashfs, an OCI image, or LXD's metadata tarball", complete="file"
            ),
            Argument("ROOTFS", "the root filesystem that belongs to the metadata", required=False, complete="file"),
            Argument("REMOTE:", "bring it to this server instead", required=False, complete="remote"),
        ),
        options=(
            Option("alias", "the name to call it by", metavar="NAME"),
            Option("fingerprint", "refuse it unless its SHA-256 is this (12 digits or more)", metavar="SHA256"),
            Option("description", "what it is, in words", metavar="TEXT"),
        ),
        help="Archives are unpacked in namespaces of their own, and refused when a name in them leads elsewhere.",
    ),
    Command(
        "image build",
        "make an image of a distribution from its packages",
        image_build,
        arguments=(Argument("DISTRIBUTION:SUITE", "debian:trixie, ubuntu:noble …"),),
        options=(
            Option("alias", "the name to call it by (as it was asked for)", metavar="NAME"),
            Option("include", "more packages, with commas", metavar="PACKAGES", repeat=True),
        ),
        help="Uses mmdebstrap and the package mirrors that this machine's apt is configured for.",
    ),
    Command(
        "image export",
        "write an image as a tarball for LXD, Incus or ctrmgr",
        here_or_there("image export", image_export, 0, 1),
        arguments=(
            IMAGE,
            Argument("FILE", "where to: .tar, .tar.gz, .tar.xz, .tar.zst, .tar.bz2", required=False, complete="file"),
        ),
        options=(Option("force", "replace the file"),),
    ),
    Command(
        "image delete",
        "delete images that no instance uses",
        here_or_there("image delete", image_delete),
        arguments=(Argument("IMAGE", "an alias, a fingerprint or its beginning", repeat=True, complete="image"),),
    ),
    Command(
        "image copy",
        "bring an image from one machine to another",
        here_or_there("image copy", image_copy),
        arguments=(IMAGE, Argument("REMOTE:", "where to; `local:` is this machine", complete="remote")),
        options=(Option("alias", "the name to call it by there", metavar="NAME"),),
        help="It passes through this machine, and its hash is compared on both sides. An image server is only a source.",
    ),
    Command(
        "publish",
        "make an image of a stopped instance",
        publish,
        arguments=(
            Argument("INSTANCE", "its name; REMOTE:NAME", complete="instance"),
            Argument("REMOTE:", "where to; where the instance is", required=False, complete="remote", distant=True),
        ),
        options=(
            Option("alias", "the name to call it by", metavar="NAME"),
            Option("description", "what it is, in words (for an image on this machine)", metavar="TEXT"),
        ),
    ),
    Command(
        "image alias list", "the names of images", here_or_there("image alias list", alias_list), arguments=(REMOTES,)
    ),
    Command(
        "image alias create",
        "give an image another name",
        here_or_there("image alias create", alias_create, 0, 1),
        arguments=(Argument("ALIAS", "the new name; REMOTE:NAME"), IMAGE),
        options=(Option("force", "move a name that stands for another image"),),
    ),
    Command(
        "image alias delete",
        "forget a name; the image stays",
        here_or_there("image alias delete", alias_delete),
        arguments=(Argument("ALIAS", "the name"),),
    ),
)
