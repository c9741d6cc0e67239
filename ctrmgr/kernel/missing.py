# SPDX-License-Identifier: GPL-3.0-or-later
"""What a start, an attach or a detach needs of the kernel, by the name that the helpers give it when it fails. Cold.

`docs/reference/kernel.md` says the same for people; a test compares the two.
"""

from __future__ import annotations

import errno
import os

from ctrmgr.errors import HostError, UnsupportedError

CALLS = {
    "bpf": ("BPF device programs on cgroups", "Linux 4.15 with CONFIG_CGROUP_BPF"),
    "clone3": ("new namespaces made straight into a cgroup (clone3)", "Linux 5.7 with CONFIG_USER_NS"),
    "execveat": ("running a program by its descriptor (execveat)", "Linux 3.19"),
    "fchmodat2": ("changing the mode of a node by its descriptor", "Linux 2.6.39"),
    "filesystem": (
        "a type of filesystem",
        "overlay, tmpfs, proc, sysfs, cgroup2, devpts and mqueue, built in or loaded",
    ),
    "fsconfig": ("mounts made by descriptors (fsconfig)", "Linux 5.2"),
    "fsmount": ("mounts made by descriptors (fsmount)", "Linux 5.2"),
    "fsopen": ("mounts made by descriptors (fsopen)", "Linux 5.2"),
    "load the seccomp filter": ("system call filters (seccomp)", "Linux 3.17 with CONFIG_SECCOMP_FILTER"),
    "mknod": ("making device nodes (mknod)", "the host itself: a container cannot"),
    "mount": ("changing mounts (mount)", "the host itself, or a container that may mount"),
    "mount_setattr": ("attributes of detached mounts (mount_setattr)", "Linux 5.12"),
    "move_mount": ("attaching detached mounts (move_mount)", "Linux 5.2"),
    "open a netlink socket": ("netlink sockets", "CONFIG_NET"),
    "open_tree": ("detached copies of mounts (open_tree)", "Linux 5.2"),
    "openat2": ("opening below a directory only (openat2)", "Linux 5.6"),
    "pivot_root": ("changing the root of a mount namespace (pivot_root)", "the host itself"),
    "renameat2": ("renaming without replacing (renameat2)", "Linux 3.15"),
    "setns": ("entering several namespaces by a pidfd (setns)", "Linux 5.8"),
    "TIOCGPTPEER": ("opening a terminal by its master (TIOCGPTPEER)", "Linux 4.13"),
    "unshare": ("new namespaces (unshare)", "Linux 4.6 with CONFIG_NAMESPACES, CONFIG_NET_NS and CONFIG_CGROUPS"),
}
"""Name → what it is, and what has it."""

ABSENT = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
"""The kernel does not know it."""
WRONG = (errno.EINVAL, errno.E2BIG, errno.ENOTTY, errno.ENOEXEC)
"""The kernel knows the call and not what it is asked for; or the request is wrong, which it never is here."""
FORBIDDEN = (errno.EPERM, errno.EACCES)
USED_UP = (errno.ENOSPC, errno.EUSERS, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def feature(subject: str, step: str, detail: str, number: int) -> HostError | None:
    """The error when the step failed because this kernel or sandbox has not what it needs; None when it is something else."""
    call, _, rest = detail.partition(": ")
    if call not in CALLS:
        return None
    what, needed = CALLS[call]
    reason = f"{step}{f' ({rest})' if rest else ''}: {os.strerror(number)}"
    if number in USED_UP and call in ("clone3", "unshare"):
        return HostError(
            f"`{subject}`: no more namespaces or processes can be made: {reason}",
            hint="see `sysctl user` and `kernel.pid_max`; memory may be used up, too",
        )
    if number in FORBIDDEN:
        return UnsupportedError(
            f"`{subject}`: forbidden here: {what}: {reason}",
            hint="a sandbox, an outer container or a security module refuses it: run ctrmgr on the host itself",
        )
    if number in ABSENT or number in WRONG:
        return UnsupportedError(f"`{subject}`: this kernel lacks {what}: {reason}", hint=f"needed: {needed}")
    return None
