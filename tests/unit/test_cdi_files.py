# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI specs as files: what YAML means to others it means here, and what is meant to hurt ends early."""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr.cdi import model
from ctrmgr.edits import DeviceNode, IntelRdt
from ctrmgr.errors import SpecError
from tests.cdi_specs import FIXTURES, put

YAML = """\
cdiVersion: 0.6.0
kind: v/c
devices:
- name: 0
  annotations: {n: 10, t: yes}
  containerEdits:
    deviceNodes:
    - path: /dev/a
      major: 0x1
      minor: 1_000
      fileMode: 0666
      uid: 0
      gid:
containerEdits:
"""


def test_yaml_means_what_it_means_to_others() -> None:
    found = model.parse("x.yaml", YAML).devices[0]
    assert found.name == "0"
    assert found.annotations == {"n": "10", "t": "yes"}
    assert found.container_edits.value().device_nodes == (
        DeviceNode("/dev/a", major=1, minor=1000, file_mode=0o666, uid=0),
    )


@pytest.mark.parametrize(
    ("number", "value"), [("438", 438), ("0o666", 438), ("0666", 438), ("0x1b6", 438), ("0b11", 3), ("0", 0), ("+5", 5)]
)
def test_numbers_of_yaml(number: str, value: int) -> None:
    assert (
        model.parse("x.yaml", YAML.replace("0666", number)).devices[0].container_edits.device_nodes[0].file_mode
        == value
    )


@pytest.mark.parametrize("number", ["'438'", '"438"', "4.5", "0o9", "08", "ten", "٣", "-1", "[1]", "1e3", "0x", "''"])
def test_what_is_no_number_in_yaml(number: str) -> None:
    with pytest.raises(SpecError, match=r"`x.yaml`, line 11: `devices: 0: containerEdits: deviceNodes: 0: fileMode` "):
        model.parse("x.yaml", YAML.replace("0666", number))


@pytest.mark.parametrize(("word", "value"), [("true", True), ("True", True), ("false", False), ("on", True)])
def test_truth_of_yaml(word: str, value: bool) -> None:
    text = (
        "cdiVersion: 1.1.0\nkind: v/c\ndevices:\n- name: a\n  containerEdits:\n    intelRdt:\n      enableMonitoring: "
    )
    rdt = model.parse("x.yaml", text + word).devices[0].container_edits.value().intel_rdt
    assert rdt == IntelRdt(enable_monitoring=value)


# Hostile files


def test_an_enormous_file_is_not_read(tmp_path: Path) -> None:
    big = put(tmp_path, "big.yaml", "#")
    os.truncate(big, model.SIZE_MAX + 1)
    with pytest.raises(SpecError, match="is larger than 4194304 bytes"):
        model.load(str(big))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [x]\nb: [*a, *a]\n", "anchors and aliases are not taken"),
        ("base: &b {a: 1}\nother:\n  <<: *b\n", "anchors and aliases are not taken"),
        ("[" * 100_000, "is nested too deeply"),
        ("kind: !!python/object/apply:os.system ['touch /tmp/x']\n", "tags"),
        ("kind: a\nkind: b\n", "line 2: `kind` is there twice"),
        ("kind: v/c\n--- \nkind: v/d\n", "a second document begins"),
    ],
)
def test_yaml_that_is_meant_to_hurt(text: str, reason: str) -> None:
    begin = time.monotonic()
    with pytest.raises(SpecError) as caught:
        model.parse("x.yaml", text)
    assert reason in caught.value.message
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"kind": "a", "kind": "b"}', "`kind` is there twice"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"cdiVersion": "\\ud800"}', "surrogate"),
    ],
)
def test_json_that_is_meant_to_hurt(text: str, reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        model.parse("x.json", text)
    assert reason in caught.value.message


DOCUMENTS = [json.loads(path.read_text()) for path in FIXTURES if path.suffix == ".json"]
ANYTHING = st.sampled_from(
    [None, True, 0, -1, 1 << 64, 10**400, 1.5, "", "/", "..", "/../x", "a=b", "\0", "\x1b[0m", "é", [], {}, [None], {"a": 1}]
)  # fmt: skip


def places(data: Any) -> list[Any]:
    """Every map and list of a document."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    below = [place for item in inner for place in places(item)]
    return [data, *below] if isinstance(data, (dict, list)) else below


def taken_or_refused(name: str, text: str) -> None:
    """No other exception, and an error that people can read."""
    message = ""
    try:
        model.parse(name, text).data()
    except SpecError as error:
        message = error.message
    assert message == "" or (message.startswith(f"`{name}`") and message.isprintable())


@given(st.data())
def test_a_spec_with_anything_anywhere_is_taken_or_refused_by_name(data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    place = data.draw(st.sampled_from([place for place in places(document) if place]))
    where = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
    place[where] = data.draw(ANYTHING)
    name, dump = data.draw(st.sampled_from((("x.json", json.dumps), ("x.yaml", yaml.safe_dump))))
    taken_or_refused(name, dump(document))


@given(st.data())
def test_a_spec_that_is_cut_off_or_spoilt(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(FIXTURES))
    text = path.read_text()
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(begin + 3, len(text))))
    spoilt = data.draw(st.sampled_from(("", "\t", "{", "]", "\x07", "'", "&a ", "*a ", "!!x ", "\n- ", "\ufeff")))
    taken_or_refused(path.name, data.draw(st.sampled_from((text[:begin], text[:begin] + spoilt + text[end:]))))
