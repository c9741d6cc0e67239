# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's management library, through the optional package nvidia-ml-py: limits of a cgroup on a GPU, and sizes. Cold."""

from __future__ import annotations

from typing import Any

from ctrmgr.errors import HostError, UnsupportedError

CGROUPS = "/sys/fs/cgroup"
"""Where NVIDIA's driver wants cgroup2."""
PACKAGE = "`pip install nvidia-ml-py`"


class Limits:
    """What a cgroup uses of a GPU, what is kept for it, and what it may use (None: all)."""

    __slots__ = ("hard", "soft", "used")

    def __init__(self, used: int, soft: int, hard: int | None) -> None:
        self.used, self.soft, self.hard = used, soft, hard


class Library:
    """`with Library() as library`. Raises UnsupportedError, which says what is missing."""

    __slots__ = ("_nvml",)

    def __init__(self) -> None:
        self._nvml: Any = None

    def __enter__(self) -> Library:
        try:
            import pynvml
        except ImportError:
            raise UnsupportedError("nvidia-ml-py is not installed", hint=PACKAGE) from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise UnsupportedError(f"NVIDIA's library says `{error}`", hint="is its driver loaded?") from None
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._nvml.nvmlShutdown()

    def _device(self, address: str) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
        except self._nvml.NVMLError as error:
            raise UnsupportedError(f"NVIDIA's library does not have it: `{error}`") from None

    def capacity(self, address: str) -> int:
        """Bytes of a GPU's memory."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._device(address)).total)

    def check_limits(self, address: str) -> None:
        """Raises UnsupportedError when this driver, or this GPU, has no limits for cgroups."""
        nvml, device = self._nvml, self._device(address)
        if not hasattr(nvml, "nvmlDeviceSetMemoryLimits_v1"):
            raise UnsupportedError("nvidia-ml-py is too old for limits of cgroups: 13.615 has them", hint=PACKAGE)
        try:
            if nvml.nvmlDeviceGetMigMode(device)[0]:
                raise UnsupportedError("it is in MIG mode, in which only its slices have sizes")
        except nvml.NVMLError:
            pass  # no GPU that could be
        try:
            self.limits(address, CGROUPS)
        except nvml.NVMLError_FunctionNotFound:
            version = nvml.nvmlSystemGetDriverVersion()
            text = version.decode() if isinstance(version, bytes) else version
            raise UnsupportedError(f"NVIDIA's driver {text} has no limits for cgroups: R615 has them") from None

    def limits(self, address: str, cgroup: str) -> Limits | None:
        """None when a cgroup has none of its own."""
        nvml = self._nvml
        asked = nvml.c_nvmlGetMemoryLimits_v1_t()
        asked.nameSpace = cgroup.encode()
        try:
            nvml.nvmlDeviceGetMemoryLimits_v1(self._device(address), asked)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported):
            return None
        hard = int(asked.hardLimit)
        unlimited = hard == nvml.NVML_DEVICE_MEMORY_LIMIT_MAX
        return Limits(int(asked.currentUsed), int(asked.softLimit), None if unlimited else hard)

    def kept(self, address: str, cgroup: str) -> int:
        """Bytes that are kept for a cgroup, whoever has asked for that; 0 for one that the driver does not say it of."""
        try:
            now = self.limits(address, cgroup)
        except self._nvml.NVMLError:
            return 0
        return now.soft if now else 0

    def set_limits(self, address: str, cgroup: str, soft: int, hard: int | None) -> None:
        """Raises HostError when the driver refuses."""
        nvml = self._nvml
        asked = nvml.c_nvmlSetMemoryLimits_v1_t()
        asked.nameSpace = cgroup.encode()
        asked.softLimit = soft
        asked.hardLimit = nvml.NVML_DEVICE_MEMORY_LIMIT_MAX if hard is None else hard
        try:
            nvml.nvmlDeviceSetMemoryLimits_v1(self._device(address), asked)
        except nvml.NVMLError as error:
            raise HostError(f"NVIDIA's driver refuses the limits on `{address}`: `{error}`") from None

    def slice_size(self, address: str, gi: str, ci: str) -> int:
        """Bytes of a MIG slice's memory."""
        nvml, device = self._nvml, self._device(address)
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            try:
                found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
            except nvml.NVMLError_NotFound:
                continue
            if (nvml.nvmlDeviceGetGpuInstanceId(found), nvml.nvmlDeviceGetComputeInstanceId(found)) == (
                int(gi),
                int(ci),
            ):
                return int(nvml.nvmlDeviceGetMemoryInfo(found).total)
        raise UnsupportedError(f"NVIDIA's library has no slice gi{gi}/ci{ci}")
