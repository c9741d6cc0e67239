# SPDX-License-Identifier: GPL-3.0-or-later
"""What kind of archive a file is, by its first bytes, and a stream of what is in it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import subprocess

from ctrmgr.errors import HostError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

MAGIC = {
    "gz": b"\x1f\x8b",
    "xz": b"\xfd7zXZ\0",
    "zst": b"\x28\xb5\x2f\xfd",
    "bz2": b"BZh",
    "squashfs": b"hsqs",
}
ZSTD = ("zstd", "-dcq", "--long=31", "-M2048MB")
"""The program that decompresses what Python cannot: standard input to standard output."""
BUFFER = 1 << 20
NOBODY = 65534


class Source:
    """An archive that was opened. `kind` is `tar`, a compression of it (`gz` …) or `squashfs`; `size` is in bytes.

    Raises NotFoundError, SpecError (neither archive nor directory), HostError (cannot be read).
    """

    def __init__(self, path: str) -> None:
        try:
            # O_NONBLOCK: a fifo must not hang us before we see that it is one.
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except FileNotFoundError:
            raise NotFoundError(f"no file `{path}`") from None
        except OSError as error:
            raise HostError(f"cannot read `{path}`: {error.strerror}") from error
        self.path = path
        self._filter: subprocess.Popen[bytes] | None = None
        self._status = os.fstat(self.fd)
        self.size = self._status.st_size
        if not stat.S_ISREG(self._status.st_mode):
            os.close(self.fd)
            raise SpecError(f"`{path}` is neither a file nor a directory")
        try:
            self.kind = detect(path, self.fd)
        except SpecError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        os.close(self.fd)
        if self._filter:
            self._filter.kill()
            self._filter.wait()

    def position(self) -> int:
        """How much of the file has been read, by whichever process: they share the offset."""
        return os.lseek(self.fd, 0, os.SEEK_CUR)

    def changed(self) -> bool:
        """Whether the file is another than the one that was opened and hashed."""
        now, then = os.fstat(self.fd), self._status
        return (now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (then.st_size, then.st_mtime_ns, then.st_ctime_ns)

    def data_fd(self) -> int:
        """The descriptor that the sandbox reads: the file, or the pipe of a program that decompresses it as nobody."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        if self.kind != "zst":
            return self.fd
        try:
            self._filter = subprocess.Popen(
                ZSTD,
                stdin=self.fd,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
            )
        except FileNotFoundError:
            raise HostError(f"`{self.path}` needs the program zstd", hint="install the package `zstd`") from None
        assert self._filter.stdout
        return self._filter.stdout.fileno()

    def check_filter(self) -> None:
        """Raises SpecError when the decompressor found an error after the last byte that was needed."""
        if self._filter and self._filter.wait():
            raise SpecError(f"`{self.path}` is corrupt: zstd cannot decompress it")

    def close_data(self) -> None:
        """The parent's copy of the pipe: zstd must notice when the sandbox stops reading."""
        if self._filter and self._filter.stdout:
            self._filter.stdout.close()


def detect(path: str, fd: int) -> str:
    """The kind of the archive. Raises SpecError."""
    head = os.pread(fd, 512, 0)
    for kind, magic in MAGIC.items():
        if head.startswith(magic):
            return kind
    if len(head) == 512 and _tar_checksum(head):
        return "tar"
    raise SpecError(
        f"`{path}` is no archive that ctrmgr knows",
        hint="a directory, tar (plain, gz, xz, zst, bz2), squashfs, a tarball of LXD or Incus, or an OCI image",
    )


def _tar_checksum(head: bytes) -> bool:
    try:
        claimed = int(head[148:156].strip(b" \0") or b"-1", 8)
    except ValueError:
        return False
    return claimed == sum(head[:148]) + 8 * 32 + sum(head[156:])


def decompressed(fd: int, kind: str) -> IO[bytes]:
    """The tar stream of an archive whose bytes come from `fd`; decodes in the calling process (the sandbox)."""
    raw = open(fd, "rb", buffering=BUFFER, closefd=False)
    if kind == "gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), BUFFER)
    if kind == "xz":
        return io.BufferedReader(lzma.LZMAFile(raw), BUFFER)
    if kind == "bz2":
        return io.BufferedReader(bz2.BZ2File(raw), BUFFER)
    return raw
