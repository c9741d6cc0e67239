# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr cdi …`: what is printed where, and the exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
import yaml

from ctrmgr.cdi import model
from ctrmgr.edits import DeviceNode
from tests.cdi_specs import FIXTURES, put, spec
from tests.conftest import Ctr

EVERYTHING = next(path for path in FIXTURES if path.name == "everything.json")
AMD = next(path for path in FIXTURES if path.name == "amd-gpu.json")
FORMATS = ("table", "json", "yaml", "csv")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with two devices that can be had, one that cannot, and a broken file."""
    put(tmp_path / "etc/cdi", "a.json", spec("v.com/gpu", "0", "1"))
    put(tmp_path / "etc/cdi", "b.json", spec("v.com/gpu", "1"))
    put(tmp_path / "etc/cdi", "broken.yaml", "cdiVersion: 9.9.9\n")
    put(tmp_path / "run/cdi", "e.json", EVERYTHING.read_text())
    return tmp_path


def rows(form: str, text: str) -> list[dict[str, object]]:
    if form == "json":
        found: list[dict[str, object]] = json.loads(text)
        return found
    return list(yaml.safe_load(text) if form == "yaml" else csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("form", ["json", "yaml", "csv"])
def test_list(ctr: Ctr, root: Path, form: str) -> None:
    result = ctr("cdi", "list", "--root", str(root), "--format", form)
    found = rows(form, result.stdout)
    assert [(row["name"], row["state"], str(row["nodes"])) for row in found] == [
        ("v.com/gpu=0", "usable", "1"),
        ("v.com/gpu=1", "conflict", ""),
        ("vendor.example/class.v2=0-1", "usable", "3"),
    ]
    assert f"{root}/etc/cdi/a.json" in str(found[1]["file"]) and f"{root}/etc/cdi/b.json" in str(found[1]["file"])
    assert result.stderr.startswith(
        f"warning: `{root}/etc/cdi/broken.yaml`, line 1: `cdiVersion` `9.9.9` is newer than"
    )


def test_list_for_people(ctr: Ctr, root: Path) -> None:
    result = ctr("cdi", "list", "--root", str(root), "--quiet")
    assert result.stdout.splitlines()[0].split() == ["NAME", "STATE", "NODES", "MOUNTS", "HOOKS", "FILE"]
    assert result.stderr == ""
    assert ctr("cdi", "list", "--root", "/nowhere", "-fjson").stdout == "[]\n"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_show_is_what_a_spec_would_say(ctr: Ctr, root: Path, form: str) -> None:
    shown = ctr("cdi", "show", "vendor.example/class.v2=0-1", "v.com/gpu=0", "--root", str(root), "-f", form).stdout
    found = json.loads(shown) if form == "json" else yaml.safe_load(shown)
    assert found["devices"] == ["vendor.example/class.v2=0-1", "v.com/gpu=0"]
    edits = model.EditsSpec.model_validate(found["containerEdits"]).value()
    assert edits.env == ("ALL=1", "DEVICE=0", "EMPTY=")
    assert edits.device_nodes[-1] == DeviceNode("/dev/x")


def test_show_for_people(ctr: Ctr, root: Path) -> None:
    shown = ctr("cdi", "show", "vendor.example/class.v2=0-1", "--root", str(root)).stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "node /dev/x/0 from /dev/x0 b 259:4 r mode 0600 uid 1000 gid 0" in lines
    assert "node /dev/pipe p (no access)" in lines
    assert "interface ens1f0v3 as net1" in lines
    assert "mount /var/x from tmpfs tmpfs size=1m,nosuid" in lines
    assert "hook poststop A=b /usr/libexec/x-poststop --flag (at most 5 s)" in lines
    assert "rdt closID gold" in lines
    assert "group 44" in lines
    table = list(csv.reader(io.StringIO(ctr("cdi", "show", "v.com/gpu=0", "--root", str(root), "-fcsv").stdout)))
    assert table == [["edit", "what", "detail"], ["node", "/dev/x", "rwm"]]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("v.com/gpu=2", 3, "there is no CDI device `v.com/gpu=2`"),
        ("v.com/gpu=1", 4, "`v.com/gpu=1` is defined by "),
        ("gpu", 2, "`gpu` is not a CDI device"),
    ],
)
def test_show_of_what_cannot_be_had(ctr: Ctr, root: Path, name: str, code: int, message: str) -> None:
    result = ctr("cdi", "show", name, "--root", str(root), code=code)
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("form", ["json", "yaml", "csv"])
def test_validate(ctr: Ctr, root: Path, form: str) -> None:
    result = ctr("cdi", "validate", "--root", str(root), "-f", form, code=2)
    found = {os.path.basename(str(row["file"])): row for row in rows(form, result.stdout)}
    assert set(found) == {"a.json", "b.json", "broken.yaml", "e.json"}
    assert found["a.json"]["kind"] == "v.com/gpu" and found["a.json"]["problem"] == ""
    assert "is newer than" in str(found["broken.yaml"]["problem"])
    assert "is newer than" in result.stderr and "`v.com/gpu=1` is defined by" in result.stderr


def test_validate_says_by_its_exit_code(ctr: Ctr, root: Path) -> None:
    (root / "etc/cdi/broken.yaml").unlink()
    ctr("cdi", "validate", "--root", str(root), code=4)
    (root / "etc/cdi/b.json").unlink()
    assert ctr("cdi", "validate", "--root", str(root)).stderr == ""
    assert ctr("cdi", "validate", *map(str, FIXTURES)).stderr == ""
    ctr("cdi", "validate", str(root / "nowhere.yaml"), str(EVERYTHING), code=2)


@pytest.mark.parametrize(
    ("text", "code"),
    [(AMD.read_text(), 0), ("cdiVersion: 0.3.0\nkind: v/c\n", 2), ("{", 2), ("", 2)],
    ids=["json", "yaml without devices", "cut off", "empty"],
)
def test_validate_of_standard_input(ctr: Ctr, text: str, code: int) -> None:
    ctr("cdi", "validate", "-", stdin=text, code=code)


@pytest.mark.parametrize("form", FORMATS)
def test_transform_prints(ctr: Ctr, form: str) -> None:
    words = ("cdi", "transform", str(AMD), "--from", "/", "--to", "/host", "--simplify")
    out = ctr(*words, "--format", form).stdout
    if form in ("json", "yaml"):
        found = model.parse(f"x.{form}", out)
        assert [node.host_path for node in found.container_edits.device_nodes] == ["/host/dev/kfd"]
    else:
        assert "/host/dev/kfd" in out and "cdiVersion" not in out
    assert ctr(*words).stdout.startswith("{")  # what it was


def test_transform_writes(ctr: Ctr, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = (
        "cdi",
        "transform",
        "-",
        "--from",
        "/dev",
        "--to",
        "/run/dev",
        "--relative-to",
        "container",
        "-o",
        str(out),
    )
    text = "cdiVersion: 0.3.0\nkind: v/c\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/a}]}}]\n"
    assert "/run/dev/a" in ctr(*words, "--dry-run", stdin=text).stdout
    assert not out.exists()
    assert ctr(*words, stdin=text).stdout == ""
    nodes = model.load(str(out)).devices[0].container_edits.value().device_nodes
    assert nodes == (DeviceNode("/run/dev/a", "/dev/a"),)
    assert os.listdir(tmp_path) == ["out.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is nothing to do"),
        (("--from", "/a"), "belong together"),
        (("--to", "/a"), "belong together"),
        (("--from", "a", "--to", "/b"), "is not an absolute path"),
        (("--simplify", "-fcsv", "-o", "x"), "writes a spec"),
        (("--simplify", "--relative-to", "moon"), "is not one of host, container"),
    ],
)
def test_transform_that_cannot_be(ctr: Ctr, words: tuple[str, ...], message: str) -> None:
    assert message in ctr("cdi", "transform", str(AMD), *words, code=2).stderr


def test_output_that_cannot_be_written(ctr: Ctr) -> None:
    result = ctr("cdi", "transform", str(AMD), "--simplify", "-o", "/proc/none/x.json", code=5)
    assert "`/proc/none/x.json` cannot be written" in result.stderr
