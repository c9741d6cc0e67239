# SPDX-License-Identifier: GPL-3.0-or-later
"""The sums of partitions: what is admitted fits, the words for what is asked, and which profile is the smallest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr.backend import pools
from ctrmgr.devices import partition
from ctrmgr.devices.partition import Asked
from ctrmgr.devices.plugin import Found
from ctrmgr.errors import ConflictError, SpecError

AMOUNTS = st.dictionaries(st.sampled_from(["cores", "memory", "dma"]), st.integers(1, 12), min_size=1)


@given(
    AMOUNTS,
    st.integers(1, 5),
    st.lists(
        st.one_of(st.tuples(st.just("take"), AMOUNTS), st.tuples(st.just("drop"), st.integers(0, 4))), max_size=30
    ),
)
def test_sums(size: dict[str, int], most: int, steps: list[tuple[str, object]]) -> None:
    """What is admitted fits, and what is refused does not."""
    found = Found("a", pools=size, partitions=most)
    given_: list[pools.Share] = []
    for verb, what in steps:
        if verb == "drop":
            assert isinstance(what, int)
            del given_[what : what + 1]
            continue
        assert isinstance(what, dict)
        left = {pool: size.get(pool, 0) - sum(share.takes.get(pool, 0) for share in given_) for pool in what}
        fits = all(amount <= left[pool] for pool, amount in what.items()) and len(given_) < most
        try:
            pools.admit(found, what, given_, divides=True)
        except ConflictError:
            assert not fits
            continue
        assert fits
        given_.append(pools.Share(f"x{len(given_)}", what, str(len(given_))))
        for pool, amount in size.items():
            assert 0 <= pools.free(found, given_)[pool] <= amount


@given(st.text("abc=,.0123GiB profile", max_size=30))
def test_words(text: str) -> None:
    """What is accepted is its own canonical form."""
    try:
        good = partition.parse(text)
    except ValueError:
        return
    assert partition.parse(good) == good
    asked = Asked(good)
    assert asked.name or asked.profile or asked.amounts
    assert all(amount > 0 for amount in asked.amounts.values())


def test_the_smallest_profile() -> None:
    found = Found(
        "a",
        pools={"cores": 100, "memory": 80},
        partitions=7,
        profiles={
            "big": {"cores": 50, "memory": 40},
            "small": {"cores": 10, "memory": 10},
            "memory": {"cores": 10, "memory": 20},
        },
    )
    assert [name for name, _ in pools.sizes(found, Asked("cores=5"))] == ["small", "memory", "big"]
    assert [name for name, _ in pools.sizes(found, Asked("memory=11"))] == ["memory", "big"]
    assert pools.sizes(found, Asked("profile=big")) == [("big", {"cores": 50, "memory": 40})]
    with pytest.raises(ConflictError, match="no partition of `a` is so large") as error:
        pools.sizes(found, Asked("memory=11,profile=small"))
    assert "small: cores=10,memory=10" in str(error.value.hint)
    with pytest.raises(SpecError, match="has no pool `dma`"):
        pools.sizes(found, Asked("dma=1"))
