# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring an image into the store: from a directory, an archive, or LXD's pair of metadata and root filesystem.

The fingerprint is the SHA-256 of the file, of both files one after the other, or of a directory's canonical tar stream.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import stat
import threading

from ctrmgr import state
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, SpecError
from ctrmgr.images import formats, inspect, oci, store, unsquash
from ctrmgr.images.describe import describe
from ctrmgr.images.formats import Source
from ctrmgr.images.sandbox import Sandbox
from ctrmgr.images.staging import Staging
from ctrmgr.images.treetar import TreeTar
from ctrmgr.images.unpack import Limits, Unpacker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Progress = Callable[[str, int, int], None]
    """(what is being done, bytes done, bytes in all or 0)"""

CHUNK = 1 << 20
METADATA_MAX = 1 << 20
ZSTD = "zstd"
"""The sandbox's answer when it needs that program for the rest."""


def silent(what: str, done: int, total: int) -> None:
    """No progress."""


def import_image(
    paths: Sequence[str],
    *,
    alias: str = "",
    fingerprint: str = "",
    description: str = "",
    limits: Limits | None = None,
    progress: Progress = silent,
) -> tuple[store.Image, bool]:
    """Import one directory or archive, or a metadata tarball and its root filesystem (in this order).

    Returns the image and whether it is new. `fingerprint`, when given, must be the image's (or begin it).
    Raises SpecError (corrupt, hostile, unknown archive), ConflictError (other fingerprint), NotFoundError, HostError.
    """
    if alias:
        store.check_alias(alias)
    limits = limits or Limits()
    if len(paths) == 2 and (os.path.isdir(paths[0]) or not os.path.exists(paths[1])):
        raise SpecError(
            f"`{paths[1]}` is no root filesystem that belongs to metadata in `{paths[0]}`",
            hint="`--alias NAME` gives an image a name",
        )
    if len(paths) == 1 and os.path.isdir(paths[0]):
        found, new = import_stream(
            lambda write: _write_tree(paths[0], write),
            source=os.path.abspath(paths[0]),
            fingerprint=fingerprint,
            description=description,
            limits=limits,
            tick=lambda done: progress("reading", done, 0),
        )
    else:
        found, new = _import_files(paths, fingerprint, description, limits, progress)
    if alias:
        store.set_alias(alias, found.fingerprint)
    return found, new


def _import_files(
    paths: Sequence[str], expected: str, description: str, limits: Limits, progress: Progress
) -> tuple[store.Image, bool]:
    if len(paths) > 2:
        raise SpecError(f"`{paths[2]}` is one file too many", hint="an image is one file, or metadata and rootfs")
    sources: list[Source] = []
    try:
        sources.extend(map(Source, paths))
        digest = _hash(sources, progress)
        check_fingerprint(" ".join(paths), digest, expected)
        if os.path.isdir(f"{store.images_dir()}/{digest}"):
            return store.load(digest), False
        with _staging(paths[0]) as staging:
            for source in sources[:-1]:
                if source.kind == "squashfs":
                    raise SpecError(f"`{source.path}` is a squashfs and no metadata", hint="give the metadata first")
                _unpack(staging.path, source, "meta", limits, progress)
            result = _unpack(staging.path, sources[-1], "tree", limits, progress)
            if any(source.changed() for source in sources):
                raise ConflictError(f"`{paths[0]}` changed while it was read", hint="import it again")
            metadata = describe(staging.path, result, os.path.abspath(paths[-1]), description)
            new = staging.commit(digest, metadata)
        return store.load(digest), new
    except OSError as error:
        raise disk_error(error, paths[0]) from error
    finally:
        for source in sources:
            source.close()


def _hash(sources: list[Source], progress: Progress) -> str:
    digest, done, total = hashlib.sha256(), 0, sum(source.size for source in sources)
    for source in sources:
        while data := os.pread(source.fd, CHUNK, done):
            digest.update(data)
            done += len(data)
            progress("hashing", done, total)
        done = 0
    return digest.hexdigest()


def check_fingerprint(what: str, digest: str, expected: str) -> None:
    """Raises ConflictError when `expected` is given and is not the beginning of `digest`."""
    if expected and not (len(expected) >= 12 and digest.startswith(expected.lower())):
        raise ConflictError(
            f"`{what}` has the fingerprint {digest}, not {expected}", hint="it is another file, or was damaged"
        )


def _unpack(staging: str, source: Source, name: str, limits: Limits, progress: Progress) -> dict[str, str]:
    fd = source.data_fd()
    if source.kind == "squashfs":
        tools = unsquash.tools(source.path)

        def task() -> dict[str, str]:
            total, files = unsquash.unsquash(fd, f"/image/{name}", limits)
            return _arrange("/image", name, total, files)

        sandbox = Sandbox(staging, task, fds=[fd], tools=tools)
    else:
        sandbox = Sandbox(staging, lambda: _unpack_tar(fd, source, name, limits), fds=[fd, source.fd])
        source.close_data()
    try:
        result = sandbox.wait(lambda: progress("unpacking", source.position(), source.size))
        source.check_filter()
        if ZSTD in result:
            result = _layers_of_zstd(staging, limits)
    except CtrmgrError as error:
        error.args = (f"`{source.path}`: {error.message}",)
        error.message = error.args[0]
        raise
    if source.kind == "squashfs":
        os.rmdir(staging + "/.room")
    return result


def _layers_of_zstd(staging: str, limits: Limits) -> dict[str, str]:
    """The second half of an import of OCI's layers, in a sandbox that shows the host's zstd."""
    if not os.path.exists(oci.ZSTD):
        raise HostError("an image with layers of zstd needs the program zstd", hint="install the package `zstd`")

    def task() -> dict[str, str]:
        done = oci.flatten("/image/tree", limits)
        if done is None:
            raise HostError(f"`{oci.ZSTD}` cannot be seen where images are unpacked")
        return _arrange("/image", "tree", *done)

    result = Sandbox(staging, task, tools=unsquash.TOOLS).wait()
    os.rmdir(staging + "/.room")
    return result


def _unpack_tar(fd: int, source: Source | None, name: str, limits: Limits) -> dict[str, str]:
    os.mkdir("/" + name, 0o755)
    unpacker = Unpacker("/" + name, limits)
    kind = source.kind if source else "tar"
    unpacker.run(formats.decompressed(fd, kind), source.position if source and kind != "tar" else None)
    if name == "tree" and oci.is_image("/tree"):
        done = oci.flatten("/tree", limits)
        return _arrange("/", name, *done) if done else {ZSTD: "wanted"}
    return _arrange("/", name, unpacker.bytes, len(unpacker.kinds))


def _arrange(top: str, name: str, total: int, files: int) -> dict[str, str]:
    """Runs in the sandbox: put what was unpacked as `name` where the store wants it, and look what it is."""
    os.chdir(top)
    result = {"size": str(total), "files": str(files)}
    parts = [part for part in ("metadata.yaml", "templates", "rootfs") if os.path.lexists(f"{name}/{part}")]
    if "metadata.yaml" in parts:
        if not stat.S_ISREG(os.lstat(name + "/metadata.yaml").st_mode):
            raise SpecError("the archive's metadata.yaml is no file")
        with open(name + "/metadata.yaml", encoding="utf-8", errors="replace") as file:
            text = file.read(METADATA_MAX)
        with open("metadata.yaml", "w", encoding="utf-8") as file:
            file.write(text)
        if "templates" in parts and stat.S_ISDIR(os.lstat(name + "/templates").st_mode):
            os.rename(name + "/templates", "templates")
        if "rootfs" in parts:
            os.rename(name + "/rootfs", "rootfs")
    elif name == "tree":
        os.rename(name, "rootfs")
    else:
        raise SpecError("the archive has no metadata.yaml", hint="give the metadata tarball first, then the rootfs")
    if name == "meta":
        return result
    if not os.path.isdir("rootfs") or os.path.islink("rootfs"):
        raise SpecError("the archive has no root filesystem", hint="give its rootfs file as the second one")
    os.chroot("rootfs")
    os.chdir("/")
    return {**result, **inspect.inspect()}


def import_stream(
    produce: Callable[[Callable[[bytes], object]], None],
    *,
    source: str,
    fingerprint: str = "",
    description: str = "",
    limits: Limits | None = None,
    tick: Callable[[int], None] | None = None,
) -> tuple[store.Image, bool]:
    """Import the plain tar stream that `produce` writes (it runs in a thread); its hash is the fingerprint.

    Raises what `produce` raises, SpecError, HostError.
    """
    limits = limits or Limits()
    try:
        with _staging(source) as staging:
            pipe = _Feed(produce)
            try:
                read_fd = pipe.read_fd
                sandbox = Sandbox(staging.path, lambda: _unpack_tar(read_fd, None, "tree", limits), fds=[read_fd])
                result = pipe.run(sandbox, tick)
            finally:
                pipe.close()
            if ZSTD in result:
                result = _layers_of_zstd(staging.path, limits)
            digest = pipe.digest.hexdigest()
            check_fingerprint(source, digest, fingerprint)
            new = staging.commit(digest, describe(staging.path, result, source, description))
        return store.load(digest), new
    except OSError as error:
        raise disk_error(error, source) from error


class _Feed:
    """A thread that writes a stream into a pipe and hashes it on the way."""

    def __init__(self, produce: Callable[[Callable[[bytes], object]], None]) -> None:
        self.read_fd, self._write_fd = os.pipe()
        self.digest = hashlib.sha256()
        self._produce = produce
        self._done = 0
        self._error: BaseException | None = None

    def run(self, sandbox: Sandbox, tick: Callable[[int], None] | None) -> dict[str, str]:
        """Feed the sandbox until it ends. An error of the producer counts more than what it caused."""
        self._close_read()
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            return sandbox.wait(lambda: tick(self._done) if tick else None)
        except CtrmgrError:
            thread.join()
            if self._error and not isinstance(self._error, BrokenPipeError):
                raise self._error from None
            raise
        finally:
            thread.join()

    def _work(self) -> None:
        try:
            self._produce(self._write)
        except BaseException as error:
            self._error = error
        finally:
            os.close(self._write_fd)
            self._write_fd = -1

    def _write(self, data: bytes) -> None:
        self.digest.update(data)
        self._done += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._write_fd, view) :]

    def _close_read(self) -> None:
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1

    def close(self) -> None:
        self._close_read()
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1


def _write_tree(path: str, write: Callable[[bytes], object]) -> None:
    tar = TreeTar(write)
    try:
        tar.tree(path, "")
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise HostError(f"cannot read `{path}`: {error.strerror}: `{error.filename}`") from error
    tar.end()


def _staging(what: str) -> Staging:
    # Codecs are modules: the sandbox could not load them.
    for name in ("ascii", "latin-1", "utf-8"):
        codecs.lookup(name)
    try:
        return Staging()
    except OSError as error:
        raise disk_error(error, what) from error


def disk_error(error: OSError, what: str) -> HostError:
    """An OSError while working on an image, for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostError(f"`{what}`: the disk is full", hint="free some space where ctrmgr keeps its state")
    where = f": `{error.filename}`" if error.filename else ""
    hint = "are you root?" if error.errno == errno.EACCES else state.CURES.get(error.errno or 0)
    return HostError(f"`{what}`: {error.strerror or error}{where}", hint=hint)
