# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration and devices of ours as a server has them. Every key is native, mapped, or refused with the reason; pure.

What is not in these tables is LXD's own: it goes as it is, and the server judges it.
"""

from __future__ import annotations

from ctrmgr.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Way:
    """How a key gets to a server: `extension` is what the server must have; `map` makes other keys of it, or says no.

    `note` is for the reference.
    """

    __slots__ = ("extension", "map", "note", "refused")

    def __init__(
        self,
        note: str = "",
        *,
        extension: str = "",
        map: Callable[[str], dict[str, str]] | None = None,
        refused: Callable[[str], str] | str = "",
    ) -> None:
        self.note, self.extension, self.map, self.refused = note, extension, map, refused


TRUE = ("true", "1", "yes", "on")


def _no_new_privs(value: str) -> dict[str, str]:
    return {"raw.lxc": "lxc.no_new_privs = 1"} if value in TRUE else {}


def _drop(value: str) -> dict[str, str]:
    return {"raw.lxc": f"lxc.cap.drop = {value.replace(',', ' ')}"}


def _strict(value: str) -> str:
    return "a server goes on without limits that it cannot enforce" if value == "strict" else ""


def _swap(value: str) -> str:
    return "" if value in ("true", "false") else "an amount of swap needs `instance_memory_swap_bytes`"


CONFIG: dict[str, Way] = {
    "limits.enforcement": Way("left out: servers are best-effort", map=lambda value: {}, refused=_strict),
    "security.no_new_privs": Way("`raw.lxc: lxc.no_new_privs`", map=_no_new_privs),
    "security.capabilities.drop": Way("`raw.lxc: lxc.cap.drop`", map=_drop),
    "security.capabilities.keep": Way(refused="the server chooses what an instance may keep"),
    "boot.autorestart": Way(extension="instance_auto_restart"),
    "boot.host_shutdown_timeout": Way(extension="container_host_shutdown_timeout"),
    "cloud-init.*": Way(extension="cloud_init"),
    "limits.cpu.nodes": Way(extension="numa_cpu_placement"),
    "limits.hugepages.*": Way(extension="limits_hugepages"),
    "limits.kernel.*": Way(extension="kernel_limits"),
    "limits.memory.swap": Way("an amount needs `instance_memory_swap_bytes`"),
    "linux.sysctl.*": Way(extension="linux_sysctl"),
    "nvidia.*": Way(extension="nvidia_runtime"),
    "raw.idmap": Way(extension="id_map"),
    "security.idmap.base": Way(extension="id_map_base"),
    "security.idmap.isolated": Way(extension="id_map"),
    "security.idmap.size": Way(extension="id_map"),
    "security.protection.delete": Way(extension="container_protection_delete"),
    "security.syscalls.*": Way(extension="container_syscall_filtering"),
    "security.syscalls.intercept.*": Way(extension="seccomp_notify"),
    "smbios11.*": Way(extension="instance_smbios11"),
    "snapshots.*": Way(extension="snapshot_scheduling"),
    "systemd.credential.*": Way(refused="no server has it that we know"),
    "volatile.*": Way("left out: another host's notes", map=lambda value: {}),
}
"""Keys that do not simply go as they are. The longest name that fits counts."""

GUEST = {"security.devlxd": "security.guestapi", "security.devlxd.images": "security.guestapi.images"}
"""LXD's name → Incus'."""

TYPES = {
    "gpu": "gpu_devices",
    "infiniband": "infiniband",
    "pci": "pci_device_type",
    "proxy": "proxy",
    "tpm": "tpm_device_type",
    "unix-hotplug": "unix_hotplug_devices",
    "usb": "usb_devices",
}
"""Device type → the extension that brought it."""
NATIVE = ("disk", "nic", "none", "unix-block", "unix-char")
NODES = ("unix-block", "unix-char")


class Translated:
    """What goes to the server. `names` are owners that the image has to be asked about: device, key (`uid`, `gid`) and name."""

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.devices: dict[str, dict[str, str]] = {}
        self.names: list[tuple[str, str, str]] = []
        self.problems: list[tuple[str, str]] = []

    def refuse(self, server: str) -> None:
        """Raises UnsupportedError with the list of what the server cannot do."""
        if not self.problems:
            return
        key, reason = self.problems[0]
        rest = "".join(f"\n`{other}`: {why}" for other, why in self.problems[1:])
        raise UnsupportedError(f"`{server}` cannot do `{key}`: {reason}{rest}", hint="nothing was made or changed")


def way(key: str) -> Way | None:
    """The entry for a key: its own, or that of the longest prefix."""
    if key in CONFIG:
        return CONFIG[key]
    fits = [name for name in CONFIG if name.endswith("*") and key.startswith(name[:-1])]
    return CONFIG[max(fits, key=len)] if fits else None


def translate(
    config: Mapping[str, str],
    devices: Mapping[str, Mapping[str, str]],
    *,
    kind: str,
    extensions: Iterable[str],
    ours: Iterable[str] = (),
) -> Translated:
    """`kind` is `lxd` or `incus`; `ours` are keys that only ctrmgr has."""
    found, has, own = Translated(), frozenset(extensions), frozenset(ours)
    for key, value in config.items():
        _config(found, key, value, kind, has, own)
    for name, keys in devices.items():
        _device(found, name, keys, has)
    return found


def _config(found: Translated, key: str, value: str, kind: str, has: frozenset[str], own: frozenset[str]) -> None:
    entry = way(key)
    if value == "":
        if entry is None or not entry.map:
            found.config[key] = ""
        return
    if entry is None:
        if key in own or any(name.endswith("*") and key.startswith(name[:-1]) for name in own):
            found.problems.append((key, "it is ctrmgr's own"))
            return
        found.config[_by_kind(key, kind)] = value
        return
    refused = entry.refused(value) if callable(entry.refused) else entry.refused
    if not refused and entry.extension and entry.extension not in has:
        refused = f"it has no API extension `{entry.extension}`"
    if key == "limits.memory.swap" and "instance_memory_swap_bytes" not in has:
        refused = _swap(value)
    if refused:
        found.problems.append((key, refused))
    elif entry.map:
        for other, text in entry.map(value).items():
            before = found.config.get(other, "")
            found.config[other] = f"{before}\n{text}" if before else text
    else:
        found.config[_by_kind(key, kind)] = value


def _by_kind(key: str, kind: str) -> str:
    if kind == "incus":
        return GUEST.get(key, key)
    return {incus: lxd for lxd, incus in GUEST.items()}.get(key, key)


def _device(found: Translated, name: str, keys: Mapping[str, str], has: frozenset[str]) -> None:
    kind = keys.get("type", "")
    extension = TYPES.get(kind)
    if extension is None and kind not in NATIVE:
        found.problems.append((f"{name}", f"no server has the type `{kind}`"))
        return
    if keys.get("partition"):
        found.problems.append(
            (f"{name}.partition", "a server divides no device: give it a slice that is there (`gputype: mig`)")
        )
        return
    if kind == "gpu" and "/" in keys.get("id", ""):
        extension = "gpu_cdi"  # `id` is the name of a device of a CDI specification
    if extension and extension not in has:
        found.problems.append((name, f"it has no API extension `{extension}`"))
        return
    if kind in NODES:
        _node(found, name, keys)
        return
    if kind == "nic" and keys.get("nictype") == "host":
        found.problems.append((name, "a server gives no instance its own network"))
        return
    found.devices[name] = dict(keys)


def _node(found: Translated, name: str, keys: Mapping[str, str]) -> None:
    made: dict[str, str] = {}
    for key, value in keys.items():
        target = {"user": "uid", "group": "gid"}.get(key, key)
        if key in ("readonly", "ownership.inherit"):
            if value in TRUE:
                reason = "without a device program the mode alone says who may write"
                found.problems.append((f"{name}.{key}", reason if key == "readonly" else "say uid, gid and mode"))
        elif target in ("uid", "gid") and not value.isdecimal():
            found.names.append((name, target, value))
        else:
            made[target] = value
    found.devices[name] = made
