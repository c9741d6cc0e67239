# SPDX-License-Identifier: GPL-3.0-or-later
"""Another root, and less repetition: what asking for a device does stays the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr.cdi import model, transform, write
from ctrmgr.cdi.model import CdiSpec
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from ctrmgr.errors import SpecError
from tests.cdi_specs import FIXTURES


def one(**edits: object) -> CdiSpec:
    return write.build("v/c", {"a": ContainerEdits(**edits)})  # type: ignore[arg-type]


def own(spec: CdiSpec) -> ContainerEdits:
    return spec.devices[0].container_edits.value()


@pytest.mark.parametrize(
    ("old", "new", "path", "moved"),
    [
        ("/", "/host", "/dev/a", "/host/dev/a"),
        ("/run/driver", "/", "/run/driver/lib/x", "/lib/x"),
        ("/run/driver/", "/opt/", "/run/driver/lib/x", "/opt/lib/x"),
        ("/run/driver", "/opt", "/run/driver", "/opt"),
        ("/run/driver", "/opt", "/run/driver2/x", "/run/driver2/x"),
        ("/run/driver", "/opt", "/var/run/driver/x", "/var/run/driver/x"),
        ("/", "/", "/a", "/a"),
        ("/", "/host", "tmpfs", "tmpfs"),
    ],
)
def test_paths(old: str, new: str, path: str, moved: str) -> None:
    assert transform.mover(old, new)(path) == moved


def test_root_of_the_host() -> None:
    spec = one(
        device_nodes=[DeviceNode("/dev/a"), DeviceNode("/dev/b", "/drv/dev/c"), DeviceNode("/drv/d")],
        mounts=[Mount("/drv/lib/x", "/drv/lib/x"), Mount("tmpfs", "/t", type="tmpfs")],
        hooks=[
            Hook("createContainer", "/drv/bin/h", ["h", "/drv/lib", "/drv/a::/drv/b"]),
            Hook("createRuntime", "/drv/bin/h", ["h", "/drv/lib", "/drv/a::/other"]),
            Hook("startContainer", "/drv/bin/h", ["/drv/lib"]),
        ],
    )
    assert own(transform.root(spec, "/drv", "/new")) == ContainerEdits(
        device_nodes=[DeviceNode("/dev/a"), DeviceNode("/dev/b", "/new/dev/c"), DeviceNode("/drv/d", "/new/d")],
        mounts=[Mount("/new/lib/x", "/drv/lib/x"), Mount("tmpfs", "/t", type="tmpfs")],
        hooks=[
            Hook("createContainer", "/new/bin/h", ["h", "/drv/lib", "/drv/a::/drv/b"]),
            Hook("createRuntime", "/new/bin/h", ["h", "/new/lib", "/new/a::/other"]),
            Hook("startContainer", "/drv/bin/h", ["/drv/lib"]),
        ],
    )


def test_root_of_the_container() -> None:
    spec = one(
        device_nodes=[DeviceNode("/drv/dev/a"), DeviceNode("/drv/dev/b", "/drv/dev/c"), DeviceNode("/dev/d")],
        mounts=[Mount("/drv/lib/x", "/drv/lib/x")],
        hooks=[
            Hook("createContainer", "/drv/bin/h", ["h", "/drv/a::/drv/b"]),
            Hook("createRuntime", "/drv/bin/h", ["h", "/drv/lib"]),
            Hook("startContainer", "/drv/bin/h", ["/drv/lib"]),
        ],
    )
    assert own(transform.root(spec, "/drv", "/", "container")) == ContainerEdits(
        device_nodes=[
            DeviceNode("/dev/a", "/drv/dev/a"), DeviceNode("/dev/b", "/drv/dev/c"), DeviceNode("/dev/d"),
        ],
        mounts=[Mount("/drv/lib/x", "/lib/x")],
        hooks=[
            Hook("createContainer", "/drv/bin/h", ["h", "/a::/b"]),
            Hook("createRuntime", "/drv/bin/h", ["h", "/drv/lib"]),
            Hook("startContainer", "/bin/h", ["/lib"]),
        ],
    )  # fmt: skip


def test_a_new_host_path_needs_its_version() -> None:
    spec = one(device_nodes=[DeviceNode("/dev/a")])
    assert spec.cdi_version == "0.3.0"
    assert transform.root(spec, "/", "/host").cdi_version == "0.5.0"
    assert transform.root(spec, "/other", "/host").cdi_version == "0.3.0"


@pytest.mark.parametrize(("old", "new"), [("drv", "/x"), ("/drv", "x"), ("/drv/..", "/x"), ("/drv", "/../x")])
def test_a_root_is_a_plain_path(old: str, new: str) -> None:
    with pytest.raises(SpecError, match="is not an absolute path without"):
        transform.root(one(env=["A=b"]), old, new)


def test_the_rest_of_a_spec_stays() -> None:
    path = next(path for path in FIXTURES if path.name == "everything.json")
    spec = model.load(str(path))
    assert transform.root(spec, "/nowhere", "/x") == spec


# Without repetition

CTL, GPU0, GPU1 = DeviceNode("/dev/ctl"), DeviceNode("/dev/gpu0"), DeviceNode("/dev/gpu1")
FIRST, SECOND, LDCACHE = Hook("createContainer", "/a"), Hook("createContainer", "/b"), Hook("createContainer", "/ld")


def simplified(common: ContainerEdits, **devices: ContainerEdits) -> tuple[ContainerEdits, dict[str, ContainerEdits]]:
    spec = transform.simplify(write.build("v/c", devices, common))
    return spec.container_edits.value(), {device.name: device.container_edits.value() for device in spec.devices}


def test_what_all_have_is_said_once() -> None:
    common, found = simplified(
        ContainerEdits(["A=1"]),
        a=ContainerEdits(["A=1", "B=2"], [CTL, GPU0], additional_gids=[5], intel_rdt=IntelRdt("x")),
        b=ContainerEdits(["B=2"], [GPU1, CTL], additional_gids=[6, 5], intel_rdt=IntelRdt("x")),
        all=ContainerEdits(["B=2"], [GPU0, GPU1, CTL], additional_gids=[5], intel_rdt=IntelRdt("x")),
    )
    assert common == ContainerEdits(["A=1", "B=2"], [CTL], additional_gids=[5], intel_rdt=IntelRdt("x"))
    assert found == {
        "a": ContainerEdits(device_nodes=[GPU0]),
        "b": ContainerEdits(device_nodes=[GPU1], additional_gids=[6]),
        "all": ContainerEdits(device_nodes=[GPU0, GPU1]),
    }


def test_a_device_keeps_something() -> None:
    same = ContainerEdits(device_nodes=[CTL])
    assert simplified(ContainerEdits(), a=same, b=same) == (ContainerEdits(), {"a": same, "b": same})
    assert simplified(same, a=same) == (same, {"a": same})
    assert simplified(ContainerEdits(["A=1"]), a=ContainerEdits(["A=1"], [CTL])) == (
        ContainerEdits(["A=1"]),
        {"a": same},
    )


def test_hooks_keep_their_order() -> None:
    common, found = simplified(
        ContainerEdits(),
        a=ContainerEdits(device_nodes=[GPU0], hooks=[FIRST, SECOND, LDCACHE]),
        b=ContainerEdits(device_nodes=[GPU1], hooks=[FIRST, LDCACHE]),
    )
    assert common.hooks == (FIRST,)
    assert {name: edits.hooks for name, edits in found.items()} == {"a": (SECOND, LDCACHE), "b": (LDCACHE,)}


def test_two_values_for_one_name_stay_where_they_are() -> None:
    common, found = simplified(
        ContainerEdits(["A=1"]),
        a=ContainerEdits(["A=2"], [GPU0]),
        b=ContainerEdits(["A=2"], [GPU1]),
    )
    assert common.env == ("A=1",)
    assert found["a"].env == found["b"].env == ("A=2",)


SMALL = st.builds(
    ContainerEdits,
    st.lists(st.sampled_from(("A=1", "A=2", "B=1")), max_size=3),
    st.lists(st.sampled_from((CTL, GPU0, DeviceNode("/dev/ctl", uid=1))), max_size=3),
    st.just(()) | st.sampled_from(((NetDevice("e0", "n0"),), (NetDevice("e0", "n1"),))),
    st.lists(st.sampled_from((Mount("/x", "/m"), Mount("/y", "/m"), Mount("/x", "/m/n"))), max_size=3),
    st.lists(st.sampled_from((FIRST, SECOND, LDCACHE)), max_size=4),
    st.none() | st.sampled_from((IntelRdt("x"), IntelRdt("y"))),
    st.lists(st.sampled_from((0, 5, 6)), max_size=2),
)


def effect(spec: CdiSpec, asked: Sequence[int]) -> tuple[object, ...]:
    """What a runtime ends with; only for hooks and mounts does the order count."""
    total = spec.container_edits.value()
    for index in asked:
        total = total.add(spec.devices[index].container_edits.value())
    total = total.merged()
    free = (total.env, total.device_nodes, total.net_devices, total.additional_gids)
    return (*map(set, free), {mount.container_path: mount for mount in total.mounts}, total.hooks, total.intel_rdt)


@given(
    SMALL,
    st.dictionaries(st.sampled_from("abc"), SMALL.filter(bool), min_size=1, max_size=3),
    st.permutations(range(3)),
    st.integers(1, 3),
)
def test_asking_does_the_same_as_before(
    common: ContainerEdits, devices: Mapping[str, ContainerEdits], order: Sequence[int], count: int
) -> None:
    spec = write.build("v/c", devices, common)
    simple = transform.simplify(spec)
    asked = [index for index in order if index < len(devices)][:count]
    assert effect(simple, asked) == effect(spec, asked)
    assert transform.simplify(simple) == simple


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_specs_of_vendors_do_the_same(path: object) -> None:
    spec = model.load(str(path))
    simple = transform.simplify(spec)
    for index in range(len(spec.devices)):
        assert effect(simple, [index]) == effect(spec, [index])
    assert len(write.text(simple)) <= len(write.text(spec))
