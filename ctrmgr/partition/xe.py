# SPDX-License-Identifier: GPL-3.0-or-later
"""Intel's GPUs of the driver xe are divided into virtual functions (SR-IOV), each with what the physical one provisions it with.

The memory is set in `sriov_admin/vfN/profile/vram_quota` (Linux 7.0), and where there is debugfs also what else a function needs there. All
functions are enabled when the first one is needed, without a driver: only that of the partition gets one. When the last one is gone they
are disabled again, if nobody else had enabled them.
"""

from __future__ import annotations

import os
import time

from ctrmgr.devices.plugin import Allocation, Found, Partition
from ctrmgr.errors import ConflictError, HostError
from ctrmgr.host import sysfs
from ctrmgr.kernel import attribute
from ctrmgr.partition import BackEnd, lowest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ctrmgr.host.gpu import Gpu

QUOTAS = {
    "vram_quota": "memory",
    "lmem_quota": "memory",
    "ggtt_quota": "ggtt",
    "contexts_quota": "contexts",
    "doorbells_quota": "doorbells",
}
"""The driver's files → our pools."""
TOTALS = {"ggtt": 0xFEE00000, "contexts": 65535, "doorbells": 256}
"""What its firmware has in all, by tile or engine group: 4 GiB of addresses without what is reserved at both ends, and ids."""
PATIENCE = 10.0
"""Seconds for the driver to bring a function's render node."""


class Maker(BackEnd):
    name = "xe"

    def identify(self) -> list[Found]:
        return [self._found(gpu) for gpu in self._physical() if any(self._quotas(gpu.id, 1))]

    def reasons(self) -> list[str]:
        return [
            f"{gpu.id}: neither sysfs (Linux 7.0) nor debugfs has quotas for its virtual functions"
            for gpu in self._physical()
            if not any(self._quotas(gpu.id, 1))
        ]

    def _physical(self) -> list[Gpu]:
        return [
            gpu
            for gpu in self.gpus()
            if gpu.driver == "xe" and gpu.function and not gpu.function.physfn and self._total(gpu.id) > 0
        ]

    def _found(self, gpu: Gpu) -> Found:
        path = self._path(gpu.id)
        has = {pool for pool, _ in self._quotas(gpu.id, 1)}
        pools = {pool: size for pool, size in TOTALS.items() if pool in has}
        tiles = [name for name in sysfs.names(path) if name.startswith("tile")]
        memory = sum(
            max(sysfs.number(f"{path}/{tile}/{place}physical_vram_size_bytes", 0) for place in ("", "memory/"))
            for tile in tiles
        )
        if "memory" in has and memory:
            pools["memory"] = memory
        functions: dict[str, dict[str, int | str]] = {
            name: {"memory": memory} for name in ("gpu.compute", "gpu.render")
        }
        return Found(
            gpu.id, model=gpu.model, vendor=gpu.vendor, functions=functions, shared=0, pools=pools, partitions=self._total(gpu.id)
        )  # fmt: skip

    def partitions(self, found: Found) -> list[Partition] | None:
        """Every function that something is set aside for; or that has a driver."""
        there = []
        for number in range(1, self._total(found.id) + 1):
            takes: dict[str, int] = {}
            for pool, path in self._quotas(found.id, number):
                takes[pool] = takes.get(pool, 0) + max(0, sysfs.number(path, 0))
            if any(takes.values()) or self._driver(found.id, number):
                there.append(Partition(found.id, f"vf{number}", {pool: takes[pool] for pool in takes if takes[pool]}))
        return there

    def divide(self, found: Found, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]) -> Allocation:
        """What is not asked for and a function cannot be without, is an equal part of what there is."""
        others = [each for each in taken if each.id != "whole"]
        number = lowest("vf", 1, found.partitions, others)
        enabled = sysfs.number(f"{self._path(found.id)}/sriov_numvfs", 0)
        if 0 < enabled < number:
            raise ConflictError(
                f"`{found.id}` has {enabled} virtual functions enabled, and all are taken",
                hint=f"when nobody uses them: echo 0 > {self._path(found.id)}/sriov_numvfs",
            )
        share = {pool: size // found.partitions for pool, size in found.pools.items() if pool != "memory"}
        if "memory" in found.pools and "memory" not in takes:
            raise ConflictError(f"how much memory of `{found.id}` is not said", hint="partition: memory=8GiB")
        before = next((each.state["before"] for each in others if each.state.get("before")), "")
        chosen = {
            "partition": f"vf{number}",
            "before": before or str(enabled),
            "autoprobe": next(
                (each.state["autoprobe"] for each in others if each.state.get("autoprobe")),
                sysfs.line(f"{self._path(found.id)}/sriov_drivers_autoprobe"),
            ),
        }
        return Allocation(found, takes={**share, **takes}, state=chosen)

    def make(self, allocation: Allocation) -> str:
        id, number = allocation.found.id, _number(allocation)
        path = self._path(id)
        quotas = list(self._quotas(id, number))
        for pool, file in quotas:
            amount = allocation.takes.get(pool, 0)
            several = sum(pool == other for other, _ in quotas)
            if amount:
                attribute.write(file, str(amount // several if pool == "memory" else amount))
        if sysfs.number(f"{path}/sriov_numvfs", 0) == 0:
            if os.path.exists(f"{path}/sriov_drivers_autoprobe"):
                attribute.write(f"{path}/sriov_drivers_autoprobe", "0")
            attribute.write(f"{path}/sriov_numvfs", str(allocation.found.partitions))
        address = self._address(id, number)
        if not address:
            raise HostError(f"`{id}` has no virtual function {number}")
        if not self._driver(id, number):
            attribute.write(f"{self.root.rstrip('/')}/sys/bus/pci/drivers/xe/bind", address)
        self._wait(address)
        return address

    def _wait(self, address: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not any(each.id == address and each.nodes for each in self.gpus()):
            if time.monotonic() > deadline:
                raise HostError(f"the driver has made no node for `{address}`", hint="see the kernel's log")
            time.sleep(0.05)

    def unmake(self, allocation: Allocation, *, last: bool) -> None:
        id, number = allocation.found.id, _number(allocation)
        path = self._path(id)
        address = self._address(id, number)
        if address and self._driver(id, number):
            attribute.write(f"{self._path(address)}/driver/unbind", address)
        for _, file in self._quotas(id, number):
            if sysfs.number(file, 0) > 0:
                attribute.write(file, "0")
        others = any(self._driver(id, other) for other in range(1, allocation.found.partitions + 1))
        if last and not others and allocation.state["before"] == "0":
            if sysfs.number(f"{path}/sriov_numvfs", 0) > 0:
                attribute.write(f"{path}/sriov_numvfs", "0")
            probed = allocation.state["autoprobe"]
            if probed and sysfs.line(f"{path}/sriov_drivers_autoprobe") != probed:
                attribute.write(f"{path}/sriov_drivers_autoprobe", probed)

    def _path(self, id: str) -> str:
        return f"{self.root.rstrip('/')}/sys/bus/pci/devices/{id}"

    def _total(self, id: str) -> int:
        return max(0, sysfs.number(f"{self._path(id)}/sriov_totalvfs", 0))

    def _quotas(self, id: str, number: int) -> Iterator[tuple[str, str]]:
        """Pool and file of everything that a function is provisioned with. Where both have the memory sysfs wins, and debugfs has the
        rest: since Linux 6.18 below the function, before it below each engine group."""
        admin = f"{self._path(id)}/sriov_admin/vf{number}/profile/vram_quota"
        stable = os.path.exists(admin)
        if stable:
            yield "memory", admin
        debug = f"{self.root.rstrip('/')}/sys/kernel/debug/dri/{id}"
        tiles = [f"{debug}/sriov/vf{number}/{tile}" for tile in _named(f"{debug}/sriov/vf{number}", "tile")]
        folders = [*tiles, *(f"{tile}/{gt}" for tile in tiles for gt in _named(tile, "gt"))]
        for folder in folders or [f"{debug}/{gt}/vf{number}" for gt in _named(debug, "gt")]:
            for file, pool in QUOTAS.items():
                if os.path.exists(f"{folder}/{file}") and not (stable and pool == "memory"):
                    yield pool, f"{folder}/{file}"

    def _address(self, id: str, number: int) -> str:
        return sysfs.base(f"{self._path(id)}/virtfn{number - 1}")

    def _driver(self, id: str, number: int) -> str:
        address = self._address(id, number)
        return sysfs.base(f"{self._path(address)}/driver") if address else ""


def _named(folder: str, prefix: str) -> list[str]:
    return [name for name in sysfs.names(folder) if name.startswith(prefix) and name[len(prefix) :].isdecimal()]


def _number(allocation: Allocation) -> int:
    return int(allocation.state["partition"].removeprefix("vf"))
