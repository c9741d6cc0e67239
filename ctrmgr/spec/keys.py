# SPDX-License-Identifier: GPL-3.0-or-later
"""Every key of an instance's `config:` that LXD or Incus documents, and ours.

A key is *done*, *refused* (with the reason: known, but launching with it would promise what does not happen) or *inert*
(kept for other programs: cloud-init data, what an image builder or another host noted down).
"""

from __future__ import annotations

from functools import partial

from ctrmgr.errors import SpecError
from ctrmgr.spec import values
from ctrmgr.spec.key import Key
from ctrmgr.spec.limits import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


RLIMITS = ("as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss",
           "rtprio", "rttime", "sigpending", "stack")  # fmt: skip

DONE: tuple[Key, ...] = (
    *LIMITS,
    Key("limits.memory.enforce", "hard, soft", "hard: never more; soft: taken back under pressure",
        parse=partial(values.one_of, ("hard", "soft")), default="hard", live=True),
    Key("limits.memory.oom_priority", "-1000–1000", "how much likelier than others its processes are killed when memory runs out; "
        "unsaid: as likely as who starts it", parse=values.oom_priority, live=True),
    Key("limits.gpu.memory", "size or %", "ours; device memory of each of its GPUs, unless its gpu device says otherwise; "
        "`info` says what enforces it", parse=values.memory, live=True),
    Key("limits.gpu.memory.reserve", "size or %", "ours; device memory of each of its GPUs that is kept for it",
        parse=values.memory, live=True),
    Key("limits.gpu.shares", "%", "ours; part of the time of each of its GPUs, where that can be shared out: virtual functions of xe",
        parse=values.share, live=True),
    Key("limits.gpu.priority", "priority 0–10", "ours; whose work its GPUs do first: 0–3 low, 4–6 normal, 7–10 high, where they "
        "have priorities", live=True),
    Key("limits.ingress", "bits", "ours; bits in a second that reach its link (`100Mbit`), unless its nic says otherwise",
        parse=values.bits, live=True),
    Key("limits.egress", "bits", "ours; bits in a second that its link may send, unless its nic says otherwise",
        parse=values.bits, live=True),
    Key("limits.network.priority", "priority 0–10", "priority of the packets that it sends, unless its nic says otherwise",
        live=True),
    Key("limits.kernel.*", "limit", "resource limit of processes (`limits.kernel.nofile: 1024:4096`)",
        parse=values.rlimit, suffix=RLIMITS.__contains__, live=True),
    Key("linux.sysctl.*", "string", "kernel parameter of its own namespaces (`linux.sysctl.net.ipv4.ip_forward`): net, fs.mqueue, "
        "and kernel.msg…, sem and shm…", parse=values.line, live=True),
    Key("limits.enforcement", "strict, best-effort", "ours; best-effort: go on without the limits that this host cannot enforce",
        parse=partial(values.one_of, ("strict", "best-effort")), default="strict"),
    Key("boot.autorestart", "boolean", "start again when init fails (not after a stop or a clean end)", default="false"),
    Key("boot.host_shutdown_timeout", "seconds", "how long init may take to shut down",
        parse=partial(values.between, 0, 86400), default="30"),
    Key("boot.autostart", "boolean", "start with the host", off=("false",),
        refused="nothing of ctrmgr runs at boot yet"),
    Key("environment.*", "string", "variable of the environment of init and of commands", parse=values.environment),
    Key("raw.idmap", "lines", "`uid|gid|both HOST-ID INSTANCE-ID`, ranges as `A-B`", parse=values.raw_idmap),
    Key("security.idmap.isolated", "boolean", "a range of host ids of its own (false: shared with all others that say false)",
        default="true"),
    Key("security.idmap.base", "host id", "the first host id; without it a free range is taken", parse=values.idmap_base),
    Key("security.idmap.size", "integer", "how many ids", parse=values.idmap_size, default="65536"),
    Key("security.nesting", "boolean", "let containers run inside: no masks over /proc and /sys", default="false"),
    Key("security.no_new_privs", "boolean", "ours; setuid and file capabilities do nothing inside", default="false"),
    Key("security.devices.image", "boolean", "ours; give it the devices that its image asks for; unsaid, such an image is refused"),
    Key("security.capabilities.drop", "capabilities", "ours; taken out of the bounding set", parse=values.capabilities),
    Key("security.capabilities.keep", "capabilities", "ours; put back into the bounding set", parse=values.capabilities),
    Key("security.syscalls.deny", "lines", "system calls that fail", parse=values.syscalls),
    Key("security.syscalls.deny_default", "boolean", "use the default policy", default="true"),
    Key("security.syscalls.deny_compat", "boolean", "no system calls of 32-bit programs", default="false"),
    Key("security.syscalls.allow", "lines", "the only system calls that do not kill", parse=values.syscalls),
    Key("security.syscalls.blacklist", "lines", "older name of `deny`", parse=values.syscalls),
    Key("security.syscalls.blacklist_default", "boolean", "older name of `deny_default`"),
    Key("security.syscalls.blacklist_compat", "boolean", "older name of `deny_compat`"),
    Key("security.syscalls.whitelist", "lines", "older name of `allow`", parse=values.syscalls),
)  # fmt: skip

OLD_NAMES = {
    "security.syscalls.blacklist": "security.syscalls.deny",
    "security.syscalls.blacklist_default": "security.syscalls.deny_default",
    "security.syscalls.blacklist_compat": "security.syscalls.deny_compat",
    "security.syscalls.whitelist": "security.syscalls.allow",
}


def _refused(reason: str, *names: str, off: tuple[str, ...] = ("false", "")) -> tuple[Key, ...]:
    return tuple(Key(name, "string", "known from LXD and Incus", refused=reason, off=off) for name in names)


VM = "it is for virtual machines, and ctrmgr runs containers"
REFUSED = (
    *_refused("a privileged container's root is the host's root: this is not what ctrmgr is for", "security.privileged"),
    *_refused("there is no daemon to answer inside", "security.devlxd", "security.devlxd.images", "security.guestapi",
              "security.guestapi.images", "security.devlxd.management.volumes"),
    *_refused("the host loads no modules for its guests: load them on the host", "linux.kernel_modules",
              "linux.kernel_modules.load"),
    *_refused("configuration of other programs cannot be checked", "raw.lxc", "raw.apparmor", "raw.seccomp", "raw.qemu",
              "raw.qemu.conf", "raw.qemu.qmp.early", "raw.qemu.qmp.post-start", "raw.qemu.qmp.pre-start",
              "raw.qemu.scriptlet"),
    *_refused("system calls are not intercepted by ctrmgr", "security.syscalls.intercept.bpf",
              "security.syscalls.intercept.bpf.devices", "security.syscalls.intercept.mknod",
              "security.syscalls.intercept.mount", "security.syscalls.intercept.mount.allowed",
              "security.syscalls.intercept.mount.fuse", "security.syscalls.intercept.mount.shift",
              "security.syscalls.intercept.sched_setscheduler", "security.syscalls.intercept.setxattr",
              "security.syscalls.intercept.sysinfo"),
    *_refused(VM, "security.agent.metrics", "security.csm", "security.secureboot", "security.sev",
              "security.sev.policy.es", "security.sev.session.data", "security.sev.session.dh", "security.iommu",
              "limits.memory.hugepages", "agent.nic_config", "limits.memory.hotplug"),
    *_refused("it is not done yet", "limits.disk", "limits.memory.percentage"),
    *_refused("no instance moves while it runs", "migration.incremental.memory", "migration.incremental.memory.goal",
              "migration.incremental.memory.iterations", "migration.stateful"),
    *_refused("this machine is no member of a cluster", "cluster.evacuate"),
    *_refused("nothing of ctrmgr runs by itself: snapshots are made by `snapshot create`", "snapshots.schedule",
              "snapshots.schedule.stopped"),
    *_refused("snapshots without a name are `snap0` and so on", "snapshots.pattern"),
    *_refused("snapshots stay until they are deleted", "snapshots.expiry", "snapshots.expiry.manual"),
    *_refused("a gpu device says it itself: `driver.capabilities`", "nvidia.driver.capabilities"),
    *_refused("what an image wants of NVIDIA's driver is not compared yet", "nvidia.require.cuda", "nvidia.require.driver"),
    *_refused("nothing of ctrmgr runs at boot or shutdown yet", "boot.autostart.delay", "boot.autostart.priority",
              "boot.stop.priority", "boot.host_shutdown_action", "boot.debug_edk2"),
    *_refused("instances are not protected yet", "security.protection.delete", "security.protection.shift",
              "security.protection.start"),
    *_refused("an OCI image's entry point is not run yet", "oci.entrypoint", "oci.cwd", "oci.uid", "oci.gid"),
    *_refused("it is not done yet", "security.bpffs.delegate_attachs", "security.bpffs.delegate_cmds",
              "security.bpffs.delegate_maps", "security.bpffs.delegate_progs", "security.bpffs.path",
              "security.delegate_bpf", "security.delegate_bpf.cmd_types", "security.delegate_bpf.map_types",
              "security.delegate_bpf.prog_types", "security.delegate_bpf.attach_types", "ubuntu_pro.guest_attach"),
)  # fmt: skip

INERT = (
    Key(
        "nvidia.runtime",
        "boolean",
        "a gpu device brings NVIDIA's files by itself (its `driver.capabilities`)",
        inert=True,
    ),
    Key("user.*", "string", "anything; read by people and programs of your own", inert=True),
    Key("image.*", "string", "what the image says about itself", inert=True),
    Key("volatile.*", "string", "what another host noted down; not taken over", inert=True),
    Key("cloud-init.*", "string", "data for cloud-init; kept, not handed in yet", inert=True),
    Key("smbios11.*", "string", "for virtual machines", inert=True),
    Key("placement.*", "string", "for clusters", inert=True),
    Key("cluster.*", "string", "for clusters", inert=True),
    Key("systemd.credential.*", "string", "credentials; kept, not handed in yet", inert=True),
    Key("systemd.credential-binary.*", "string", "credentials; kept, not handed in yet", inert=True),
)

KEYS: dict[str, Key] = {key.name: key for key in (*DONE, *REFUSED, *INERT)}
PREFIXES = {name[:-1]: key for name, key in KEYS.items() if name.endswith(".*")}


def lookup(name: str) -> Key:
    """The key's entry. Raises SpecError with the nearest known key as hint."""
    key = KEYS.get(name) if not name.endswith(".*") else None
    for prefix, found in PREFIXES.items():
        if key is None and name.startswith(prefix) and found.suffix(name[len(prefix) :]):
            key = found
    if key is None:
        raise SpecError(f"unknown key `{name}`", hint=near(name))
    return key


def near(name: str) -> str:
    from difflib import get_close_matches

    known = [key for key in KEYS if not key.endswith(".*")] + [f"limits.kernel.{limit}" for limit in RLIMITS]
    found = get_close_matches(name, known, 1, 0.6)
    return (
        f"did you mean `{found[0]}`?" if found else "docs/reference/config.md lists every key; your own begin `user.`"
    )


def check(name: str, value: str) -> str:
    """The value in its canonical form ("" unsets a key). Raises SpecError for an unknown key or a wrong value."""
    key = lookup(name)
    try:
        return key.parse(value) if value != "" else ""
    except ValueError as error:
        raise SpecError(f"`{name}`: `{value}` {error}", hint=f"{key.type}: {key.description}") from None


def refused(config: Mapping[str, str]) -> list[tuple[str, str]]:
    """(key, reason) of what a launch with this configuration would have to pretend."""
    found = []
    for name, value in config.items():
        key = lookup(name)
        off = ("", *key.off, *(values.FALSE if "false" in key.off else ()))
        if key.refused and value.lower() not in off:
            found.append((name, key.refused))
    return found
