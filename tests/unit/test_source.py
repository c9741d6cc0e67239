# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML and JSON with lines; what is hostile ends early and by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr import source
from ctrmgr.errors import SpecError


def test_lines_of_keys_and_items() -> None:
    document = source.parse("f", "a: 1\nb:\n- x\n- c: 2\n  d: [3,\n    4]\n")
    assert document.data == {"a": "1", "b": ["x", {"c": "2", "d": ["3", "4"]}]}
    assert {": ".join(path): line for path, line in document.lines.items()} == {
        "": 1, "a": 1, "b": 2, "b: 0": 3, "b: 1": 4, "b: 1: c": 4, "b: 1: d": 5, "b: 1: d: 0": 5, "b: 1: d: 1": 6,
    }  # fmt: skip
    assert document.error(("b", "1", "d", "7"), "is x").message == "`f`, line 5: `b: 1: d: 7` is x"


def test_an_error_is_no_longer_than_people_read() -> None:
    message = source.parse("f", "a: 1\n").error(("a",), f"({'x' * 100_000}) is not good").message
    assert len(message) < 1100
    assert message.startswith("`f`, line 1: `a` (xxx") and message.endswith("xxx) is not good")


def test_quotes_are_told_from_plain_words() -> None:
    data = source.parse("f", "[1, '1', \"1\", yes, null, ~, 'null', ]").data
    assert data == ["1", "1", "1", "yes", "", "", "null"]
    assert [isinstance(item, source.Plain) for item in data] == [True, False, False, True, True, True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x\n", "`f`, line 2: anchors and aliases are not taken"),
        ("a: 1\na: 2\n", "`f`, line 2: `a` is there twice"),
        ("a:\n  b: 1\n  b: 2\n", "`f`, line 3: `a: b` is there twice"),
        ("[a]: 1\n", "`f`, line 1: a key is not a word"),
        ("a: !!binary aGk=\n", "`f`, line 1: tags (`tag:yaml.org,2002:binary`) are not taken"),
        ("a: !!python/object/apply:os.system [ls]\n", "line 1: tags ("),
        ("a: 1\n---\nb: 2\n", "`f`, line 2: a second document begins"),
        ("a: [\n", "is not YAML"),
        ("a: \x01\n", "is not YAML"),
        ("[" * 50 + "]" * 50, "`f`, line 1: is nested too deeply"),
        ('"\\e[31m": {b: 1, b: 2}\n', "`f`, line 1: `\ufffd[31m: b` is there twice"),
    ],
)
def test_refused_yaml(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        source.parse("f", text)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "`f`: `a` is there twice"),
        ('{\n"a": 1,\n}', "`f`, line 3: is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[NaN]", "is not JSON: it has NaN"),
        ("[" + "9" * 5000 + "]", "is not JSON"),
        ('["\\ud800"]', "surrogate"),
        ("", "`f`, line 1: is not JSON"),
    ],
)
def test_refused_json(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        source.parse_json("f", text)
    assert message in caught.value.message


def test_the_size_is_bounded_before_the_text_is_read(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    with big.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecError, match="larger than"):
        source.load(str(big))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SpecError, match="is not a file"):
        source.load(str(tmp_path / "pipe.yaml"))
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        source.load(str(tmp_path))


@pytest.mark.parametrize(("data", "message"), [(None, "cannot be read: No such file"), (b"\xff", "is not UTF-8")])
def test_unreadable(tmp_path: Path, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / "f").write_bytes(data)
    with pytest.raises(SpecError, match=message):
        source.read(str(tmp_path / "f"))


WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t"), max_size=8)
TREES = st.recursive(
    WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=12
)


@given(TREES)
def test_what_was_dumped_is_read_again(tree: object) -> None:
    assert source.parse_json("f", json.dumps(tree)).data == tree
    assert source.parse("f", yaml.safe_dump(tree, default_style='"')).data == tree
