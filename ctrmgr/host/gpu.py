# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs, whatever drives them: found by DRM, by NVIDIA's driver, or by their PCI class when nothing drives them. Hot."""

from __future__ import annotations

from ctrmgr.host import amd, nvidia, pci, sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
DISPLAY = "03"
"""The PCI base class of display controllers."""


class Part:
    """A part of a GPU that is passed by itself: a MIG compute instance, or a partition."""

    __slots__ = ("id", "kind", "name", "needs", "nodes", "uuid")

    def __init__(
        self, id: str, kind: str, name: str, uuid: str, nodes: list[sysfs.Node], needs: list[sysfs.Node]
    ) -> None:
        self.id, self.kind, self.name, self.uuid = id, kind, name, uuid
        self.nodes, self.needs = nodes, needs


class Gpu:
    """One GPU. `id` is its PCI address, or the name of the device that is none of PCI's (`platform/vgem`).

    `nodes` are its own, `needs` are those that it shares with the others of its vendor. `card` and `render` are the numbers of
    its DRM nodes and `minor` is that of `/dev/nvidiaN`: they change between boots, -1 is none.
    """

    __slots__ = ("card", "details", "driver", "driver_version", "function", "id", "minor", "model", "needs", "nodes", "parts",
                 "render", "uuid", "vendor")  # fmt: skip

    def __init__(self, id: str, function: pci.Function | None) -> None:
        self.id, self.function = id, function
        self.vendor = VENDORS.get(function.vendor, function.vendor) if function else ""
        self.driver = function.driver if function else ""
        self.driver_version = function.driver_version if function else ""
        self.model = self.uuid = ""
        self.card = self.render = self.minor = -1
        self.nodes: list[sysfs.Node] = []
        self.needs: list[sysfs.Node] = []
        self.parts: list[Part] = []
        self.details: dict[str, str] = {}
        """What only some have: `vram` in bytes, `tiles`, `compute-partition`, `memory-partition`, …"""

    @property
    def address(self) -> str:
        return self.function.address if self.function else ""


def gpus(root: str = "/") -> list[Gpu]:
    """All GPUs, by id."""
    found: dict[str, Gpu] = {}
    for path, names in _drm(root).items():
        address = pci.above(path)
        function = pci.read(address, root)
        identity = address if function else _identity(path)
        gpu = found.setdefault(identity, Gpu(identity, function))
        if not function:
            # devices of the faux bus all have one driver there: their names say more
            driver = sysfs.base(f"{path}/driver")
            gpu.driver = driver if driver not in ("", "faux_driver") else path.rpartition("/")[2]
            gpu.driver_version = pci.module_version(path, gpu.driver, root)
        _drm_nodes(gpu, names, root)
    for card in nvidia.cards(root):
        function = pci.read(card.address, root)
        _nvidia(found.setdefault(card.address, Gpu(card.address, function)), card, root)
    for address in pci.addresses(root, DISPLAY):
        if address not in found:
            found[address] = Gpu(address, pci.read(address, root))
    agents = amd.agents(root)
    for gpu in found.values():
        if gpu.vendor == "amd":
            _amd(gpu, agents, root)
        elif gpu.vendor == "intel":
            _intel(gpu, root)
    # The render nodes of AMD's partitions have platform devices of their own: they are parts, or not in use.
    partitions = [id for id in found if id.startswith("platform/amdgpu_xcp")]
    for id in partitions:
        del found[id]
    return sorted(found.values(), key=lambda gpu: gpu.id)


def _drm(root: str) -> dict[str, list[str]]:
    """Directory of a device → names of its cards and render nodes. Connectors (`card0-DP-1`) are none."""
    folder = root.rstrip("/") + "/sys/class/drm"
    found: dict[str, list[str]] = {}
    for name in sysfs.names(folder):
        if _number(name, "card") >= 0 or _number(name, "renderD") >= 0:
            found.setdefault(sysfs.real(f"{folder}/{name}/device"), []).append(name)
    return found


def _number(name: str, prefix: str) -> int:
    return sysfs.integer(name[len(prefix) :]) if name.startswith(prefix) else -1


def _identity(path: str) -> str:
    """`platform/vgem`: what a device without a PCI address is called."""
    return "/".join(path.rpartition("/sys/devices/")[2].split("/")[-2:])


def _drm_nodes(gpu: Gpu, names: list[str], root: str) -> None:
    for name in names:
        is_card = name.startswith("card")
        node = sysfs.node(root, f"{root.rstrip('/')}/sys/class/drm/{name}", "card" if is_card else "render")
        if node is None:
            continue
        gpu.nodes.append(node)
        if is_card:
            gpu.card = _number(name, "card")
        else:
            gpu.render = _number(name, "renderD")


def _nvidia(gpu: Gpu, card: nvidia.Card, root: str) -> None:
    gpu.vendor, gpu.model, gpu.uuid, gpu.minor = "nvidia", card.model, card.uuid, card.minor
    gpu.driver = gpu.driver or "nvidia"
    gpu.driver_version = gpu.driver_version or nvidia.version(root)
    if card.excluded:
        gpu.details["excluded"] = "by the driver's options: it cannot be used"
    node = nvidia.card_node(card, root)
    if node is None:
        return
    gpu.nodes.insert(0, node)
    gpu.needs = nvidia.shared_nodes(root)
    for part in nvidia.slices(card.minor, root):
        name = f"gi{part.gi}/ci{part.ci}"
        uuid = f"MIG-{gpu.uuid}/{part.gi}/{part.ci}" if gpu.uuid else ""
        gpu.parts.append(
            Part(f"{gpu.id}/{name}", "mig", name, uuid, nvidia.slice_nodes(part, root), [node, *gpu.needs])
        )


def _amd(gpu: Gpu, agents: list[amd.Agent], root: str) -> None:
    if gpu.function is None:
        return
    path = gpu.function.path
    unique = sysfs.hexa(f"{path}/unique_id")
    gpu.uuid = unique if unique.strip("0") else ""
    gpu.model = sysfs.line(f"{path}/product_name")
    gpu.needs = amd.shared_nodes(root) if gpu.nodes else []
    _detail(gpu, {"compute-partition": "current_compute_partition", "memory-partition": "current_memory_partition"})
    vram = sysfs.number(f"{path}/mem_info_vram_total")
    if vram > 0:
        gpu.details["vram"] = str(vram)
    for index, agent in enumerate(amd.partitions(gpu.id, root, of=agents)):
        name = f"xcp{index}"
        node = sysfs.node(root, f"{root.rstrip('/')}/sys/class/drm/renderD{agent.render}", "render")
        uuid = f"{gpu.uuid or agent.unique_id}/{index}" if gpu.uuid or agent.unique_id else ""
        gpu.parts.append(Part(f"{gpu.id}/{name}", "xcp", name, uuid, [node] if node else [], gpu.needs))


def _intel(gpu: Gpu, root: str) -> None:
    function = gpu.function
    if function is None:
        return
    tiles = [name for name in sysfs.names(function.path) if _number(name, "tile") >= 0]
    if tiles:
        gpu.details["tiles"] = str(len(tiles))
    if function.physfn:
        # the driver counts virtual functions from 1
        owner = pci.read(function.physfn, root)
        index = owner.virtfns.index(function.address) + 1 if owner and function.address in owner.virtfns else 0
        quota = sysfs.number(f"{owner.path}/sriov_admin/vf{index}/profile/vram_quota") if owner and index else -1
        if quota > 0:
            gpu.details["vram"] = str(quota)


def _detail(gpu: Gpu, files: Mapping[str, str]) -> None:
    for key, file in files.items():
        value = sysfs.line(f"{gpu.function.path}/{file}") if gpu.function else ""
        if value:
            gpu.details[key] = value
