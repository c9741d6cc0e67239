# SPDX-License-Identifier: GPL-3.0-or-later
"""A plugin that makes what it gives: a block device of the size that is asked for, gone when the instance stops.

It stands for a card whose firmware is told to set a slice aside, and to forget it. The pool is what all slices share, whoever
made them: `size: 8MiB` and `partition: bytes=8MiB` come to the same here.
"""

from __future__ import annotations

import errno
import fcntl
import os

from ctrmgr.devices.plugin import Allocation, ContainerEdits, DeviceNode, Field, Found, Host, Partition, Plugin
from ctrmgr.devices.request import amount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ctrmgr.devices.plugin import Holder

FOLDER = "/run/demo-scratch"
POOL = 64 << 20
PAGE = 4096
MOST = 16
"""So many slices can be at a time, as if there were numbers for so many nodes."""
LOOP_SET_FD, LOOP_CLR_FD, LOOP_CTL_GET_FREE = 0x4C00, 0x4C01, 0x4C82


def whole_pages(text: str) -> str:
    size = int(amount(text))
    if not 0 < size <= POOL or size % PAGE:
        raise ValueError(f"is not a multiple of 4KiB up to {POOL >> 20}MiB")
    return str(size)


class Scratch(Plugin):
    type = "demo-scratch"
    description = "block devices in memory, as an example"
    FIELDS = {"size": Field(whole_pages, "how large it is, such as 8MiB", default=str(1 << 20))}

    def identify(self, host: Host) -> list[Found]:
        if "loop-control" not in host.names("/dev"):
            return []
        return [
            Found(
                "memory",
                model="scratch",
                vendor="demo",
                functions={"storage.scratch": {"speed": "fast"}},
                shared=0,  # any number, as long as the pool lasts
                pools={"bytes": POOL},
                partitions=MOST,
            )
        ]

    def allocate(self, values: Mapping[str, str], found: Sequence[Found], holders: Sequence[Holder]) -> Allocation:  # noqa: ARG002
        """What is taken from the pool; ctrmgr refuses it when not so much is left."""
        return Allocation(found[0], takes={"bytes": int(values.get("size", 1 << 20))})

    def partitions(self, found: Sequence[Found]) -> list[Partition]:
        """What there is, if another user has made it, too. A file that is not bound yet is a slice already."""
        there = []
        for name in os.listdir(FOLDER) if os.path.isdir(FOLDER) else ():
            try:
                size = os.stat(f"{FOLDER}/{name}").st_size
            except FileNotFoundError:
                continue  # released since it was listed
            there.append(Partition(found[0].id, name, {"bytes": size}))
        return there

    def divide(self, found: Found, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]) -> Allocation:  # noqa: ARG002
        """Whole pages, as many as are needed."""
        return Allocation(found, takes={"bytes": -(-takes["bytes"] // PAGE) * PAGE})

    def prepare(self, allocation: Allocation) -> ContainerEdits:
        os.makedirs(FOLDER, mode=0o700, exist_ok=True)
        file = os.open(backing(allocation), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, allocation.takes["bytes"])
            node = bind(file)
        finally:
            os.close(file)
        return ContainerEdits(
            env=[f"SCRATCH_BYTES={allocation.takes['bytes']}"],
            device_nodes=[DeviceNode("/dev/scratch", host_path=node)],
        )

    def release(self, allocation: Allocation) -> None:
        """As much as there is: `prepare` may have been killed after any of its steps."""
        for node in bound(backing(allocation)):
            disk = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(disk, LOOP_CLR_FD)
            finally:
                os.close(disk)
        try:
            os.unlink(backing(allocation))
        except FileNotFoundError:
            pass


def backing(allocation: Allocation) -> str:
    """The id is another one for each allocation: whose file it is can be told even if nothing else is left."""
    return f"{FOLDER}/{allocation.id}"


def bind(file: int) -> str:
    """A free loop device on a file."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            node = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            disk = os.open(node, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(disk, LOOP_SET_FD, file)
                return node
            except OSError as error:
                if error.errno != errno.EBUSY:  # somebody was faster
                    raise
            finally:
                os.close(disk)
    finally:
        os.close(control)


def bound(path: str) -> Iterator[str]:
    """The loop devices on a file."""
    for name in os.listdir("/sys/block"):
        try:
            with open(f"/sys/block/{name}/loop/backing_file", encoding="utf-8") as file:
                found = file.read().strip()
        except OSError:
            continue
        if found == path:
            yield f"/dev/{name}"
