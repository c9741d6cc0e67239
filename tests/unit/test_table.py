# SPDX-License-Identifier: GPL-3.0-or-later
"""Data on stdout: a terminal as wide as it is, and programs that want numbers and keys that stay."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr.cli import help, main, table

Out = pytest.CaptureFixture[str]
ROW: dict[str, object] = {
    "name": "gpu-slice",
    "numa": "",
    "model": "NVIDIA A100",
    "nodes": ["/dev/nvidia0", "/dev/nvidiactl"],
    "held by": ["c1"],
}
COLUMNS = ("name", "numa", "model", "nodes", "held by")


def shown(out: Out, room: int, monkeypatch: pytest.MonkeyPatch, **options: object) -> list[str]:
    monkeypatch.setattr(table, "width", lambda: room)
    table.print_rows(COLUMNS, [ROW], **options)  # type: ignore[arg-type]
    return out.readouterr().out.splitlines()


def test_a_table_has_room(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = ["NAME       NUMA  MODEL        NODES                         HELD BY",
            "gpu-slice        NVIDIA A100  /dev/nvidia0, /dev/nvidiactl  c1"]  # fmt: skip
    assert shown(capsys, 0, monkeypatch) == shown(capsys, 100, monkeypatch) == wide
    assert shown(capsys, 62, monkeypatch) == [line[:11] + line[17:] for line in wide]  # what is empty goes first
    assert shown(capsys, 50, monkeypatch, spare=["model"]) == [
        "NAME       NODES                         HELD BY",
        "gpu-slice  /dev/nvidia0, /dev/nvidiactl  c1",
    ]
    assert shown(capsys, 35, monkeypatch, spare=["model"]) == [
        "NAME       NODES            HELD BY",
        "gpu-slice  /dev/nvidia0,    c1",
        "           /dev/nvidiactl",
    ]
    assert shown(capsys, 3, monkeypatch)[0].split() == ["NAME", "MODEL", "NODES", "HELD", "BY"]  # nothing is lost


@given(st.text("ab ,/:", max_size=60), st.integers(8, 70))
def test_nothing_is_lost_in_a_narrow_column(text: str, wide: int) -> None:
    lines = list(table.wrapped(text, wide))
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(len(line) <= wide for line in lines)


def test_programs_get_keys_without_blanks(capsys: Out) -> None:
    table.print_rows(COLUMNS, [ROW], "json")
    assert json.loads(capsys.readouterr().out)[0]["held-by"] == ["c1"]
    table.print_rows(COLUMNS, [ROW], "csv")
    assert capsys.readouterr().out.startswith("name,numa,model,nodes,held-by\n")
    table.print_object({"used by": [], "size": 3}, "yaml")
    assert capsys.readouterr().out == "used-by: []\nsize: 3\n"
    table.print_text("config:\n  a: 'yes'\n", "json")
    assert json.loads(capsys.readouterr().out) == {"config": {"a": "yes"}}
    with pytest.raises(Exception, match="no rows"):
        table.print_text("{}", "csv")


def test_help_fits_a_terminal() -> None:
    for command in main.every_command():
        for line in help.describe(command, 80).split("\n")[1:]:
            assert len(line) <= 80 or " " not in line[30:], line
