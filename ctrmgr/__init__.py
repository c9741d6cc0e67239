# SPDX-License-Identifier: GPL-3.0-or-later
"""ctrmgr: daemonless manager of unprivileged system containers, with devices that come and go while they run.

    import ctrmgr

    with ctrmgr.launch("builtin:busybox") as instance:
        instance.attach("fuse", type="unix-char", source="/dev/fuse", gid="render")
        print(instance.exec(["ls", "-l", "/dev/fuse"]).stdout.decode())

The command line is a thin user of this. Nothing here prints; what goes wrong is a `ctrmgr.errors.CtrmgrError`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.api import (
        ExecResult,
        Instance,
        connect,
        create,
        create_partition,
        delete_partition,
        doctor,
        events,
        find_devices,
        host_devices,
        instances,
        launch,
        partitions,
        top,
    )
    from ctrmgr.errors import (
        BackendError,
        ConflictError,
        CtrmgrError,
        HelperError,
        HostError,
        NotFoundError,
        SpecError,
        UnsupportedError,
    )

__version__ = "0.1.0"
__all__ = (
    "BackendError", "ConflictError", "CtrmgrError", "ExecResult", "HelperError", "HostError", "Instance", "NotFoundError",
    "SpecError", "UnsupportedError", "connect", "create", "create_partition", "delete_partition", "doctor",
    "events", "find_devices", "host_devices", "instances", "launch", "partitions", "top",
)  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Found when it is asked for (PEP 562): hot verbs import this package and need nothing of it.
        if name not in __all__:
            raise AttributeError(f"module `ctrmgr` has no attribute `{name}`")
        from ctrmgr import api, errors

        found = globals()[name] = getattr(errors if name.endswith("Error") else api, name)
        return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
