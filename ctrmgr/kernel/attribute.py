# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing an attribute of sysfs or debugfs: in one write, of a file that the kernel has made."""

from __future__ import annotations

import errno
import os

from ctrmgr.errors import ConflictError, HostError, UnsupportedError

CANNOT = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EROFS)


def write(path: str, text: str) -> None:
    """Raises ConflictError when the kernel says that it is in use or that too little is left, UnsupportedError when there is no such
    attribute or it does not change, HostError for anything else."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode() + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        said = f"the kernel refuses `{text}` in `{path}`: {error.strerror}"
        if error.errno in (errno.EBUSY, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.E2BIG):
            raise ConflictError(
                said, hint="something on this machine still uses it, or too little of it is left"
            ) from error
        if error.errno in CANNOT:
            raise UnsupportedError(said, hint="the driver, or the privilege, for this is missing") from error
        raise HostError(said) from error
