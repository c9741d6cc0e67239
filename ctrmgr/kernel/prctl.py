# SPDX-License-Identifier: GPL-3.0-or-later
"""`prctl(2)`, by python-prctl where it is installed, else by libc. The only file that knows of that library. Cold."""

from __future__ import annotations

import ctypes
import os

try:
    import prctl as library
except ImportError:
    library = None

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38


def set_pdeathsig(signal: int) -> None:
    """Have the kernel send this process `signal` when its parent ends. Raises OSError."""
    if library:
        library.set_pdeathsig(signal)
    else:
        _prctl(PR_SET_PDEATHSIG, signal)


def set_no_new_privs() -> None:
    """From now on no execve gives more rights than there are. Raises OSError."""
    if library:
        library.set_no_new_privs(1)
    else:
        _prctl(PR_SET_NO_NEW_PRIVS, 1)


def capbset_drop(capability: int) -> None:
    """Take a capability, by its number, out of the bounding set. Raises OSError: EINVAL beyond the kernel's last one.

    Never by the library: it knows only the capabilities of its own release.
    """
    _prctl(PR_CAPBSET_DROP, capability)


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(argument), unused, unused, unused) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
