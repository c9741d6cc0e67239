# SPDX-License-Identifier: GPL-3.0-or-later
"""The calls of NVIDIA's management library that divide a GPU, through `nvidia-ml-py`, which is optional."""

from __future__ import annotations

from ctypes import byref, c_uint
from importlib import import_module

from ctrmgr.errors import ConflictError, HostError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, TypeVar

    T = TypeVar("T")

MIB = 1 << 20
ENGINES = {
    "multiprocessorCount": "cores",
    "sliceCount": "slices",
    "copyEngineCount": "copy-engines",
    "decoderCount": "decoders",
    "encoderCount": "encoders",
    "jpegCount": "jpeg-engines",
    "ofaCount": "optical-flow-engines",
}
MANY = 64


class Profile:
    """A size of GPU instances."""

    __slots__ = ("count", "id", "takes")

    def __init__(self, info: Any) -> None:
        self.id, self.count = int(info.id), int(info.instanceCount)
        self.takes = {"memory": int(info.memorySizeMB) * MIB}
        self.takes |= {pool: int(getattr(info, field)) for field, pool in ENGINES.items()}
        self.takes = {pool: amount for pool, amount in self.takes.items() if amount}


class Instance:
    """A GPU instance that there is."""

    __slots__ = ("number", "place", "size", "start", "takes")

    def __init__(self, name: str, profile: Profile, info: Any) -> None:
        self.number, self.start, self.size = int(info.id), int(info.placement.start), int(info.placement.size)
        self.place, self.takes = f"{name}@{self.start}", profile.takes


class NVML:
    """The library, for as long as the `with` block runs. Raises UnsupportedError when it is not there."""

    def __init__(self) -> None:
        try:
            self.py = import_module("pynvml")
        except ImportError:
            raise UnsupportedError(
                "NVIDIA's GPUs are divided through `nvidia-ml-py`, which is not installed",
                hint="pip install nvidia-ml-py",
            ) from None

    def __enter__(self) -> NVML:
        try:
            self.py.nvmlInit()
        except self.py.NVMLError as error:
            raise UnsupportedError(f"NVIDIA's management library cannot be used: {error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.py.nvmlShutdown()

    def _do(self, what: str, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except self.py.NVMLError as error:
            said = f"NVIDIA's driver does not {what}: {error}"
            codes = (self.py.NVML_ERROR_IN_USE, self.py.NVML_ERROR_INSUFFICIENT_RESOURCES)
            if getattr(error, "value", None) in codes:
                raise ConflictError(said, hint="`nvidia-smi` says which programs use it") from None
            if getattr(error, "value", None) == self.py.NVML_ERROR_NO_PERMISSION:
                raise HostError(said, hint="only root may") from None
            raise HostError(said) from None

    def _gpu(self, id: str) -> Any:
        return self._do(f"know `{id}`", self.py.nvmlDeviceGetHandleByPciBusId, id.encode())

    def is_divided(self, id: str) -> bool:
        """Whether MIG mode is on."""
        try:
            return bool(self.py.nvmlDeviceGetMigMode(self._gpu(id))[0] == self.py.NVML_DEVICE_MIG_ENABLE)
        except (HostError, self.py.NVMLError):
            return False  # it has no such mode, or is not one that the library may use

    def mode(self, id: str) -> bool | None:
        """Whether MIG mode is on; None when this model has none."""
        try:
            return bool(self.py.nvmlDeviceGetMigMode(self._gpu(id))[0] == self.py.NVML_DEVICE_MIG_ENABLE)
        except self.py.NVMLError_NotSupported:
            return None
        except self.py.NVMLError as error:
            raise HostError(f"NVIDIA's driver does not say whether MIG mode of `{id}` is on: {error}") from None

    def switch(self, id: str, on: bool) -> None:
        """MIG mode, which resets the GPU where the model needs that. The driver refuses when anybody has it open, and then would do it at
        the next reset, whoever that hits: it is told not to. Raises ConflictError, HostError."""
        py, wanted = self.py, int(on)
        before = self._do("say what MIG mode is", py.nvmlDeviceGetMigMode, self._gpu(id))[0]
        what = f"switch MIG mode of `{id}` {'on' if on else 'off'}"
        status = self._do(what, py.nvmlDeviceSetMigMode, self._gpu(id), wanted)
        now = self._do("say what MIG mode is", py.nvmlDeviceGetMigMode, self._gpu(id))[0]
        if status == py.NVML_SUCCESS and now == wanted:
            return
        if now != wanted:
            self._do(f"take back to {what}", py.nvmlDeviceSetMigMode, self._gpu(id), before)
        if status == py.NVML_ERROR_IN_USE:
            raise ConflictError(
                f"`{id}` is in use, and only a GPU that nobody has open is switched",
                hint="`nvidia-smi` says which programs; services that watch GPUs (DCGM, nvidia-persistenced) count, too",
            )
        if status == py.NVML_ERROR_RESET_REQUIRED:
            raise HostError(
                f"NVIDIA's driver cannot {what} here: the GPU would have to be reset",
                hint=f"`nvidia-smi -i {id} -mig {wanted}`, and restart the machine",
            )
        raise HostError(
            f"NVIDIA's driver does not {what}: {py.nvmlErrorString(status) if status else 'it is as it was'}"
        )

    def most(self, id: str) -> int:
        """How many MIG devices there can be."""
        return int(self._do("count MIG devices", self.py.nvmlDeviceGetMaxMigDeviceCount, self._gpu(id)))

    def profiles(self, id: str) -> dict[str, Profile]:
        """By name, such as `1g.10gb`."""
        gpu, found = self._gpu(id), {}
        for number in range(self.py.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self.py.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, 2)
            except self.py.NVMLError:
                continue  # not on this model
            name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
            found[name.removeprefix("MIG ")] = Profile(info)
        return found

    def placements(self, id: str, profile: int) -> list[tuple[int, int]]:
        """Where one of a profile could be: first slot and number of slots."""
        return sorted((int(each.start), int(each.size)) for each in self._placements(id, profile))

    def _placements(self, id: str, profile: int) -> list[Any]:
        count, kind = c_uint(MANY), self.py.c_nvmlGpuInstancePlacement_t
        found = (kind * MANY)()
        call = self.py.nvmlDeviceGetGpuInstancePossiblePlacements
        self._do("say where instances can be", call, self._gpu(id), profile, found, byref(count))
        return list(found[: count.value])

    def instances(self, id: str) -> list[Instance]:
        """The GPU instances that there are."""
        found = []
        for name, profile in self.profiles(id).items():
            for handle in self._handles(id, profile.id):
                info = self._do("say what an instance is", self.py.nvmlGpuInstanceGetInfo, handle)
                found.append(Instance(name, profile, info))
        return sorted(found, key=lambda each: each.start)

    def _handles(self, id: str, profile: int) -> Iterator[Any]:
        count, found = c_uint(MANY), (self.py.c_nvmlGpuInstance_t * MANY)()
        self._do("list instances", self.py.nvmlDeviceGetGpuInstances, self._gpu(id), profile, found, byref(count))
        yield from found[: count.value]

    def create(self, id: str, profile: int, start: int, size: int) -> tuple[int, int]:
        """A GPU instance in this place with a compute instance that has all of it. Their numbers."""
        place = self.py.c_nvmlGpuInstancePlacement_t(start=start, size=size)
        handle = self._do(
            "make a GPU instance",
            self.py.nvmlDeviceCreateGpuInstanceWithPlacement,
            self._gpu(id),
            profile,
            byref(place),
        )
        whole = self._whole(handle)
        inner = self._do("make a compute instance", self.py.nvmlGpuInstanceCreateComputeInstance, handle, whole)
        gi = self._do("say what an instance is", self.py.nvmlGpuInstanceGetInfo, handle)
        ci = self._do("say what an instance is", self.py.nvmlComputeInstanceGetInfo_v2, inner)
        return int(gi.id), int(ci.id)

    def _whole(self, handle: Any) -> int:
        """The profile of the compute instance that has most."""
        best = (-1, -1)
        for number in range(self.py.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self._compute(handle, number)
            except self.py.NVMLError:
                continue
            best = max(best, (int(info.sliceCount), int(info.id)))
        if best[0] < 0:
            raise HostError("NVIDIA's driver has no profile for a compute instance of this GPU instance")
        return best[1]

    def _compute(self, handle: Any, number: int) -> Any:
        shared = self.py.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        return self.py.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, number, shared, 2)

    def destroy(self, id: str, number: int) -> None:
        """End a GPU instance with all that is in it. Raises ConflictError when it is in use."""
        handle = self._do("know a GPU instance", self.py.nvmlDeviceGetGpuInstanceById, self._gpu(id), number)
        for profile in range(self.py.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                known = int(self._compute(handle, profile).id)
            except self.py.NVMLError:
                continue
            count, inner = c_uint(MANY), (self.py.c_nvmlComputeInstance_t * MANY)()
            call = self.py.nvmlGpuInstanceGetComputeInstances
            self._do("list compute instances", call, handle, known, inner, byref(count))
            for each in inner[: count.value]:
                self._do("end a compute instance", self.py.nvmlComputeInstanceDestroy, each)
        self._do("end a GPU instance", self.py.nvmlGpuInstanceDestroy, handle)
