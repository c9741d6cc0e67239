# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verb looks like: a table that is cheap to parse and that help, completion and the man page are made from."""

from __future__ import annotations

from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Option:
    """`--name[=VALUE]`, perhaps with a one-letter form. Without a metavar it is a flag.

    `bare` is what it means without a value, which then follows `=` only.
    """

    __slots__ = ("bare", "choices", "help", "metavar", "name", "repeat", "short")

    def __init__(
        self,
        name: str,
        help: str,
        *,
        short: str = "",
        metavar: str = "",
        bare: str = "",
        repeat: bool = False,
        choices: Sequence[str] = (),
    ) -> None:
        self.name, self.help, self.short, self.metavar = name, help, short, metavar
        self.bare, self.repeat, self.choices = bare, repeat, tuple(choices)

    @property
    def value(self) -> str:
        """Its value as help shows it, with what stands before."""
        return f"[={self.metavar}]" if self.bare else f" {self.metavar}" if self.metavar else ""

    @property
    def meaning(self) -> str:
        """Its help, with what may be chosen."""
        return f"{self.help} ({', '.join(self.choices)})" if self.choices else self.help


class Argument:
    """A positional argument: `required`, or at most one, or (`repeat`) any number."""

    __slots__ = ("complete", "distant", "help", "name", "repeat", "required")

    def __init__(
        self,
        name: str,
        help: str,
        *,
        required: bool = True,
        repeat: bool = False,
        complete: str = "",
        distant: bool = False,
    ) -> None:
        self.name, self.help, self.required, self.repeat = name, help, required, repeat
        self.distant = distant or complete == "instance"
        """Whether a colon in it means another machine (`host2:c1`)."""
        self.complete = complete
        """What shells complete here: `instance`, what it has (`attached` and `configured` devices, `snapshot`), keys (`key`, `setting` with an equals sign, …), `image`, `profile`, `device`, `device-kind`, `cdi`, `partition`, `remote`, `file` or nothing."""


class Args:
    """A parsed command line."""

    __slots__ = ("options", "positional", "rest")

    def __init__(self, positional: list[str], options: dict[str, list[str]], rest: list[str] | None) -> None:
        self.positional, self.options = positional, options
        self.rest = rest
        """What stood after the `--` of a command with `passthrough`; of any other it is arguments, whatever it begins with."""

    def flag(self, name: str) -> bool:
        return name in self.options

    def one(self, name: str, default: str = "") -> str:
        values = self.options.get(name)
        return values[-1] if values else default

    def all(self, name: str) -> list[str]:
        return self.options.get(name, [])


class Command:
    """One verb, or one `noun verb`. `run` gets the parsed arguments and returns the exit code (None is 0)."""

    __slots__ = ("arguments", "help", "name", "options", "passthrough", "run", "summary")

    def __init__(
        self,
        name: str,
        summary: str,
        run: Callable[[Args], int | None],
        *,
        arguments: Sequence[Argument] = (),
        options: Sequence[Option] = (),
        passthrough: bool = False,
        help: str = "",
    ) -> None:
        self.name, self.summary, self.run = name, summary, run
        own = {option.short for option in options}
        self.arguments = tuple(arguments)
        self.options = (*options, *(LONG_FORMAT if option is FORMAT and "f" in own else option for option in GLOBAL))
        self.passthrough = passthrough
        """The second positional and everything after it belong to somebody else (`exec c1 ls -l`)."""
        self.help = help


FORMATS = ("table", "json", "yaml", "csv")
FORMAT = Option("format", "how to print data", metavar="FORMAT", choices=FORMATS, short="f")
LONG_FORMAT = Option("format", "how to print data", metavar="FORMAT", choices=FORMATS)
"""For commands whose own `-f` is LXD's `--force`."""
GLOBAL = (
    Option("help", "show this help and exit", short="h"),
    Option("debug", "print each kernel step on stderr"),
    Option("dry-run", "print the plan, change nothing"),
    FORMAT,
    Option("quiet", "no talk on stderr", short="q"),
)


def parse(command: Command, words: list[str]) -> Args:
    """Split `words` by the command's table.

    Raises SpecError for an unknown option, a missing or unwanted value, or a wrong number of arguments.
    """
    names = {option.name: option for option in command.options}
    shorts = {option.short: option for option in command.options if option.short}
    positional: list[str] = []
    options: dict[str, list[str]] = {}
    rest: list[str] | None = None
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        if word == "--":
            if command.passthrough:
                rest = queue[::-1]
            else:
                positional.extend(queue[::-1])
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = names.get(name)
        elif len(word) > 1 and word[0] == "-":
            name, value = word[1], word[2:]
            equals = value
            option = shorts.get(name)
            if option and not option.metavar and value:
                queue.append("-" + value)
                value = equals = ""
        else:
            positional.append(word)
            if command.passthrough and len(positional) == 2:
                positional.extend(queue[::-1])
                break
            continue
        if option is None:
            raise SpecError(f"unknown option `{word}`", hint=f"see `ctrmgr {command.name} --help`")
        if option.metavar:
            if not equals and option.bare:
                value = option.bare
            elif not equals:
                if not queue:
                    raise SpecError(f"option `{word}` needs a value ({option.metavar})")
                value = queue.pop()
            if option.choices and value not in option.choices:
                raise SpecError(f"`{word}`: `{value}` is not one of {', '.join(option.choices)}")
            options.setdefault(option.name, []).append(value)
        elif equals:
            raise SpecError(f"option `--{name}` takes no value")
        else:
            options.setdefault(option.name, []).append("")
    args = Args(positional, options, rest)
    if not args.flag("help"):
        check_words(command, args)
    return args


def check_words(command: Command, args: Args) -> None:
    check_count(command, args)
    check_text(command, args)


def check_text(command: Command, args: Args) -> None:
    """Raises SpecError for a word that is not UTF-8 and may be written down; names of files, and words of others, may be what they are."""
    if command.passthrough:
        return
    kinds = [argument.complete for argument in command.arguments]
    kinds += kinds[-1:] * (len(args.positional) - len(kinds))
    found = [word for word, kind in zip(args.positional, kinds, strict=False) if kind != "file"]
    for option in command.options:
        if not option.metavar.startswith(("FILE", "DIR")):
            found += args.all(option.name)
    for word in found:
        try:
            if not word.isascii():
                word.encode()
        except UnicodeEncodeError:
            raise SpecError(f"`{word}` is not UTF-8") from None


def names_remote(command: Command, args: Args) -> bool:
    """Whether a word that stands for an instance is on another machine."""
    for index, argument in enumerate(command.arguments):
        if argument.distant:
            for word in args.positional[index:] if argument.repeat else args.positional[index : index + 1]:
                if ":" in word:
                    return True
    return False


def check_count(command: Command, args: Args) -> None:
    """Raises SpecError when there are too few or too many positional arguments."""
    given = len(args.positional)
    required = [argument for argument in command.arguments if argument.required]
    if given < len(required):
        missing = required[given]
        raise SpecError(f"`ctrmgr {command.name}`: {missing.name} is missing", hint=f"usage: {usage(command)}")
    unbounded = command.passthrough or any(argument.repeat for argument in command.arguments)
    if given > len(command.arguments) and not unbounded:
        extra = args.positional[len(command.arguments)]
        raise SpecError(f"`ctrmgr {command.name}`: `{extra}` is one argument too many", hint=f"usage: {usage(command)}")


def pairs(words: list[str], what: str) -> dict[str, str]:
    """`KEY=VALUE` words as a mapping. Raises SpecError."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise SpecError(f"`{word}` is not {what}")
        found[key] = value
    return found


def owner(args: Args) -> tuple[str, str]:
    """The user and the group of `--user USER[:GROUP]` and `--group`. Raises SpecError when there are two groups."""
    user, _, own = args.one("user").partition(":")
    group = args.one("group")
    if own and group:
        raise SpecError(f"`--user {user}:{own}` and `--group {group}` both say a group")
    return user, group or own


def usage(command: Command) -> str:
    """The one-line synopsis."""
    words = ["ctrmgr", command.name]
    for argument in command.arguments:
        word = argument.name + ("…" if argument.repeat else "")
        words.append(word if argument.required else f"[{word}]")
    return " ".join([*words, "[options]"])
