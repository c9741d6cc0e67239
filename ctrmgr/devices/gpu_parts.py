# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GPU is made of: its nodes, those that it shares with others, partitions, and its driver's files. Hot."""

from __future__ import annotations

from ctrmgr.devices import choose, gpu_nvidia
from ctrmgr.devices.driver import Resolved
from ctrmgr.edits import ContainerEdits, DeviceNode
from ctrmgr.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.host.gpu import Gpu, Part
    from ctrmgr.host.sysfs import Node

    Which = tuple[Gpu, "Part | None"]


def named(wanted: Mapping[str, str], every: list[Gpu]) -> Which | None:
    """The part that `id` names, as `device list` does."""
    value = wanted.get("id", "")
    return next(((gpu, part) for gpu in every for part in gpu.parts if value and value in (part.id, part.uuid)), None)


def own_nodes(gpu: Gpu, part: Part | None, *, kms: bool) -> list[Node]:
    """The nodes that are one GPU's, or one part's, alone: without `kms` no card."""
    nodes = list(part.nodes) if part else list(gpu.nodes)
    if part is None:
        have = {node.path for node in nodes}
        nodes += [node for each in gpu.parts if each.kind == "xcp" for node in each.nodes if node.path not in have]
    return [node for node in nodes if kms or node.role != "card"]


def resolved(chosen: list[Which], values: Mapping[str, str], root: str, folders: Sequence[str] = ()) -> Resolved:
    """All that these GPUs and parts are made of. Raises HostError when a driver is not ready for them.

    `folders` are those whose names say whether there are as many as there were.
    """
    kms = values.get("kms") == "true"
    wanted = gpu_nvidia.wanted(values.get("driver.capabilities", ""))
    nodes: dict[str, Node] = {}
    identity: list[str] = list(folders)
    lease: list[str] = []
    for gpu, part in chosen:
        own = own_nodes(gpu, part, kms=kms)
        if not own:
            raise HostError(f"`{part.id if part else gpu.id}` has no node to give: {_why(gpu)}", hint=_cure(gpu))
        needs = part.needs if part else gpu.needs
        nodes.update((node.path, node) for node in (*own, *gpu_nvidia.needed(needs, wanted)))
        identity += _files(gpu, own, root)
        lease.append(f"{'pci' if gpu.function else 'gpu'}:{part.id if part else gpu.id}")
        lease += [f"node:{node.path}" for node in own]
    gpu_nvidia.check(list(nodes.values()))
    edits = ContainerEdits(
        device_nodes=[
            DeviceNode(node.path, type="c", file_mode=gpu_nvidia.OWN_MODES.get(node.role)) for node in nodes.values()
        ]
    )
    optional = [node.path for node in nodes.values() if not node.present]
    hooks: list[list[str]] = []
    if wanted and any(gpu.minor >= 0 for gpu, _ in chosen):
        identity.append(gpu_nvidia.VERSION)
        mounts, hooks = gpu_nvidia.files(wanted, list(nodes.values()), root)
        edits = edits.replace(mounts=mounts)
    return Resolved(edits, identity=choose.identity(root, *identity), lease=lease, optional=optional, hooks=hooks)


def _files(gpu: Gpu, own: list[Node], root: str) -> list[str]:
    """The kernel's files that say that these nodes are this GPU's."""
    found = [
        choose.of_class(root, f"drm/{node.path.rpartition('/')[2]}") for node in own if node.role in ("card", "render")
    ]
    if gpu.minor >= 0:
        found.append(f"/proc/driver/nvidia/gpus/{gpu.id}/information")
        found += gpu_nvidia.slice_files(gpu.minor, [node.minor for node in own if node.role.startswith("cap-")], root)
    if gpu.function and "compute-partition" in gpu.details:
        found.append(f"/sys/bus/pci/devices/{gpu.id}/current_compute_partition")
    return found


def _why(gpu: Gpu) -> str:
    if "excluded" in gpu.details:
        return "it is excluded " + gpu.details["excluded"]
    if gpu.card >= 0:
        return f"it has no render node, only /dev/dri/card{gpu.card}"
    return f"its driver is `{gpu.driver}`" if gpu.driver else "it has no driver"


def _cure(gpu: Gpu) -> str:
    return "`kms: true` gives the card" if gpu.card >= 0 else "load its driver, or give another GPU"
