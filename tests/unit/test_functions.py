# SPDX-License-Identifier: GPL-3.0-or-later
"""What recorded machines can do, and which device somebody who asks would be given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ctrmgr
from ctrmgr.backend import functions, held
from ctrmgr.backend.functions import Candidate
from ctrmgr.devices.plugin import Allocation, Found
from ctrmgr.errors import ConflictError, NotFoundError, SpecError
from ctrmgr.images import store
from ctrmgr.plan import compile
from ctrmgr.plugins import registry

Machine = Callable[..., str]


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "sources", dict)


def given(root: str, function: str, taken: list[held.Held] | None = None, **values: str) -> list[str]:
    """The ids of what fits, in the order in which they are given."""
    asked = {"function": function, **{key.replace("_", "-"): value for key, value in values.items()}}
    return [each.id for each in functions.fitting("any", asked, functions.look("any", root), taken or [])]


def candidate(root: str, id: str) -> Candidate:
    (one,) = [each for each in functions.candidates(functions.look("any", root), []) if each.id == id]
    return one


def held_by(instance: str, kind: str, id: str) -> held.Held:
    one = held.Held(instance, "d")
    one.type, one.text = kind, held.lines(Allocation(Found(id)))
    return one


def test_gpus_and_their_parts(machine: Machine) -> None:
    nvidia, amd, intel = machine("nvidia"), machine("mi300x"), machine("xe")
    assert given(nvidia, "gpu.compute") == ["0000:18:00.0", "0000:9a:00.0/gi1/ci0", "0000:9a:00.0/gi2/ci0"]
    assert given(nvidia, "gpu.display") == ["0000:03:00.0", "0000:18:00.0"]
    assert candidate(nvidia, "0000:9a:00.0").problem == "it is split into parts, which are given one by one"
    assert given(amd, "gpu.compute")[:2] == ["0000:05:00.0/xcp0", "0000:05:00.0/xcp1"]
    assert given(intel, "gpu.compute", min_memory=str(4 << 30)) == ["0000:03:00.1"]
    assert candidate(intel, "0000:03:00.2").problem == "its driver `vfio-pci` gives it no node"


def test_the_api(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    root = machine("xe")
    monkeypatch.setattr(functions, "look", lambda: functions.Seen("any", root))
    monkeypatch.setattr(functions, "everything", list)
    assert [each.id for each in ctrmgr.find_devices("gpu.compute", min_memory="4GiB")] == ["0000:03:00.1"]
    for wrong in ({"min_memory": "lots"}, {"lanes": "4"}, {"gid": "render"}):
        with pytest.raises(SpecError):
            ctrmgr.find_devices("gpu.compute", **wrong)


def test_who_has_least(machine: Machine) -> None:
    root = machine("nvidia")
    taken = [held_by("c1", "gpu", "0000:18:00.0"), held_by("c2", "gpu", "0000:9a:00.0/gi1/ci0")]
    assert given(root, "gpu.compute", taken)[0] == "0000:9a:00.0/gi2/ci0"
    taken += [held_by("c3", "gpu", "0000:9a:00.0/gi2/ci0"), held_by("c4", "gpu", "0000:18:00.0")]
    assert given(root, "gpu.compute", taken)[0] == "0000:9a:00.0/gi1/ci0"
    with pytest.raises(ConflictError, match=r"no device for `gpu[.]compute` is free") as error:
        given(root, "gpu.compute", taken, lease="exclusive")
    assert "0000:18:00.0: 2 have it, and it is asked for alone" in str(error.value.hint)


def test_others(machine: Machine) -> None:
    assert given(machine("aic100"), "accel.compute") == ["0000:00:0b.0", "0000:01:00.0", "0000:02:00.0"]
    root = machine("mlx5")
    assert given(root, "rdma.infiniband") == ["0000:19:00.0", "0000:19:00.2", "0000:19:00.3"]
    assert given(root, "rdma.ethernet", **{"with": "rate>=100"}) == ["0000:19:00.1"]
    with pytest.raises(NotFoundError, match=r"no device fits `gpu[.]compute`") as error:
        given(machine("nothing"), "gpu.compute")
    assert error.value.hint == "this machine has nothing that can do anything"


def test_what_has_nodes_of_a_gpu_and_is_none(machine: Machine) -> None:
    root = machine("virtual")
    assert given(root, "gpu.render") == ["0000:00:07.0"]
    assert candidate(root, "faux/vgem").functions == {"gpu.display": {}}


def test_images_ask() -> None:
    def asked(**keys: str) -> dict[str, dict[str, str]]:
        metadata = {"os": "x", **{f"function.{name}": value for name, value in keys.items()}}
        return compile.asked(store.Image("0" * 64, "/nowhere", metadata))

    assert asked() == {}
    assert asked(brain="gpu.compute min-memory=16GiB required=no") == {
        "brain": {"type": "any", "function": "gpu.compute", "min-memory": str(16 << 30), "required": "false"}
    }
    for wrong in (
        "",
        "gpu",
        "gpu.compute lanes=4",
        "gpu.compute min-memory",
        "gpu.compute type=unix-char source=/dev/sda",
        "gpu.compute type=any",
        "gpu.compute id=0000:01:00.0",
        "gpu.compute lease=exclusive",
        "storage.block",
    ):
        with pytest.raises(SpecError, match="the image asks for something strange"):
            asked(brain=wrong)


def test_disks(machine: Machine) -> None:
    root = machine("disks")
    with pytest.raises(ConflictError) as error:
        given(root, "storage.block")
    assert "it may have somebody's data: say which by `id`, `model` or `vendor`" in str(error.value.hint)
    assert given(root, "storage.block", id="naa.50014ee2b9f01234") == ["naa.50014ee2b9f01234"]
    whole = "eui.002538b511b01234"
    for id, said in (
        (whole, f"the host itself uses `{whole}-part2`: dm-0"),
        (f"{whole}-part2", "the host itself uses it: dm-0"),
        ("loop1", "nothing is in it"),
    ):
        with pytest.raises(ConflictError) as error:
            given(root, "storage.block", id=id)
        assert str(error.value.hint).startswith(f"{id}: {said}")
    assert given(root, "storage.block", id=f"{whole}-part1") == [f"{whole}-part1"]
    with pytest.raises(NotFoundError):
        given(root, "storage.block", id="naa.50014ee2b9f01234", **{"with": "size>=100TB"})
