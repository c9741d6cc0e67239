# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an image as a unified tarball that LXD, Incus and ctrmgr import. The same image gives the same bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess

from ctrmgr import state
from ctrmgr.errors import ConflictError, HostError, SpecError
from ctrmgr.images.importing import disk_error, silent
from ctrmgr.images.treetar import TreeTar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from ctrmgr.images.importing import Progress
    from ctrmgr.images.store import Image

OTHERS = (".zip", ".7z", ".squashfs", ".sqfs", ".img", ".qcow2")
"""What a name promises that this is not."""
COMPRESSIONS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar.bz2")


def export(image: Image, path: str, *, force: bool = False, progress: Progress = silent) -> None:
    """Write `path`, whose ending chooses the compression (gzip when it says nothing); it appears when it is complete.

    Raises ConflictError when it is there already, HostError (disk full, no permission, no zstd).
    """
    if os.path.lexists(path) and not force:
        raise ConflictError(f"`{path}` is there already", hint="--force replaces it")
    if path.lower().endswith(OTHERS):
        raise SpecError(f"`{path}`: an image is exported as a tarball", hint=f"one of {', '.join(COMPRESSIONS)}")
    aside = f"{path}.{os.getpid()}.part"
    try:
        if not state.replaceable(path):
            with open(path, "wb") as file:
                _write(image, file, path, progress)
            return
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
            _write(image, file, path, progress)
        os.rename(aside, path)
    except FileNotFoundError as error:
        folder = os.path.dirname(path)
        if os.path.isdir(folder or "."):
            raise disk_error(error, path) from error
        raise HostError(f"`{path}` cannot be written: there is no folder `{folder}`") from error
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        if os.path.lexists(aside):
            os.unlink(aside)


def _write(image: Image, file: IO[bytes], path: str, progress: Progress) -> None:
    if path.endswith(".zst"):
        _write_zstd(image, file, progress)
        return
    out: IO[bytes]
    if path.endswith(".tar"):
        out = file
    elif path.endswith(".xz"):
        out = lzma.LZMAFile(file, "wb")
    elif path.endswith(".bz2"):
        out = bz2.BZ2File(file, "wb")
    else:
        out = gzip.GzipFile("", "wb", 6, file, mtime=0)  # type: ignore[assignment]
    _tar(image, out, progress)
    if out is not file:
        out.close()


def _write_zstd(image: Image, file: IO[bytes], progress: Progress) -> None:
    try:
        zstd = subprocess.Popen(["zstd", "-cq"], stdin=subprocess.PIPE, stdout=file)
    except FileNotFoundError:
        raise HostError("a .zst archive needs the program zstd", hint="install the package `zstd`") from None
    assert zstd.stdin
    try:
        _tar(image, zstd.stdin, progress)
    except BrokenPipeError:
        pass  # its exit status says why
    finally:
        try:
            zstd.stdin.close()
        except BrokenPipeError:
            pass
        status = zstd.wait()
    if status:
        raise HostError("zstd failed while writing the archive", hint="is there space left?")


def _tar(image: Image, out: IO[bytes], progress: Progress) -> None:
    done, total = 0, int(image.metadata.get("size", "0"))

    def write(data: bytes) -> None:
        nonlocal done
        out.write(data)
        done += len(data)
        progress("exporting", min(done, total), total)

    tar = TreeTar(write)
    if os.path.exists(image.path + "/metadata.yaml"):
        with open(image.path + "/metadata.yaml", encoding="utf-8") as file:
            text = file.read()
    else:
        text = metadata_yaml(image)
    # First, as LXD reads it before it unpacks the rest.
    tar.text("metadata.yaml", text, int(image.metadata.get("created", "0")))
    if os.path.isdir(image.path + "/templates"):
        tar.tree(image.path + "/templates", "templates")
    tar.tree(image.rootfs, "rootfs")
    tar.end()


def metadata_yaml(image: Image, more: Mapping[str, str] | None = None) -> str:
    """LXD's image metadata, with what only ctrmgr knows (and `more`) under `properties` as well."""
    import yaml

    known = image.metadata
    properties = {key: known[key] for key in ("os", "release", "description") if known.get(key)}
    properties["ctrmgr.init"] = known["init"]
    properties["ctrmgr.halt-signal"] = known["halt-signal"]
    properties |= {f"ctrmgr.{key}": value for key, value in known.items() if key.startswith("function.")}
    properties |= more or {}
    created = int(known.get("created", "0"))
    content = {"architecture": known["architecture"], "creation_date": created, "properties": properties}
    return str(yaml.safe_dump(content))
