# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of the Open Container Initiative and of `docker save`: their layers become one tree. Runs in the sandbox.

What was unpacked of an archive, or copied of a directory, is in `folder`; afterwards that is what a tarball of LXD's has: `rootfs` and
`metadata.yaml`, with the image's labels for properties.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tarfile

from ctrmgr.errors import SpecError
from ctrmgr.images import elf, formats
from ctrmgr.images.unpack import Limits, Stream, Unpacker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

JSON_MAX = 4 << 20
LAYERS_MAX = 500
GONE, OPAQUE = ".wh.", ".wh..wh..opq"
"""Names that say what a layer has taken away: one name, or all that was in the folder."""
LABELS = "ctrmgr."
ZSTD = "/usr/bin/zstd"
"""Seen only in a sandbox that shows the host's programs."""
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
ABOUT = ("org.opencontainers.image.description", "org.opencontainers.image.title")


def is_image(folder: str) -> bool:
    """Whether this is a layout with blobs, or what `docker save` writes, and no root filesystem."""
    names = set(os.listdir(folder))
    return not names & {"rootfs", "metadata.yaml", "bin", "etc", "usr"} and (
        {"oci-layout", "index.json"} <= names or "manifest.json" in names
    )


def flatten(folder: str, limits: Limits) -> tuple[int, int] | None:
    """Bytes and files of the root filesystem; None, and nothing was done, if layers are of zstd and the program is not there.

    Raises SpecError.
    """
    config, layers = _layout(folder) if os.path.exists(f"{folder}/index.json") else _saved(folder)
    if not 0 < len(layers) <= LAYERS_MAX:
        raise SpecError(f"the image has {len(layers)} layers")
    if not os.path.exists(ZSTD) and any(map(_is_zstd, layers)):
        return None
    os.mkdir(f"{folder}/rootfs", 0o755)
    unpacker = Layers(f"{folder}/rootfs", limits)
    for layer in layers:
        unpacker.layer(layer)
    with open(f"{folder}/metadata.yaml", "x", encoding="utf-8") as file:
        json.dump(_metadata(config), file)  # which is YAML
    for name in os.listdir(folder):
        if name not in ("rootfs", "metadata.yaml"):
            path = f"{folder}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    return unpacker.bytes, len(unpacker.kinds)


def _metadata(config: dict[str, Any]) -> dict[str, object]:
    inner = config.get("config")
    labels = inner.get("Labels") if isinstance(inner, dict) else None
    labels = labels if isinstance(labels, dict) else {}
    properties = {str(key): str(value) for key, value in labels.items() if str(key).startswith(LABELS)}
    about = next((str(labels[key]) for key in ABOUT if labels.get(key)), "")
    return {
        "architecture": str(config.get("architecture") or ""),
        "properties": {**properties, **({"description": about} if about else {})},
    }


# Which files


def _layout(folder: str) -> tuple[dict[str, Any], list[str]]:
    """The configuration and the files of the layers, the lowest first."""
    found = _images(folder, _json(f"{folder}/index.json"), 0)
    if len(found) != 1:
        names = [str((each.get("annotations") or {}).get("org.opencontainers.image.ref.name", "?")) for each in found]
        raise SpecError(
            f"the archive has {len(found)} images for this machine{': ' if names else ''}{', '.join(names)}",
            hint="save one of them alone",
        )
    manifest = _json(_blob(folder, found[0]))
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not isinstance(manifest.get("config"), dict):
        raise SpecError("the image's manifest has no layers", hint="it is none of a container")
    return _json(_blob(folder, manifest["config"])), [_blob(folder, layer) for layer in layers]


def _images(folder: str, index: dict[str, Any], depth: int) -> list[dict[str, Any]]:
    """The manifests of an index, and of those that it leads to, that are for this machine or do not say."""
    found = []
    for each in index.get("manifests") or ():
        if not isinstance(each, dict):
            raise SpecError("the archive's index.json is none of an image")
        machine = (each.get("platform") or {}).get("architecture")
        if machine and elf.canonical(str(machine)) != os.uname().machine:
            continue
        if "index" in str(each.get("mediaType")) or "manifest.list" in str(each.get("mediaType")):
            if depth < 3:
                found += _images(folder, _json(_blob(folder, each)), depth + 1)
        else:
            found.append(each)
    return found


def _blob(folder: str, descriptor: object) -> str:
    """The file of a descriptor, whose text is what it says. Raises SpecError."""
    digest = str(descriptor.get("digest")) if isinstance(descriptor, dict) else ""
    kind, _, value = digest.partition(":")
    if kind != "sha256" or len(value) != 64 or value.strip("0123456789abcdef"):
        raise SpecError(f"the image names a blob `{digest[:80]}`, which is no SHA-256")
    path = f"{folder}/blobs/sha256/{value}"
    fd = _open(path)
    hashed = hashlib.sha256()
    try:
        while data := os.read(fd, 1 << 20):
            hashed.update(data)
    finally:
        os.close(fd)
    if hashed.hexdigest() != value:
        raise SpecError(f"the image's blob {value[:12]} is damaged: it has another hash")
    return path


def _saved(folder: str) -> tuple[dict[str, Any], list[str]]:
    """The same of `docker save`."""
    listed = _loaded(f"{folder}/manifest.json")
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        count = len(listed) if isinstance(listed, list) else "no"
        raise SpecError(f"the archive has {count} images", hint="save one of them alone")
    names = [listed[0].get("Config"), *(listed[0].get("Layers") or ())]
    for name in names:
        if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise SpecError("the archive's manifest.json names a file outside of it")
    return _json(f"{folder}/{names[0]}"), [f"{folder}/{name}" for name in names[1:]]


def _json(path: str) -> dict[str, Any]:
    found = _loaded(path)
    if not isinstance(found, dict):
        raise SpecError(f"the archive's {os.path.basename(path)[:20]} is no map")
    return found


def _loaded(path: str) -> object:
    fd = _open(path)
    with open(fd, "rb") as file:
        data = file.read(JSON_MAX + 1)
    try:
        if len(data) > JSON_MAX:
            raise ValueError
        return json.loads(data)
    except (ValueError, RecursionError):
        raise SpecError(f"the archive's {os.path.basename(path)[:20]} is no JSON") from None


def _open(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SpecError(f"the archive's `{path.partition('/tree/')[2] or path}`: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SpecError(f"the archive's `{path.partition('/tree/')[2] or path}` is no file")
    return fd


# Layers


def _is_zstd(path: str) -> bool:
    fd = _open(path)
    with open(fd, "rb") as file:
        return file.read(4) == formats.MAGIC["zst"]


class Layers(Unpacker):
    """Unpacks one layer over the other."""

    def __init__(self, root: str, limits: Limits) -> None:
        super().__init__(root, limits)
        self._own: set[str] = set()
        """What the layer at hand has brought: it takes nothing away of that."""

    def layer(self, path: str) -> None:
        """Raises SpecError, OSError."""
        fd = _open(path)
        try:
            if not os.pread(fd, 512, 0).strip(b"\0"):
                return  # nothing was changed
            kind = formats.detect(path, fd)
            if kind == "squashfs":
                raise SpecError(
                    "the image has a layer of the kind squashfs", hint="save it with layers of tar, gzip or zstd"
                )
            self._own = set()
            packed = (lambda: os.lseek(fd, 0, os.SEEK_CUR)) if kind != "tar" else None
            if kind == "zst":
                self._zstd(fd, packed)
            else:
                self.run(formats.decompressed(fd, kind), packed)
        finally:
            os.close(fd)

    def _zstd(self, fd: int, packed: Callable[[], int] | None) -> None:
        # Its own words are kept from the user's terminal; it reads the file by our offset, which is how much is read.
        zstd = subprocess.Popen(
            (ZSTD, *formats.ZSTD[1:]), stdin=fd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        with zstd:
            assert zstd.stdout
            self.run(zstd.stdout, packed)
        if zstd.returncode:
            raise SpecError("the archive is corrupt: zstd cannot decompress one of its layers")

    def entry(self, member: tarfile.TarInfo, stream: Stream) -> None:
        name = self.clean(member.name)
        folder, slash, last = name.rpartition("/")
        if last == OPAQUE:
            for below in self._below(folder):
                self._remove(below)
        elif last.startswith(GONE + GONE):
            pass  # notes of a storage driver's
        elif last.startswith(GONE):
            self._remove(f"{folder}{slash}{last.removeprefix(GONE)}")
        else:
            before = self.kinds.get(name)
            if before is not None and (before == "d") != member.isdir():
                self._remove(name, all_of_it=True)
            super().entry(member, stream)
            self._own.add(name)
            while folder:  # what it is in stays, too
                self._own.add(folder)
                folder = folder.rpartition("/")[0]

    def _below(self, folder: str) -> list[str]:
        if self.kinds.get(folder) != "d":
            return []
        return [f"{folder}/{name}" if folder else name for name in os.listdir(f"{self.root}/{folder}")]

    def _remove(self, name: str, *, all_of_it: bool = False) -> None:
        """What is not there is no error."""
        kind = self.kinds.get(name)
        if kind == "d":
            for below in self._below(name):
                self._remove(below, all_of_it=all_of_it)
        if kind is None or not name or (name in self._own and not all_of_it):
            return
        path = f"{self.root}/{name}"
        os.rmdir(path) if kind == "d" else os.unlink(path)
        del self.kinds[name]
        self._directories.pop(name, None)
