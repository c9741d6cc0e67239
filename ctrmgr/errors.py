# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong, as a tree.

    CtrmgrError        exit 1
    ├─ SpecError         profile or command wrong         2
    ├─ NotFoundError     no such instance/image/device    3
    ├─ ConflictError     wrong state, device in use       4
    ├─ HostError         this host cannot do it           5
    │  └─ UnsupportedError  this kernel/backend/driver cannot, whatever the state
    ├─ BackendError      LXD/Incus/registry refused       6
    └─ HelperError       native helper refused or failed  7

The message names the object in backquotes and says the reason; the cure is the hint.
"""

from __future__ import annotations


class CtrmgrError(Exception):
    """Something that the user can understand and mend; anything else is a bug and shows its traceback."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SpecError(CtrmgrError):
    """The profile or the command is wrong."""

    exit_code = 2


class NotFoundError(CtrmgrError):
    """No such instance, image, profile or device."""

    exit_code = 3


class ConflictError(CtrmgrError):
    """The object is in the wrong state for this, or somebody else has it."""

    exit_code = 4


class HostError(CtrmgrError):
    """This host cannot do it now: a resource, a permission or a device is missing."""

    exit_code = 5


class UnsupportedError(HostError):
    """This kernel, backend or driver cannot do it, whatever the state."""


class BackendError(CtrmgrError):
    """LXD, Incus or a registry refused."""

    exit_code = 6


class HelperError(CtrmgrError):
    """A native helper refused or failed: `operation` is the step, `errno_name` the kernel's answer."""

    exit_code = 7

    def __init__(self, message: str, *, operation: str = "", errno_name: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.operation = operation
        self.errno_name = errno_name
