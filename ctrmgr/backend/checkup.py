# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's half of `ctrmgr doctor`: what it lacks, and what dead commands and monitors have left on it. Cold."""

from __future__ import annotations

import os
from functools import partial

from ctrmgr import __version__, state
from ctrmgr.backend import ended, held, leases, record, repair
from ctrmgr.errors import ConflictError, HelperError
from ctrmgr.host import cgroup, features, lsm, subid, tpm
from ctrmgr.kernel import helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OK, NOTE, WRONG, MENDED = "ok", "note", "wrong", "mended"
HOST = "host"

NEEDS = (5, 9)
FILESYSTEMS = ("devpts", "mqueue", "overlay", "proc", "sysfs", "tmpfs")
LIMITS = {"cpu": "limits.cpu.allowance", "cpuset": "limits.cpu", "io": "limits.disk.priority", "memory": "limits.memory",
          "pids": "limits.processes", "hugetlb": "limits.hugepages", "rdma": "limits.rdma", "misc": "limits.misc"}  # fmt: skip
"""Controller → the keys that need it."""
V1_NAMES = {"io": "blkio"}
HELPERS = ("ctrmgr-exec", "ctrmgr-hook", "ctrmgr-init", "ctrmgr-monitor", "ctrmgr-net", "ctrmgr-seccomp", "ctrmgr-tpm")
MARK = b"@(#)ctrmgr-version "
APPARMOR = "ctrmgr-instance"


class Finding:
    """`subject` (`host` or an instance), what was looked at, and what was found; `mend` puts it right."""

    __slots__ = ("check", "hint", "mend", "status", "subject", "text")

    def __init__(
        self,
        subject: str,
        check: str,
        status: str,
        text: str,
        *,
        hint: str = "",
        mend: Callable[[], object] | None = None,
    ) -> None:
        self.subject, self.check, self.status, self.text = subject, check, status, text
        self.hint, self.mend = hint or ("`ctrmgr doctor --fix` mends it" if mend else ""), mend

    @property
    def key(self) -> tuple[str, str, str]:
        return self.subject, self.check, self.text


def host(root: str = "/") -> Iterator[Finding]:
    """Everything that is not about one instance; `root` is where the kernel's files are looked for."""
    yield from kernel(root)
    yield from cgroups(root)
    yield from modules(root)
    yield from ids(root)
    yield from emulators(root)
    yield from helpers()
    yield from left_over()


def kernel(root: str = "/") -> Iterator[Finding]:
    version = features.kernel_version(root)
    name = "Linux " + ".".join(map(str, version))
    lacks = []
    if _text(root, "proc/sys/user/max_user_namespaces") == "0":
        lacks.append(("user namespaces are switched off", "sysctl user.max_user_namespaces=10000"))
    if not os.path.exists(f"{root}/proc/sys/kernel/seccomp"):
        lacks.append(("has no seccomp", "CONFIG_SECCOMP_FILTER"))
    if version < NEEDS:
        lacks.append((f"{name} is older than 5.9", "docs/reference/kernel.md"))
    for text, cure in lacks:
        yield Finding(HOST, "kernel", WRONG, text, hint=cure)
    if not lacks:
        yield Finding(HOST, "kernel", OK, name)
    known = _text(root, "proc/filesystems").split()
    missing = [filesystem for filesystem in FILESYSTEMS if filesystem not in known]
    if missing:
        text = f"not there, unless as modules that are loaded when they are needed: {', '.join(missing)}"
        yield Finding(HOST, "kernel", NOTE, text)
    if NEEDS <= version < (5, 19):
        yield Finding(
            HOST, "kernel", NOTE, "before 5.19 an image's layers are copied for each instance, with its owners"
        )


def cgroups(root: str = "/") -> Iterator[Finding]:
    found = cgroup.read(root)
    layout = {"v2": "pure cgroup2", "hybrid": "cgroup2 beside v1 controllers", "v1": "v1 alone", "none": "none"}[
        found.layout
    ]
    if found.layout == "none":
        yield Finding(HOST, "cgroups", WRONG, "none are mounted", hint="mount cgroup2 on /sys/fs/cgroup")
        return
    yield Finding(HOST, "cgroups", OK, layout)
    if not found.unified:
        yield Finding(HOST, "cgroups", NOTE, "without cgroup2 there is no freeze, and no device program but v1's rules")
    without = [
        key for name, key in LIMITS.items() if not found.where(name) and not found.where(V1_NAMES.get(name, name))
    ]
    if without:
        yield Finding(HOST, "limits", NOTE, f"cannot be enforced, there is no controller: {', '.join(without)}")


def modules(root: str = "/") -> Iterator[Finding]:
    """Security modules, and what they make possible."""
    active = lsm.active(root)
    yield Finding(
        HOST, "modules", OK, f"security modules: {', '.join(sorted(active - {'capability'})) or 'none known'}"
    )
    if "apparmor" in active and APPARMOR not in lsm.apparmor_profiles(root):
        text = f"AppArmor is on, but its profile `{APPARMOR}` is not loaded: instances run without it"
        yield Finding(
            HOST, "modules", WRONG, text, hint="`scripts/install` loads it, if the package `apparmor` is there"
        )
    reason = lsm.no_fence(root)
    yield Finding(HOST, "open-fds", NOTE if reason else OK, f"held: {reason}" if reason else "revoked")


def ids(root: str = "/") -> Iterator[Finding]:
    """The ranges that instances' ids come from: are there any left, and has somebody else the same?"""
    user = subid.user_name(os.geteuid())
    ranges = subid.allowed(user, os.geteuid(), root)
    room = sum(count for _, count in ranges) // 65536
    if not room:
        text = f"`{user}` has no 65536 ids for an instance"
        yield Finding(HOST, "ids", WRONG, text, hint=f"`{user}:1000000:1000000` in /etc/subuid and /etc/subgid")
        return
    yield Finding(HOST, "ids", OK, f"room for {room} instances, {len(state.claims('ids'))} in use")
    for file in ("subuid", "subgid"):
        for line in _text(root, f"etc/{file}").splitlines():
            other, *numbers = line.strip().split(":")
            if other in (user, str(os.geteuid())) or len(numbers) != 2 or not all(map(str.isdecimal, numbers)):
                continue
            shared = list(subid.intersect(ranges, [(int(numbers[0]), int(numbers[1]))]))
            if shared:
                text = f"`/etc/{file}` gives `{other}` ids of ours ({shared[0][0]} and {shared[0][1] - 1} after it)"
                hint = "give each user a range of his own: who has the same ids can reach an instance's files"
                yield Finding(HOST, "ids", WRONG, text, hint=hint)


def emulators(root: str = "/") -> Iterator[Finding]:
    """Whether devices of type `tpm` can be made."""
    reason, cure = tpm.missing(root)
    if reason:
        yield Finding(HOST, "tpm", NOTE, f"no emulated TPMs: {reason}", hint=cure)
    else:
        yield Finding(HOST, "tpm", OK, f"emulated by `{tpm.emulator(root)}`")


def helpers() -> Iterator[Finding]:
    """All programs are there, and of the same version as this package."""
    bad = False
    for name in HELPERS:
        try:
            version = _version(helper.find(name))
        except HelperError as error:
            yield Finding(HOST, "programs", WRONG, error.message, hint=error.hint or "")
            bad = True
            continue
        if version != __version__:
            text = f"`{name}` is of version {version or 'unknown'}, the rest of {__version__}"
            yield Finding(HOST, "programs", WRONG, text, hint="install ctrmgr again, whole")
            bad = True
    if not bad:
        yield Finding(HOST, "programs", OK, f"all of version {__version__}")


def _version(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    start = data.find(MARK)
    return data[start + len(MARK) :].partition(b"\n")[0].decode(errors="replace") if start >= 0 else ""


def left_over() -> Iterator[Finding]:
    """What nobody owns any more."""
    known = set(record.names())
    found = [*_half_made(), *_dead_runs(), *_claims(known), *_cgroups()]
    yield from found
    if not found:
        yield Finding(HOST, "left-overs", OK, "none")


def _half_made() -> Iterator[Finding]:
    for name in state.entries(record.instances_dir()):
        if name[0] == "." and _nobody_has(f"{record.instances_dir()}/{name}"):
            text = f"an instance that was being {'deleted' if name.startswith('.del') else 'made'}: `{name}`"
            yield Finding(HOST, "left-overs", WRONG, text, mend=repair.sweep)


def _nobody_has(path: str) -> bool:
    try:
        with state.Lock(path, wait=False):
            return True
    except (ConflictError, FileNotFoundError, NotADirectoryError):
        return False


def _dead_runs() -> Iterator[Finding]:
    """A run whose monitor is dead. While a command has the instance it may be one that begins or ends."""
    for name in state.entries(state.run_dir()):
        home = record.home(name)
        if name[0] == "." or record.is_running(name) or (os.path.isdir(home) and not _nobody_has(home)):
            continue
        if os.path.isdir(f"{state.run_dir()}/{name}") and not record.is_running(name):
            text = f"the monitor of `{name}` is dead, what it ran is not cleaned up"
            yield Finding(HOST, "left-overs", WRONG, text, mend=partial(_end_run, name))


def _end_run(name: str) -> None:
    if os.path.isdir(record.home(name)):
        with record.lock(name):
            repair.instance(name)
    else:
        ended.end_run(name)


def _claims(known: set[str]) -> Iterator[Finding]:
    for kind in ended.CLAIMS:
        for owner in sorted(set(state.claims(kind).values()) - known):
            if not os.path.isdir(record.home(owner)):
                text = f"{kind} of `{owner}`, which does not exist"
                yield Finding(HOST, "left-overs", WRONG, text, mend=partial(state.release, kind, owner))
    for lease in leases.stale():
        text = f"a lease on `{lease.id}` of `{lease.instance}`, which does not have it"
        yield Finding(HOST, "left-overs", WRONG, text, mend=partial(leases.drop, lease))
    for each in held.everything():
        gone = (
            each.instance not in known and each.instance != held.NAMED and not os.path.isdir(record.home(each.instance))
        )
        if each.failed or gone:
            text = f"`{each.found_id}` ({each.type}) of `{each.instance}` is not released"
            text = (
                text
                if each.instance != held.NAMED
                else f"{each.owner} of `{each.found_id}` ({each.type}) is not released"
            )
            text += f": {each.failed}" if each.failed else ""
            yield Finding(HOST, "left-overs", WRONG, text, mend=partial(_release, each))


def _release(one: held.Held) -> None:
    from ctrmgr.backend import allocations

    allocations.release(one)


def _cgroups() -> Iterator[Finding]:
    """A cgroup of ours without a run."""
    found = cgroup.read()
    seen = set()
    for top in filter(None, (found.unified, *found.v1.values())):
        for name in state.entries(f"{top}/{state.cgroup_parent()}"):
            folder = f"{top}/{state.cgroup_parent()}/{name}"
            home = record.home(name)
            if name in seen or not os.path.isdir(folder) or os.path.exists(record.run_home(name)):
                continue
            if not os.path.isdir(home) or _nobody_has(home):
                seen.add(name)
                text = f"the cgroup of `{name}`, which does not run"
                yield Finding(HOST, "left-overs", WRONG, text, mend=partial(_remove_cgroups, name))


def _remove_cgroups(name: str) -> None:
    """As after a run whose monitor is dead."""
    state.make_dir(record.run_home(name), 0o700)
    state.write_file(f"{record.run_home(name)}/state", b"")
    _end_run(name)


def _text(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
