# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML with the line of every key, so that an error can point at it."""

from __future__ import annotations

from typing import Any

import yaml

from ctrmgr.errors import SpecError

SIZE_MAX = 1 << 20
"""Bytes. A profile is text that somebody wrote."""

DEPTH_MAX = 20

Path = tuple[str, ...]


class Document:
    """Parsed YAML, and which line each key path stands on."""

    def __init__(self, name: str, data: Any, lines: dict[Path, int]) -> None:
        self.name, self.data, self.lines = name, data, lines

    def error(self, path: Path, reason: str, hint: str | None = None) -> SpecError:
        """The error for what stands at `path` (or, when that is missing, at the nearest part of it that is there)."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        where = ": ".join(path)
        return SpecError(f"`{self.name}`, line {line}: {f'`{where}` ' if where else ''}{reason}", hint=hint)


def parse(name: str, text: str) -> Document:
    """Read YAML. Values stay the text that was written (`0644`, `yes`, `1.10`); `null` is "".

    `name` is what errors call the file. Raises SpecError for what is not YAML, duplicate keys, anchors and tags.
    """
    if len(text) > SIZE_MAX:
        raise SpecError(f"`{name}` is larger than {SIZE_MAX} bytes", hint="is this a profile?")
    try:
        _bounded(name, text)
        # No types are guessed: what people write is what they get.
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"`{name}`, line {line}: is not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise SpecError(f"`{name}` is not YAML: {reason}") from None
    lines: dict[Path, int] = {}
    return Document(name, _value(name, node, (), lines), lines)


def _bounded(name: str, text: str) -> None:
    """Raises SpecError for text whose tree would be far larger than it, or take far longer to build: an alias is expanded by
    whoever walks the tree, and the loader's time grows with the square of the depth."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise SpecError(f"`{name}`, line {line}: anchors and aliases are not taken")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise SpecError(f"`{name}`, line {line}: is nested too deeply")


def _value(name: str, node: yaml.Node | None, path: Path, lines: dict[Path, int]) -> Any:
    if node is None:
        return None
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return "" if node.style is None and node.value in ("null", "~", "Null", "NULL") else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(name, item, (*path, str(index)), lines) for index, item in enumerate(node.value)]
    found: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise SpecError(f"`{name}`, line {line}: a key is not a word")
        if key.value in found:
            raise SpecError(f"`{name}`, line {line}: `{': '.join((*path, key.value))}` is there twice")
        lines[*path, key.value] = line
        found[key.value] = _value(name, value, (*path, key.value), lines)
    return found


def load(path: str) -> Document:
    """Read a YAML file. Raises SpecError, also when it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(path, file.read(SIZE_MAX + 1))
    except UnicodeDecodeError:
        raise SpecError(f"`{path}` is not UTF-8") from None
    except OSError as error:
        raise SpecError(f"`{path}` cannot be read: {error.strerror}") from error
