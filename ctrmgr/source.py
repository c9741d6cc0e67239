# SPDX-License-Identifier: GPL-3.0-or-later
"""What people and programs wrote as YAML or JSON, with the line of every key, so that an error can point at it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from ctrmgr.errors import SpecError

SIZE_MAX = 1 << 20
"""Bytes. A profile is text that somebody wrote."""

DEPTH_MAX = 20
SHOWN_MAX = 1000
"""Characters of an error."""
MISTAKES_MAX = 20
"""How many are shown of one file."""

Path = tuple[str, ...]
Mistake = tuple[Path, str, str | None]
"""Where, why, and the hint."""

LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""The one in C is ten times as fast; both guess no types: what people write is what they get."""


class Plain(str):
    """A YAML scalar without quotes: its text, which may have been meant as a number or a truth value."""

    __slots__ = ()


class Document:
    """Parsed YAML or JSON, and which line each key path stands on (of JSON nobody says)."""

    def __init__(self, name: str, data: Any, lines: dict[Path, int]) -> None:
        self.name, self.data, self.lines = name, data, lines

    def error(self, path: Path, reason: str, hint: str | None = None) -> SpecError:
        """The error for what stands at `path` (or, when that is missing, at the nearest part of it that is there)."""
        place = self.place(path)
        where = ": ".join(path)
        return SpecError(_printable(f"{place}: {f'`{where}` ' if where else ''}{reason}"), hint=hint)

    def place(self, path: Path) -> str:
        return f"`{self.name}`, line {self.line(path)}" if self.lines else f"`{self.name}`"

    def line(self, path: Path) -> int:
        """Where the path stands, or the nearest part of it that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def errors(self, mistakes: Iterable[Mistake]) -> SpecError:
        """One error for all of them: a line for each, in the order of the file, and so for their hints."""
        ordered = sorted(mistakes, key=lambda mistake: self.line(mistake[0]))
        if len(ordered) == 1:
            return self.error(*ordered[0])
        shown = [self.error(path, reason).message for path, reason, _ in ordered[:MISTAKES_MAX]]
        hints = [f"{self.place(path)}: {hint}" for path, _, hint in ordered[:MISTAKES_MAX] if hint]
        if len(ordered) > MISTAKES_MAX:
            shown.append(f"`{self.name}`: and {len(ordered) - MISTAKES_MAX} more mistakes")
        return SpecError("\n".join(shown), hint="\n".join(hints) or None)


def together(errors: Sequence[SpecError]) -> SpecError:
    """One error for those of several files."""
    if len(errors) == 1:
        return errors[0]
    hints = [
        # of several mistakes each hint says where it belongs
        error.hint if "\n" in error.message else f"{error.message.partition(': ')[0]}: {error.hint}"
        for error in errors
        if error.hint
    ]
    return SpecError("\n".join(error.message for error in errors), hint="\n".join(hints) or None)


def _printable(text: str) -> str:
    """What a file holds is shown on terminals: it is not to steer or fill them."""
    if len(text) > SHOWN_MAX:
        text = f"{text[: SHOWN_MAX // 2]} … {text[-SHOWN_MAX // 2 :]}"
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def parse(name: str, text: str, size_max: int = SIZE_MAX) -> Document:
    """Read YAML. Values stay the text that was written (`0644`, `yes`, `1.10`); `null` is "".

    `name` is what errors call the file. Raises SpecError for what is not YAML, duplicate keys, aliases, tags and several documents.
    """
    if len(text) > size_max:
        raise SpecError(f"`{name}` is larger than {size_max} bytes", hint="is this what it should be?")
    tree = _Tree(name)
    try:
        for event in yaml.parse(text, Loader=LOADER):
            tree.add(event)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"`{name}`, line {line}: is not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"`{name}` is not YAML: {str(error).splitlines()[0]}") from None
    return Document(name, tree.data, tree.lines or {(): 1})


class _Tree:
    """Data out of a parser's events, without recursion.

    An alias would make the tree far larger than its text, and the time of a parser grows with the square of the depth: both end it
    when they are met.
    """

    def __init__(self, name: str) -> None:
        self.name, self.data = name, None
        self.lines: dict[Path, int] = {}
        self.open: list[dict[str, Any] | list[Any]] = []
        self.keys: list[str | None] = []
        """Of each open map the key whose value comes next; None where a key comes, and for lists."""
        self.path: Path = ()
        self.documents = 0

    def add(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
            raise self.wrong(line, f"tags (`{event.tag}`) are not taken")
        if isinstance(event, yaml.ScalarEvent):
            self.scalar(event, line)
        elif isinstance(event, yaml.CollectionStartEvent):
            self.value({} if isinstance(event, yaml.MappingStartEvent) else [], line)
            if len(self.open) > DEPTH_MAX:
                raise self.wrong(line, "is nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            self.open.pop()
            self.keys.pop()
            self.path = self.path[:-1]
        elif isinstance(event, yaml.AliasEvent):
            raise self.wrong(line, "anchors and aliases are not taken")
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self.wrong(line, "a second document begins")

    def wrong(self, line: int, reason: str) -> SpecError:
        return SpecError(_printable(f"`{self.name}`, line {line}: {reason}"))

    def scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        text = event.value
        if self.open and isinstance(self.open[-1], dict) and self.keys[-1] is None:
            path = (*self.path, text)
            if text in self.open[-1]:
                raise self.wrong(line, f"`{': '.join(path)}` is there twice")
            self.keys[-1] = text
            self.lines[path] = line
            return
        if event.implicit[0]:
            text = Plain("" if text in ("null", "~", "Null", "NULL") else text)
        self.value(text, line)

    def value(self, value: Any, line: int) -> None:
        """Put one where it belongs, and go into it when it is a map or a list."""
        step: tuple[str, ...] = ()
        if not self.open:
            self.data = value
        else:
            top, key = self.open[-1], self.keys[-1]
            if isinstance(top, list):
                step = (str(len(top)),)
                top.append(value)
            elif key is None:
                raise self.wrong(line, "a key is not a word")
            else:
                step = (key,)
                top[key] = value
                self.keys[-1] = None
        path = (*self.path, *step)
        self.lines.setdefault(path, line)
        if isinstance(value, (dict, list)):
            self.open.append(value)
            self.keys.append(None)
            self.path = path


def parse_json(name: str, text: str, size_max: int = SIZE_MAX) -> Document:
    """Read JSON; `null` is None. Raises SpecError for what is not JSON, and for keys that are there twice."""
    if len(text) > size_max:
        raise SpecError(f"`{name}` is larger than {size_max} bytes", hint="is this what it should be?")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise SpecError(_printable(f"`{name}`: `{key}` is there twice"))
            found[key] = value
        return found

    def constant(word: str) -> None:
        raise SpecError(f"`{name}` is not JSON: it has {word}")

    try:
        data = json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise SpecError(f"`{name}`, line {error.lineno}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise SpecError(f"`{name}`: is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise SpecError(f"`{name}` is not JSON: {error}") from None
    if "\\u" in text:
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise SpecError(f"`{name}` has half of a surrogate pair") from None
    return Document(name, data, {})


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def read(path: str, size_max: int = SIZE_MAX) -> str:
    """The text of a regular file. Raises SpecError, also when it cannot be read; a pipe is not waited for."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError(f"`{path}` is not a file")
            data = file.read(size_max + 1)
    except OSError as error:
        raise SpecError(f"`{path}` cannot be read: {error.strerror}") from error
    if len(data) > size_max:
        raise SpecError(f"`{path}` is larger than {size_max} bytes", hint="is this what it should be?")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SpecError(f"`{path}` is not UTF-8") from None


def load(path: str, size_max: int = SIZE_MAX) -> Document:
    """Read a YAML file. Raises SpecError, also when it cannot be read."""
    return parse(path, read(path, size_max), size_max)
