# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CDI spec may say, and how one that is wrong is refused: by file, line, key path and reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctrmgr.cdi import model, names, versions
from ctrmgr.edits import DeviceNode, Hook, IntelRdt, Mount, NetDevice
from ctrmgr.errors import SpecError
from tests.cdi_specs import FIXTURES, spec


def parse(data: Any) -> model.CdiSpec:
    return model.parse("x.json", json.dumps(data))


def refused(data: Any) -> str:
    with pytest.raises(SpecError) as caught:
        parse(data)
    assert "\n" not in caught.value.message
    return caught.value.message


def with_edits(**edits: Any) -> dict[str, Any]:
    return spec("vendor.example/class", "one", **edits)


EDITS = "`devices: 0: containerEdits: "


# The public shapes


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_specs_of_vendors_load(path: Path) -> None:
    found = model.load(str(path))
    assert all(device.container_edits.value() for device in found.devices)


def test_what_nvidia_says() -> None:
    found = model.load(str(next(path for path in FIXTURES if path.name == "nvidia.yaml")))
    first = found.devices[0].container_edits.value()
    assert first.device_nodes[0] == DeviceNode(
        "/dev/nvidia0", major=195, minor=0, file_mode=0o666, permissions="rwm", uid=0, gid=0
    )
    assert first.additional_gids == (44, 109)
    assert [hook.args[1] for hook in found.container_edits.hooks] == [
        "create-symlinks", "enable-cuda-compat", "update-ldcache",
    ]  # fmt: skip
    assert [device.name for device in found.devices][1] == "1:0"


def test_every_field_arrives() -> None:
    found = model.load(str(next(path for path in FIXTURES if path.name == "everything.json")))
    edits = found.devices[0].container_edits.value()
    assert found.annotations == {"vendor.example/made-by": "hand", "note": ""}
    assert found.devices[0].annotations == {"serial": "42"}
    assert edits.env == ("DEVICE=0", "EMPTY=")
    assert edits.device_nodes == (
        DeviceNode("/dev/x/0", "/dev/x0", "b", 259, 4, 0o600, "r", 1000, 0),
        DeviceNode("/dev/pipe", type="p", permissions="none"),
        DeviceNode("/dev/u", type="u"),
    )
    assert edits.net_devices == (NetDevice("ens1f0v3", "net1"),)
    assert edits.mounts[0] == Mount("tmpfs", "/var/x", ["size=1m", "nosuid"], "tmpfs")
    assert [hook.hook_name for hook in edits.hooks] == list(model.HOOKS)
    assert edits.hooks[0] == Hook("prestart", "/usr/libexec/x-prestart", ["x", "--flag"], ["A=b"], 5)
    assert edits.intel_rdt == IntelRdt("gold", "L3:0=f0", "MB:0=50", ["L2:0=3"], True)
    assert edits.additional_gids == (44, 4294967295)


def test_every_field_of_the_models_is_in_a_fixture() -> None:
    """So that a field that is added is tested."""
    text = "".join(path.read_text() for path in FIXTURES)
    parts = [model.CdiSpec, model.CdiDeviceSpec, model.EditsSpec, model.DeviceNodeSpec, model.MountSpec]
    parts += [model.NetDeviceSpec, model.HookSpec, model.IntelRdtSpec]
    keys = {field.alias for part in parts for field in part.model_fields.values()}
    assert {key for key in keys if str(key) not in text} == set()


# Names


@pytest.mark.parametrize(
    "kind", ["v/c", "vendor.com/foo", "foo.bar.baz/foo-bar123.B_az", "A/B", "v_x/c", "v" * 253 + "/" + "c" * 63]
)
def test_kinds(kind: str) -> None:
    assert parse(spec(kind)).kind == kind


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("foo", "is not vendor/class"), ("", "is not vendor/class"), ("vendor.com/", "cannot be a class"),
        ("/foo", "cannot be a vendor"), ("vendor.com/foo/", "cannot be a class"), ("vendor.com/a/b", "cannot be a class"),
        ("1v/c", "cannot be a vendor"), ("v/1c", "cannot be a class"), ("v-/c", "cannot be a vendor"),
        ("v/c.", "cannot be a class"), ("v/c\n", "cannot be a class"), ("v/c=d", "cannot be a class"),
        ("v/ü", "cannot be a class"), ("v/" + "c" * 64, "cannot be a class"), ("v" * 254 + "/c", "cannot be a vendor"),
        ("../etc/x", "cannot be a vendor"),
    ],
)  # fmt: skip
def test_wrong_kinds(kind: str, reason: str) -> None:
    message = refused(spec(kind))
    assert message.startswith("`x.json`: `kind` (`")
    assert reason in message


@pytest.mark.parametrize("name", ["a", "0", "1:0", "GPU-2fd4", "a_b.c", "all", "0000-03-00-0-0x56a0"])
def test_device_names(name: str) -> None:
    assert parse(spec("v/c", name)).devices[0].name == name
    assert names.split(f"v/c={name}") == ("v/c", name)


@pytest.mark.parametrize("name", ["", "-a", "a-", ":0", "0:", "a b", "a/b", "a=b", "a\n", "ä", "..", "a\0"])
def test_wrong_device_names(name: str) -> None:
    assert "`devices: 0: name` " in refused(spec("v/c", name))
    with pytest.raises(SpecError, match="is not a CDI device"):
        names.split(f"v/c={name}")


def test_devices_of_one_name() -> None:
    assert refused(spec("v/c", "a", "b", "a")).endswith("`devices: 2: name` (`a`) is there twice")


@pytest.mark.parametrize(
    ("name", "qualified"), [("v/c=d", True), ("/dev/fuse", False), ("fuse", False), ("v/c", False), ("type=gpu", False)]
)
def test_what_is_a_qualified_name(name: str, qualified: bool) -> None:
    assert names.is_qualified(name) is qualified


@pytest.mark.parametrize("key", ["a", "A.b_c-1", "vendor.com/a", "a.b-c.d/X", "1/2"])
def test_annotations(key: str) -> None:
    assert parse({**spec(), "annotations": {key: "x"}}).annotations == {key: "x"}


@pytest.mark.parametrize("key", ["", "a b", "-a", "a/", "/a", "a/b/c", "v_x/a", "a" * 64, "ä"])
def test_wrong_annotations(key: str) -> None:
    assert f"`annotations: {key}` " in refused({**spec(), "annotations": {key: "x"}})


def test_annotations_are_bounded() -> None:
    assert "are larger than" in refused({**spec(), "annotations": {"a": "x" * (256 << 10)}})


# Versions


@pytest.mark.parametrize("version", [*versions.KNOWN, "v0.6.0"])
def test_known_versions(version: str) -> None:
    assert parse({**spec(), "cdiVersion": version}).cdi_version == version


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.2.0", "`1.2.0` is newer than 1.1.0, the newest version that is known here"),
        ("10.0.0", "is newer than 1.1.0"),
        ("0.2.0", "is older than 0.3.0"),
        ("0.9.0", "was never released"),
        ("1.0", "is not a version"),
        ("", "is not a version"),
        ("latest", "is not a version"),
        ("1.1.-1", "is not a version"),
        ("1.1.99999999999999999999", "is not a version"),
    ],
)
def test_wrong_versions(version: str, reason: str) -> None:
    assert reason in refused({**spec(), "cdiVersion": version})


def test_a_newer_version_is_said_before_its_new_fields() -> None:
    assert "is newer than" in refused({**spec(), "cdiVersion": "1.2.0", "novelty": {}})


NEEDS: list[tuple[str, str, dict[str, Any]]] = [
    ("0.4.0", f"{EDITS}mounts: 0: type`", with_edits(mounts=[{"hostPath": "/a", "containerPath": "/b", "type": "none"}])),
    ("0.5.0", f"{EDITS}deviceNodes: 0: hostPath`", with_edits(deviceNodes=[{"path": "/a", "hostPath": "/b"}])),
    ("0.5.0", "`devices: 0: name`", spec("v/c", "0")),
    ("0.6.0", "`kind`", spec("v/c.d")),
    ("0.6.0", "`annotations`", {**spec(), "annotations": {"a": "b"}}),
    ("0.6.0", "`devices: 0: annotations`", {**spec(), "devices": [{**spec()["devices"][0], "annotations": {"a": "b"}}]}),
    ("0.7.0", f"{EDITS}additionalGids`", with_edits(additionalGids=[5])),
    ("0.7.0", f"{EDITS}intelRdt`", with_edits(intelRdt={"closID": "a"})),
    ("0.7.0", "`containerEdits: intelRdt`", {**spec(), "containerEdits": {"intelRdt": {}}}),
    ("1.1.0", f"{EDITS}intelRdt: schemata`", with_edits(intelRdt={"schemata": ["a"]})),
    ("1.1.0", f"{EDITS}intelRdt: enableMonitoring`", with_edits(intelRdt={"enableMonitoring": True})),
    ("1.1.0", f"{EDITS}netDevices`", with_edits(netDevices=[{"hostInterfaceName": "a", "name": "b"}])),
]  # fmt: skip


@pytest.mark.parametrize(("version", "path", "data"), NEEDS, ids=lambda value: value if isinstance(value, str) else "")
def test_fields_and_their_versions(version: str, path: str, data: dict[str, Any]) -> None:
    before = versions.KNOWN[versions.KNOWN.index(version) - 1]
    parse({**data, "cdiVersion": version})
    # With the version before, what is said first may be another of its fields: there is only this one.
    message = refused({**data, "cdiVersion": before})
    assert path in message
    assert f"needs cdiVersion {version}, and the spec says {before}" in message


def test_a_plain_spec_may_have_any_version() -> None:
    assert versions.lowest(parse(spec())) == "0.3.0"


@pytest.mark.parametrize("key", ["enableCMT", "enableMBM"])
def test_what_version_1_1_dropped(key: str) -> None:
    data = with_edits(intelRdt={key: True})
    assert getattr(
        parse({**data, "cdiVersion": "1.0.0"}).devices[0].container_edits.intel_rdt, "enable_" + key[-3:].lower()
    )
    assert refused(data).endswith(f"intelRdt: {key}` is not there any more since cdiVersion 1.1.0")


# Single fields


GOOD: list[dict[str, Any]] = [
    {"env": ["A=", "A=b=c", "A=\n"]},
    {"deviceNodes": [{"path": "/dev/a", "fileMode": 0, "uid": 0, "gid": 4294967295}]},
    {"deviceNodes": [{"path": "/dev/a..b/...", "permissions": "none"}]},
    {"mounts": [{"hostPath": "proc", "containerPath": "/proc", "type": "proc"}]},
    {"mounts": [{"hostPath": "/dev/sda1", "containerPath": "/x", "type": "ext4"}]},
    {"hooks": [{"hookName": "poststop", "path": "/a", "timeout": 1}]},
    {"intelRdt": {"closID": "/"}},
    {"additionalGids": [0]},
]  # fmt: skip


@pytest.mark.parametrize("edits", GOOD, ids=lambda edits: next(iter(edits)))
def test_good_edits(edits: dict[str, Any]) -> None:
    assert parse(with_edits(**edits)).devices[0].container_edits.value()


def node(**fields: Any) -> dict[str, Any]:
    return {"deviceNodes": [{"path": "/dev/a", **fields}]}


def mount(**fields: Any) -> dict[str, Any]:
    return {"mounts": [{"hostPath": "/a", "containerPath": "/b", **fields}]}


def hook(**fields: Any) -> dict[str, Any]:
    return {"hooks": [{"hookName": "poststop", "path": "/a", **fields}]}


def nets(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"netDevices": [{"hostInterfaceName": host, "name": name} for host, name in pairs]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"env": ["A"]}, "env: 0` (`A`) is not NAME=value"),
    ({"env": ["A=b", "=b"]}, "env: 1` (`=b`) is not NAME=value"),
    ({"env": ["A=\0"]}, "env: 0` holds a NUL"),
    ({"env": [1]}, "env: 0` is not text"),
    ({"env": "A=b"}, "env` is not a list"),
    ({"env": [None]}, "env: 0` is not text"),
    ({"deviceNodes": [{}]}, "deviceNodes: 0: path` is missing"),
    ({"deviceNodes": ["/dev/a"]}, "deviceNodes: 0` is not a map"),
    ({"deviceNodes": {"path": "/dev/a"}}, "deviceNodes` is not a list"),
    (node(path=""), "path` (``) is the container's root"),
    (node(path="/"), "path` (`/`) is the container's root"),
    (node(path="dev/a"), "path` (`dev/a`) is not an absolute path"),
    (node(path="/dev/../etc/shadow"), "path` (`/dev/../etc/shadow`) has `..` in it"),
    (node(path="/dev/a/.."), "has `..` in it"),
    (node(path="/dev/a\0b"), "path` holds a NUL"),
    (node(path="/" + "a" * 4095), "path` is longer than 4095 bytes"),
    (node(hostPath="../../dev/mem"), "hostPath` (`../../dev/mem`) is not an absolute path"),
    (node(hostPath="/dev/../dev/mem"), "hostPath` (`/dev/../dev/mem`) has `..` in it"),
    (node(type="x"), "type` (`x`) is not a type of node: b, c, u, p"),
    (node(major=-1), "major` (-1) is not between 0 and 4095"),
    (node(minor=1 << 20), "minor` (1048576) is not between 0 and 1048575"),
    (node(major="195"), "major` is not a whole number"),
    (node(major=1.0), "major` is not a whole number"),
    (node(major=True), "major` is not a whole number"),
    (node(fileMode="0666"), "fileMode` is not a whole number"),
    (node(permissions="rwx"), "permissions` (`rwx`) is not letters of `rwm`"),
    (node(uid=1 << 32), "uid` (4294967296) is not between"),
    (node(gid=-1), "gid` (-1) is not between"),
    (node(host_path="/x"), "host_path` is not a key of a CDI spec here"),
    (mount(hostPath=""), "mounts: 0: hostPath` is empty"),
    (mount(hostPath="etc"), "mounts: 0: hostPath` (`etc`) is not an absolute path"),
    (mount(hostPath="../etc"), "hostPath` (`../etc`) is not an absolute path"),
    (mount(hostPath="/srv/../etc"), "hostPath` (`/srv/../etc`) has `..` in it"),
    (mount(hostPath="etc", type="ext4", options=["rbind"]), "hostPath` (`etc`) is not an absolute path"),
    (mount(hostPath="a/b", type="ext4"), "hostPath` (`a/b`) is not an absolute path"),
    (mount(containerPath="/"), "containerPath` (`/`) is the container's root"),
    (mount(containerPath="/./"), "containerPath` (`/./`) is the container's root"),
    (mount(containerPath="b"), "containerPath` (`b`) is not an absolute path"),
    (mount(containerPath="/b/../../etc"), "containerPath` (`/b/../../etc`) has `..` in it"),
    (mount(options="ro"), "options` is not a list"),
    (mount(options=["ro\0"]), "options: 0` holds a NUL"),
    ({"mounts": [{"hostPath": "/a"}]}, "mounts: 0: containerPath` is missing"),
    (hook(hookName="preStart"), "hookName` (`preStart`) is not a hook: prestart, createRuntime"),
    (hook(hookName="../prestart"), "hookName` (`../prestart`) is not a hook"),
    (hook(path="sh"), "hooks: 0: path` (`sh`) is not an absolute path"),
    (hook(path="/usr/bin/../../tmp/x"), "path` (`/usr/bin/../../tmp/x`) has `..` in it"),
    (hook(args=["a\0b"]), "args: 0` holds a NUL"),
    (hook(env=["LD_PRELOAD"]), "env: 0` (`LD_PRELOAD`) is not NAME=value"),
    (hook(timeout=0), "timeout` (0) is not between 1"),
    (hook(timeout=-5), "timeout` (-5) is not between 1"),
    ({"intelRdt": {"closID": "../a"}}, "closID` (`../a`) cannot be a class of service"),
    ({"intelRdt": {"closID": ".."}}, "closID` (`..`) cannot be a class of service"),
    ({"intelRdt": {"enableMonitoring": "yes"}}, "enableMonitoring` is neither true nor false"),
    ({"intelRdt": []}, "intelRdt` is not a map"),
    ({"additionalGids": [-1]}, "additionalGids: 0` (-1) is not between"),
    ({"additionalGids": ["video"]}, "additionalGids: 0` is not a whole number"),
    (nets(("", "a")), "hostInterfaceName` (``) cannot be an interface"),
    (nets(("a", "x" * 16)), "name` (`xxxxxxxxxxxxxxxx`) cannot be an interface"),
    (nets(("a/b", "c")), "hostInterfaceName` (`a/b`) cannot be an interface"),
    (nets(("a", "b c")), "name` (`b c`) cannot be an interface"),
    (nets(("a", "b"), ("a", "c")), "netDevices: 1: hostInterfaceName` (`a`) is there twice"),
    (nets(("a", "b"), ("c", "b")), "netDevices: 1: name` (`b`) is there twice"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "reason"), BAD, ids=lambda value: value[:60] if isinstance(value, str) else "")
@pytest.mark.parametrize("place", ["device", "spec"])
def test_bad_edits(edits: dict[str, Any], reason: str, place: str) -> None:
    data = with_edits(**edits) if place == "device" else {**spec(), "containerEdits": edits}
    message = refused(data)
    assert reason in message
    assert message.startswith(f"`x.json`: {EDITS if place == 'device' else '`containerEdits: '}")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "is not a CDI spec"), ([], "is not a CDI spec"), ("x", "is not a CDI spec"), (3, "is not a CDI spec"),
        ({}, "`cdiVersion` is missing"),
        ({**spec(), "cdiVersion": None}, "`cdiVersion` is missing"),
        ({**spec(), "cdiVersion": 1}, "`cdiVersion` is not text"),
        ({**spec(), "devices": []}, "`devices` are empty"),
        ({**spec(), "devices": {}}, "`devices` is not a list"),
        ({**spec(), "devices": ["a"]}, "`devices: 0` is not a map"),
        ({**spec(), "devices": [{"name": "a"}]}, "`devices: 0: containerEdits` is missing"),
        ({**spec(), "devices": [{"name": "a", "containerEdits": {}}]}, "`devices: 0: containerEdits` are empty"),
        ({**spec(), "devices": [{"name": "a", "containerEdits": {"env": []}}]}, "containerEdits` are empty"),
        ({**spec(), "containerEdits": []}, "`containerEdits` is not a map"),
        ({**spec(), "annotations": {"a": 1}}, "`annotations: a` is not text"),
        ({**spec(), "annotations": []}, "`annotations` is not a map"),
        ({**spec(), "container_edits": {}}, "`container_edits` is not a key of a CDI spec here"),
    ],
)  # fmt: skip
def test_bad_specs(data: Any, reason: str) -> None:
    assert reason in refused(data)


def test_an_unknown_key_names_the_one_that_was_meant() -> None:
    with pytest.raises(SpecError) as caught:
        parse(with_edits(mounts=[{"hostpath": "/a", "containerPath": "/b"}]))
    assert caught.value.hint == "did you mean `hostPath`?"
    with pytest.raises(SpecError) as caught:
        parse(with_edits(hooks=[{"hookName": "poststop", "path": "/a", "zzz": 1}]))
    assert caught.value.hint == "there are hookName, path, args, env, timeout"


def test_null_is_as_good_as_nothing() -> None:
    data = {**spec(), "annotations": None, "containerEdits": None}
    data["devices"][0]["containerEdits"].update(env=None, intelRdt=None)
    assert parse(data) == parse(spec())


def test_the_bits_of_the_type_are_not_part_of_a_mode() -> None:
    found = parse(with_edits(**node(fileMode=0o20660)))
    assert found.devices[0].container_edits.value().device_nodes[0].file_mode == 0o660


def test_what_is_shown_does_not_steer_a_terminal() -> None:
    assert "\x1b" not in refused(with_edits(env=["\x1b]0;owned\x07"]))
    assert "\x1b" not in refused({**spec(), "\x1b[2J": 1})
