# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr file push` and `pull`: files between this machine and instances, here and on servers."""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from ctrmgr import entries, state
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ctrmgr.cli.command import Args
    from ctrmgr.entries import Entry


class Place:
    """An instance's files, here or on a server."""

    def __init__(self, word: str) -> None:
        where, slash, path = word.partition("/")
        if not slash or not where or where.endswith(":"):
            raise SpecError(f"`{word}` is no place in an instance", hint="INSTANCE/PATH, REMOTE:INSTANCE/PATH")
        self.word, self.path = word, "/" + path
        self.server = None
        self.name = where.removeprefix("local:")
        if ":" in self.name:
            from ctrmgr.cli import distant

            self.server, self.name = distant.one(where)

    def pull(self, *, recursive: bool, say: Callable[[str], None]) -> Iterator[Entry]:
        if self.server:
            from ctrmgr.remote import files

            return files.pull(self.server, self.name, self.path, recursive=recursive, say=say)
        from ctrmgr.backend import within

        return within.pull(self.name, self.path, recursive=recursive, say=say)

    def push(self, path: str, found: Iterable[Entry], *, parents: bool) -> None:
        if self.server:
            from ctrmgr.remote import files

            files.push(self.server, self.name, path, found, parents=parents)
        else:
            from ctrmgr.backend import within

            within.push(self.name, path, found, parents=parents)

    def is_directory(self) -> bool:
        if self.server:
            from ctrmgr.remote import files

            return files.is_directory(self.server, self.name, self.path)
        from ctrmgr.backend import within

        return within.is_directory(self.name, self.path)


def _say(args: Args) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not args.flag("quiet"):
            print(f"note: {text}", file=sys.stderr)

    return say


def _number(args: Args, name: str, base: int = 10) -> int:
    given = args.one(name)
    if not given:
        return -1
    try:
        found = int(given, base)
    except ValueError:
        found = -1
    if found < 0 or (base == 8 and found > 0o7777):
        what = "no mode: octal, 0 to 7777" if base == 8 else "no number"
        raise SpecError(f"`--{name} {given}`: it is {what}", hint="--mode 0640, --uid 1000")
    return found


def _input() -> Iterator[Entry]:
    """What is on standard input, as a file."""
    status = os.fstat(0)
    if stat.S_ISREG(status.st_mode) and not os.lseek(0, 0, os.SEEK_CUR):
        yield entries.Entry("", entries.FILE, mode=0o644, uid=0, gid=0, size=status.st_size, data=_stream())
        return
    data = sys.stdin.buffer.read()  # how large it is must be said first
    yield entries.Entry("", entries.FILE, mode=0o644, uid=0, gid=0, size=len(data), data=[data])


def _stream() -> Iterator[bytes]:
    while block := os.read(0, entries.BLOCK):
        yield block


def file_push(args: Args) -> None:
    *sources, word = args.positional
    if not sources:
        raise SpecError("`ctrmgr file push`: INSTANCE/PATH is missing", hint="ctrmgr file push FILE… INSTANCE/PATH")
    place = Place(word)
    mode, uid, gid = _number(args, "mode", 8), _number(args, "uid"), _number(args, "gid")
    say = _say(args)
    recursive = args.flag("recursive")

    def owned(found: Iterable[Entry]) -> Iterator[Entry]:
        for each in found:
            each.uid, each.gid = (uid if uid >= 0 else each.uid), (gid if gid >= 0 else each.gid)
            if mode >= 0 and each.kind == entries.FILE:
                each.mode = mode
            yield each

    for source in sources:
        if source != "-" and not os.path.exists(source):
            raise NotFoundError(f"no file `{source}`")
        if source != "-" and os.path.isdir(source) and not recursive:
            raise SpecError(f"`{source}` is a directory", hint="--recursive takes it whole")
    into = place.path.endswith("/") or len(sources) > 1 or (not args.flag("dry-run") and place.is_directory())
    if into and "-" in sources:
        raise SpecError("standard input has no name", hint="name the file in the instance")
    for source in sources:
        target = entries.join(place.path, os.path.basename(os.path.abspath(source))) if into else place.path
        if args.flag("dry-run"):
            print(f"push {source} {place.word.partition('/')[0]}{target}")
            continue
        found = _input() if source == "-" else entries.read(source, recursive=recursive, say=say)
        place.push(target, owned(found), parents=args.flag("create-dirs"))


def file_pull(args: Args) -> None:
    *sources, target = args.positional
    if not sources:
        raise SpecError(
            "`ctrmgr file pull`: where to is missing", hint="ctrmgr file pull INSTANCE/PATH… FILE; `-` is stdout"
        )
    into = target.endswith("/") or len(sources) > 1 or (target != "-" and os.path.isdir(target))
    if into and args.flag("create-dirs") and not args.flag("dry-run"):
        os.makedirs(target, exist_ok=True)
    if into and not os.path.isdir(target) and not args.flag("create-dirs"):
        raise NotFoundError(f"no directory `{target}`", hint="--create-dirs makes it")
    for source in sources:
        place = Place(source)
        name = os.path.basename(place.path.rstrip("/")) or place.name
        path = entries.join(target, name) if into and target != "-" else target
        if args.flag("dry-run"):
            print(f"pull {source} {path}")
            continue
        found = place.pull(recursive=args.flag("recursive"), say=_say(args))
        # A link is written to, as are `/dev/stdout` and pipes, and never replaced.
        if target == "-" or not (into or os.path.isdir(path) or state.replaceable(path)):
            _output(found, source, target)
        else:
            entries.write(path, found, owners=False, parents=args.flag("create-dirs"))


def _output(found: Iterable[Entry], source: str, target: str) -> None:
    for each in found:
        if each.kind != entries.FILE or each.name:
            raise SpecError(f"`{source}` is a directory, and `{target}` is none", hint="name a directory")
        try:
            with contextlib.nullcontext(sys.stdout.buffer) if target == "-" else open(target, "wb") as file:
                for block in each.data:
                    file.write(block)
                file.flush()
        except OSError as error:
            if target == "-":
                raise
            raise state.unwritable(target, error) from error


OPTIONS = (
    Option("recursive", "directories with all that is in them", short="r"),
    Option("create-dirs", "make the directories that are missing above", short="p"),
)
COMMANDS = (
    Command(
        "file push",
        "bring files into an instance",
        file_push,
        arguments=(
            Argument(
                "FILE… INSTANCE/PATH",
                "files of this machine's (`-`: standard input), and where to in the instance",
                repeat=True,
                complete="file",
            ),
        ),
        options=(
            *OPTIONS,
            Option("mode", "the mode of files (as it is here)", metavar="MODE"),
            Option("uid", "the owner's number inside (as it is here)", metavar="NUMBER"),
            Option("gid", "the group's number inside (as it is here)", metavar="NUMBER"),
        ),
        help="Modes and the numbers of owners are kept unless they are given. Symlinks in a directory stay symlinks. On this machine a "
        "stopped instance can be written to as well; symlinks in the instance lead where they lead inside it, never to the host.",
    ),
    Command(
        "file pull",
        "take files out of an instance",
        file_pull,
        arguments=(
            Argument(
                "INSTANCE/PATH… FILE",
                "files in instances, and where to on this machine (`-`: standard output)",
                repeat=True,
                complete="file",
            ),
        ),
        options=OPTIONS,
        help="Modes are kept, without set-id bits; the files belong to whoever takes them.",
    ),
)
