# SPDX-License-Identifier: GPL-3.0-or-later
"""AMD's Instinct GPUs are divided as a whole, into equal parts: two (DPX), three (TPX), four (QPX), or one for each die (CPX).

The first partition that is asked for decides how, the following ones take other parts of the same kind, and after the last one the GPU is as
it was before. The driver switches only a GPU that nobody uses.

Into how many ranges the memory is divided (NPS1, NPS2, NPS4, ...) decides which of these modes there are. A driver of Linux 6.13 or later
takes a request for another one, which it remembers and hands on when it is unloaded; the GPUs do it when it is loaded again. Nothing
tells what was asked for.
"""

from __future__ import annotations

from ctrmgr.devices.partition import Asked
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
EVERY = "compute_partition_config/supported_xcp_configs"
"""What the hardware has, in whatever memory mode; AVAILABLE is what it has in this one."""
MEMORY, MEMORIES = "current_memory_partition", "available_memory_partition"
HIVE = "xgmi_hive_info/xgmi_hive_id"


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
        profiles = _parts(self._words(gpu.id, AVAILABLE), dies, pools)
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
            try:
                attribute.write(f"{path}/{CURRENT}", mode)
            except HostError as error:  # a driver before 6.13 lists modes that the memory mode rules out
                memory = sysfs.line(f"{path}/{MEMORY}")
                error.hint = error.hint or (
                    f"its memory mode is {memory}, which not every mode goes with" if memory else None
                )
                raise
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

    def mode(self, id: str) -> str | None:
        mine = any(gpu.id == id and gpu.vendor == "amd" and gpu.function for gpu in self.gpus())
        return (sysfs.line(f"{self._path(id)}/{MEMORY}") or None) if mine else None

    def modes(self, id: str) -> list[str]:
        return self._words(id, MEMORIES) or self._words(id, MEMORY)

    def together(self, id: str) -> list[str]:
        """GPUs that XGMI links have one request."""
        hive = sysfs.line(f"{self._path(id)}/{HIVE}")
        others = [gpu.id for gpu in self.gpus() if hive and sysfs.line(f"{self._path(gpu.id)}/{HIVE}") == hive]
        return [id, *(other for other in others if other != id)]

    def switch(self, id: str, mode: str) -> str:
        now = self.mode(id)
        attribute.write(f"{self._path(id)}/{MEMORY}", mode)
        who = " and ".join(f"`{each}`" for each in self.together(id))
        return (
            f"{mode} is asked for {who}, and nothing has changed yet: the driver hands it on when it is unloaded and has it when it is loaded again "
            f"(`modprobe -r amdgpu && modprobe amdgpu`, with none of its GPUs in use); {now} until then. A restart of the machine drops the request"
        )

    def pending(self, id: str) -> str:
        # The driver skips a request for the mode that it has, and the one before it stays.
        return (
            "a request for another mode that the driver may have taken before stays: it skips one for the mode that it has, and does not tell; "
            "only a restart of the machine drops it"
        )

    def fitting(self, found: Found, asked: Asked) -> Asked:
        """`CPX/NPS4` is a mode and the memory mode that it is wanted in, as AMD writes them."""
        now = self.mode(found.id) or "none that its driver tells of"
        cure = (
            f"`ctrmgr partition mode {found.id} MODE` asks for another, which counts once the driver is loaded anew; it has "
            f"{', '.join(self.modes(found.id)) or 'none'}"
        )
        mode, _, memory = asked.profile.partition("/")
        if memory and memory != now:
            raise ConflictError(
                f"`{asked.profile}` needs memory mode {memory}, and `{found.id}` is in {now}", hint=cure
            )
        other = [word for word in self._words(found.id, EVERY) if word not in found.profiles]
        for name, takes in _parts(other, found.partitions, found.pools).items():
            if mode == name:
                raise ConflictError(f"`{found.id}` has no {name} in memory mode {now}", hint=cure)
            if not mode and _enough(takes, asked) and not any(_enough(has, asked) for has in found.profiles.values()):
                raise ConflictError(f"`{found.id}` has no parts so large in memory mode {now}: {name} is", hint=cure)
        if not memory:
            return asked
        return Asked(",".join([f"profile={mode}", *(f"{pool}={amount}" for pool, amount in asked.amounts.items())]))

    def _words(self, id: str, file: str) -> list[str]:
        return sysfs.line(f"{self._path(id)}/{file}").replace(",", " ").split()

    def _path(self, id: str) -> str:
        return f"{self.root.rstrip('/')}/sys/bus/pci/devices/{id}"


def _parts(modes: Sequence[str], dies: int, pools: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """What a part has in each of these modes, of those that divide anything."""
    counts = {mode: dies if mode == "CPX" else MODES.get(mode, 0) for mode in modes}
    return {mode: {pool: size // count for pool, size in pools.items()} for mode, count in counts.items() if count > 1}


def _enough(takes: Mapping[str, int], asked: Asked) -> bool:
    return all(takes.get(pool, 0) >= amount for pool, amount in asked.amounts.items())
