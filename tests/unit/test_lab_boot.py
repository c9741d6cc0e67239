# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest of the lab that QEMU itself has failed is begun again, once; one that crashed for any other reason is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lab import vm

STALE = """[    9.1] Oops: int3: 0000 [#1] SMP
[    9.1] CPU: 1 UID: 0 PID: 190 Comm: python3
RIP: 0010:bpf_lsm_file_permission+0x1/0x10
"""
OTHERS = STALE.replace("+0x1/0x10", "+0x10/0x20"), STALE.replace("int3", "BUG"), ""


def booted(monkeypatch: pytest.MonkeyPatch, folder: Path, *guests: tuple[str, str]) -> vm.Done:
    """What comes of guests that say this on the console and end with this exit code, one after the other."""
    left = iter(guests)

    @contextmanager
    def running(*words: object, **more: object) -> Iterator[vm.Guest]:
        console, code = next(left)
        (folder / "console").write_text(console)
        (folder / "code").write_text(code)
        yield vm.Guest(SimpleNamespace(poll=lambda: 0), folder)  # type: ignore[arg-type]

    monkeypatch.setattr(vm, "running", running)
    (folder / "out").write_text("")
    return vm.boot("true")


def test_a_guest_that_qemu_failed_is_begun_again_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert booted(monkeypatch, tmp_path, (STALE, ""), ("", "3\n")).code == 3
    assert booted(monkeypatch, tmp_path, ("", "0\n")).code == 0
    with pytest.raises(vm.LabError, match="did not end by itself"):
        booted(monkeypatch, tmp_path, (STALE, ""), (STALE, ""), ("", "0\n"))


@pytest.mark.parametrize("console", OTHERS)
def test_what_else_crashes_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, console: str) -> None:
    with pytest.raises(vm.LabError, match="did not end by itself"):
        booted(monkeypatch, tmp_path, (console, ""), ("", "0\n"))
