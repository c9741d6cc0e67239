# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers of OCI images and of `docker save`: put together by the rules for what they take away, and hostile ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrmgr.errors import SpecError
from ctrmgr.images import describe, oci
from ctrmgr.images.unpack import Limits
from tests.unit.test_images_unpack import D, archive, entry, hard, link

LABELS = {"ctrmgr.function.noise": "random.bytes path=/dev/noise", "maintainer": "me", oci.ABOUT[1]: "a thing"}
CONFIG = {"architecture": "amd64", "config": {"Labels": LABELS, "Entrypoint": ["/x"]}}
LOWER = archive(
    entry("etc", D), entry("etc/old", data=b"1"), entry("etc/kept", data=b"2"), entry("full", D), entry("full/a", data=b"3"),
    entry("full/deep/b", data=b"4"), link("turns", "etc"), entry("was", D), entry("was/x", data=b"5"),
)  # fmt: skip
UPPER = archive(
    entry("etc/.wh.old"), entry("etc/.wh.nothing"), entry("etc/new", data=b"6"), entry("full/c", data=b"7"),
    entry("full/.wh..wh..opq"), entry("turns", D), entry("turns/y", data=b"8"), entry("was", data=b"9"), entry(".wh..wh.plnk", D),
    hard("etc/same", "etc/kept"),
)  # fmt: skip
MERGED = {
    "etc/kept": "2", "etc/new": "6", "etc/same": "2", "full/c": "7", "turns/y": "8", "was": "9",
}  # fmt: skip


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-cq"], input=data, stdout=subprocess.PIPE, check=True).stdout


def blob(folder: Path, data: bytes) -> dict[str, Any]:
    path = folder / "blobs/sha256" / hashlib.sha256(data).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"digest": f"sha256:{path.name}", "size": len(data)}


def layout(folder: Path, *layers: bytes, config: object = CONFIG, machine: str = "amd64") -> Path:
    folder.mkdir(exist_ok=True)
    manifest = {"config": blob(folder, json.dumps(config).encode()), "layers": [blob(folder, data) for data in layers]}
    here = {**blob(folder, json.dumps(manifest).encode()), "platform": {"architecture": machine}}
    other = {**here, "platform": {"architecture": "s390x"}}
    inner = {
        **blob(folder, json.dumps({"manifests": [other, here]}).encode()),
        "mediaType": "application/x.index.v1+json",
    }
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"manifests": [inner]}))
    return folder


def saved(folder: Path, *layers: bytes, config: object = CONFIG) -> Path:
    folder.mkdir()
    for number, data in enumerate(layers):
        (folder / f"{number}.tar").write_bytes(data)
    (folder / "c.json").write_text(json.dumps(config))
    names = [f"{number}.tar" for number in range(len(layers))]
    (folder / "manifest.json").write_text(json.dumps([{"Config": "c.json", "RepoTags": ["x:y"], "Layers": names}]))
    return folder


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "r", "v", "x86_64")))


@pytest.mark.parametrize("pack", [bytes, zstd])
@pytest.mark.parametrize("make", [layout, saved])
def test_layers_over_each_other(tmp_path: Path, make: Callable[..., Path], pack: Callable[[bytes], bytes]) -> None:
    folder = make(tmp_path / "tree", pack(LOWER), bytes(1024), gzip.compress(UPPER))
    assert oci.is_image(str(folder))
    oci.flatten(str(folder), Limits())
    assert sorted(os.listdir(folder)) == ["metadata.yaml", "rootfs"]
    found = [path for path in (folder / "rootfs").rglob("*") if not path.is_dir()]
    assert {str(path.relative_to(folder / "rootfs")): path.read_text() for path in found} == MERGED
    assert (folder / "rootfs/etc/same").stat().st_nlink == 2
    told = describe.lxd_metadata(f"{folder}/metadata.yaml")
    assert told == {
        "ctrmgr.function.noise": LABELS["ctrmgr.function.noise"],
        "description": "a thing",
        "architecture": "amd64",
    }


def test_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci, "ZSTD", "/nowhere/zstd")
    folder = layout(tmp_path / "tree", LOWER, zstd(UPPER))
    before = sorted(os.listdir(folder))
    assert oci.flatten(str(folder), Limits()) is None  # asked for, before anything is done
    assert sorted(os.listdir(folder)) == before
    assert oci.flatten(str(layout(tmp_path / "plain", LOWER)), Limits())


def test_what_is_no_image(tmp_path: Path) -> None:
    for names in (["manifest.json", "etc"], ["index.json"], ["oci-layout", "index.json", "rootfs"], []):
        folder = tmp_path / str(len(names))
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        assert not oci.is_image(str(folder))


def broken(folder: Path) -> None:
    for path in (folder / "blobs/sha256").iterdir():
        if path.stat().st_size == len(LOWER):
            path.write_bytes(LOWER[:-1] + b"x")


def outside(folder: Path) -> None:
    (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:../../../etc/passwd"}]}))


def fifo(folder: Path) -> None:
    (folder / "index.json").unlink()
    os.mkfifo(folder / "index.json")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (broken, "is damaged: it has another hash"),
        (outside, "which is no SHA-256"),
        (fifo, "is no file"),
        (lambda folder: layout(folder, machine="arm64"), "has 0 images for this machine"),
        (layout, "has 0 layers"),
        (lambda folder: layout(folder, b"hsqs" + bytes(600)), "a layer of the kind squashfs"),
        (lambda folder: layout(folder, zstd(LOWER)[:-40]), "ends in the middle"),
        (lambda folder: layout(folder, zstd(LOWER) + b"rubbish"), "zstd cannot decompress one of its layers"),
        (lambda folder: layout(folder, zstd(archive(entry("../x")))), "leads upwards"),
        (lambda folder: layout(folder, zstd(LOWER + bytes(4 << 26))), "unpacks to more than 1000 times its size"),
        (lambda folder: layout(folder, archive(entry("../x"))), "leads upwards"),
        (lambda folder: layout(folder, archive(link("a", "/etc"), entry("a/.wh.passwd"), entry("a/x"))), "written through `a`"),
        (lambda folder: layout(folder, LOWER, config=[]), "is no map"),
        (lambda folder: (folder / "index.json").write_text("[" * 100000), "is no JSON"),
    ],
)  # fmt: skip
def test_hostile_ones(tmp_path: Path, spoil: Callable[[Path], object], said: str) -> None:
    folder = layout(tmp_path / "tree", LOWER)
    spoil(folder)
    with pytest.raises(SpecError, match=said):
        oci.flatten(str(folder), Limits(ratio_from=1 << 26))


def test_hostile_saves(tmp_path: Path) -> None:
    folder = saved(tmp_path / "tree", LOWER)
    for manifest in (
        [],
        [{}, {}],
        [{"Config": "../c.json", "Layers": ["0.tar"]}],
        [{"Config": "c.json", "Layers": ["/0.tar"]}],
        {},
    ):
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(SpecError, match=r"images|outside"):
            oci.flatten(str(folder), Limits())
