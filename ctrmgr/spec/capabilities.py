# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's capabilities, and which of them an instance's processes can never gain."""

from __future__ import annotations

NAMES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(NAMES)}

DROPPED = {
    "sys_module": "kernel modules are the host's; the kernel checks it against the host alone",
    "sys_rawio": "I/O ports, /dev/mem and raw SCSI commands reach the hardware past every other limit",
    "sys_time": "there is one wall clock",
    "sys_pacct": "process accounting writes one file for the machine",
    "mac_admin": "the security module's policy is the host's",
    "mac_override": "the same: it is what confines the instance",
    "audit_control": "one audit configuration for the machine",
    "audit_read": "the audit log tells about everybody",
    "syslog": "the kernel's log shows addresses and other instances' messages",
    "wake_alarm": "waking the machine from suspend is the host's business",
    "block_suspend": "so is keeping it awake",
    "perfmon": "performance counters see other instances and the kernel",
    "bpf": "the verifier is the kernel's richest source of escalations; nothing in a system container needs it",
    "linux_immutable": "an immutable file in the instance could not be removed with it",
}
"""Capability → why it is not in the default bounding set.

Most would be void in a user namespace anyway; dropped, they also are for a kernel that checks them in the wrong namespace,
which is how such holes have looked. `sys_boot` stays: reboot(2) in a pid namespace ends init, which is how an instance
shuts itself down. `mknod`, `sys_admin` and `net_admin` stay: they hold over the instance's own namespaces only, and init
systems need them.
"""

ALL = (1 << len(NAMES)) - 1


def mask(drop: str = "", keep: str = "") -> int:
    """The bounding set: all but `DROPPED` and `drop`, with `keep` brought back (canonical names between blanks)."""
    bits = ALL
    for name in (*DROPPED, *drop.split()):
        bits &= ~(1 << NUMBERS[name])
    for name in keep.split():
        bits |= 1 << NUMBERS[name]
    return bits
