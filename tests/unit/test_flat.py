# SPDX-License-Identifier: GPL-3.0-or-later
"""Flat files: what is written is read, and what is added counts whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr import state
from ctrmgr.errors import CtrmgrError

FIELD = st.text(st.sampled_from("ab \\\t\n\x01=é"), max_size=4)
ROW = st.lists(FIELD, min_size=2, max_size=4)
ROWS = st.lists(ROW, min_size=1, max_size=4)


@given(rows=ROWS, more=ROWS, last=ROWS)
def test_what_is_added_is_read(tmp_path_factory: pytest.TempPathFactory, rows, more, last) -> None:  # type: ignore[no-untyped-def]
    path = str(tmp_path_factory.mktemp("flat") / "f")
    state.write_flat(path, rows)
    addition = state.Addition(path, more)
    assert state.read_flat(path) == rows, "it does not count yet"
    assert state.has_tail(path)
    assert state.tail(path) == more
    addition.count()
    assert state.read_flat(path) == rows + more
    assert not state.has_tail(path)
    state.Addition(path, last).drop()
    assert state.read_flat(path) == rows + more


@given(rows=ROWS, more=ROWS, cut=st.integers(0, 10**6), power=st.booleans(), counts=st.booleans())
def test_killed_or_cut_off_at_any_byte(
    tmp_path_factory: pytest.TempPathFactory, rows, more, cut, power, counts
) -> None:  # type: ignore[no-untyped-def]
    """A dead writer leaves a part of what it adds; a power cut leaves zeros where the disk did not get it."""
    path = tmp_path_factory.mktemp("flat") / "f"
    state.write_flat(str(path), rows)
    whole = path.stat().st_size
    state.Addition(str(path), more).count()
    data = path.read_bytes()
    kept = whole + cut % (len(data) - whole)
    path.write_bytes(data[:kept] + bytes(len(data) - kept) * power)
    assert state.read_flat(str(path)) == rows
    assert state.has_tail(str(path)) == (power or kept > whole)
    if state.has_tail(str(path)):
        with pytest.raises(CtrmgrError):
            state.Addition(str(path), more)
    if not power and data[kept : kept + 4] == b"end\n":
        state.end_tail(str(path), counts=counts)
        assert state.read_flat(str(path)) == rows + (more if counts else [])
    else:
        state.end_tail(str(path), counts=False)
        assert path.read_bytes() == data[:whole]


def test_a_file_that_never_ended_has_no_tail(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("a\tb\n")
    assert not state.has_tail(str(path))
    with pytest.raises(CtrmgrError, match="is cut off"):
        state.read_flat(str(path))
    state.end_tail(str(path), counts=True)
    assert path.read_text() == "a\tb\n", "it is left as it is"
    assert not state.has_tail(str(tmp_path / "none"))


def test_damage_before_the_end_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "f"
    state.write_flat(str(path), [["a", "b"]])
    state.Addition(str(path), [["c", "z"]]).count()
    for old, new, said in (
        (b"b", b"\0", "holds a NUL"),
        (b"z", b"\xff", "line 3 is not UTF-8"),
        (b"z", b"\\x", "escape"),
    ):
        path.write_bytes(b"a\tb\nend\nc\tz\nend\n".replace(old, new))
        with pytest.raises(CtrmgrError, match=said):
            state.read_flat(str(path))
