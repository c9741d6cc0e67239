# SPDX-License-Identifier: GPL-3.0-or-later
"""A device given to an instance of this machine. Hot."""

from __future__ import annotations

from ctrmgr.backend import devices, record, repair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.backend.devices import Say


def attach(name: str, device: str, values: Mapping[str, str], *, volatile: bool = False, say: Say = None) -> bool:
    """Give the instance a device. True: it is there now; False: it is configured and comes with the next start. `say` hears of limits that best
    effort goes on without.

    Raises NotFoundError, SpecError, ConflictError, HostError, UnsupportedError, HelperError; then nothing has changed.
    """
    return attach_rows(name, device, *devices.check(device, values), volatile=volatile, say=say)


def attach_rows(
    name: str, device: str, kept: dict[str, str], rows: list[list[str]], *, volatile: bool = False, say: Say = None
) -> bool:
    """`attach`, of what has been resolved already: all its parts, or none of them."""
    with record.lock(name):
        return devices.give(
            name, device, kept, rows, repair.instance(name), repair.instance, volatile=volatile, say=say
        )
