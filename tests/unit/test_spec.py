# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles, keys and units: what is taken, and what an error says about what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr import source, units
from ctrmgr.errors import SpecError
from ctrmgr.spec import device, keys, profile, values

ROOT = Path(__file__).resolve().parent.parent.parent


def validate(text: str) -> profile.ProfileSpec:
    return profile.validate(source.parse("p.yaml", text))


def test_lxd_profile_as_lxd_writes_it() -> None:
    """What `lxc profile show` prints: empty maps, used_by, numbers and booleans without quotes."""
    spec = validate(
        "config:\n  limits.cpu: 2\n  security.nesting: yes\n  user.note: 0644\n  cloud-init.user-data: |\n    #cloud-config\n"
        "description: Default LXD profile\ndevices:\n  eth0:\n    name: eth0\n    network: ctrbr0\n    type: nic\n"
        "  root: {path: /, pool: default, type: disk}\nname: default\nused_by:\n- /1.0/instances/c1\nproject: default\n"
    )
    assert spec.config == {
        "limits.cpu": "2",
        "security.nesting": "yes",
        "user.note": "0644",
        "cloud-init.user-data": "#cloud-config\n",
    }
    assert profile.merge([spec], {}, {})[0]["security.nesting"] == "true"
    assert spec.devices["eth0"] == {"type": "nic", "name": "eth0", "network": "ctrbr0"}


@pytest.mark.parametrize("text", ["", "config:\ndevices:\n", "{}", "# nothing\n"])
def test_empty_profiles_are_profiles(text: str) -> None:
    spec = validate(text)
    assert (spec.config, spec.devices) == ({}, {})


BAD = [
    ("config:\n  limits.memry: 1GiB\n", 2, "`config: limits.memry` is not a key", "limits.memory"),
    ("config:\n  a: b\n", 2, "`config: a`", "config.md"),
    ("config:\n\n  limits.memory: 1GX\n", 3, "1GX", "size"),
    ("config:\n  limits.memory: [1]\n", 2, "is not text", None),
    ("config: 3\n", 1, "is not a map", None),
    ("confg: {}\n", 1, "is not a key of a profile", "config"),
    ("- a\n", 1, "is not a profile", None),
    ("just words\n", 1, "is not a profile", None),
    ("config:\n  limits.cpu: 1\n  limits.cpu: 2\n", 3, "is there twice", None),
    ("config: {\n", 2, "is not YAML", None),
    ("config:\n\t- x\n", 2, "is not YAML", None),
    ("devices:\n  a:\n    path: /\n", 2, "has no `type`", "disk"),
    ("devices:\n  a:\n    type: unix-chr\n", 3, "is not a type of device", "unix-char"),
    ("devices:\n  a:\n    type: unix-char\n    sorce: /dev/fuse\n", 4, "is not a key of a unix-char", "source"),
    ("devices:\n  a:\n    type: unix-char\n    mode: 999\n", 4, "is not a mode", None),
    ("devices:\n  a:\n    type: unix-char\n    path: /dev/../etc/x\n", 4, "is not a plain absolute path", None),
    ("devices:\n  a:\n    type: unix-char\n    path: /etc/x\n", 4, "is not below /dev", None),
    ("devices:\n  a:\n    type: disk\n", 2, "is missing", None),
    ("devices:\n  a b:\n    type: none\n", 2, "cannot be the name of a device", None),
    ("config:\n  raw.idmap: uid 0 0\n", 2, "root stays", None),
    ("config:\n  raw.idmap: uid 1-2 1-3\n", 2, "differ in length", None),
    ("config:\n  limits.kernel.nofle: 1\n", 2, "is not a key", "limits.kernel.nofile"),
    ("config:\n  security.capabilities.drop: cap_sys_admn\n", 2, "is not a capability", None),
]


@pytest.mark.parametrize(("text", "line", "reason", "hint"), BAD)
def test_errors_name_file_line_path_and_reason(text: str, line: int, reason: str, hint: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        validate(text)
    assert caught.value.message.startswith(f"`p.yaml`, line {line}: "), caught.value.message
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    if hint:
        assert caught.value.hint and hint in caught.value.hint


ALL_WRONG = """\
devices:
  fuse:
    type: unix-char
    sorce: /dev/fuse
    mode: 9
  gpu: x
  a b: {type: none}
  c:
    type: unix-char
    source: {a: b}
    pth: /dev/x
config:
  limits.memory: 1GiB
  limits.memry: 1GiB
  user.x: [1]
  limits.cpu: zero
descripton: x
"""


def test_all_mistakes_are_shown_in_the_order_of_the_file() -> None:
    with pytest.raises(SpecError) as caught:
        validate(ALL_WRONG)
    lines = caught.value.message.split("\n")
    assert [line.partition(": ")[0] for line in lines] == [
        f"`p.yaml`, line {number}" for number in (4, 5, 6, 7, 10, 11, 14, 15, 16, 17)
    ]
    assert "`devices: fuse: mode` (`9`) is not a mode" in lines[1]
    assert lines[4].endswith("`devices: c: source` is not text")
    hints = (caught.value.hint or "").split("\n")
    assert hints[0] == "`p.yaml`, line 4: did you mean `source`?"
    assert hints[-1] == "`p.yaml`, line 17: did you mean `description`?"


def test_so_many_mistakes_that_nobody_reads_them() -> None:
    with pytest.raises(SpecError) as caught:
        validate("config:\n" + "".join(f"  x{number}: y\n" for number in range(100)))
    lines = caught.value.message.split("\n")
    assert len(lines) == 21
    assert lines[-1] == "`p.yaml`: and 80 more mistakes"


def test_mistakes_of_several_profiles(tmp_path: Path) -> None:
    one, other, good = (str(tmp_path / name) for name in ("one.yaml", "other.yaml", "good.yaml"))
    for path, text in ((one, "config:\n  limits.cpuu: 1\n"), (other, ALL_WRONG), (good, "")):
        Path(path).write_text(text)
    with pytest.raises(SpecError) as caught:
        profile.load_all([good, one, other])
    assert [line.partition(",")[0] for line in caught.value.message.split("\n")] == [f"`{one}`", *[f"`{other}`"] * 10]
    assert (caught.value.hint or "").startswith(f"`{one}`, line 2: did you mean `limits.cpu`?\n`{other}`, line 4: did")


def test_aliases_that_multiply_are_refused_or_small() -> None:
    """A billion laughs: the time is bounded by refusing it."""
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
    )
    with pytest.raises(SpecError, match="anchor"):
        validate(bomb)


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    with pytest.raises(SpecError, match="nested too deeply"):
        validate("a: " + "[" * 5000 + "]" * 5000)


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "profiles").glob("*.yaml")))
def test_packaged_profiles_are_valid(name: str) -> None:
    assert profile.load(str(ROOT / "profiles" / name)).name == name.removesuffix(".yaml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limits.cpu", "0"), ("limits.cpu", "3-1"), ("limits.cpu", "a"), ("limits.cpu", "-1"), ("limits.cpu", "1,"),
        ("limits.cpu.allowance", "20"), ("limits.cpu.allowance", "20ms/5s"), ("limits.cpu.allowance", "0%"),
        ("limits.cpu.allowance", "500us/1500us"), ("limits.cpu.allowance", "0ms/100ms"),
        ("limits.memory", "1.5GiB"), ("limits.memory", "-1"), ("limits.memory", "0"), ("limits.memory", "101%"),
        ("limits.memory", "99999999999EiB"), ("limits.memory", "١GiB"), ("limits.processes", "0"),
        ("limits.processes", "many"), ("security.nesting", "maybe"), ("limits.cpu.priority", "11"),
        ("limits.kernel.nofile", "20:10"), ("limits.kernel.nofile", "unlimited:10"), ("security.idmap.size", "10"),
        ("security.idmap.base", "0"), ("limits.memory.enforce", "medium"), ("environment.X", "a\0b"),
    ],
)  # fmt: skip
def test_wrong_values(name: str, value: str) -> None:
    with pytest.raises(SpecError) as caught:
        keys.check(name, value)
    assert f"`{name}`" in caught.value.message


@given(st.integers(1, 2**20), st.sampled_from(sorted(units.SIZES)))
def test_sizes(number: int, unit: str) -> None:
    expected = number * units.SIZES[unit]
    if expected > units.SIZE_MAX:
        with pytest.raises(ValueError, match="more than"):
            values.size_bytes(f"{number}{unit}")
    else:
        assert values.size_bytes(f"{number}{unit}") == expected
        assert values.size(values.size(f"{number} {unit}")) == str(expected)


@given(st.text(max_size=40))
def test_no_parser_fails_otherwise_than_by_value_error(text: str) -> None:
    """Whatever is typed: canonical text (which stays as it is when parsed again), or ValueError."""
    for key in keys.DONE:
        try:
            once = key.parse(text)
        except ValueError:
            continue
        assert key.parse(once) == once, key.name


KEY = st.sampled_from(["limits.cpu", "limits.processes", "user.a", "user.b"])
CONFIG = st.dictionaries(KEY, st.sampled_from(["", "1", "2", "3"]))


@given(st.lists(CONFIG, max_size=4), CONFIG)
def test_merge_is_last_wins_and_empty_unsets(configs: list[dict[str, str]], own: dict[str, str]) -> None:
    merged, _ = profile.merge([profile.ProfileSpec(config=config) for config in configs], own, {})
    for key in {key for config in (*configs, own) for key in config}:
        last = [config[key] for config in (*configs, own) if key in config][-1]
        assert merged.get(key, "") == last


def test_merge_of_devices_replaces_whole_and_none_removes() -> None:
    first = profile.ProfileSpec(
        devices={"a": {"type": "unix-char", "source": "/dev/fuse", "mode": "0600"}, "b": {"type": "disk"}}
    )
    second = profile.ProfileSpec(devices={"a": {"type": "unix-char", "source": "/dev/null"}})
    _, devices = profile.merge([first, second], {}, {"b": {"type": "none"}})
    assert devices == {"a": {"type": "unix-char", "source": "/dev/null"}}


def test_older_names_mean_the_same() -> None:
    first = profile.ProfileSpec(config={"security.syscalls.blacklist": "mount"})
    merged, _ = profile.merge([first], {"security.syscalls.deny": ""}, {})
    assert merged == {}


@pytest.mark.parametrize("key", [key.name for key in keys.REFUSED if not key.name.endswith(".*")])
def test_refused_keys_are_known_and_say_why(key: str) -> None:
    assert [name for name, reason in keys.refused({key: "something"}) if reason] == [key]
    assert keys.refused({key: ""}) == []


def test_refused_devices() -> None:
    whole = device.check("g", {"type": "pci", "address": "0000:65:00.0"})
    assert device.refused({"g": whole})[0][0] == "g"
    nic = device.check("e", {"type": "nic", "network": "ctrbr0", "vlan": "5"})
    assert device.refused({"e": nic}) == [("e.vlan", "it is not done yet")]


def test_reference_is_current() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "scripts/reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
