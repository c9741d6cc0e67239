# SPDX-License-Identifier: GPL-3.0-or-later
"""What of ours goes to a server, and how; without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctrmgr import source
from ctrmgr.cli import distant_config
from ctrmgr.devices import driver, lxd
from ctrmgr.errors import UnsupportedError
from ctrmgr.remote import translate
from ctrmgr.spec import keys
from tests.conftest import ROOT
from tests.translated import ALL, HARDWARE, golden, one

# Whole profiles


ORDINARY_CONFIG = {
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
    "some.key.of.a.newer.server": "1",
}
ORDINARY_DEVICES = {
    "root": {"type": "disk", "path": "/", "pool": "default", "size": "10GiB"},
    "data": {"type": "disk", "path": "/data", "source": "volume", "pool": "fast"},
    "eth0": {"type": "nic", "network": "lxdbr0", "name": "eth0"},
    "gpu": {"type": "gpu", "gputype": "physical", "id": "0", "gid": "44"},
    "mig": {"type": "gpu", "gputype": "mig", "mig.uuid": "MIG-1", "pci": "0000:65:00.0"},
    "kvm": {"type": "unix-char", "source": "/dev/kvm", "gid": "107", "mode": "0660", "required": "false"},
    "ib": {"type": "infiniband", "nictype": "sriov", "parent": "ib0", "name": "ib0"},
    "usb": {"type": "usb", "vendorid": "18d1", "required": "true"},
    "hot": {"type": "unix-hotplug", "vendorid": "18d1", "uid": "1000"},
    "web": {"type": "proxy", "listen": "tcp:0.0.0.0:80", "connect": "tcp:127.0.0.1:80"},
    "gone": {"type": "none"},
    "newer": {"type": "nic", "network": "lxdbr0", "key.of.a.newer.server": "1"},
}


@pytest.mark.parametrize("there", [{}, {"resources": HARDWARE}, {"placing": True}], ids=str)
def test_an_ordinary_profile_stays_as_it_is(there: dict[str, Any]) -> None:
    found = golden(ORDINARY_CONFIG, ORDINARY_DEVICES, **there)
    assert found.devices == ORDINARY_DEVICES and found.config == ORDINARY_CONFIG
    assert found.problems == [] and found.names == [] and found.notes == []


def test_ours_become_theirs() -> None:
    found = golden(
        {
            "security.no_new_privs": "true",
            "security.capabilities.drop": "sys_time,net_raw",
            "limits.enforcement": "best-effort",
            "volatile.last": "x",
            "security.devlxd": "false",
        },
        {
            "r": {"type": "unix-char", "source": "/dev/fuse", "user": "0", "group": "render", "readonly": "false", "lease": "shared"},
            "g": {"type": "gpu", "vendorid": "0x10DE", "count": "all", "gid": "video", "driver.capabilities": "compute", "kms": "yes"},
            "u": {"type": "usb", "id": "18d1:4ee1:ABC", "failover": "none"},
            "root": {"type": "disk", "path": "/"},
        },
        "incus",
    )  # fmt: skip
    assert found.problems == []
    assert found.config == {
        "raw.lxc": "lxc.no_new_privs = 1\nlxc.cap.drop = sys_time net_raw",
        "security.guestapi": "false",
        "nvidia.runtime": "true",
        "nvidia.driver.capabilities": "compute",
    }
    assert found.devices == {
        "r": {"type": "unix-char", "source": "/dev/fuse", "uid": "0"},
        "g": {"type": "gpu", "vendorid": "10de"},
        "u": {"type": "usb", "vendorid": "18d1", "productid": "4ee1", "serial": "ABC"},
        "root": {"type": "disk", "path": "/", "pool": "default"},
    }
    assert found.names == [("r", "gid", "render"), ("g", "gid", "video")]


def test_raw_keys_are_added_to() -> None:
    found = golden({"raw.lxc": "lxc.signal.halt = SIGTERM", "security.no_new_privs": "true"}, {})
    assert found.config["raw.lxc"] == "lxc.signal.halt = SIGTERM\nlxc.no_new_privs = 1"


SHIPPED = {
    "accel-qaic": ["qaic"],
    "block-scratch": ["scratch.lease"],
    "default": [],
    "desktop-gui": ["gpu.required", "gpu.driver.capabilities"],
    "fuse": [],
    "gpu-cuda": [],
    "gpu-intel": [],
    "gpu-render": ["gpu.driver.capabilities"],
    "gpu-rocm": [],
    "gpu-slice": ["gpu"],
    "gpudirect": ["pair"],
    "host-network": ["eth0.nictype"],
    "hpc-mpi": ["rdma"],
    "infiniband": ["rdma"],
    "nesting": [],
    "no-network": [],
    "usb-phone": [],
}
"""What of the profiles that come with ctrmgr a server refuses that tells nothing of its hardware."""


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_profiles_that_come_along(path: Path) -> None:
    plain = distant_config.load(str(path))
    assert [key for key, _ in golden(plain.config, plain.devices).problems] == SHIPPED[path.stem]
    told = golden(plain.config, plain.devices, resources=HARDWARE).problems
    assert told == [] or path.stem in ("accel-qaic", "block-scratch", "gpu-slice", "gpudirect", "host-network"), told


# Every key has an answer


def test_every_key_is_in_the_table() -> None:
    assert [name for name in keys.KEYS if translate.way(name.replace("*", "x")) is None] == []


@pytest.mark.parametrize("kind", sorted(driver.DRIVERS))
def test_every_key_of_a_device_is_in_its_table(kind: str) -> None:
    fields, ways = driver.load(kind).FIELDS, lxd.ways_of(kind)
    assert set(fields) == set(ways)
    for key, way in ways.items():
        assert way.how in ("native", "mapped", "left out", "refused"), key
        assert way.why or way.how == "native", key


SAMPLES = {"mode": "0640", "uid": "5", "gid": "5", "vendorid": "10de", "productid": "20b0", "pci": "0000:65:00.0"}
NEEDED = {
    "disk": {"path": "/x", "source": "/x"}, "cdi": {"id": "a.b/c=d"}, "unix-char": {"source": "/dev/x"}, "unix-block": {"source": "/dev/x"},
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(driver.DRIVERS))
def test_no_key_of_a_device_is_dropped_silently(kind: str) -> None:
    """Whatever its value, a key changes what the server gets, or is told, unless its table says that it is so anyway."""
    base = {"type": kind, **NEEDED.get(kind, {})}
    for key, way in lxd.ways_of(kind).items():
        for value in (SAMPLES.get(key, "7"), "true", "false", "all", "none", "shared:3", "physical", "compute"):
            with_it = one({**base, key: value})
            if with_it.problems or with_it.names or with_it.notes:
                continue
            without = one({name: word for name, word in base.items() if name != key})
            changed = (with_it.devices, with_it.config) != (without.devices, without.config)
            asks_nothing = value in way.off or way.how in ("left out", "mapped") or base.get(key) == value
            assert changed or asks_nothing, (key, value)


def test_no_key_of_the_instance_is_dropped_silently() -> None:
    for name in keys.KEYS:
        way = translate.way(name.replace("*", "x"))
        for value in ("1", "true", "strict", "hard"):
            found = golden({name.replace("*", "x"): value}, {})
            assert way and (found.config or found.problems or way.how in ("left out", "mapped")), (name, value)


def test_what_a_server_has_got_stays_so() -> None:
    """Translated again, for its next change, nothing of it is another thing."""
    devices = {
        "g": {"type": "gpu", "uuid": "GPU-5f1c2f4a-0000-1111-2222-333344445555", "mode": "0666"},
        "r": {"type": "infiniband", "count": "all"},
        "b": {"type": "unix-block", "id": "eui.0025-part1"},
        "u": {"type": "usb", "id": "18d1:4ee1"},
    }
    first = golden({}, devices, resources=HARDWARE)
    assert first.problems == []
    again = golden({}, first.devices)
    assert (again.devices, again.problems, again.config) == (first.devices, [], {})


@pytest.mark.parametrize("key", [key for key, entry in translate.CONFIG.items() if entry.extension])
def test_an_old_server(key: str) -> None:
    """One without the extension cannot, and the extension is named."""
    name = key.replace("*", "x")
    found = golden({name: "1"}, {}, extensions=ALL - {translate.CONFIG[key].extension})
    assert [problem[0] for problem in found.problems] == [name]
    assert translate.CONFIG[key].extension in found.problems[0][1]
    assert golden({name: "1"}, {}).problems == []


@pytest.mark.parametrize("kind", sorted(kind for kind, extension in translate.TYPES.items() if extension))
def test_device_types_need_their_extension(kind: str) -> None:
    more = {"infiniband": {"nictype": "physical"}, "tpm": {"path": "/dev/tpm1", "pathrm": "/dev/tpmrm1"}}
    device = {"type": kind, "x": "y", **more.get(kind, {})}
    assert one(device).devices == {"d": device}
    old = one(device, extensions=ALL - {translate.TYPES[kind]})
    assert old.problems == [("d", f"it has no API extension `{translate.TYPES[kind]}`")] and old.devices == {}


# Keys one by one


@pytest.mark.parametrize(
    ("config", "devices", "named"),
    [
        ({"limits.enforcement": "strict"}, {}, ["limits.enforcement"]),
        ({"limits.cpu.nodes": "devices"}, {}, ["limits.cpu.nodes"]),
        ({"security.capabilities.keep": "sys_time"}, {}, ["security.capabilities.keep"]),
        ({"unified.memory.low": "64M"}, {}, ["unified.memory.low"]),
        ({"limits.network.priority": "5"}, {}, ["limits.network.priority"]),
        ({}, {"d": {"type": "unix-char", "source": "/dev/x", "readonly": "true"}}, ["d.readonly"]),
        ({}, {"d": {"type": "unix-char", "source": "/dev/x", "ownership.inherit": "on"}}, ["d.ownership.inherit"]),
        ({}, {"d": {"type": "unix-block", "source": "/dev/x", "lease": "exclusive"}}, ["d.lease"]),
        ({}, {"d": {"type": "unix-block", "source": "/dev/x", "limits.max": "1MiB"}}, ["d.limits.max"]),
        ({}, {"d": {"type": "unix-block", "id": "eui.0025"}}, ["d.id"]),
        ({}, {"n": {"type": "nic", "nictype": "host"}}, ["n.nictype"]),
        ({}, {"n": {"type": "nic", "network": "x", "required": "false"}}, ["n.required"]),
        ({}, {"n": {"type": "no-such"}}, ["n"]),
        ({}, {"g": {"type": "gpu", "partition": "memory=1", "memory": "1GiB"}}, ["g.partition", "g.memory"]),
        ({}, {"g": {"type": "gpu", "gputype": "sriov"}}, ["g.gputype"]),
        ({}, {"g": {"type": "gpu", "kms": "false"}}, ["g.kms"]),
        ({}, {"g": {"type": "gpu", "count": "2"}}, ["g.count"]),
        ({}, {"g": {"type": "gpu", "uuid": "GPU-1"}}, ["g.uuid"]),
        ({}, {"g": {"type": "gpu", "gputype": "mig", "mig.uuid": "1", "uid": "5"}}, ["g.uid"]),
        ({}, {"u": {"type": "usb", "id": "18d1:4ee1@pci-0000:00:14.0-usb-0:1.2"}}, ["u.id"]),
        ({}, {"h": {"type": "unix-hotplug", "vendorid": "18d1", "serial": "1"}}, ["h.serial"]),
        ({}, {"i": {"type": "infiniband", "nictype": "physical", "parent": "ib0", "mode": "0666"}}, ["i.mode"]),
        ({}, {"i": {"type": "infiniband", "nictype": "physical", "pci": "41:00.0"}}, ["i.pci"]),
        ({}, {"i": {"type": "infiniband"}}, ["i"]),
        ({}, {"a": {"type": "accel", "lease": "exclusive"}}, ["a"]),
        ({}, {"c": {"type": "cdi", "id": "vendor.com/class=name"}}, ["c"]),
        ({"limits.enforcement": "strict"}, {"n": {"type": "nic", "nictype": "host"}}, ["limits.enforcement", "n.nictype"]),
    ],
)  # fmt: skip
def test_refused_by_name(config: dict[str, str], devices: dict[str, dict[str, str]], named: list[str]) -> None:
    found = golden(config, devices)
    assert [key for key, _ in found.problems] == named
    with pytest.raises(UnsupportedError) as error:
        found.refuse("host2")
    assert all(f"`{key}`" in error.value.message for key in named) and "host2" in error.value.message


def test_going_on_without() -> None:
    """A key that says which device is meant is not left out alone: it would be another device."""
    devices = {
        "x": {"type": "unix-char", "source": "/dev/x", "readonly": "true"},
        "s": {"type": "unix-hotplug", "vendorid": "18d1", "serial": "1", "gid": "audio"},
        "n": {"type": "nic", "nictype": "host"},
    }
    found = golden({"limits.gpu.memory": "1GiB"}, devices)
    told = found.go_on()
    assert [note.partition("`")[2].partition("`")[0] for note in told] == ["limits.gpu.memory", "x.readonly", "s", "n"]
    assert found.devices == {"x": {"type": "unix-char", "source": "/dev/x"}}
    assert found.problems == [] and found.names == []
    found.refuse("host2")


def test_swap() -> None:
    old = golden({"limits.memory.swap": "1GiB"}, {}, extensions=())
    assert old.problems[0][0] == "limits.memory.swap"
    assert golden({"limits.memory.swap": "false"}, {}, extensions=()).problems == []
    has = golden({"limits.memory.swap": "1GiB"}, {}, "incus", extensions={"instance_memory_swap_bytes"})
    assert has.config == {"limits.memory.swap": "1GiB"}


def test_a_part_does_not_take_anothers_name() -> None:
    devices = {"r": {"type": "infiniband", "count": "all"}, "r-2": {"type": "unix-char", "source": "/dev/x"}}
    assert golden({}, devices, resources=HARDWARE).problems[0][0] == "r"


def test_profiles_are_read_without_judging(tmp_path: Path) -> None:
    """What this machine could make of one does not matter."""
    path = tmp_path / "p.yaml"
    path.write_text("config:\n  some.key: 1\ndevices:\n  d: {type: proxy, listen: x}\n")
    assert distant_config.load(str(path)).devices == {"d": {"type": "proxy", "listen": "x"}}
    assert source.load(str(path)).data
