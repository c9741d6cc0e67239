# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs of our own: what was put in comes out, in the lowest version, in one go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr.cdi import model, versions, write
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from ctrmgr.errors import HostError, SpecError
from tests.cdi_specs import DEVICES, FIXTURES, OLD_RDT, edits

NULL = ContainerEdits(device_nodes=[DeviceNode("/dev/null")])


@given(DEVICES, st.none() | edits(), st.sampled_from(("yaml", "json")))
def test_round_trip(devices: Mapping[str, ContainerEdits], common: ContainerEdits | None, form: str) -> None:
    spec = write.build("v/c", devices, common)
    found = model.parse(f"x.{form}", write.text(spec, form))
    assert found == spec
    assert {device.name: device.container_edits.value() for device in found.devices} == dict(devices)
    assert found.container_edits.value() == (common or ContainerEdits())


@given(edits(OLD_RDT).filter(lambda edits: bool(edits.intel_rdt) and not edits.net_devices))
def test_round_trip_of_what_version_1_1_dropped(one: ContainerEdits) -> None:
    spec = write.build("v/c", {"a": one})
    assert spec.cdi_version == "0.7.0"
    assert model.parse("x.yaml", write.text(spec)).devices[0].container_edits.value() == one


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_specs_of_vendors_survive(path: Path, form: str) -> None:
    spec = model.load(str(path))
    assert model.parse(f"x.{form}", write.text(spec, form)) == spec


@pytest.mark.parametrize(
    ("kind", "name", "edits", "version"),
    [
        ("v/c", "a", ContainerEdits(["A=b"], [DeviceNode("/dev/a", uid=0)], hooks=[Hook("poststop", "/a")]), "0.3.0"),
        ("v/c", "a", ContainerEdits(mounts=[Mount("/a", "/b")]), "0.3.0"),
        ("v/c", "a", ContainerEdits(mounts=[Mount("/a", "/b", type="none")]), "0.4.0"),
        ("v/c", "a", ContainerEdits(device_nodes=[DeviceNode("/dev/a", "/dev/b")]), "0.5.0"),
        ("v/c", "0", NULL, "0.5.0"),
        ("v/c.d", "a", NULL, "0.6.0"),
        ("v/c", "a", ContainerEdits(additional_gids=[44]), "0.7.0"),
        ("v/c", "a", ContainerEdits(intel_rdt=IntelRdt()), "0.7.0"),
        ("v/c", "a", ContainerEdits(net_devices=[NetDevice("a", "b")]), "1.1.0"),
    ],
)
def test_the_lowest_version_that_carries_it(kind: str, name: str, edits: ContainerEdits, version: str) -> None:
    spec = write.build(kind, {name: edits})
    assert spec.cdi_version == version
    older = versions.KNOWN[: versions.KNOWN.index(version)]
    for below in older:
        with pytest.raises(SpecError, match="needs cdiVersion"):
            model.parse("x.json", write.text(spec, "json").replace(f'"{version}"', f'"{below}"'))


def test_annotations_need_their_version() -> None:
    spec = write.build("v/c", {"a": NULL}, annotations={"made-by": "ctrmgr"})
    assert (spec.cdi_version, spec.annotations) == ("0.6.0", {"made-by": "ctrmgr"})


@pytest.mark.parametrize(
    ("kind", "devices", "reason"),
    [
        ("vc", {"a": NULL}, "`kind` "),
        ("v/c", {}, "`devices` are empty"),
        ("v/c", {"a": ContainerEdits()}, "`devices: 0: containerEdits` are empty"),
        ("v/c", {"a b": NULL}, "`devices: 0: name` "),
        ("v/c", {"a": ContainerEdits(mounts=[Mount("a", "/b")])}, "hostPath"),
        (
            "v/c",
            {"a": ContainerEdits(intel_rdt=IntelRdt(schemata=["x"], enable_cmt=True))},
            "`devices: 0: containerEdits: intelRdt: enableCMT` is not there any more",
        ),
    ],
)
def test_what_no_spec_can_say(kind: str, devices: Mapping[str, ContainerEdits], reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        write.build(kind, devices)
    assert caught.value.message.startswith(f"`{kind}`: ")
    assert reason in caught.value.message


def test_text_for_people() -> None:
    spec = write.build("v/c", {"0": NULL, "1:0": NULL}, ContainerEdits(["A=yes"]))
    assert write.text(spec) == (
        "---\ncdiVersion: 0.5.0\nkind: v/c\ndevices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/null\n"
        "- name: '1:0'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/null\ncontainerEdits:\n  env:\n  - A=yes\n"
    )


@pytest.mark.parametrize(
    ("kind", "form", "transient", "name"),
    [
        ("vendor.com/class", "yaml", "", "vendor.com-class.yaml"),
        ("vendor.com/class", "json", "c1", "vendor.com-class_c1.json"),
        ("vendor.com/class", "json", "a/../b", "vendor.com-class_a_.._b.json"),
    ],
)
def test_file_names(kind: str, form: str, transient: str, name: str) -> None:
    assert write.file_name(kind, form, transient) == name


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run/cdi"
    spec = write.build("v/c", {"a": NULL})
    path = write.write(str(folder), spec, "json")
    assert (path, model.load(path)) == (f"{folder}/v-c.json", spec)
    assert os.stat(path).st_mode & 0o777 == 0o644

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(HostError, match="No space left"):
        write.write(str(folder), write.build("v/c", {"b": NULL}), "json")
    assert os.listdir(folder) == ["v-c.json"]
    assert model.load(path) == spec
