# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration and devices of ours as a server has them. Every key is native, mapped, left out because it is so anyway, or refused with
the reason, before anything is made.

Keys of the instance stand here, those of devices with their drivers (`lxd_ways`, `lxd_device`). What is in no table is newer than
this program: it goes as it is, and the server judges it.
"""

from __future__ import annotations

from ctrmgr.devices import driver
from ctrmgr.devices.lxd import FALSE, NATIVE, TRUE, Made, There, Way, lacks, left_out, mapped, native, refused
from ctrmgr.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ctrmgr.remote.server import Server


# What keys of the instance become


def _no_new_privs(value: str) -> dict[str, str]:
    return {"raw.lxc": "lxc.no_new_privs = 1"} if value.lower() in TRUE else {}


def _drop(value: str) -> dict[str, str]:
    names = [word.lower().removeprefix("cap_") for word in value.replace(",", " ").split()]
    return {"raw.lxc": f"lxc.cap.drop = {' '.join(names)}"}


def _strict(value: str, there: There) -> str:
    return "a server goes on without limits that it cannot enforce" if value == "strict" else ""


def _swap(value: str, there: There) -> str:
    if value.lower() in (*TRUE, *FALSE) or there.has("instance_memory_swap_bytes"):
        return ""
    return "an amount of swap needs API extension `instance_memory_swap_bytes`"


def _numa(value: str, there: There) -> str:
    if value == "devices":
        return "a server does not look where its devices are: say the nodes"
    return lacks("numa_cpu_balanced") if value == "balanced" and not there.has("numa_cpu_balanced") else ""


NO_SERVER = "no server has it"
FILES = refused("it is a file of a cgroup of ctrmgr's own; a server takes `raw.lxc: lxc.cgroup2.… = …`")
NIC = refused("of servers it is a key of the `nic` device")
GPUS = refused("a server limits no GPUs")
BPFFS, BPF = native("bpf_token_delegation"), native("container_bpf_delegation")

CONFIG: dict[str, Way] = {
    "agent.nic_config": native("agent_nic_config"),
    "boot.autorestart": native("instance_auto_restart"),
    "boot.autostart": NATIVE,
    "boot.autostart.*": NATIVE,
    "boot.debug_edk2": refused("it is for virtual machines"),
    "boot.host_shutdown_action": native("boot_host_shutdown_action"),
    "boot.host_shutdown_timeout": native("container_host_shutdown_timeout"),
    "boot.stop.priority": native("container_stop_priority"),
    "cloud-init.*": native("cloud_init"),
    "cluster.*": NATIVE,
    "cluster.evacuate": native("clustering_evacuation"),
    "environment.*": NATIVE,
    "image.*": NATIVE,
    "limits.cpu": NATIVE,
    "limits.cpu.allowance": NATIVE,
    "limits.cpu.nodes": native(
        "numa_cpu_placement", "`devices` is refused, `balanced` needs `numa_cpu_balanced`", judge=_numa
    ),
    "limits.cpu.priority": NATIVE,
    "limits.disk": refused(NO_SERVER),
    "limits.disk.priority": NATIVE,
    "limits.egress": NIC,
    "limits.enforcement": left_out("servers are best-effort; `strict` is refused", judge=_strict),
    "limits.gpu.*": GPUS,
    "limits.hugepages.*": native("limits_hugepages"),
    "limits.ingress": NIC,
    "limits.kernel.*": native("kernel_limits"),
    "limits.memory": NATIVE,
    "limits.memory.enforce": NATIVE,
    "limits.memory.hotplug": native("limits_memory_hotplug"),
    "limits.memory.hugepages": NATIVE,
    "limits.memory.oom_group": FILES,
    "limits.memory.oom_priority": native("instance_limits_oom"),
    "limits.memory.percentage": refused(NO_SERVER),
    "limits.memory.swap": native(why="an amount needs `instance_memory_swap_bytes`", judge=_swap),
    "limits.memory.swap.priority": NATIVE,
    "limits.misc.*": FILES,
    "limits.network.priority": native(
        why="`limits.priority` of the `nic` device has taken its place", until="instances_nic_limits_priority"
    ),
    "limits.processes": NATIVE,
    "limits.rdma.*": FILES,
    "linux.kernel_modules": NATIVE,
    "linux.kernel_modules.load": native("container_syscall_intercept_finit_module"),
    "linux.sysctl.*": native("linux_sysctl"),
    "migration.*": native("migration_pre_copy"),
    "migration.stateful": native("migration_stateful"),
    "nvidia.*": native("nvidia_runtime_config"),
    "nvidia.runtime": native("nvidia_runtime"),
    "oci.*": native("instance_oci_entrypoint"),
    "placement.*": native("instance_placement_groups"),
    "raw.*": NATIVE,
    "raw.idmap": native("id_map"),
    "raw.qemu.conf": native("qemu_raw_conf"),
    "raw.qemu.qmp.*": native("qemu_raw_qmp"),
    "raw.qemu.scriptlet": native("qemu_scriptlet"),
    "security.agent.metrics": NATIVE,
    "security.bpffs.*": BPFFS,
    "security.capabilities.drop": mapped("`raw.lxc: lxc.cap.drop`", map=_drop),
    "security.capabilities.keep": refused("the server chooses what an instance may keep"),
    "security.csm": native("security_csm"),
    "security.delegate_bpf": BPF,
    "security.delegate_bpf.*": BPF,
    "security.devices.image": refused("a server asks no image for devices", *FALSE),
    "security.devlxd": native(why="`security.guestapi` on Incus"),
    "security.devlxd.images": native(why="`security.guestapi.images` on Incus"),
    "security.devlxd.management.volumes": native("devlxd_volume_management"),
    "security.guestapi": native(why="`security.devlxd` on LXD"),
    "security.guestapi.images": native(why="`security.devlxd.images` on LXD"),
    "security.idmap.base": native("id_map_base"),
    "security.idmap.isolated": native("id_map"),
    "security.idmap.size": native("id_map"),
    "security.iommu": native("security_iommu"),
    "security.nesting": NATIVE,
    "security.no_new_privs": mapped("`raw.lxc: lxc.no_new_privs`", map=_no_new_privs),
    "security.privileged": NATIVE,
    "security.protection.delete": native("container_protection_delete"),
    "security.protection.shift": native("container_protection_shift"),
    "security.protection.start": native("instance_protection_start"),
    "security.secureboot": NATIVE,
    "security.sev": native("amd_sev"),
    "security.sev.*": native("amd_sev"),
    "security.syscalls.*": native("container_syscall_filtering"),
    "security.syscalls.intercept.*": native("seccomp_notify"),
    "security.syscalls.intercept.bpf": native("container_syscall_intercept_bpf_devices"),
    "security.syscalls.intercept.bpf.*": native("container_syscall_intercept_bpf_devices"),
    "security.syscalls.intercept.mknod": native("container_syscall_intercept"),
    "security.syscalls.intercept.mount": native("container_syscall_intercept_mount"),
    "security.syscalls.intercept.mount.*": native("container_syscall_intercept_mount"),
    "security.syscalls.intercept.mount.fuse": native("container_syscall_intercept_mount_fuse"),
    "security.syscalls.intercept.sched_setscheduler": native("container_syscall_intercept_sched_setscheduler"),
    "security.syscalls.intercept.setxattr": native("container_syscall_intercept"),
    "security.syscalls.intercept.sysinfo": native("container_syscall_intercept_sysinfo"),
    "smbios11.*": native("instance_smbios11"),
    "snapshots.*": native("snapshot_scheduling"),
    "snapshots.expiry": native("snapshot_expiry"),
    "snapshots.expiry.manual": native("snapshot_manual_expiry"),
    "systemd.credential.*": native("instance_systemd_credentials"),
    "systemd.credential-binary.*": native("instance_systemd_credentials"),
    "ubuntu_pro.guest_attach": native("ubuntu_pro_guest_attach"),
    "unified.*": FILES,
    "user.*": NATIVE,
    "volatile.*": left_out("another host's notes"),
}
"""Every key that we know. A key's own entry counts before that of the longest prefix."""

GUEST = {"security.devlxd": "security.guestapi", "security.devlxd.images": "security.guestapi.images"}
"""LXD's name → Incus'."""

TYPES = {
    "disk": "",
    "gpu": "gpu_devices",
    "infiniband": "infiniband",
    "nic": "",
    "none": "",
    "pci": "pci_device_type",
    "proxy": "proxy",
    "tpm": "tpm_device_type",
    "unix-block": "",
    "unix-char": "",
    "unix-hotplug": "unix_hotplug_devices",
    "usb": "usb_devices",
}
"""The servers' device types → the extension that brought it."""
NATIVE_TYPES = tuple(kind for kind, extension in TYPES.items() if not extension)
NODES = ("unix-block", "unix-char")
CHOICE = frozenset((
    "busnum", "count", "devnum", "gputype", "id", "mdev", "mig.ci", "mig.gi", "mig.uuid", "nictype", "partition", "pci", "productid",
    "serial", "subsystem", "uuid", "vendorid",
))  # fmt: skip
"""Keys that say which device is meant."""
PARTS = "user.ctrmgr.parts."
"""+ device: the devices and keys of the server's that it has become, for the detach."""


class Translated(Made):
    """What goes to the server."""

    def refuse(self, server: str) -> None:
        """Raises UnsupportedError with the list of what the server cannot do."""
        if not self.problems:
            return
        key, reason = self.problems[0]
        rest = "".join(f"\n`{other}`: {why}" for other, why in self.problems[1:])
        raise UnsupportedError(f"`{server}` cannot do `{key}`: {reason}{rest}", hint="nothing was made or changed")

    def go_on(self) -> list[str]:
        """Leave out what cannot go, and a device whole when it would be another without the key. Returns what to tell."""
        told = []
        for place, reason in self.problems:
            name = next((name for name in self.devices if place.startswith(f"{name}.")), place)
            if place.removeprefix(f"{name}.") in CHOICE:
                for part in self.parts.pop(name, [name]):
                    self.devices.pop(part, None)
                self.names = [each for each in self.names if each[0] in self.devices]
                place = name
            told.append(f"`{place}` was left out: {reason}")
        self.problems = []
        return told


class Live(There):
    """A server, asked when it matters: an attach of a node does without any of this."""

    def __init__(self, server: Server, *, placing: bool = False) -> None:
        super().__init__(placing=placing)
        self.server = server
        self._told: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        return str(self.server.info["environment"]["server"]).lower()

    def has(self, extension: str) -> bool:
        return extension in self.server.extensions

    @property
    def _alone(self) -> bool:
        """What it has is what the instance will see: of a cluster that depends on the member."""
        return not self.server.info["environment"].get("server_clustered")

    @property
    def resources(self) -> Mapping[str, Any] | None:
        if self._told is None and self._alone and self.has("resources_v2"):
            self._told = self.server.get("/resources")
        return self._told

    @property
    def root(self) -> str:
        return "/" if self._alone and is_here(self.server) else ""


DAEMONS = frozenset(("lxd", "incusd", "lxd-user", "incus-user", "systemd"))
"""Whose socket it is: the server's own, its proxy's for users, or that of who starts it on demand."""


def is_here(server: Server) -> bool:
    """Whether a server sees the files of this machine: who listens at its unix socket is one of our processes, not one that passes
    everything on, and its kernel is ours."""
    import os
    import socket
    import struct

    path = server.target.path
    if not path or server.info["environment"].get("kernel_version") != os.uname().release:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
            own.connect(path)
            pid = struct.unpack("3i", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:  # 0: of another container
            return file.read().strip() in DAEMONS
    except OSError:
        return False


def way(key: str) -> Way | None:
    """The entry for a key: its own, or that of the longest prefix."""
    if key in CONFIG:
        return CONFIG[key]
    fits = [name for name in CONFIG if name.endswith("*") and key.startswith(name[:-1])]
    return CONFIG[max(fits, key=len)] if fits else None


def translate(config: Mapping[str, str], devices: Mapping[str, Mapping[str, str]], there: There) -> Translated:
    """What the instance's own keys say counts before what a device wants of them."""
    found, wanted = Translated(), Made()
    for key, value in config.items():
        _config(found, key, value, there)
    there.nodes = frozenset(keys.get("source") or keys.get("path", "") for keys in devices.values())
    for name, keys in devices.items():
        made = _device(name, keys, there)
        for other in sorted(set(made.devices) & {*wanted.devices, *(set(devices) - {name})}):
            made.problems.append((name, f"it becomes several devices, and there is another `{other}`"))
        wanted.add(made)
    said = dict(found.config)
    found.add(wanted)
    found.config = {**wanted.config, **said}
    for name, parts in wanted.parts.items():
        found.config[PARTS + name] = " ".join(part for part in parts if part not in said)
    return found


def _config(found: Translated, key: str, value: str, there: There) -> None:
    entry = way(key) or NATIVE
    if reason := entry.reason(value, there):
        found.problems.append((key, reason))
    elif entry.how == "native":
        found.config[_by_kind(key, there)] = value
    elif entry.map and value:
        for other, text in entry.map(value).items():
            before = found.config.get(other, "")
            found.config[other] = f"{before}\n{text}" if before else text


def _by_kind(key: str, there: There) -> str:
    if not key.startswith(("security.devlxd", "security.guestapi")):
        return key
    if there.kind == "incus":
        return GUEST.get(key, key)
    return {incus: lxd for lxd, incus in GUEST.items()}.get(key, key)


def _device(name: str, keys: Mapping[str, str], there: There) -> Made:
    kind = keys.get("type", "")
    made = Made()
    if kind in driver.DRIVERS:
        own = {key: value for key, value in keys.items() if key != "type"}
        made = driver.load(kind).lxd_device(name, own, there)
    elif kind in TYPES:
        made.devices[name] = made.own(name, keys)
    else:
        made.problems.append((name, f"no server has the type `{kind}`"))
    for extension in sorted({TYPES[each["type"]] for each in made.devices.values()} - {""}):
        if not there.has(extension):
            made.problems.append((name, lacks(extension)))
    if any(place == name for place, _ in made.problems):
        made.devices, made.names, made.config, made.parts = {}, [], {}, {}
    return made
