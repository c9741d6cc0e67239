# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver that was upgraded under what runs: the libraries that an instance was given must be of the kernel module's version. Cold."""

from __future__ import annotations

from ctrmgr.backend.checkup import WRONG, Finding
from ctrmgr.host import nvidia, nvidia_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def given(plan: Sequence[Sequence[str]]) -> set[str]:
    """The versions of NVIDIA's libraries that a plan mounts: `libcuda.so.535.129.03`."""
    names = {nvidia_files.library(word) for words in nvidia_files.LIBRARIES.values() for word in words}
    found = set()
    for row in plan:
        name, dot, version = row[2].rpartition("/")[2].partition(".so.") if row[0] == "bind" else ("", "", "")
        if dot and f"{name}.so" in names and version.count(".") and version.replace(".", "").isdecimal():
            found.add(version)
    return found


def findings(instance: str, plan: Sequence[Sequence[str]], root: str = "/") -> Iterator[Finding]:
    """Of a running instance, whose plan is that of its start and what was attached since."""
    versions = given(plan)
    loaded = nvidia.version(root) if versions else ""
    older = sorted(versions - {loaded})
    if older:
        now = f"of {loaded} now" if loaded else "not loaded"
        text = f"NVIDIA's driver is {now}, and it was given libraries of {', '.join(older)}"
        yield Finding(instance, "driver", WRONG, text, hint=f"`ctrmgr restart {instance}` gives it those of the driver")
