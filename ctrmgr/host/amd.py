# SPDX-License-Identifier: GPL-3.0-or-later
"""What AMD's compute driver says of its GPUs: the partitions of one, each with a render node of its own. Hot."""

from __future__ import annotations

from ctrmgr.host import pci, sysfs


class Agent:
    """A GPU node of KFD's topology: a whole GPU, or one partition of it."""

    __slots__ = ("dies", "domain", "location", "number", "owner", "render", "unique_id", "units")

    def __init__(self, number: int, given: dict[str, str]) -> None:
        self.owner = ""
        """The PCI address that its render node is below; "" for those of partitions, which have platform devices."""
        self.number = number
        self.render = sysfs.integer(given.get("drm_render_minor", ""))
        self.domain = sysfs.integer(given.get("domain", ""), 0)
        self.location = sysfs.integer(given.get("location_id", ""))
        simds, each = (sysfs.integer(given.get(key, ""), 0) for key in ("simd_count", "simd_per_cu"))
        self.units = max(0, simds) // each if each > 0 else 0
        """Compute units; 0 when it does not say."""
        self.dies = max(1, sysfs.integer(given.get("num_xcc", ""), 1))
        """Of those that compute; what is not told is one."""
        unique = sysfs.integer(given.get("unique_id", ""), 0)
        self.unique_id = f"{unique:016x}" if unique > 0 else ""

    @property
    def slot(self) -> str:
        """The PCI address without its function: the location's low bits, and in newer kernels bits 28 to 31, number the
        partition."""
        return f"{self.domain:04x}:{self.location >> 8 & 0xFF:02x}:{self.location >> 3 & 0x1F:02x}"


def agents(root: str = "/") -> list[Agent]:
    """All GPU nodes; CPUs have no render node and are left out."""
    folder = root.rstrip("/") + "/sys/class/kfd/kfd/topology/nodes"
    found = []
    for name in sysfs.names(folder):
        given = sysfs.fields(sysfs.text(f"{folder}/{name}/properties").split("\n"), " ")
        agent = Agent(sysfs.integer(name), given)
        if agent.render > 0 and agent.location >= 0 and agent.number >= 0:
            agent.owner = pci.above(f"{root.rstrip('/')}/sys/class/drm/renderD{agent.render}/device")
            found.append(agent)
    return found


def partitions(address: str, root: str = "/", *, of: list[Agent] | None = None) -> list[Agent]:
    """The partitions of the GPU at a PCI address, in their order; none when it is used whole.

    The render nodes of all but the first belong to platform devices, which exist for every partition that there ever
    was: only the topology says which are in use, and whose.
    """
    every = agents(root) if of is None else of
    slot = address.rpartition(".")[0]
    found = [agent for agent in every if agent.owner == address or (not agent.owner and agent.slot == slot)]
    return sorted(found, key=lambda agent: agent.location) if len(found) > 1 else []


def shared_nodes(root: str = "/") -> list[sysfs.Node]:
    """`/dev/kfd`, which every compute program needs."""
    found = sysfs.node(root, root.rstrip("/") + "/sys/class/kfd/kfd", "kfd")
    return [found] if found else []
