# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions as they are asked for and shown: a map in profiles, the Python API, `info`, completion, and what errors say can be had."""

from __future__ import annotations

import pytest

import ctrmgr
from ctrmgr import source
from ctrmgr.backend import allocations, giving, info, repair
from ctrmgr.cli import completion
from ctrmgr.errors import ConflictError, SpecError
from ctrmgr.spec import device, profile
from tests.unit.test_partitions import User, machine, plan_of


def text(amounts: str) -> str:
    return f"devices:\n  brain:\n    type: any\n    function: gpu.compute\n    partition: {amounts}\n"


def test_a_map_in_a_profile() -> None:
    for amounts in ("{cores: 2, memory: 8GiB}", "\n      memory: 8GiB\n      cores: 2", "cores=2,memory=8GiB"):
        found = profile.validate(source.parse("p", text(amounts)))
        assert profile.merge([found], {}, {})[1]["brain"]["partition"] == "cores=2,memory=8589934592"
        assert "memory=8GiB" in found.devices["brain"]["partition"]
    given = {"type": "any", "function": "gpu.compute", "partition": {"cores": 2}}
    assert device.check("brain", given)["partition"] == "cores=2"


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ("{memory: 8XiB}", "unknown unit"),
        ("{cores: 0}", "asks for nothing of `cores`"),
        ("{cores: [1]}", "which is not one POOL and its AMOUNT"),
        ('{cores: "1,memory=2"}', "which is not one POOL and its AMOUNT"),
        ("{cores: {a: 1}}", "which is not one POOL and its AMOUNT"),
        ("{}", "asks for nothing"),
    ],
)
def test_a_map_that_is_wrong(amounts: str, said: str) -> None:
    """With the line, what is wrong, and what can be said."""
    with pytest.raises(SpecError, match=said) as error:
        profile.validate(source.parse("p", text(amounts)))
    assert "line 5" in error.value.message and "8GiB" in str(error.value.hint)


def test_in_python() -> None:
    """Made, listed, taken by an instance, seen in its `info`, and deleted; what can be divided is known to the shells."""
    with machine() as (card, folder):
        user = User(folder / "one")
        with user.books():
            made = ctrmgr.create_partition("half", "a", cores=3, memory=4)
            assert (made.name, made.device, made.takes, made.used_by) == ("half", "a", {"cores": 4, "memory": 4}, "")
            assert [each.state for each in ctrmgr.partitions()] == ["free"]
            with pytest.raises(ConflictError, match="cores left"):
                ctrmgr.create_partition("more", "a", cores=8)
            with pytest.raises(SpecError, match="asks for nothing") as error:
                ctrmgr.create_partition("more", "a", cores=0)
            assert "partition list --pools" in str(error.value.hint)
            with pytest.raises(SpecError, match="has no pool `wings`") as error:
                ctrmgr.create_partition("more", "a", wings=1)
            assert str(error.value.hint).startswith("it has cores=10,")
            giving.settle("x", plan_of("x", "cores=2"), repair.instance, starts=True)
            (own,) = ctrmgr.Instance("x").partitions()
            assert (own.used_by, own.takes, own.nodes, own.state) == ("x/npu", {"cores": 2}, ["/dev/null"], "in use")
            (told,) = info._partitions("x")
            assert (told["name"], told["of"], told["takes"]) == ("npu", "a", {"cores": 2}) or told["of"] == "b"
            plan = [row if row[4:5] != ["partition"] else [*row[:5], "half"] for row in plan_of("y", "cores=1")]
            giving.settle("y", plan, repair.instance, starts=True)
            (borrowed,) = ctrmgr.Instance("y").partitions()
            assert (borrowed.name, borrowed.used_by, borrowed.takes) == ("half", "y/npu", made.takes)
            with pytest.raises(ConflictError, match="in use"):
                ctrmgr.delete_partition("half")
            assert {each.used_by for each in ctrmgr.partitions()} == {"x/npu", "y/npu"}
            assert completion.words(["partition", "create", "half", ""]) == ["a", "b"]
            for name in "xy":
                allocations.forget(name)
            ctrmgr.delete_partition("half")
            assert ctrmgr.partitions() == [] and card.there("a") == {}
