# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles + image + overrides + host → the rows of a template. Cold: this is where pydantic and YAML are paid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ctrmgr.devices import driver
from ctrmgr.devices import rows as parts
from ctrmgr.errors import NotFoundError, SpecError, UnsupportedError
from ctrmgr.host.machine import Host
from ctrmgr.plan import (
    device_limits,
    folders,
    gpu_limits,
    limits,
    link_limits,
    numa,
    oom,
    raw_limits,
    rlimits,
    seccomp,
    sysctl,
    template,
)
from ctrmgr.spec import capabilities, device, keys, limit_files, profile, values
from ctrmgr.spec import limits as limit_keys

if TYPE_CHECKING:
    from ctrmgr.images.store import Image

Config = Mapping[str, str]
Devices = Mapping[str, Mapping[str, str]]
Rows = Sequence[Sequence[str]]

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "TERM": "linux",
    # systemd and the distributions' units look for this word to know where they are.
    "container": "lxc",
}

MASKED = (
    "/proc/kcore",  # the kernel's memory
    "/proc/keys", "/proc/key-users",  # keyrings have no namespace of their own
    "/proc/latency_stats", "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats",  # processes of everybody
    "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup",  # physical pages
    "/proc/kallsyms", "/proc/modules",  # where the kernel's code lies
    "/proc/scsi", "/proc/acpi",
    "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security",
    "/sys/devices/virtual/powercap",  # energy counters tell what others compute
)  # fmt: skip

READONLY = (
    "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger", "/proc/mtrr",
    "/sys/kernel", "/sys/module", "/sys/power", "/sys/fs/pstore", "/sys/fs/bpf",
)  # fmt: skip
"""Owned by ids that the instance does not map, and thus out of its reach already: this holds where a kernel checks less.
`/proc/sys` stays writable, because what an instance can write there belongs to its own namespaces."""

APPARMOR = "ctrmgr-instance"
CONSOLE_SIZE = 1 << 20
ROOM = {"device": (128, "device nodes"), "bind": (128, "mounts of devices"), "filesystem": (32, "file systems of devices"), "device-group": (32, "groups of devices"), "hook": (64, "hooks of devices"), "hotplug": (32, "devices that come and go"),
        "resctrl": (16, "devices that put it into a class"), "device-env": (128, "variables of devices"), "env": (127, "variables of the environment"),
        "rlimit": (16, "resource limits"), "cgroup-file": (64, "limits"), "sysctl": (64, "kernel parameters")}  # fmt: skip
"""Row → how many of it the monitor has room for (`native_helpers/plan.h`), and what people call them."""


def compile_template(
    image: Image,
    profiles: Sequence[str],
    config: Config,
    devices: Devices,
    *,
    ignore_unsupported: bool = False,
    old: Rows = (),
) -> list[list[str]]:
    """The template's rows; kept for `template.cached` when nothing but the profiles went into it.

    Raises NotFoundError for a missing profile, SpecError, UnsupportedError naming a key that is known but not done (unless
    `ignore_unsupported`) or cannot be enforced on this host, HostError, HelperError.
    """
    specs = profile.load_all(find(name) for name in profiles)
    ours = {profile.check_device_name(name): device.check(name, given) for name, given in devices.items()}
    merged, _ = profile.merge(specs, config, ours)
    merged, found = profile.merge([_asked(image, merged, specs, ours), *specs], config, ours)
    host = Host()
    rows = build(image, merged, found, host, ignore_unsupported=ignore_unsupported, old=old)
    rows = link_limits.possible(rows, best_effort=merged.get("limits.enforcement") == "best-effort")
    policy = seccomp.policy(merged, seccomp.default_policy())
    rows.append(["seccomp", seccomp.compiled(policy)])
    if not config and not devices and not ignore_unsupported:
        files = [
            rows[-1][1],
            __file__,
            keys.__file__,
            limits.__file__,
            limit_keys.__file__,
            limit_files.__file__,
            device_limits.__file__,
            gpu_limits.__file__,
            link_limits.__file__,
            numa.__file__,
            oom.__file__,
            raw_limits.__file__,
            rlimits.__file__,
            sysctl.__file__,
            seccomp.default_policy_path(),
        ]
        files += ["/etc/subuid", f"/etc/apparmor.d/{APPARMOR}"]
        files += [file for each in driver.PLUGINS.values() if (file := getattr(each, "file", ""))]
        template.store(image, profiles, rows, files)
    return rows


IMAGES_MAY = ("min-memory", "min-cores", "with", "required", "path", "uid", "gid", "user", "group", "mode")
"""Keys beside the function that an image may use: it does not know this machine, and is a stranger to it."""


def _asked(image: Image, config: Config, specs: Sequence[profile.ProfileSpec], own: Devices) -> profile.ProfileSpec:
    """The devices that an image asks for and is allowed, as the weakest of all profiles.

    Raises SpecError, also when nobody has said whether it is to get them.
    """
    answered = {*own, *(name for spec in specs for name in spec.devices)}
    wanted = {name: given for name, given in asked(image).items() if name not in answered}
    word = config.get("security.devices.image", "")
    if wanted and not word:
        listed = ", ".join(f"`{name}` ({given['function']})" for name, given in wanted.items())
        hint = "`-c security.devices.image=true` gives it what fits, `false` launches it without"
        raise SpecError(f"the image asks for devices: {listed}", hint=hint)
    return profile.ProfileSpec.model_validate({"devices": wanted if values.is_true(word) else {}})


def asked(image: Image) -> dict[str, dict[str, str]]:
    """The devices that an image asks for by what they can do. Raises SpecError."""
    devices = {}
    for key, value in image.metadata.items():
        name = key.removeprefix("function.")
        if name == key:
            continue
        function, *words = value.split() or [""]
        given = dict(word.partition("=")[::2] for word in words)
        try:
            profile.check_device_name(name)
            if other := sorted(set(given) - set(IMAGES_MAY)):
                raise SpecError(f"device `{name}`: `{other[0]}` is not for images to say")
            if not function or not all(given.values()):
                raise SpecError(f"device `{name}`: `{value}` is not a function and KEY=VALUE words")
            if function.startswith("storage.block"):
                raise SpecError(f"device `{name}`: no image is given disks of the host")
            devices[name] = device.check(name, {**given, "type": "any", "function": function})
        except SpecError as error:
            raise SpecError(f"the image asks for something strange: {error.message}", hint=error.hint) from None
    return devices


def find(name: str) -> str:
    """The file of a profile. Raises NotFoundError with the nearest name as hint, SpecError for what cannot be a name."""
    path = folders.find(profile.check_name(name))
    if path is None:
        near = get_close_matches(name, [known for known, _ in folders.names()], 1)
        hint = f"did you mean `{near[0]}`?" if near else "`ctrmgr profile list` shows what there is"
        raise NotFoundError(f"no profile `{name}`", hint=hint)
    return path


def build(
    image: Image,
    config: Config,
    devices: Mapping[str, dict[str, str]],
    host: Host,
    *,
    ignore_unsupported: bool = False,
    old: Rows = (),
) -> list[list[str]]:
    """The rows, all but the system call filter. Pure: everything about the host comes from `host`. `old` is the plan that the instance
    has: what has moved into it is not on the host."""
    problems = [*keys.refused(config), *device.refused(devices)]
    if problems and not ignore_unsupported:
        lines = "\n".join(f"`{key}` cannot be done: {reason}" for key, reason in problems)
        what = "it" if len(problems) == 1 else "them"
        raise UnsupportedError(lines, hint=f"`--ignore-unsupported` goes on without {what}")
    rows = [["@ignored", key, reason] for key, reason in problems]
    rows += [["@config", key, value] for key, value in sorted(config.items())]
    rows += _ids(config)
    rows.append(["layer", image.rootfs])
    refused = {key for key, _ in problems}
    usable = {
        name: {key: value for key, value in given.items() if f"{name}.{key}" not in refused}
        for name, given in devices.items()
        if name not in refused
    }
    device_rows = [row for name, given in usable.items() for row in _device(name, given, host, old)]
    if config.get(numa.KEY) == numa.DEVICES:
        device_rows += numa.watched(device_rows, host)
    made = limits.rows(numa.placed(config, device_rows, host, old), host)
    rows += [*made, *numa.follows(config, made)]
    best_effort = config.get("limits.enforcement") == "best-effort"
    device_rows = device_limits.resolve(device_rows, host, best_effort=best_effort)
    device_rows = gpu_limits.resolve(device_rows, gpu_limits.defaults(config), host, best_effort=best_effort)
    limits.agree(made, device_rows)
    rows += gpu_limits.kept(config)
    rows += _network(device_rows, config)
    rows += sysctl.rows(config, host, is_host_network=["net", "host"] in rows)
    rows += _init(image, config)
    rows += _confinement(config, host, pins=any(row[0] == "rdma" for row in device_rows))
    rows += parts.shared([row for row in device_rows if row[0] in parts.WORDS])
    rows.append(["restart", "on-failure" if values.is_true(config.get("boot.autorestart")) else "no"])
    rows.append(["console-size", str(CONSOLE_SIZE)])
    for word, (most, what) in ROOM.items():
        count = sum(row[0] == word or (row[0], word) == ("device-limit", "cgroup-file") for row in rows)
        if count > most:
            raise SpecError(f"{count} {what} are too many", hint=f"an instance has at most {most}")
    return rows


def _device(name: str, given: dict[str, str], host: Host, old: Rows) -> list[list[str]]:
    try:
        return parts.rows(name, given, host.root)
    except NotFoundError:
        kept = parts.moved(name, old)
        if not kept:
            raise
        return kept


def _ids(config: Config) -> list[list[str]]:
    isolated = values.is_true(config.get("security.idmap.isolated", "true"))
    base = config.get("security.idmap.base", "0")
    if base != "0" and not isolated:
        raise SpecError("`security.idmap.base` is for an isolated instance", hint="`security.idmap.isolated: true`")
    rows = [["@ids", config.get("security.idmap.size", "65536"), base, "1" if isolated else "0"]]
    for kind, inside, outside, count in values.raw_idmap_rows(config.get("raw.idmap", "")):
        rows.append(["@idmap", kind, str(inside), str(outside), str(count)])
    return rows


def _network(rows: Sequence[list[str]], config: Config) -> list[list[str]]:
    modes = sorted({row[1] for row in rows if row[0] == "net"})
    if len(modes) > 1:
        raise SpecError("the host's network and a bridge exclude each other", hint="take one of the nic devices out")
    links = [row for row in rows if row[0] == "@link"]
    if len(links) > 1:
        raise UnsupportedError(
            f"`{links[1][2]}`: an instance has one link to a bridge for now", hint="take one of the nic devices out"
        )
    found = [["net", modes[0] if modes else "none"], *links]
    past = link_limits.moves_past(config, rows)
    limited = [row for row in rows if row[0] == "@limit"]
    return found + (past if past and not limited else [*_link_limits(limited, config, modes), *past])


def _link_limits(rows: Sequence[list[str]], config: Config, modes: Sequence[str]) -> list[list[str]]:
    """`link-limit` rows: what the nic says, or else the instance's own keys."""
    given = [key for key in link_limits.KEYS if key in config]
    why = "an instance in the host's network has no link of its own" if modes == ["host"] else "it has no link"
    if given and modes == ["host"] and config.get("limits.enforcement") != "best-effort":
        hint = "take the nic of `nictype: host` out"
        raise UnsupportedError(f"`{given[0]}` cannot be enforced here: {why}", hint=hint)
    if not rows:
        word = "cannot be enforced here" if modes == ["host"] else "has nothing to limit"
        return [limits.left_out(key, f"`{key}` {word}: {why}") for key in given]
    found: list[list[str]] = []
    for _, inside, *own in rows:
        ingress, egress, priority = (
            said or config.get(key, "") for said, key in zip(own, link_limits.KEYS, strict=True)
        )
        if ingress or egress or priority:
            # The monitor takes the highest number for no priority of its own.
            found.append(["link-limit", inside, ingress or "0", egress or "0", priority or link_limits.NONE[2]])
    return found


def _init(image: Image, config: Config) -> list[list[str]]:
    environment = dict(ENVIRONMENT)
    for key, value in config.items():
        if key.startswith("environment."):
            environment[key.removeprefix("environment.")] = value
    rows = [["init", image.metadata.get("init") or "builtin"]]
    rows += [["env", f"{name}={value}"] for name, value in environment.items()]
    rows.append(["halt-signal", image.metadata.get("halt-signal") or "15"])
    rows.append(["stop-timeout", config.get("boot.host_shutdown_timeout", "30")])
    return rows


def _confinement(config: Config, host: Host, *, pins: bool) -> list[list[str]]:
    drop, keep = (config.get(f"security.capabilities.{what}", "") for what in ("drop", "keep"))
    # What a newer kernel has and we do not know is dropped, too.
    kept = capabilities.mask(drop, keep) & ((1 << (host.last_capability + 1)) - 1)
    nesting = values.is_true(config.get("security.nesting"))
    rows = [
        ["capabilities", f"{kept:x}"],
        ["no-new-privs", "1" if values.is_true(config.get("security.no_new_privs")) else "0"],
        ["nesting", "1" if nesting else "0"],
    ]
    if APPARMOR in host.apparmor:
        rows.append(["apparmor", APPARMOR])
    rows += rlimits.rows(config, host, pins=pins)
    rows += oom.rows(config, host)
    if not nesting:
        rows += [["mask", path] for path in MASKED]
        rows += [["readonly", path] for path in READONLY]
    return rows


def ignored(rows: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """(key, reason) of what a template leaves out, for the caller to say."""
    return [(row[1], row[2]) for row in rows if row[0] == "@ignored"]


def merged(profiles: Sequence[str], config: Config) -> Config:
    """The keys that count. Raises NotFoundError for a missing profile, SpecError."""
    return profile.merge([profile.load(find(name)) for name in profiles], config, {})[0]


def recompile(
    name: str, image: Image, profiles: Sequence[str], config: Config, devices: Devices, old: Sequence[Sequence[str]]
) -> list[list[str]]:
    """The plan of an instance again, after its keys or devices changed: it keeps its ids, addresses and links.

    Raises what `compile_template` does, and ConflictError when it would need other ids or addresses.
    """
    from ctrmgr.plan import instance

    rows = compile_template(image, profiles, config, devices, old=old)
    return instance.fill(rows, name=name, claims=instance.held(instance.needs(rows), name, old), old=old)
