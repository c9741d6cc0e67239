# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of the limits of a running instance when the kernel refuses one of them."""

from __future__ import annotations

import errno

import pytest

from ctrmgr.backend import live
from ctrmgr.errors import HostError
from ctrmgr.kernel import control


def test_those_that_were_set_are_taken_back_and_the_first_refusal_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    old = [["cgroup-file", "unified", "pids.max", "10"], ["cgroup-file", "unified", "memory.max", "4096"]]
    new = [
        ["cgroup-file", "unified", "pids.max", "20"],
        ["cgroup-file", "unified", "hugetlb.3MB.max", "5"],
        ["cgroup-file", "unified", "memory.max", "8192"],
    ]
    now = {row[2]: row[3] for row in old}

    def ask(name: str, hierarchy: str, file: str, value: str) -> control.Reply:
        refused = file.startswith("hugetlb")  # also the word that takes it back
        if not refused:
            now[file] = value
        return control.Reply(control.REPLY.pack(control.VERSION, errno.ENOENT if refused else 0, 0, 0, b"", b""))

    monkeypatch.setattr(live, "hierarchies", lambda name: {"unified"})
    monkeypatch.setattr(live, "ask", ask)
    with pytest.raises(HostError, match=r"refuses `hugetlb\.3MB\.max` = `5`: No such file") as refused:
        live.change_limits("c1", old, new)
    assert refused.value.hint == "this kernel has no such file: the limits are as they were"
    assert now == {row[2]: row[3] for row in old}
