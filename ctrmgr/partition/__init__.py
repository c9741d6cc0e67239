# SPDX-License-Identifier: GPL-3.0-or-later
"""What divides the hardware that ctrmgr knows itself: one back-end for each maker's way. Plugins divide theirs."""

from __future__ import annotations

from ctrmgr.errors import ConflictError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.devices.partition import Asked
    from ctrmgr.devices.plugin import Allocation, Found, Partition
    from ctrmgr.host.gpu import Gpu

NAMES = ("amd", "mig", "xe")
NO_CALL = {
    # include/uapi/drm/qaic_accel.h has nine calls, DRM_IOCTL_QAIC_MANAGE to DETACH_SLICE_BO.
    "qaic": "none of the calls of Linux's driver `qaic` makes a partition (`DRM_IOCTL_QAIC_PART_DEV` was taken out before the driver "
    "came into Linux, and is in the maker's own only)"
}
"""Drivers that are known to have no interface for partitions, and what there is to know about that."""


class BackEnd:
    """One way of dividing GPUs. It remembers nothing: what it must know again is in the allocation's `state`."""

    type = "gpu"
    name = ""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def gpus(self) -> list[Gpu]:
        from ctrmgr.host import gpu

        return gpu.gpus(self.root)

    def identify(self) -> list[Found]:
        """The GPUs that can be divided this way, now."""
        raise NotImplementedError

    def reasons(self) -> list[str]:
        """Why GPUs that are of this maker's cannot be."""
        return []

    def why_not(self, found: Found, values: Mapping[str, str]) -> str:
        """Why a GPU is not the one that the keys of a `gpu` mean; "" when it is."""
        from ctrmgr.devices import gpu as driver

        gpu = next((each for each in self.gpus() if each.id == found.id), None)
        for key, fits in driver.FITS.items():
            if values.get(key) and (gpu is None or not fits(gpu, values[key])):
                return f"is not that with `{key}={values[key]}`"
        return ""

    def mode(self, id: str) -> str | None:
        """The mode that a GPU is in, of those that decide how it can be divided; None when it is none of this maker's, or has none."""
        return None

    def modes(self, id: str) -> list[str]:
        """Those that it can be asked into."""
        raise NotImplementedError

    def together(self, id: str) -> list[str]:
        """The GPUs whose mode is the same one."""
        return [id]

    def switch(self, id: str, mode: str) -> str:
        """Take a GPU that nobody uses into a mode; "" when it is in it now, and when it will be otherwise. Raises ConflictError when
        somebody uses it, HostError; then it is in the mode that it was in, now and after its next reset."""
        raise NotImplementedError

    def pending(self, id: str) -> str:
        """What asking for the mode that it is in does not do; "" when there is nothing that it could."""
        return ""

    def fitting(self, found: Found, asked: Asked) -> Asked:
        """What was asked for in words that `found` has. Raises ConflictError when it is only to be had in another mode."""
        return asked

    def partitions(self, found: Found) -> list[Partition] | None:
        """The partitions that it has now, whoever made them; None when the driver does not say."""
        raise NotImplementedError

    def divide(self, found: Found, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]) -> Allocation:
        """Decide on a partition, as `Plugin.divide`; `state["partition"]` must be its id. Raises ConflictError."""
        raise NotImplementedError

    def make(self, allocation: Allocation) -> str:
        """Make it, and say by which id it is found as a device of this machine. Raises ConflictError, HostError."""
        raise NotImplementedError

    def unmake(self, allocation: Allocation, *, last: bool) -> None:
        """End it, or as much of it as was made; `last`: no other one of this GPU is ctrmgr's. Raises HostError."""
        raise NotImplementedError


def every(root: str = "/") -> list[BackEnd]:
    """All of them."""
    return [named(name, root) for name in NAMES]


def named(name: str, root: str = "/") -> BackEnd:
    """The one that has made an allocation."""
    made: BackEnd = __import__(f"ctrmgr.partition.{name}", fromlist=("Maker",)).Maker(root)
    return made


def reasons(kind: str, root: str = "/") -> list[str]:
    """Why devices of a type that are there cannot be divided."""
    found = [reason for maker in every(root) if kind in ("any", maker.type) for reason in maker.reasons()]
    if kind in ("any", "accel"):
        from ctrmgr.host import accel

        for each in accel.accelerators(root):
            why = NO_CALL.get(each.driver, f"Linux's driver `{each.driver}` has no call that divides it")
            found.append(f"{each.id}: {why}; a plugin may bring the maker's own")
    return found


def lowest(prefix: str, first: int, count: int, taken: Sequence[Partition]) -> int:
    """The lowest number whose partition nobody has. Raises ConflictError."""
    gone = {each.id for each in taken}
    for number in range(first, first + count):
        if f"{prefix}{number}" not in gone:
            return number
    raise ConflictError(f"all {count} partitions are taken")
