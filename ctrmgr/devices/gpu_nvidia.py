# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's part of a GPU: MIG slices, the driver's own nodes, and the files that must be of its very version. Hot."""

from __future__ import annotations

from ctrmgr.devices import choose
from ctrmgr.edits import Mount
from ctrmgr.errors import HostError, NotFoundError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.host.gpu import Gpu, Part
    from ctrmgr.host.sysfs import Node

KNOWN = ("compute", "utility", "graphics", "video", "display")
DEFAULT = "compute,utility"
SHARED = {"uvm": "compute", "uvm-tools": "compute", "modeset": "graphics"}
"""Nodes of the driver → the capability that needs them; the control node is for all."""
OWN_MODES = {
    "gpu": 0o666,
    "control": 0o666,
    "uvm": 0o666,
    "uvm-tools": 0o666,
    "modeset": 0o666,
    "cap-gi": 0o444,
    "cap-ci": 0o444,
}
"""What the driver gives its own nodes."""
VERSION = "/proc/driver/nvidia/version"


def capabilities(value: str) -> str:
    """The key `driver.capabilities`."""
    words = [word.strip() for word in value.split(",")]
    if words in (["all"], ["none"]):
        return words[0]
    for word in words:
        if word not in KNOWN:
            raise ValueError(f"(`{word}`) is not one of {', '.join(KNOWN)}, `all` or `none`")
    return ",".join(dict.fromkeys(words))


def wanted(value: str) -> set[str]:
    """The capabilities that a canonical `driver.capabilities` means; none: nodes only."""
    words = value or DEFAULT
    found = set(KNOWN) if words == "all" else set() if words == "none" else set(words.split(","))
    return found | {"graphics"} if "display" in found else found


def needed(nodes: Sequence[Node], capabilities: set[str]) -> list[Node]:
    """Of the nodes that all GPUs of the driver share, those that these capabilities need; all when there are none."""
    return [node for node in nodes if node.role not in SHARED or not capabilities or SHARED[node.role] in capabilities]


def check(nodes: Sequence[Node]) -> None:
    """Raises HostError for nodes that the driver has not made yet, and which nothing works without."""
    for node in nodes:
        if not node.present and node.role not in ("uvm-tools", "modeset"):
            raise HostError(
                f"the driver has not made `{node.path}` yet", hint="`nvidia-modprobe -u -c 0` makes NVIDIA's nodes"
            )


def mig(values: Mapping[str, str], found: list[Gpu], selected: Mapping[str, str]) -> tuple[Gpu, Part]:
    """A slice by its UUID, or by the numbers of its two instances on one of the GPUs that the other keys fit."""
    uuid, gi, ci = (values.get(f"mig.{key}", "") for key in ("uuid", "gi", "ci"))
    if bool(gi) != bool(ci) or bool(uuid) == bool(gi):
        raise ValueError("`gputype: mig` needs `mig.uuid`, or `mig.gi` and `mig.ci`")
    slices = [(gpu, part) for gpu in found for part in gpu.parts if part.kind == "mig"]
    fits = [
        (gpu, part) for gpu, part in slices if (uuid and uuid == part.uuid) or (gi and part.name == f"gi{gi}/ci{ci}")
    ]
    said = {"mig.uuid": uuid} if uuid else {"mig.gi": gi, "mig.ci": ci}
    among = [part for _, part in slices]
    if not fits and uuid.startswith("MIG-") and not uuid.startswith("MIG-GPU-"):
        raise NotFoundError(
            f"`{uuid}` is a name that NVIDIA's driver tells only its own library",
            hint=f"say `mig.gi` and `mig.ci`: there are {choose.listed(among) or 'no slices'}",
        )
    part = choose.only("gpu", [part for _, part in fits], {**selected, **said}, among)
    return next(which for which in fits if which[1] is part)


def slice_files(minor: int, caps: Sequence[int], root: str) -> list[str]:
    """The driver's files that say which slice these capability nodes are of."""
    from ctrmgr.host import nvidia

    top = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig"
    found: list[str] = []
    for part in nvidia.slices(minor, root) if caps else ():
        if part.minors[1] in caps:
            found += [f"{top}/gi{part.gi}/access", f"{top}/gi{part.gi}/ci{part.ci}/access"]
    return found


def files(capabilities: set[str], nodes: Sequence[Node], root: str) -> tuple[list[Mount], list[list[str]]]:
    """Mounts and hooks of the driver's files. Raises HostError and NotFoundError when they are not there or of another version."""
    from ctrmgr.host import libraries, nvidia, nvidia_files

    version = nvidia.version(root)
    if "compute" in capabilities and all(node.role != "uvm" for node in nodes):
        raise HostError("NVIDIA's driver for compute programs is not loaded", hint="`modprobe nvidia-uvm`")
    found = nvidia_files.find(capabilities, version, root)
    if not found.folders:
        others = libraries.versions("libcuda.so", root) or libraries.versions("libnvidia-ml.so", root)
        if others:
            raise HostError(
                f"NVIDIA's driver in the kernel is {version}, its libraries on this host are {', '.join(others)}",
                hint="load the new driver (or reboot); `driver.capabilities=none` gives the nodes only",
            )
        raise NotFoundError(
            f"this host has no libraries of NVIDIA's driver {version}",
            hint="`driver.capabilities=none` gives the nodes only",
        )
    mounts = [Mount(source, target, ("ro", "nosuid", "nodev", "bind")) for source, target in found.mounts.items()]
    hooks = [["symlink", target, link] for target, link in found.links]
    # the plan has room for eight folders in a row
    hooks += [["ldcache", *found.folders[at : at + 8]] for at in range(0, len(found.folders), 8)]
    return mounts, hooks
