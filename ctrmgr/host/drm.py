# SPDX-License-Identifier: GPL-3.0-or-later
"""What processes do with GPUs and accelerators: the `drm-*` keys that drivers write into `/proc/PID/fdinfo`. Cold.

A *client* is one opening of a device. Descriptors that were duplicated or inherited are the same client, and count once.
"""

from __future__ import annotations

import os

from ctrmgr.host import sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAJORS = (226, 261)
"""DRM and accel; `/proc/devices` may name others."""
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LOCAL = ("vram", "local", "lmem", "stolen-local")
"""How drivers call the memory that is on the device."""


class Client:
    """`engines` has, for each, the (time, period) counters: nanoseconds of 10^9 a second (period is None), or cycles of
    however many went by. `capacity` is how many of an engine there are. `memory` is in bytes by region."""

    __slots__ = ("capacity", "device", "driver", "engines", "id", "memory")

    def __init__(self, device: str, driver: str, id: str) -> None:
        self.device, self.driver, self.id = device, driver, id
        self.engines: dict[str, tuple[int, int | None]] = {}
        self.capacity: dict[str, int] = {}
        self.memory: dict[str, int] = {}

    def used(self) -> int | None:
        """Bytes on the device; of a device without memory of its own, bytes of the machine's."""
        local = [size for region, size in self.memory.items() if region.startswith(LOCAL)]
        sizes = local or list(self.memory.values())
        return sum(sizes) if sizes else None


def clients(pids: Iterable[int], root: str = "/") -> dict[tuple[str, str], Client]:
    """All clients of these processes by device and id."""
    prefix = root.rstrip("/")
    known = majors(root)
    found: dict[tuple[str, str], Client] = {}
    for pid in pids:
        for number, text in _descriptors(f"{prefix}/proc/{pid}", known):
            client = parse(text, "")
            if client is None:
                continue
            client.device = client.device or _device(number, prefix)
            found.setdefault((client.device, client.id), client)
    return found


def majors(root: str = "/") -> frozenset[int]:
    """The numbers of device nodes that have clients."""
    named = sysfs.majors(root)
    return frozenset((*MAJORS, *(named[name] for name in ("drm", "accel") if name in named)))


def _descriptors(folder: str, known: frozenset[int]) -> Iterator[tuple[tuple[int, int], str]]:
    """Number of the node and text of the fdinfo. What a descriptor leads to is asked of the kernel, whatever its name is."""
    for name in sysfs.names(f"{folder}/fd"):
        try:
            number = os.stat(f"{folder}/fd/{name}").st_rdev
        except OSError:
            continue
        if os.major(number) in known:
            yield (os.major(number), os.minor(number)), sysfs.text(f"{folder}/fdinfo/{name}")


def _device(number: tuple[int, int], prefix: str) -> str:
    """Of a driver that does not say `drm-pdev`: the name that `ctrmgr device list` has for it."""
    path = sysfs.real(f"{prefix}/sys/dev/char/{number[0]}:{number[1]}/device")
    return "/".join(path.rpartition("/sys/devices/")[2].split("/")[-2:]) if "/sys/devices/" in path else ""


def parse(text: str, device: str) -> Client | None:
    """A client from one fdinfo; None when the driver writes no `drm-*` keys."""
    given = sysfs.fields(text.split("\n"), ":")
    id = given.get("drm-client-id", "")
    if not id:
        return None
    client = Client(given.get("drm-pdev", device), given.get("drm-driver", ""), id)
    resident: dict[str, int] = {}
    total: dict[str, int] = {}
    for key, value in given.items():
        what, _, name = key.removeprefix("drm-").partition("-")
        if not key.startswith("drm-") or not name:
            continue
        if what == "engine" and name.startswith("capacity-"):
            client.capacity[name.removeprefix("capacity-")] = max(1, sysfs.integer(value, 1))
        elif what == "engine" and value.endswith(" ns"):
            client.engines[name] = (max(0, sysfs.integer(value.split()[0], 0)), None)
        elif what in ("resident", "memory"):
            # `drm-memory-` is what the older kernels say for `drm-resident-`
            if what == "resident" or name not in resident:
                _size(resident, name, value)
        elif what == "total" and not name.startswith("cycles-"):
            _size(total, name, value)
    for name, cycles in _prefixed(given, "drm-cycles-"):
        period = sysfs.integer(given.get(f"drm-total-cycles-{name}", ""))
        if cycles >= 0 and period >= 0:
            client.engines.setdefault(name, (cycles, period))
    client.memory = {**total, **resident}
    return client


def _prefixed(given: dict[str, str], prefix: str) -> Iterator[tuple[str, int]]:
    for key, value in given.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), sysfs.integer(value.partition(" ")[0])


def _size(into: dict[str, int], region: str, value: str) -> None:
    number, _, unit = value.partition(" ")
    size = sysfs.integer(number)
    if size >= 0 and unit in UNITS:
        into[region] = size * UNITS[unit]


def busy(before: Client, after: Client, seconds: float) -> dict[str, float]:
    """Per cent of each engine that a client had between two readings."""
    found = {}
    for name, (time, period) in after.engines.items():
        earlier = before.engines.get(name)
        if earlier is None or time < earlier[0]:
            continue
        whole = seconds * 1e9 if period is None else period - (earlier[1] or 0)
        if whole > 0:
            found[name] = min(100.0, 100.0 * (time - earlier[0]) / whole / after.capacity.get(name, 1))
    return found
