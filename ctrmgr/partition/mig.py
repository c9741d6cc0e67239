# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's GPUs in MIG mode are divided into GPU instances, each with one compute instance that has all of it, by the driver's own library.

A GPU instance is known by its profile and where on the GPU it is (`1g.10gb@4`): both are chosen, and written down, before it is made, and
there can be only one of them. Its number, which the driver chooses, is looked up.
"""

from __future__ import annotations

import subprocess
from contextlib import contextmanager

from ctrmgr.devices.plugin import Allocation, Found, Partition
from ctrmgr.errors import ConflictError, HostError, UnsupportedError
from ctrmgr.host import nvidia
from ctrmgr.partition import BackEnd
from ctrmgr.partition.nvml import NVML

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ctrmgr.host.gpu import Gpu
    from ctrmgr.partition.nvml import Instance


class Maker(BackEnd):
    name = "mig"

    def identify(self) -> list[Found]:
        found = []
        if self._cards():
            try:
                with self._nvml() as nvml:
                    found = [self._found(gpu, nvml) for gpu in self._cards() if nvml.is_divided(gpu.id)]
            except UnsupportedError:
                return []
        return found

    def reasons(self) -> list[str]:
        cards = self._cards()
        if not cards:
            return []
        try:
            with self._nvml() as nvml:
                return [
                    f"{gpu.id}: MIG mode is off (`ctrmgr partition mode {gpu.id} on`), or it has none"
                    for gpu in cards
                    if not nvml.is_divided(gpu.id)
                ]
        except (UnsupportedError, HostError) as error:
            return [error.message]

    def mode(self, id: str) -> str | None:
        if id not in {gpu.id for gpu in self._cards()}:
            return None
        with self._nvml() as nvml:
            return "on" if nvml.mode(id) else "off"

    def modes(self, id: str) -> list[str]:
        return ["on", "off"]

    def switch(self, id: str, mode: str) -> str:
        with self._nvml() as nvml:
            if nvml.mode(id) and nvml.instances(id):
                raise ConflictError(
                    f"`{id}` has GPU instances", hint=", ".join(each.place for each in nvml.instances(id))
                )
            nvml.switch(id, mode == "on")
        return ""

    def _cards(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus() if gpu.minor >= 0 and gpu.function is not None]

    @contextmanager
    def _nvml(self) -> Iterator[NVML]:
        with NVML() as nvml:
            yield nvml

    def _found(self, gpu: Gpu, nvml: NVML) -> Found:
        known = nvml.profiles(gpu.id)
        profiles = {name: profile.takes for name, profile in known.items()}
        pools = {
            pool: max(each.get(pool, 0) for each in profiles.values()) for each in profiles.values() for pool in each
        }
        functions: dict[str, dict[str, int | str]] = {"gpu.compute": {"memory": pools.get("memory", 0)}}
        return Found(
            gpu.id, model=gpu.model, vendor=gpu.vendor, functions=functions, shared=0, pools=pools,
            partitions=nvml.most(gpu.id), profiles=profiles,
        )  # fmt: skip

    def partitions(self, found: Found) -> list[Partition] | None:
        with self._nvml() as nvml:
            return [Partition(found.id, each.place, each.takes) for each in nvml.instances(found.id)]

    def divide(self, found: Found, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]) -> Allocation:
        with self._nvml() as nvml:
            known = nvml.profiles(found.id)
            there = nvml.instances(found.id)
            gone = {slot for each in there for slot in range(each.start, each.start + each.size)}
            for each in taken:  # also those that are promised and not made yet
                slots = each.state.get("slots", "")
                gone |= {int(slot) for slot in slots.split(",") if slot}
            for start, size in nvml.placements(found.id, known[profile].id):
                if not gone.intersection(range(start, start + size)):
                    break
            else:
                raise ConflictError(
                    f"`{found.id}` has no room for a {profile}: what is free is not in one piece",
                    hint=", ".join(each.place for each in there) or None,
                )
        chosen = {
            "partition": f"{profile}@{start}",
            "profile": profile,
            "slots": ",".join(str(slot) for slot in range(start, start + size)),
            "before": ",".join(str(each.number) for each in there),
        }
        return Allocation(found, takes=takes, state=chosen)

    def make(self, allocation: Allocation) -> str:
        id, chosen = allocation.found.id, allocation.state
        slots = chosen["slots"].split(",")
        with self._nvml() as nvml:
            profile = nvml.profiles(id).get(chosen["profile"])
            if profile is None:
                raise HostError(f"`{id}` has no profile `{chosen['profile']}` any more")
            gi, ci = nvml.create(id, profile.id, int(slots[0]), len(slots))
        self._nodes(id, gi, ci)
        return f"{id}/gi{gi}/ci{ci}"

    def _nodes(self, id: str, gi: int, ci: int) -> None:
        """Have the driver's own program make the nodes of the two capabilities, where nothing else does."""
        card = next(card for card in nvidia.cards(self.root) if card.address == id)
        part = next((each for each in nvidia.slices(card.minor, self.root) if (each.gi, each.ci) == (gi, ci)), None)
        if part is None or all(node.present for node in nvidia.slice_nodes(part, self.root)):
            return
        top = f"/proc/driver/nvidia/capabilities/gpu{card.minor}/mig/gi{gi}"
        words = ["nvidia-modprobe", "-f", f"{top}/access", "-f", f"{top}/ci{ci}/access"]
        try:
            subprocess.run(words, capture_output=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(f"`nvidia-modprobe` has made no nodes for `{id}/gi{gi}/ci{ci}`: {error}") from None

    def unmake(self, allocation: Allocation, *, last: bool) -> None:
        """Only what was not there before; the driver refuses one that is in use."""
        id, chosen = allocation.found.id, allocation.state
        before = chosen["before"].split(",")
        with self._nvml() as nvml:
            for each in nvml.instances(id):
                if each.place == chosen["partition"] and str(each.number) not in before:
                    self._end(nvml, id, each)

    def _end(self, nvml: NVML, id: str, instance: Instance) -> None:
        try:
            nvml.destroy(id, instance.number)
        except ConflictError as error:
            raise HostError(f"`{id}/gi{instance.number}` is still in use", hint=error.hint) from error
