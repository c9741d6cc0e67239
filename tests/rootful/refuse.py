# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a kernel out of this one that lacks something: a system call filter that says ENOSYS, EPERM or EINVAL.

What is started with it, and all that this starts, finds the calls missing. libseccomp, which ctrmgr needs anyway, knows
their numbers on every architecture.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable

lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
lib.seccomp_init.restype = ctypes.c_void_p
lib.seccomp_init.argtypes = [ctypes.c_uint32]
lib.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
lib.seccomp_load.argtypes = [ctypes.c_void_p]
lib.seccomp_release.argtypes = [ctypes.c_void_p]

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NO_NEW_PRIVS = 3
EQUAL, MASKED_EQUAL = 4, 7
NUMBERS = {"fchmodat2": 452}
"""Calls that are newer than the oldest libseccomp that we meet; new calls have one number everywhere."""


class Compare(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


lib.seccomp_rule_add_array.argtypes = [
    ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Compare)
]  # fmt: skip


class Refusal:
    """One call that fails with `number`; `value` narrows it to those whose argument `arg` is, or has the bits, `value`."""

    def __init__(
        self, call: str | int, number: int = errno.ENOSYS, *, arg: int = -1, value: int = 0, bits: bool = False
    ):
        self.call, self.number, self.arg, self.value, self.bits = call, number, arg, value, bits

    def __repr__(self) -> str:
        narrowed = f"({'&' if self.bits else '='}{self.value:#x})" if self.arg >= 0 else ""
        return f"{self.call}{narrowed}-{errno.errorcode[self.number]}"

    def add(self, context: int) -> None:
        number = self.call if isinstance(self.call, int) else NUMBERS.get(self.call)
        if number is None:
            number = lib.seccomp_syscall_resolve_name(str(self.call).encode())
        assert number >= 0, self.call
        compare = (Compare * 1)()
        if self.arg >= 0:
            op = MASKED_EQUAL if self.bits else EQUAL
            compare[0] = Compare(self.arg, op, self.value, self.value if self.bits else 0)
        found = lib.seccomp_rule_add_array(context, ERRNO | self.number, number, int(self.arg >= 0), compare)
        assert found == 0, (self, found)


def without(*refusals: Refusal) -> Callable[[], None]:
    """What a child must call (`preexec_fn`) to live without these."""
    context = lib.seccomp_init(ALLOW)
    assert lib.seccomp_attr_set(context, NO_NEW_PRIVS, 0) == 0
    for refusal in refusals:
        refusal.add(context)

    def load() -> None:
        if lib.seccomp_load(context) != 0:
            raise OSError("the filter cannot be loaded")

    return load


def older_than(first: int) -> list[Refusal]:
    """All calls from number `first` on: a kernel that ended there."""
    return [Refusal(number) for number in range(first, 480)]
