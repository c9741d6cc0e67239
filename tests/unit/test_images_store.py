# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctrmgr import state
from ctrmgr.errors import (
    ConflictError,
    CtrmgrError,
    HostError,
    NotFoundError,
    SpecError,
)
from ctrmgr.images import elf, embedded, formats, removal, staging, store

A, B = "a" * 64, "ab" + "b" * 62


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTRMGR_STATE_DIR", str(tmp_path))
    store.make_dirs()
    for fingerprint in (A, B):
        os.makedirs(f"{store.images_dir()}/{fingerprint}/rootfs")
        state.write_flat(f"{store.images_dir()}/{fingerprint}/metadata", [["init", "builtin"], ["description", "a\tb"]])
    store.set_alias("debian/13", A)
    return tmp_path


def test_find_by_alias_fingerprint_and_prefix() -> None:
    for ref in ("debian/13", A, "aa"):
        image = store.find(ref)
        assert image.fingerprint == A
        assert image.rootfs == f"{store.images_dir()}/{A}/rootfs"
        assert image.metadata == {"init": "builtin", "description": "a\tb"}


def test_ambiguous_and_unknown() -> None:
    with pytest.raises(SpecError, match="ambiguous"):
        store.find("a")
    with pytest.raises(NotFoundError) as caught:
        store.find("debian/12")
    assert caught.value.hint == "did you mean `debian/13`?"
    for ref in ("", "../..", "c" * 64, "f" * 300, "x/y"):
        with pytest.raises(NotFoundError):
            store.find(ref)


def test_alias_moves_and_goes() -> None:
    store.set_alias("debian/13", B)
    assert store.find("debian/13").fingerprint == B
    assert list(store.aliases()) == [("debian/13", B)]
    store.drop_alias("debian/13")
    with pytest.raises(NotFoundError):
        store.find("debian/13")


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "/x", "a b", "a\nb", "a" * 201])
def test_impossible_alias(name: str) -> None:
    with pytest.raises(SpecError):
        store.set_alias(name, A)


def test_alias_with_percent_and_slash_are_two(state_dir: Path) -> None:
    store.set_alias("a/b", A)
    store.set_alias("a%2Fb", B)
    assert dict(store.aliases()) == {"a/b": A, "a%2Fb": B, "debian/13": A}


def test_broken_image_is_named_and_can_be_deleted() -> None:
    os.unlink(f"{store.images_dir()}/{A}/metadata")
    with pytest.raises(CtrmgrError, match="broken") as caught:
        store.find(A)
    assert caught.value.exit_code == 1
    removal.delete(A)
    assert store.fingerprints() == [B]


def test_delete_is_refused_while_used(state_dir: Path) -> None:
    os.makedirs(state_dir / "instances/c1")
    state.write_flat(str(state_dir / "instances/c1/config"), [["image", A, "debian/13"]])
    with pytest.raises(ConflictError, match="`c1`"):
        removal.delete("debian/13")
    assert store.find("debian/13").fingerprint == A
    removal.delete(B)
    assert store.fingerprints() == [A]


def test_delete_takes_the_aliases_along() -> None:
    removal.delete("debian/13")
    assert list(store.aliases()) == []
    assert os.listdir(store.images_dir()) == [B]


def test_repair_removes_only_what_nobody_holds() -> None:
    with staging.Staging() as mine:
        os.makedirs(f"{store.images_dir()}/.new-dead/rootfs")
        os.makedirs(f"{store.images_dir()}/.del-dead/rootfs")
        assert sorted(staging.repair()) == [".del-dead", ".new-dead"]
        assert os.path.isdir(mine.path)
    assert sorted(os.listdir(store.images_dir())) == [A, B]


def test_images_are_not_reachable_by_others() -> None:
    assert os.stat(store.images_dir()).st_mode & 0o777 == 0o700


def test_no_static_busybox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "read", lambda path: None)
    with pytest.raises(HostError, match="not a static") as caught:
        embedded.busybox_path()
    assert "busybox-static" in (caught.value.hint or "")


def test_elf() -> None:
    shell = elf.read(os.path.realpath("/bin/sh"))
    assert shell
    assert not shell.static
    assert shell.machine == os.uname().machine
    assert elf.read(__file__) is None
    assert elf.runs_here(os.uname().machine)
    assert not elf.runs_here("s390x" if os.uname().machine != "s390x" else "x86_64")
    assert elf.canonical("amd64") == "x86_64"


def test_unknown_archives(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello" * 200)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    for name in ("text", "empty", "fifo"):
        with pytest.raises(SpecError):
            formats.Source(str(tmp_path / name))
    with pytest.raises(NotFoundError):
        formats.Source(str(tmp_path / "missing"))


def test_store_imports_nothing_dear() -> None:
    code = "import sys, ctrmgr.images.store; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                            capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    assert not {"re", "json", "typing", "subprocess", "shutil", "pathlib", "enum", "ctypes", "yaml", "rich"} & set(
        loaded
    )
