# SPDX-License-Identifier: GPL-3.0-or-later
"""The host as a plan needs to know it: everything is read once, under a root, when it is asked for."""

from __future__ import annotations

import os
from functools import cached_property

from ctrmgr.host import cgroup, features, lsm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.host.gpu import Gpu


class Host:
    """This machine, or (`root`) a recorded one."""

    def __init__(self, root: str = "/", *, privileged: bool | None = None) -> None:
        self.root = root
        self.privileged = os.geteuid() == 0 if privileged is None else privileged

    @cached_property
    def cgroups(self) -> cgroup.Cgroups:
        return cgroup.read(self.root, privileged=self.privileged)

    @cached_property
    def cpus(self) -> tuple[int, ...]:
        """Numbers of the CPUs that are online."""
        return features.cpus(self.root)

    @cached_property
    def memory(self) -> int:
        """Bytes."""
        return features.memory(self.root)

    @cached_property
    def nodes(self) -> dict[int, tuple[int, ...]]:
        """NUMA node → its CPUs; a machine without NUMA has node 0."""
        return features.nodes(self.root) or {0: self.cpus}

    @cached_property
    def kernel(self) -> tuple[int, int]:
        return features.kernel_version(self.root)

    @cached_property
    def pid_max(self) -> int:
        return features.pid_max(self.root)

    @cached_property
    def huge_pages(self) -> tuple[str, ...]:
        """Sizes as the hugetlb controller writes them: `2MB`, `1GB`."""
        return features.huge_pages(self.root)

    @cached_property
    def rdma_devices(self) -> tuple[str, ...]:
        return features.rdma_devices(self.root)

    @cached_property
    def misc_capacity(self) -> dict[str, int]:
        """Resource of the misc controller → how much of it there is."""
        mount = self.cgroups.v1.get("misc") or self.cgroups.unified
        rows = (line.split() for line in self.cgroup_text(mount, "misc.capacity").splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}

    @cached_property
    def dmem_regions(self) -> dict[str, int]:
        """Region of device memory that cgroup2 can charge → its bytes."""
        rows = (line.rpartition(" ") for line in self.cgroup_text(self.cgroups.unified, "dmem.capacity").splitlines())
        return {region: int(size) for region, _, size in rows if region and size.isdecimal()}

    @cached_property
    def gpus(self) -> list[Gpu]:
        from ctrmgr.host import gpu

        return gpu.gpus(self.root)

    @cached_property
    def init_limits(self) -> dict[str, tuple[str, str]]:
        """(soft, hard) resource limits of the host's init, which are the machine's own; none when we may not set them."""
        return features.init_limits(self.root) if self.may_raise_limits else {}

    @cached_property
    def own_limits(self) -> dict[str, tuple[str, str]]:
        """(soft, hard) resource limits of our own, by the names that keys use."""
        return features.limits(self.root)

    @cached_property
    def may_raise_limits(self) -> bool:
        return features.may_raise_limits(self.root)

    @cached_property
    def own_oom_score_adj(self) -> int:
        """How much likelier than others we are killed when memory runs out, -1000 … 1000."""
        return features.oom_score_adj(self.root)

    @cached_property
    def nr_open(self) -> int:
        """The files that a process can have open at most; 0 when the kernel does not say."""
        return features.nr_open(self.root)

    @cached_property
    def last_capability(self) -> int:
        return features.last_capability(self.root)

    @cached_property
    def apparmor(self) -> frozenset[str]:
        """Names of the loaded AppArmor profiles; none when AppArmor is off."""
        return lsm.apparmor_profiles(self.root) if "apparmor" in lsm.active(self.root) else frozenset()

    def has_file(self, mount: str, file: str) -> bool:
        """Whether cgroups below a hierarchy's mount have `file`: some exist only with a block scheduler, and never in the
        top-most cgroup."""
        top = self.root.rstrip("/") + mount
        try:
            entries = [entry.path for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return False
        return any(os.path.exists(f"{path}/{file}") for path in (top, *entries))

    def cgroup_text(self, mount: str, file: str) -> str:
        """What a file of a hierarchy's top-most cgroup says; "" without it."""
        try:
            with open(f"{self.root.rstrip('/')}{mount}/{file}", encoding="ascii") as stream:
                return stream.read().strip()
        except OSError:
            return ""
