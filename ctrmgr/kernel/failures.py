# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report of a monitor or helper means for the user: an error, its kind and its cure. Cold."""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.errors import ConflictError, CtrmgrError, HelperError, HostError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.kernel import missing

CONFLICTS = (errno.EEXIST, errno.EBUSY, errno.ENOENT, errno.ENOSPC, errno.EALREADY, errno.ENODEV)
BAD_PLACES = {
    errno.EISDIR: "is a directory, the source is none",
    errno.ENOTDIR: "a file is where a directory is needed",
    errno.ELOOP: "is a symlink; name where it leads",
    errno.EXDEV: "lies on another mount of the instance",
}


def error(subject: str, step: str, detail: str, code: int) -> CtrmgrError:
    """What `control.failure` gives."""
    known = missing.feature(subject, step, detail, code) or _by_step(subject, step, detail, code)
    if known is not None:
        return known
    reason = f"{step}: {detail}: {os.strerror(code)}" if detail else f"{step}: {os.strerror(code)}"
    hint = "this needs root" if code in (errno.EPERM, errno.EACCES) and os.geteuid() else None
    return HelperError(f"`{subject}`: {reason}", operation=step, errno_name=errno.errorcode.get(code, ""), hint=hint)


def _by_step(subject: str, step: str, detail: str, code: int) -> CtrmgrError | None:
    """What a step means for the user, where it is his, the host's or the image's matter."""
    reason = os.strerror(code)
    if step == "find the owner":
        hint = "names are looked up in the image's /etc/passwd and /etc/group"
        if code == errno.EOVERFLOW:
            hint = "`ctrmgr info` shows the ids that an instance has; uid and gid are as seen inside"
        return SpecError(f"`{subject}`: {detail}", hint=hint)
    if detail == "init died":
        hint = "is `limits.memory` enough for it? the kernel's log says who killed it"
        return HostError(f"`{subject}`: init was killed before it began", hint=hint)
    if step == "name the node":
        return ConflictError(f"`{subject}`: {detail} exists in the instance already", hint="choose another `path`")
    if step in ("attach", "detach", "suspend", "resume") and code in CONFLICTS:
        return ConflictError(f"`{subject}`: {detail}")
    if step == "find the place to mount on" and code in BAD_PLACES:
        return ConflictError(f"`{subject}`: {detail} in the instance: {BAD_PLACES[code]}")
    if step == "mount the file system":
        if code == errno.EBUSY:
            return ConflictError(f"`{subject}`: {detail}: something else has it", hint="unmount it there first")
        return HostError(f"`{subject}`: {detail}: {reason}", hint="the kernel's log says more")
    if step == "shift the ids of the mount":
        return UnsupportedError(f"`{subject}`: {detail}", hint="without `shift` its files belong to nobody inside")
    if step == "look at the host's node":
        return ConflictError(f"`{subject}`: {detail}", hint="the device changed in between; try again")
    if step == "open the device":
        return HostError(f"`{subject}`: {detail}: {reason}", hint="`required=false` starts without it")
    if step == "check the device":
        types = {"a block device": "say type=unix-block", "a character device": "say type=unix-char"}
        hints = [hint for what, hint in types.items() if detail.endswith(what)]
        return SpecError(f"`{subject}`: {detail}", hint=hints[0] if hints else "name a node such as /dev/fuse")
    if step == "take the instance's lock" and code == errno.EBUSY:
        return ConflictError(f"`{subject}` is running already")
    if step == "open the instance's own layer" and code == errno.EROFS:
        return HostError(f"`{subject}`: its own files cannot be written: {reason}", hint=state.CURES[code])
    if step == "open a layer":
        return CtrmgrError(
            f"`{subject}`: its image is not whole: {detail}: {reason}",
            hint="import the image again; what the instance has written itself is kept",
        )
    if step == "run init":
        return CtrmgrError(
            f"`{subject}`: the image's init `{detail}` cannot be run: {reason}",
            hint="is it an image of a whole system, for this machine's architecture?",
        )
    if step == "check our own programs":
        return HostError(
            f"`{subject}`: the instance could write ctrmgr's own programs: they are of {detail}",
            hint="make them root's (`chown -R root:`), or leave that id out of `raw.idmap`",
        )
    if step in ("map user ids", "map group ids"):
        return HostError(
            f"`{subject}`: {step}: {reason}", hint="inside another container, give that one more ids to hand on"
        )
    if step == "set a limit" and code == errno.ENOENT:
        return UnsupportedError(
            f"`{subject}`: {step}: {detail}: no cgroup controller has it here",
            hint="`limits.enforcement=best-effort` goes on without what this host cannot enforce",
        )
    if step == "set a kernel parameter":
        return SpecError(f"`{subject}`: {step}: {detail}: {reason}", hint="see `linux.sysctl.` in its configuration")
    if step == "limit the network link" and code in (errno.ENOENT, errno.ENOSYS, errno.EOPNOTSUPP):
        return UnsupportedError(
            f"`{subject}`: {detail}: {reason}",
            hint="the kernel needs sch_tbf, sch_ingress, cls_bpf and BPF; `limits.enforcement=best-effort` goes on without",
        )
    if step in (
        "take the link",
        "move the link",
        "bring the link back",
        "find the RDMA device",
        "move the RDMA device",
    ):
        return _of_link(subject, detail, code)
    if step in (
        "find resctrl",
        "find the class",
        "compare the class",
        "make the class",
        "set the class",
        "join the class",
    ):
        return _of_class(subject, step, detail, code)
    if step in ("find the cgroups", "freeze") and code == errno.ENOSYS:
        return UnsupportedError(f"`{subject}`: {step}: {detail}", hint="mount cgroup2 on /sys/fs/cgroup")
    return None


def _of_class(subject: str, step: str, detail: str, code: int) -> CtrmgrError:
    """Why an instance is not in the class of cache and memory bandwidth that a device puts it into."""
    if step == "find resctrl":
        return UnsupportedError(f"`{subject}`: no resctrl is mounted on {detail} any more")
    if step == "find the class" and code == errno.ENOENT:
        return NotFoundError(
            f"`{subject}`: there is no class {detail}",
            hint="without `schemata` the specification means one that the administrator has made in /sys/fs/resctrl",
        )
    if step == "compare the class":
        return ConflictError(f"`{subject}`: the class {detail}", hint="whoever made it first says what it has")
    if code == errno.EEXIST:
        return ConflictError(f"`{subject}`: there is a group {detail} in resctrl", hint="`rmdir` it there")
    if code == errno.ENOSPC:
        return ConflictError(
            f"`{subject}`: {step}: {detail}", hint="this CPU has only so many; `rmdir` those of nobody"
        )
    return HostError(f"`{subject}`: {step}: {detail}: {os.strerror(code)}")


def _of_link(subject: str, detail: str, code: int) -> CtrmgrError:
    """Why a link or RDMA device does not move."""
    if code == errno.ENODEV:
        return NotFoundError(
            f"`{subject}`: {detail}: no such network link or RDMA device",
            hint="it may be another instance's for now: `ctrmgr device list` says whose",
        )
    reasons = {
        errno.EADDRINUSE: ("the host's default route goes by it", "give the host another one first"),
        errno.EBUSY: (
            "it is a port of a bridge or bond, or in use",
            "take it out there first: `ip link set … nomaster`",
        ),
        errno.EMEDIUMTYPE: ("it is a loopback or a bridge, which does not move", "name a link of hardware"),
        errno.EEXIST: ("there is a link of that name already", "choose another `name`"),
        errno.ESTALE: ("it has changed meanwhile", "try again"),
    }
    if code in reasons:
        reason, hint = reasons[code]
        return ConflictError(f"`{subject}`: {detail}: {reason}", hint=hint)
    if code == errno.EOPNOTSUPP:
        return UnsupportedError(
            f"`{subject}`: {detail}: its driver does not let it change the network namespace",
            hint="`rdma system set netns shared`, while no instance runs, needs no move",
        )
    return HostError(f"`{subject}`: {detail}: {os.strerror(code)}")
