# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server says of a member, and what an instance asks for, as placement sees them.

The resources have the form of `shared/api/resource.go` of LXD and Incus; the machine is made up after an HGX A100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from ctrmgr.errors import SpecError
from ctrmgr.remote import cluster, wanted
from ctrmgr.remote.placement import ANYBODY, Member, judge

if TYPE_CHECKING:
    from ctrmgr.remote.server import Server

GIB = 1 << 30


def card(number: int, vendor: str = "10de", product: str = "20b2") -> dict[str, object]:
    found: dict[str, object] = {
        "driver": "nvidia",
        "numa_node": number // 2,
        "pci_address": f"0000:{7 + 8 * number:02X}:00.0",
        "vendor_id": vendor,
        "product_id": product,
        "product": "GA100 [A100 SXM4 40GB]",
        "drm": {"id": number + 1, "card_name": f"card{number + 1}", "render_name": f"renderD{128 + number}"},
    }
    if vendor == "10de":
        found["nvidia"] = {"model": "NVIDIA A100-SXM4-40GB", "uuid": f"GPU-{number}", "card_name": f"nvidia{number}"}
    return found


SCREEN = {"driver": "ast", "numa_node": 0, "pci_address": "0000:02:00.0", "vendor_id": "1a03", "product_id": "2000",
          "product": "ASPEED Graphics Family", "drm": {"id": 0, "card_name": "card0"}}  # fmt: skip


def link(number: int, name: str, **more: object) -> dict[str, object]:
    return {
        "driver": "mlx5_core",
        "numa_node": number // 2,
        "pci_address": f"0000:{8 + 8 * number:02x}:00.0",
        "vendor_id": "15b3",
        "product_id": "101b",
        "product": "MT28908 Family [ConnectX-6]",
        "ports": [{"id": name, "protocol": "infiniband", "infiniband": {"verb_name": f"uverbs{number}"}}],
        **more,
    }


RESOURCES = {
    "cpu": {
        "total": 4,
        "sockets": [
            {"name": "AMD EPYC 7742", "cores": [{"threads": [{"id": core, "online": core != 3, "numa_node": 0}]}]}
            for core in range(4)
        ],
    },
    "memory": {"total": 64 * GIB, "used": 8 * GIB},
    "gpu": {"cards": [SCREEN, *(card(number) for number in range(4))], "total": 5},
    "network": {
        "cards": [
            link(0, "ibp8s0"),
            link(2, "ibp24s0", sriov={"current_vfs": 1, "maximum_vfs": 8}),
            {"pci_address": "0000:01:00.0", "ports": [{"id": "eth0", "protocol": "ethernet"}]},
        ]
    },
    "storage": {"disks": [{"id": "nvme0n1", "size": 1000, "partitions": [{"id": "nvme0n1p1"}]}]},
    "usb": {"devices": [{"vendor_id": "1050", "product_id": "0407"}]},
    "load": {"Average1Min": 1.5},
}


def row(**more: object) -> cluster.Row:
    return cluster.Row(
        {"server_name": "m1", "status": "Online", "architecture": "x86_64", "groups": ["default"], **more}
    )


def instance(name: str, *, location: str = "m1", config: object = None, **devices: dict[str, str]) -> dict[str, object]:
    return {
        "name": name,
        "location": location,
        "expanded_config": config or {},
        "expanded_devices": devices,
        "type": "container",
    }


def there(*instances: dict[str, object]) -> Member:
    found = cluster.Answers(row())
    found.resources, found.pools, found.load = RESOURCES, {"default": (GIB, 2 * GIB)}, 1.5
    return cluster.member(found, instances)


def free(member: Member) -> list[int]:
    return [index for index, gpu in enumerate(member.gpus) if gpu.free]


def test_a_machine() -> None:
    member = there()
    assert [gpu.address for gpu in member.gpus] == [
        "0000:02:00.0", "0000:07:00.0", "0000:0f:00.0", "0000:17:00.0", "0000:1f:00.0",
    ]  # fmt: skip
    assert [gpu.renders for gpu in member.gpus] == [False, True, True, True, True]
    assert member.gpus[2].names == ("2", "GPU-1", "nvidia.com/gpu=1", "nvidia.com/gpu=GPU-1")
    assert [(hca.names, hca.functions) for hca in member.hcas] == [(("ibp8s0",), 0), (("ibp24s0",), 1)]
    assert (member.cpus, member.cpu_ids, member.memory, member.free_memory) == (3, {0, 1, 2}, 64 * GIB, 56 * GIB)
    assert member.blocks == {"nvme0n1", "nvme0n1p1"} and member.usbs == {("1050", "0407")} and member.load == 1.5


@pytest.mark.parametrize(
    ("device", "left"),
    [
        ({"type": "gpu"}, []),
        ({"type": "gpu", "pci": "0000:0f:00.0"}, [0, 1, 3, 4]),
        ({"type": "gpu", "pci": "0F:00.0"}, [0, 1, 3, 4]),
        ({"type": "gpu", "vendorid": "10de"}, [0]),
        ({"type": "gpu", "id": "1"}, [0, 2, 3, 4]),
        ({"type": "gpu", "id": "nvidia.com/gpu=3"}, [0, 1, 2, 3]),
        ({"type": "gpu", "id": "nvidia.com/gpu=all"}, [0]),
        ({"type": "gpu", "gputype": "mig", "pci": "0000:07:00.0", "mig.gi": "1", "mig.ci": "0"}, [0, 2, 3, 4]),
        ({"type": "gpu", "gputype": "mdev", "pci": "0000:07:00.0"}, [0, 1, 2, 3, 4]),
        ({"type": "unix-char", "source": "/dev/fuse"}, [0, 1, 2, 3, 4]),
    ],
)
def test_what_an_instance_of_anybodys_holds(device: dict[str, str], left: list[int]) -> None:
    """As the server takes its devices: a selector is all that fit."""
    assert free(there(instance("c1", g=device))) == left
    assert free(there(instance("c1", location="m2", g=device))) == [0, 1, 2, 3, 4]


def test_promises() -> None:
    member = there(
        instance("c1", config={"limits.memory": "10GiB", "limits.cpu": "2"}),
        instance("c2", config={"limits.memory": "25%", "limits.cpu": "0-0"}),
        {**instance("v1"), "type": "virtual-machine"},
        instance("c3", config={"limits.memory": "much", "limits.cpu": "a-b"}),
    )
    assert (member.promised, member.promised_cpus) == ((10 + 16 + 1) * GIB, 4)
    assert there(instance("c1", d={"type": "unix-block", "source": "/dev/nvme0n1"})).taken_blocks == {"nvme0n1"}
    lent = there(instance("c1", ib={"type": "infiniband", "nictype": "sriov", "parent": "ibp24s0"}))
    assert [hca.lent for hca in lent.hcas] == [0, 1]


def placed(member: Member, config: dict[str, str] | None = None, **devices: dict[str, str]) -> object:
    """The devices and keys that the instance would get, or why not."""
    verdict = judge(member, wanted.request(config or {}, devices))
    return wanted.pinned(devices, verdict) if verdict.fits else verdict.why


def test_what_is_chosen_is_named() -> None:
    gpus = {"type": "gpu", "vendorid": "10de", "count": "2", "gid": "107", "lease": "shared:2"}
    assert placed(there(), g=gpus) == (
        {
            "g": {"type": "gpu", "gid": "107", "pci": "0000:07:00.0"},
            "g-2": {"type": "gpu", "gid": "107", "pci": "0000:0f:00.0"},
        },
        {"user.ctrmgr.lease.g": "shared:2", "user.ctrmgr.lease.g-2": "shared:2"},
    )
    pair = placed(there(), g={"type": "gpu", "uuid": "GPU-2"}, ib={"type": "infiniband"})
    assert pair == (
        {
            "g": {"type": "gpu", "pci": "0000:17:00.0"},
            "ib": {"type": "infiniband", "parent": "ibp24s0", "nictype": "physical"},
        },
        {},
    )
    assert placed(there(), g={"type": "gpu", "id": "nvidia.com/gpu=1"}) == (
        {"g": {"type": "gpu", "id": "nvidia.com/gpu=1"}},
        {},
    )
    part = {"type": "gpu", "gputype": "mig", "mig.gi": "1", "mig.ci": "0"}
    assert placed(there(), g=part) == ({"g": {**part, "pci": "0000:07:00.0"}}, {})
    assert placed(there(), g={"type": "gpu", "count": "4"}) != placed(there(), g={"type": "gpu", "count": "5"})
    assert placed(there(), {"limits.memory": "8GiB"}, nic={"type": "nic", "network": "n"}) == ({}, {})


def test_a_name_that_is_taken_is_left_alone() -> None:
    names, _ = placed(there(), **{"g": {"type": "gpu", "count": "2"}, "g-2": {"type": "unix-char", "source": "/dev/x"}})  # type: ignore[misc]
    assert list(names) == ["g", "g-2-"]


@pytest.mark.parametrize(
    ("config", "devices", "why"),
    [
        ({}, {"g": {"type": "gpu", "count": "5"}}, "has 4 of 4 GPUs free, and not 5"),
        ({}, {"g": {"type": "gpu", "vendorid": "1002"}}, "has no GPU with vendorid=1002"),
        ({}, {"ib": {"type": "infiniband", "count": "3"}}, "has 2 of 2 HCAs free, and not 3"),
        ({"limits.memory": "100%"}, {}, "has 56 GiB of memory left, and not 64 GiB"),
        ({"limits.cpu": "3-3"}, {}, "has no CPU 3"),
        ({}, {"r": {"type": "disk", "path": "/", "pool": "default", "size": "3GiB"}}, "has 1 GiB left in the pool `default`, and not 3 GiB"),
        ({}, {"d": {"type": "unix-block", "source": "/dev/nvme1n1"}}, "has no disk `nvme1n1`"),
        ({}, {"k": {"type": "usb", "vendorid": "1051", "required": "true"}}, "has no USB device 1051:"),
    ],
)  # fmt: skip
def test_what_is_missing(config: dict[str, str], devices: dict[str, dict[str, str]], why: str) -> None:
    assert placed(there(), config, **devices) == why


def test_what_servers_do_not_tell_is_not_asked() -> None:
    found = wanted.request(
        {},
        {
            "loop": {"type": "unix-block", "source": "/dev/loop0"},
            "lvm": {"type": "unix-block", "source": "/dev/mapper/x"},
            "soft": {"type": "unix-block", "source": "/dev/sdz", "required": "false"},
            "key": {"type": "usb", "vendorid": "1050"},
        },
    )
    assert (found.blocks, found.usbs) == ((), ())


@pytest.mark.parametrize("value", ["x", "3-1", "1-2-3", "1,,2", "-"])
def test_wrong_cpus(value: str) -> None:
    with pytest.raises(SpecError, match=r"limits\.cpu"):
        wanted.request({"limits.cpu": value}, {})


def test_leases() -> None:
    assert wanted.lease("g", {}, {}) == 1
    assert wanted.lease("g", {"lease": "shared"}, {}) == ANYBODY
    assert wanted.lease("g", {}, {"user.ctrmgr.lease.g": "shared:3"}) == 3
    one = instance("c1", config={"user.ctrmgr.lease.g": "shared"}, g={"type": "gpu", "pci": "0000:07:00.0"})
    shared = {"type": "gpu", "pci": "0000:07:00.0", "lease": "shared"}
    assert placed(there(one), g=shared) != placed(there(one), g={**shared, "lease": "exclusive"})


def test_states() -> None:
    assert row().closed == "" and row(status="Offline").closed == "is offline"
    assert row(config={"scheduler.instance": "all"}).wait == ""
    assert row(config={"scheduler.instance": "manual"}).fields()["scheduler"] == "manual"
    offline = cluster.member(cluster.Answers(row(status="Evacuated")))
    assert judge(offline, wanted.request({}, {})).why == "is evacuated"


class Told:
    """A server of a cluster: what it says of the members."""

    name = "host"
    info: Mapping[str, Any] = {"environment": {"server_clustered": True}}

    def __init__(self, *status: str) -> None:
        self.status = status

    def get(self, _path: str, **_more: object) -> list[dict[str, str]]:
        return [{"server_name": f"m{number}", "status": each} for number, each in enumerate(self.status)]


def test_offline() -> None:
    """Not all of them can be: one says so. Between two leaders each is asked."""

    def closed(*status: str) -> list[str]:
        return [row.closed for row in cluster.members(cast("Server", Told(*status)))]

    assert closed("Online", "Offline") == ["", "is offline"]
    assert closed("Offline", "Offline") == ["", ""]
    assert closed("Offline", "Evacuated") == ["is offline", "is evacuated"]
