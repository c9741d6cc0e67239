# SPDX-License-Identifier: GPL-3.0-or-later
"""What of ours goes to a server, and how; without one."""

from __future__ import annotations

import pytest

from ctrmgr.errors import UnsupportedError
from ctrmgr.remote import translate
from ctrmgr.spec import keys

ALL = frozenset({each.extension for each in translate.CONFIG.values()} | set(translate.TYPES.values()) - {""})
OURS = [key.name for key in keys.KEYS.values() if key.description.startswith("ours")]


def golden(config: dict[str, str], devices: dict[str, dict[str, str]], kind: str = "lxd") -> translate.Translated:
    return translate.translate(config, devices, kind=kind, extensions=ALL, ours=OURS)


def test_an_ordinary_profile_stays_as_it_is() -> None:
    config = {
        "limits.cpu": "2",
        "limits.memory": "1GiB",
        "limits.kernel.nofile": "1024:4096",
        "environment.A": "b",
        "security.nesting": "true",
        "user.x": "y",
        "boot.autostart": "true",
        "raw.idmap": "both 1000 1000",
        "nvidia.runtime": "true",
        "snapshots.schedule": "@daily",
    }
    devices = {
        "root": {"type": "disk", "path": "/", "pool": "default", "size": "10GiB"},
        "eth0": {"type": "nic", "network": "lxdbr0", "name": "eth0"},
        "gpu": {"type": "gpu", "gputype": "physical", "id": "0"},
        "kvm": {"type": "unix-char", "source": "/dev/kvm", "gid": "107", "mode": "0660", "required": "false"},
        "gone": {"type": "none"},
    }
    found = golden(config, devices)
    assert (found.config, found.devices, found.names, found.problems) == (config, devices, [], [])


def test_ours_become_theirs() -> None:
    found = golden(
        {
            "security.no_new_privs": "true",
            "security.capabilities.drop": "sys_time,net_raw",
            "limits.enforcement": "best-effort",
            "volatile.last": "x",
            "security.devlxd": "false",
        },
        {"r": {"type": "unix-char", "source": "/dev/fuse", "user": "0", "group": "render", "readonly": "false"}},
        "incus",
    )
    assert found.config == {
        "raw.lxc": "lxc.no_new_privs = 1\nlxc.cap.drop = sys_time net_raw",
        "security.guestapi": "false",
    }
    assert found.devices == {"r": {"type": "unix-char", "source": "/dev/fuse", "uid": "0"}}
    assert found.names == [("r", "gid", "render")] and found.problems == []


def test_raw_keys_are_added_to() -> None:
    found = golden({"raw.lxc": "lxc.signal.halt = SIGTERM", "security.no_new_privs": "true"}, {})
    assert found.config["raw.lxc"] == "lxc.signal.halt = SIGTERM\nlxc.no_new_privs = 1"


@pytest.mark.parametrize(
    ("config", "devices", "named"),
    [
        ({"limits.enforcement": "strict"}, {}, ["limits.enforcement"]),
        ({"security.capabilities.keep": "sys_time"}, {}, ["security.capabilities.keep"]),
        ({"unified.memory.low": "64M"}, {}, ["unified.memory.low"]),
        ({}, {"d": {"type": "unix-char", "source": "/dev/x", "readonly": "true"}}, ["d.readonly"]),
        ({}, {"n": {"type": "nic", "nictype": "host"}}, ["n"]),
        ({}, {"n": {"type": "no-such"}}, ["n"]),
        ({}, {"g": {"type": "gpu", "partition": "memory=1"}}, ["g.partition"]),
        ({"limits.enforcement": "strict"}, {"n": {"type": "nic", "nictype": "host"}}, ["limits.enforcement", "n"]),
    ],
)
def test_refused_by_name(config: dict[str, str], devices: dict[str, dict[str, str]], named: list[str]) -> None:
    found = golden(config, devices)
    assert [key for key, _ in found.problems] == named
    with pytest.raises(UnsupportedError) as error:
        found.refuse("host2")
    assert all(f"`{key}`" in error.value.message for key in named) and "host2" in error.value.message


@pytest.mark.parametrize("key", [key for key, entry in translate.CONFIG.items() if entry.extension])
def test_an_old_server(key: str) -> None:
    """One without the extension cannot, and the extension is named."""
    name = key.replace("*", "x")
    found = translate.translate({name: "1"}, {}, kind="lxd", extensions=ALL - {translate.CONFIG[key].extension})
    assert [problem[0] for problem in found.problems] == [name]
    assert translate.CONFIG[key].extension in found.problems[0][1]
    assert golden({name: "1"}, {}).problems == []


@pytest.mark.parametrize("kind", sorted(translate.TYPES))
def test_device_types_need_their_extension(kind: str) -> None:
    devices = {"d": {"type": kind, "x": "y"}}
    assert golden({}, devices).devices == devices
    old = translate.translate({}, devices, kind="lxd", extensions=ALL - {translate.TYPES[kind]})
    assert old.problems == [("d", f"it has no API extension `{translate.TYPES[kind]}`")]


def test_swap() -> None:
    old = translate.translate({"limits.memory.swap": "1GiB"}, {}, kind="lxd", extensions=())
    assert old.problems[0][0] == "limits.memory.swap"
    assert translate.translate({"limits.memory.swap": "false"}, {}, kind="lxd", extensions=()).problems == []
    assert golden({"limits.memory.swap": "1GiB"}, {}).problems == old.problems  # ALL has it by no key
    has = translate.translate(
        {"limits.memory.swap": "1GiB"}, {}, kind="incus", extensions={"instance_memory_swap_bytes"}
    )
    assert has.config == {"limits.memory.swap": "1GiB"}


def test_every_key_of_ours_has_an_answer() -> None:
    """Whatever is added to ours is mapped or refused, never sent to a server that would not know it."""
    for name in OURS:
        value = {"limits.enforcement": "best-effort"}.get(name, "1")
        found = golden({name.replace("*", "x"): value}, {})
        assert found.problems or name.replace("*", "x") not in found.config, name


def test_a_gpu_by_its_cdi_name() -> None:
    """LXD reads these since it has the extension; Incus does not."""
    card = {"gpu": {"type": "gpu", "id": "nvidia.com/gpu=0"}}
    assert translate.translate({}, card, kind="lxd", extensions={"gpu_devices", "gpu_cdi"}).devices == card
    old = translate.translate({}, card, kind="incus", extensions={"gpu_devices"})
    assert old.problems == [("gpu", "it has no API extension `gpu_cdi`")]
