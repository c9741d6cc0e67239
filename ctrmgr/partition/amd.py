# SPDX-License-Identifier: GPL-3.0-or-later
"""AMD's Instinct GPUs are divided as a whole, into equal parts: two (DPX), three (TPX), four (QPX), or one for each die (CPX).

The first partition that is asked for decides how, the following ones take other parts of the same kind, and after the last one the GPU is as
it was before. The driver switches only a GPU that nobody uses.
"""

from __future__ import annotations

from ctrmgr.devices.plugin import Allocation, Found
from ctrmgr.errors import ConflictError, HostError
from ctrmgr.host import amd, sysfs
from ctrmgr.kernel import attribute
from ctrmgr.partition import BackEnd, lowest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.devices.plugin import Partition
    from ctrmgr.host.gpu import Gpu

MODES = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
"""How many parts each makes; CPX makes as many as there are dies."""
CURRENT, AVAILABLE = "current_compute_partition", "available_compute_partition"


class Maker(BackEnd):
    name = "amd"

    def identify(self) -> list[Found]:
        return [found for gpu in self._able() if (found := self._found(gpu)).profiles]

    def reasons(self) -> list[str]:
        return [
            f"{gpu.id}: its driver has no {AVAILABLE}"
            for gpu in self.gpus()
            if gpu.vendor == "amd" and gpu not in self._able()
        ]

    def _able(self) -> list[Gpu]:
        return [
            gpu
            for gpu in self.gpus()
            if gpu.vendor == "amd" and gpu.function and sysfs.line(f"{gpu.function.path}/{AVAILABLE}")
        ]

    def _found(self, gpu: Gpu) -> Found:
        """With what each of the driver's modes makes of it. In which mode the memory is divided, too, decides the driver."""
        assert gpu.function is not None
        cores, dies = self._size(gpu)
        pools = {"memory": sysfs.number(f"{gpu.function.path}/mem_info_vram_total", 0), "cores": cores}
        pools = {pool: size for pool, size in pools.items() if size > 0}
        profiles = {}
        for mode in sysfs.line(f"{gpu.function.path}/{AVAILABLE}").replace(",", " ").split():
            count = dies if mode == "CPX" else MODES.get(mode, 0)
            if count > 1:
                profiles[mode] = {pool: size // count for pool, size in pools.items()}
        functions: dict[str, dict[str, int | str]] = {
            name: {"memory": pools.get("memory", 0)} for name in ("gpu.compute", "gpu.render")
        }
        most = max([dies, *(MODES.get(mode, 0) for mode in profiles)])
        return Found(
            gpu.id, model=gpu.model, vendor=gpu.vendor, functions=functions, shared=0, pools=pools, partitions=most, profiles=profiles
        )  # fmt: skip

    def _size(self, gpu: Gpu) -> tuple[int, int]:
        """Compute units and dies of a whole GPU, as the driver's topology has them; however it is divided now."""
        every = amd.agents(self.root)
        agents = amd.partitions(gpu.id, self.root, of=every) or [each for each in every if each.render == gpu.render]
        return sum(each.units for each in agents), sum(each.dies for each in agents)

    def partitions(self, found: Found) -> list[Partition] | None:
        return None  # a GPU that is divided does not say which of its parts somebody has

    def divide(self, found: Found, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]) -> Allocation:
        path = self._path(found.id)
        current = sysfs.line(f"{path}/{CURRENT}")
        before = next((each.state["before"] for each in taken if each.state.get("before")), current)
        modes = {each.state.get("profile", current) for each in taken}
        if modes - {profile}:
            raise ConflictError(
                f"`{found.id}` is divided in mode {', '.join(sorted(modes))} as long as somebody has a part, and {profile} is needed"
            )
        number = lowest("xcp", 0, found.partitions if profile == "CPX" else MODES[profile], taken)
        return Allocation(found, takes=takes, state={"partition": f"xcp{number}", "profile": profile, "before": before})

    def make(self, allocation: Allocation) -> str:
        id, mode = allocation.found.id, allocation.state["profile"]
        path = self._path(id)
        if sysfs.line(f"{path}/{CURRENT}") != mode:
            attribute.write(f"{path}/{CURRENT}", mode)
        part = f"{id}/{allocation.state['partition']}"
        if not any(each.id == part for gpu in self.gpus() for each in gpu.parts):
            raise HostError(f"the driver has set `{id}` to {mode}, and there is no `{part}`")
        return part

    def unmake(self, allocation: Allocation, *, last: bool) -> None:
        """A part alone cannot be ended; the last one gives the whole back, unless others than instances still use the GPU."""
        path, before = self._path(allocation.found.id), allocation.state["before"]
        if not last or sysfs.line(f"{path}/{CURRENT}") in ("", before):
            return
        try:
            attribute.write(f"{path}/{CURRENT}", before)
        except ConflictError:
            pass

    def _path(self, id: str) -> str:
        return f"{self.root.rstrip('/')}/sys/bus/pci/devices/{id}"
