# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpudirect`: a GPU and the RDMA device that is nearest to it, which reaches its memory without the CPU's; ours."""

from __future__ import annotations

from ctrmgr.devices import choose, fields, gpu_nvidia, gpu_parts, infiniband
from ctrmgr.devices.driver import Field, Resolved
from ctrmgr.errors import HostError
from ctrmgr.host import pci

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways
    from ctrmgr.host.gpu import Gpu, Part
    from ctrmgr.host.rdma import Hca

    Pair = tuple[Gpu, Part | None, Hca]

live = True
WITHIN = "PXB"
FIELDS = {
    "gpu": Field(fields.word, "which GPU or slice, as `ctrmgr device list` names it; without it the one of the nearest pair"),
    "hca": Field(fields.word, "which RDMA device: `mlx5_0`, its network link, or its name of `ctrmgr device list`"),
    "within": Field(
        fields.choice(*pci.RELATIONS[1:]),
        "how far they may be apart, as `ctrmgr device tree` has it: PIX and PXB are PCIe switches alone",
        default=WITHIN,
    ),
    "peer-memory": Field(
        fields.choice("required", "unchecked"),
        "`required`: refused where the kernel does not say that the RDMA device can reach the GPU's memory",
        default="required",
    ),
    "driver.capabilities": Field(
        gpu_nvidia.capabilities, "what NVIDIA's driver files are for, as for a `gpu`", default=gpu_nvidia.DEFAULT
    ),
    **fields.OWNERSHIP,
}  # fmt: skip


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """Both devices' nodes and files, as one device. Raises NotFoundError, HostError."""
    gpu, part, hca = _nearest(values, root)
    proof = [] if values.get("peer-memory") == "unchecked" else [_proof(gpu, hca, root)]
    one = gpu_parts.resolved([(gpu, part)], values, root)
    other = infiniband.resolve(name, {"parent": hca.name}, root)
    return Resolved(
        one.edits.replace(device_nodes=[*one.edits.device_nodes, *other.edits.device_nodes]),
        identity=[*one.identity, *other.identity, *choose.identity(root, *proof)],
        lease=[*one.lease, *other.lease],
        optional=one.optional,
        hooks=one.hooks,
    )


def _nearest(values: Mapping[str, str], root: str) -> Pair:
    """Of the pairs that were meant the nearest; of those that are equally near one whose port is up, and whose GPU, then whose RDMA
    device, nobody or the fewest have."""
    from ctrmgr.host import gpu, rdma

    wish = choose.wishes()
    every, hcas = gpu.gpus(root), rdma.hcas(root)
    which = _gpus(values.get("gpu", ""), every)
    near = [each for each in hcas if each.function and each.nodes and _is(each, values.get("hca", ""))]
    if not near:
        raise choose.missing("infiniband", {"hca": values["hca"]} if "hca" in values else {}, hcas)
    ranked = sorted(
        (
            (pci.RELATIONS.index(pci.relation(one.function, hca.function)), not _is_up(hca), bool(hca.function.physfn),
             wish(part or one), wish(hca), part.id if part else one.id, hca.id, (one, part, hca))
            for one, part in which
            for hca in near
            if one.function and hca.function
        ),
        key=lambda row: row[:7],
    )  # fmt: skip
    distance, *_, pair = ranked[0]
    if distance > pci.RELATIONS.index(values.get("within") or WITHIN):
        relation = pci.RELATIONS[distance]
        raise HostError(
            f"the nearest are the GPU `{pair[0].id}` and the RDMA device `{pair[2].id}` ({pair[2].name}): {relation}, "
            f"{pci.MEANING[relation]}",
            hint=f"`ctrmgr device tree` draws them; `within={relation}` takes these",
        )
    return pair


def _gpus(wanted: str, every: list[Gpu]) -> list[tuple[Gpu, Part | None]]:
    """Whole GPUs, slices of those that are in slices, or what was named."""
    from ctrmgr.devices import gpu

    named = gpu_parts.named({"id": wanted}, every)
    if named:
        return [named]
    found: list[tuple[Gpu, Part | None]] = []
    for each in every:
        if each.function is None or (wanted and not gpu.FITS["id"](each, wanted)):
            continue
        slices = [part for part in each.parts if part.kind == "mig"]
        if slices and not wanted:
            found += [(each, part) for part in slices]
        elif wanted or gpu_parts.own_nodes(each, None, kms=False):
            found.append((each, None))
    if not found:
        raise choose.missing("gpu", {"gpu": wanted} if wanted else {}, every)
    return found


def _is(hca: Hca, wanted: str) -> bool:
    return not wanted or wanted in (hca.id, hca.name, hca.node_guid, *hca.netdevs)


def _is_up(hca: Hca) -> bool:
    return any(port.state == "ACTIVE" for port in hca.ports)


def _proof(gpu: Gpu, hca: Hca, root: str) -> str:
    from ctrmgr.host import peers

    file, why = peers.memory(gpu.vendor, hca.driver, root)
    if not file:
        raise HostError(
            f"`{hca.id}` ({hca.name}) cannot reach the memory of the GPU `{gpu.id}`: {why}",
            hint=f"{CURES.get(gpu.vendor, 'see the documentation of its driver')}; "
            "`peer-memory=unchecked` gives both all the same",
        )
    return file


CURES = {
    "nvidia": "`modprobe nvidia_peermem`, or NVIDIA's open kernel modules with Linux 5.12",
    "amd": "a kernel with CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY, or amdgpu and RDMA of one vendor's packages",
    "intel": "a kernel with CONFIG_PCI_P2PDMA",
}


# On servers


def lxd_ways() -> Ways:
    """Servers have no such type."""
    from ctrmgr.devices import lxd

    means = lxd.mapped(
        "on a server of this machine the nodes and files of the pair that it means; another machine's are not told"
    )
    return {
        **dict.fromkeys(("gpu", "hca", "within", "peer-memory", "driver.capabilities"), means),
        **lxd.NODE,
        "required": lxd.mapped("`false`: left away when it is not there"),
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Nodes and files of the pair that is nearest now."""
    from ctrmgr.devices import lxd

    if not there.root:
        return lxd.refuse(
            name, f"no server has the type `gpudirect`, and {lxd.ELSEWHERE}: give a `gpu` and an `infiniband` device"
        )
    return lxd.of_this_machine("gpudirect", name, values, there)
