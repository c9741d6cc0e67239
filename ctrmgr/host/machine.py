# SPDX-License-Identifier: GPL-3.0-or-later
"""The host as a plan needs to know it: everything is read once, under a root, when it is asked for."""

from __future__ import annotations

import os
from functools import cached_property

from ctrmgr.host import cgroup, features, lsm


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
    def init_limits(self) -> dict[str, tuple[str, str]]:
        """(soft, hard) resource limits of the host's init, which are the machine's own; none when we may not set them."""
        return features.init_limits(self.root) if features.may_raise_limits(self.root) else {}

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
