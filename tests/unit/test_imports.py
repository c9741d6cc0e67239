# SPDX-License-Identifier: GPL-3.0-or-later
"""Every import of ours follows an arrow of the tables in HACKING.md."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ctrmgr"
FILES = sorted(PACKAGE.rglob("*.py"))
ROW = re.compile(r"^\| `([\w.]+)` \|(?:.*\|)? ([^|]+) \|$", re.MULTILINE)


def tables() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Room to rooms, package to places."""
    rooms_text, packages_text = (ROOT / "HACKING.md").read_text().split("| package | may be imported in |")
    rooms = {name: set(re.findall(r"\w+", allowed)) for name, allowed in ROW.findall(rooms_text)}
    packages = {name: set(re.findall(r"`([\w/.]+)`", allowed)) for name, allowed in ROW.findall(packages_text)}
    return rooms, packages


ROOMS, PACKAGES = tables()


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import, those inside functions and for type checkers included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def forbidden(place: str, source: str) -> list[str]:
    """What the file at `place` (below the package) may not import."""
    top = place.partition("/")[0].removesuffix(".py")
    room = "ctrmgr" if top == "__init__" else top
    found = []
    for line, name in imported(source):
        package, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if package == "ctrmgr":
            allowed = target in (room, "__version__") or target in ROOMS[room]
        elif package in sys.stdlib_module_names:
            allowed = True
        else:
            allowed = bool({room, place} & PACKAGES.get(package, set()))
        if not allowed:
            found.append(f"{place}:{line}: {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows(path: Path) -> None:
    assert forbidden(str(path.relative_to(PACKAGE)), path.read_text()) == []


def test_the_table_names_every_room_and_no_other() -> None:
    there = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert set(ROOMS) - {"ctrmgr"} == there


def test_arrows_go_down() -> None:
    order = list(ROOMS)
    for room, allowed in ROOMS.items():
        assert allowed <= set(order[: order.index(room)]), room


TOGETHER = [
    {"backend/guarantees.py", "backend/leases.py"},  # a guarantee is a lease of an amount
    {"devices/cdi.py", "devices/gpu.py"},  # each may be written as the other
    {"images/embedded.py", "images/staging.py", "images/store.py"},  # the embedded one is made when it is asked for
]
"""Files that need each other, with imports inside functions; all others stand above what they import."""


def modules(source: str) -> Iterator[str]:
    """Places of ours that are imported when the program runs, at once or in a function."""
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ctrmgr":
            for alias in node.names:
                for name in (f"{node.module}.{alias.name}", str(node.module)):
                    place = name.partition(".")[2].replace(".", "/") + ".py"
                    if (PACKAGE / place).is_file():
                        yield place
                        break


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Sets of places of which each leads to all others."""
    reach = {place: {*targets} for place, targets in arrows.items()}
    for between in arrows:
        for targets in reach.values():
            if between in targets:
                targets |= reach[between]
    return [
        circle
        for circle in {frozenset(other for other in reach[place] if place in reach[other]) for place in reach}
        if circle
    ]


def test_no_file_leads_back_to_itself() -> None:
    arrows = {str(path.relative_to(PACKAGE)): {*modules(path.read_text())} for path in FILES}
    assert sorted(map(sorted, circles(arrows))) == sorted(map(sorted, TOGETHER))


def test_a_circle_is_found() -> None:
    source = "if TYPE_CHECKING:\n    from ctrmgr import api\ndef f():\n    from ctrmgr.backend import local"
    assert [*modules(source)] == ["backend/local.py"]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("plan/x.py", "from ctrmgr.backend import local"),
        ("plan/x.py", "def f():\n    import ctrmgr.cli.main"),
        ("backend/x.py", "from ctrmgr import spec"),
        ("cli/x.py", "import pydantic"),
        ("kernel/x.py", "import prctl"),
        ("errors.py", "from ctrmgr import state"),
        ("host/x.py", "import requests"),
    ],
)
def test_a_wrong_arrow_is_found(place: str, source: str) -> None:
    assert len(forbidden(place, source)) == 1
