# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs made from specs: for a host whose root is elsewhere, and without repetition."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from ctrmgr.cdi import write
from ctrmgr.cdi.model import CdiSpec
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, variable
from ctrmgr.errors import SpecError

IN_CONTAINER = ("createContainer", "startContainer")
"""Hooks that run in the container's namespaces: the paths that they are given are its own."""

T = TypeVar("T")


def changed(spec: CdiSpec, common: ContainerEdits, own: Sequence[ContainerEdits]) -> CdiSpec:
    """The spec with other edits, those for all and each device's own, and with the version that they need."""
    content = spec.data()
    content["containerEdits"] = write.data(common)
    for device, edits in zip(content["devices"], own, strict=True):
        device["containerEdits"] = write.data(edits)
    return write.at_lowest(spec.kind, content)


def _edits(spec: CdiSpec) -> tuple[ContainerEdits, list[ContainerEdits]]:
    return spec.container_edits.value(), [device.container_edits.value() for device in spec.devices]


# Another root


def root(spec: CdiSpec, old: str, new: str, relative_to: str = "host") -> CdiSpec:
    """Paths below `old` become paths below `new`: those of the host, or (`container`) those inside.

    `/driver` does not touch `/driver2`. A hook's own path is the host's, but for `startContainer`; arguments are changed as well,
    `target::link` in both halves, where they are of the asked side.
    """
    for path in (old, new):
        if not path.startswith("/") or ".." in path.split("/"):
            raise SpecError(f"`{path}` is not an absolute path without `..`")
    change = mover(old, new)
    apply = _host_root if relative_to == "host" else _container_root
    common, own = _edits(spec)
    return changed(spec, apply(common, change), [apply(edits, change) for edits in own])


def mover(old: str, new: str) -> Callable[[str], str]:
    """What changes the root of one path."""
    prefix = old.rstrip("/") + "/"

    def move(path: str) -> str:
        if not f"{path}/".startswith(prefix):
            return path
        return os.path.normpath(f"{new.rstrip('/')}/{f'{path}/'[len(prefix) :]}")

    return move


def _argument(text: str, move: Callable[[str], str]) -> str:
    return "::".join(move(part) for part in text.split("::", 1))


def _host_root(edits: ContainerEdits, move: Callable[[str], str]) -> ContainerEdits:
    def node(one: DeviceNode) -> DeviceNode:
        moved = move(one.source)
        # A node that stays where it is needs no newer version of the specification for saying so.
        return one.replace(host_path=moved if one.host_path or moved != one.path else "")

    def hook(one: Hook) -> Hook:
        path = one.path if one.hook_name == "startContainer" else move(one.path)
        args = one.args if one.hook_name in IN_CONTAINER else [_argument(text, move) for text in one.args]
        return one.replace(path=path, args=args)

    return edits.replace(
        device_nodes=[node(one) for one in edits.device_nodes],
        mounts=[one.replace(host_path=move(one.host_path)) for one in edits.mounts],
        hooks=[hook(one) for one in edits.hooks],
    )


def _container_root(edits: ContainerEdits, move: Callable[[str], str]) -> ContainerEdits:
    def node(one: DeviceNode) -> DeviceNode:
        moved = move(one.path)
        return one.replace(path=moved, host_path=one.host_path or (one.path if moved != one.path else ""))

    def hook(one: Hook) -> Hook:
        if one.hook_name not in IN_CONTAINER:
            return one
        path = move(one.path) if one.hook_name == "startContainer" else one.path
        return one.replace(path=path, args=[_argument(text, move) for text in one.args])

    return edits.replace(
        device_nodes=[node(one) for one in edits.device_nodes],
        mounts=[one.replace(container_path=move(one.container_path)) for one in edits.mounts],
        hooks=[hook(one) for one in edits.hooks],
    )


# Without repetition


def simplify(spec: CdiSpec) -> CdiSpec:
    """What every device does is said once, for all of them, and nothing is said twice.

    Asking for any of the devices does the same as before. That is why something stays where it is when two different values are
    there for one name or path, when a hook would run before another that it followed, or when nothing would be left of a device.
    """
    common, own = _edits(spec)
    common, own = common.merged(), [edits.merged() or edits for edits in own]
    everyone = [common, *own]
    env = _Agreed((edits.env for edits in everyone), variable)
    nodes = _Agreed((edits.device_nodes for edits in everyone), lambda node: node.path)
    nets = _Agreed((edits.net_devices for edits in everyone), lambda device: device.host_interface_name)
    mounts = _Agreed((edits.mounts for edits in everyone), lambda mount: mount.container_path)
    gids = _Agreed((edits.additional_gids for edits in everyone), lambda gid: gid)
    hooks = _first_hooks([[hook for hook in edits.hooks if hook not in common.hooks] for edits in own])
    settings = {edits.intel_rdt for edits in own}
    rdt = own[0].intel_rdt if len(own) > 1 and len(settings) == 1 else None
    shared = (env.shared(), nodes.shared(), nets.shared(), mounts.shared(), hooks, rdt, gids.shared())
    wide = common.add(ContainerEdits(*shared)).merged()

    def rest(edits: ContainerEdits, wide: ContainerEdits) -> ContainerEdits:
        done = wide.intel_rdt is not None and settings - {None} == {wide.intel_rdt}
        return ContainerEdits(
            env.rest(edits.env, wide.env),
            nodes.rest(edits.device_nodes, wide.device_nodes),
            nets.rest(edits.net_devices, wide.net_devices),
            mounts.rest(edits.mounts, wide.mounts),
            [hook for hook in edits.hooks if hook not in wide.hooks],
            None if done else edits.intel_rdt,
            gids.rest(edits.additional_gids, wide.additional_gids),
        )

    rests = [rest(edits, wide) for edits in own]
    if not all(rests):
        wide = common
        rests = [rest(edits, wide) or edits for edits in own]
    return changed(spec, wide, rests)


class _Agreed(Generic[T]):
    """One kind of edits, of all devices and (first) of the whole spec: what may be moved."""

    def __init__(self, lists: Iterable[Sequence[T]], key: Callable[[T], Hashable]) -> None:
        self.key = key
        self.common, *self.own = lists
        self.meanings: dict[Hashable, set[T]] = {}
        for values in (self.common, *self.own):
            for value in values:
                self.meanings.setdefault(key(value), set()).add(value)

    def agreed(self, value: T) -> bool:
        return len(self.meanings[self.key(value)]) == 1

    def shared(self) -> list[T]:
        """What all devices have, and nobody has otherwise."""
        if len(self.own) < 2:
            return []
        in_all = set.intersection(*map(set, self.own))
        return [value for value in self.own[0] if value in in_all and self.agreed(value)]

    def rest(self, values: Iterable[T], done: Iterable[T]) -> list[T]:
        """What a device has beyond what is done for all."""
        there = set(done)
        return [value for value in values if value not in there or not self.agreed(value)]


def _first_hooks(lists: Sequence[Sequence[Hook]]) -> list[Hook]:
    """The hooks that all devices begin with: said for all, they run when they ran."""
    found: list[Hook] = []
    if len(lists) > 1:
        for hooks in zip(*lists, strict=False):
            if len(set(hooks)) > 1:
                break
            found.append(hooks[0])
    return found
