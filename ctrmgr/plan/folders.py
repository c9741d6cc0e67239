# SPDX-License-Identifier: GPL-3.0-or-later
"""Where profiles are looked for. Hot: a template's stamps are taken of these paths."""

from __future__ import annotations

import os

from ctrmgr import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def packaged() -> str:
    """The profiles that ship with the package: beside it when installed, at the root of a source tree."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = package + "/_profiles"
    return inside if os.path.isdir(inside) else os.path.dirname(package) + "/profiles"


def search() -> list[str]:
    """Folders, weakest first: packaged, the administrator's, the caller's own. A later one wins by name.

    CTRMGR_CONFIG_DIR stands for both of the last two, so that nothing of the machine leaks into a test.
    """
    own = state.config_dir() + "/profiles"
    if os.environ.get("CTRMGR_CONFIG_DIR") or own == "/etc/ctrmgr/profiles":
        return [packaged(), own]
    return [packaged(), "/etc/ctrmgr/profiles", own]


def candidates(name: str) -> list[str]:
    """The files that could hold the profile `name`, weakest first."""
    return [f"{folder}/{name}.yaml" for folder in search()]


def names() -> Iterator[tuple[str, str]]:
    """(name, path of the file that counts) of all profiles, sorted."""
    found: dict[str, str] = {}
    for folder in search():
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            if entry.endswith(".yaml") and not entry.startswith("."):
                found[entry[:-5]] = f"{folder}/{entry}"
    yield from sorted(found.items())


def find(name: str) -> str | None:
    """The file that counts for `name`; None when there is none."""
    for path in reversed(candidates(name)):
        if os.path.isfile(path):
            return path
    return None
