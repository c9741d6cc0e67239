# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the native helpers are, and becoming one. Apart from `spawn`, which `exec` would load for nothing. Hot."""

from __future__ import annotations

import errno
import os
import sys

from ctrmgr import kernel, state
from ctrmgr.errors import HelperError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def find(name: str) -> str:
    """The path of a native helper. Raises HelperError when it is not installed."""
    path = f"{state.libexec_dir()}/{name}"
    if not os.access(path, os.X_OK):
        raise HelperError(f"`{path}` is missing", hint="is ctrmgr installed whole? CTRMGR_LIBEXEC may point elsewhere")
    return path


def become(name: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become a helper; does not return. Raises HelperError."""
    path = find(name)
    kernel.say(f"exec {path} {' '.join(words)}")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(path, [name, *words], dict(environment))
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        raise HelperError(f"`{path}`: {error.strerror}", operation=name, errno_name=code) from error
