# SPDX-License-Identifier: GPL-3.0-or-later
"""When GUIDs of virtual functions are given and put back. What is done then is in tests/unit/test_guids.py: no such hardware is here."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Ctr
from tests.rootful.planned import wait_for

VF, GUID = "0000:ff:00.7", "00:11:22:33:44:55:66:77"


def test_when(ctr: Ctr) -> None:
    """As long as the instance has the device; then, or when it has none, the next command puts them back."""
    note = Path(ctr.folder / "run/.guids" / VF)

    def has(owner: str) -> None:
        note.parent.mkdir(exist_ok=True)
        note.write_text(f"{owner}\tfuse\t{GUID}\t{GUID}\nend\n")

    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-d", "fuse,type=unix-char,source=/dev/fuse")
    has("c1")
    ctr("config", "set", "c1", "user.note=any command")
    assert note.exists()
    ctr("detach-device", "c1", "fuse")
    assert not note.exists()
    has("c1")
    ctr("config", "set", "c1", "user.note=it has no such device")
    assert not note.exists()
    has("c1")
    ctr("stop", "--force", "c1")
    assert not note.exists()
    has("c2")
    plan = ctr.folder / "state/instances/c1/plan"
    rows = plan.read_text().removesuffix("end\n")
    plan.write_text(f"{rows}vf-guid\tib\t{VF}\t{GUID}\t\nend\n")
    assert f"`{VF}` is no virtual function" in ctr("start", "c1", code=5).stderr
    plan.write_text(f"{rows}end\n")
    ctr("start", "c1")
    assert note.exists(), "it is another one's"
    state = ctr.folder / "run/c1/state"
    before = state.read_text()
    plan.write_text(f"{rows}vf-guid\tib\t{VF}\t{GUID}\t\nend\n")
    ctr("exec", "c1", "--", "reboot", "-f", code=None)
    wait_for(
        lambda: state.exists() and state.read_text() not in ("", before)
    )  # its monitor knows the row, and keeps to itself
