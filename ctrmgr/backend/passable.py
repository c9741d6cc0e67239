# SPDX-License-Identifier: GPL-3.0-or-later
"""What giving a device of this machine to a container does, in CDI's words: for other runtimes, too. Cold."""

from __future__ import annotations

import os
import stat

from ctrmgr.backend import catalog
from ctrmgr.devices import driver
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook
from ctrmgr.errors import CtrmgrError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.inventory import Device

KINDS = ("gpu", "accel", "infiniband")
"""What is described when nothing is asked for by name: disks and sticks are not handed around in that way."""
HOOKS = ("/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk")


class Described:
    """A device by the name that it has in a specification, and why it has no edits, if it has none."""

    __slots__ = ("device", "edits", "name", "reason")

    def __init__(self, device: Device, edits: ContainerEdits, reason: str = "") -> None:
        self.device, self.edits, self.reason = device, edits, reason
        self.name = name(device)


def name(device: Device) -> str:
    """`gpu-0000:18:00.0`: letters that a CDI name may have."""
    return plain(f"{device.kind}-{device.id.lstrip('/')}")


def plain(words: str) -> str:
    """With the letters that a CDI name may have."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-.:") else "-" for letter in words
    ).strip("-_.:")


def described(wanted: Sequence[str] = (), root: str = "/") -> list[Described]:
    """The devices that are named, or all GPUs, accelerators and RDMA devices; what cannot be given has a reason instead of edits.

    Raises NotFoundError and SpecError for a name that fits none or several.
    """
    every = catalog.devices(root, holders=False)
    chosen = [catalog.find(word, every) for word in wanted] or [device for device in every if device.kind in KINDS]
    found = []
    for device in dict.fromkeys(chosen):
        try:
            found.append(Described(device, _edits(device, root)))
        except CtrmgrError as error:
            found.append(Described(device, ContainerEdits(), error.message))
    return found


def _edits(device: Device, root: str) -> ContainerEdits:
    resolve = getattr(driver.load(device.kind), "resolve", None)
    if resolve is None:
        nodes = [DeviceNode(node.path, type=node.kind[0]) for node in device.nodes if node.present]
        return ContainerEdits(device_nodes=[numbered(node, root) for node in nodes])
    resolved = resolve(device.kind, {"id": device.id}, root)
    nodes = [node for node in resolved.edits.device_nodes if node.path not in resolved.optional]
    program = hook_program(root)
    hooks = [hook(program, words) for words in resolved.hooks] if program else []
    found: ContainerEdits = resolved.edits.replace(
        device_nodes=tuple(numbered(node, root) for node in nodes), hooks=tuple(hooks)
    )
    return found


def numbered(node: DeviceNode, root: str) -> DeviceNode:
    """The node with its number: a runtime need not look, and a device that has another one later is not taken for it."""
    try:
        status = os.stat(root.rstrip("/") + node.source)
    except OSError:
        return node
    if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        return node
    return node.replace(major=os.major(status.st_rdev), minor=os.minor(status.st_rdev))


def hook_program(root: str) -> str:
    """NVIDIA's program for hooks, or "" where it is not installed."""
    return next((path for path in HOOKS if os.path.exists(root.rstrip("/") + path)), "")


def hook(program: str, words: Sequence[str]) -> Hook:
    """What is done inside as a hook of NVIDIA's own program, which every runtime can call."""
    base = program.rpartition("/")[2]
    first = [base, "hook"] if base == "nvidia-ctk" else [base]
    if words[0] == "symlink":
        return Hook("createContainer", program, [*first, "create-symlinks", "--link", f"{words[1]}::{words[2]}"])
    if words[0] == "chmod":
        return Hook("createContainer", program, [*first, "chmod", "--mode", words[1], "--path", words[2]])
    folders = [word for folder in words[1:] for word in ("--folder", folder)]
    return Hook("createContainer", program, [*first, "update-ldcache", *folders])
