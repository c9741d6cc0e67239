# SPDX-License-Identifier: GPL-3.0-or-later
"""squashfs images, by the host's unsquashfs: in the sandbox, with /usr to read and the image to write.

The kernel's own squashfs is not used: it would parse a stranger's filesystem with all its powers.
"""

from __future__ import annotations

import os
import stat
import subprocess

from ctrmgr.errors import HostError, SpecError
from ctrmgr.images.unpack import DEPTH_MAX, Limits, refuse

PROGRAM = "/usr/bin/unsquashfs"
TOOLS = {name: "/" + name for name in ("usr", "bin", "lib", "lib64") if os.path.lexists("/" + name)}
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def tools(archive: str) -> dict[str, str]:
    """What the sandbox must show. Raises HostError when the program is missing."""
    if not os.path.exists(PROGRAM):
        raise HostError("squashfs images need the program unsquashfs", hint="install the package `squashfs-tools`")
    return {**TOOLS, "archive": os.path.realpath(archive)}


def unsquash(archive_fd: int, target: str, limits: Limits) -> tuple[int, int]:
    """Unpack `/archive` as the new directory `target`; returns (bytes, files). Raises SpecError, HostError."""
    # A descriptor cannot be mounted here (it is of another mount namespace), and a path may change.
    if not os.path.sameopenfile(archive_fd, os.open("/archive", os.O_RDONLY | os.O_CLOEXEC)):
        raise SpecError("the archive was replaced while it was read")
    nodes = check_listing(limits)
    # Threads and queues are bounded: the sandbox has little memory.
    command = [PROGRAM, "-no-progress", "-quiet", "-processors", "2", "-data-queue", "64", "-frag-queue", "64"]
    excludes: list[str] = []
    if nodes:
        with open("/excluded", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{name}\n" for name in nodes)
        excludes = ["-no-wildcards", "-exclude-file", "/excluded"]
    done = subprocess.run(
        [*command, *excludes, "-dest", target, "/archive"],
        env=ENVIRONMENT, input="", capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        if "No space left" in done.stderr or "Disk quota" in done.stderr:
            raise HostError("unpacking failed: the disk is full", hint="free some space where ctrmgr keeps its state")
        raise corrupt(done.stderr)
    return check_tree(target, limits)


def check_listing(limits: Limits) -> list[str]:
    """Look before anything is written. Returns the device nodes below /dev, to be left out. Raises SpecError."""
    listing = subprocess.Popen(
        [PROGRAM, "-no-progress", "-processors", "1", "-dest", "", "-lln", "/archive"],
        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="surrogateescape",
    )  # fmt: skip
    assert listing.stdout and listing.stderr
    nodes, total, files = [], 0, 0
    for line in listing.stdout:
        # MODE OWNER/GROUP SIZE DATE TIME NAME; a device has `MAJOR, MINOR` for the size, with blanks that vary.
        fields = line.split(maxsplit=5)
        if len(fields) < 5 or len(fields[0]) < 10 or "/" not in fields[1]:
            continue  # the heading, or the rest of a name with a line end
        files += 1
        if fields[0][0] in "bc":
            name = line[line.index("/", line.index(":")) :].rstrip("\n").lstrip("/")
            if not name.startswith(("dev/", "rootfs/dev/")):
                listing.kill()
                refuse(name, "is a device node outside /dev")
            nodes.append(name)
        elif fields[0][0] == "-" and fields[2].isdigit():
            total += int(fields[2])
        if total > limits.bytes or files > limits.files:
            listing.kill()
            raise SpecError(f"the archive is larger than {limits.files} files or {limits.bytes >> 30} GiB")
    stderr = listing.stderr.read()
    if listing.wait():
        raise corrupt(stderr)
    return nodes


def check_tree(top: str, limits: Limits) -> tuple[int, int]:
    """What unsquashfs made is looked at again: depth, number, kinds. Returns (bytes, files). Raises SpecError."""
    total = files = 0
    stack = [(top, 0)]
    while stack:
        directory, depth = stack.pop()
        if depth > DEPTH_MAX:
            refuse(directory[:60] + "…", f"is deeper than {DEPTH_MAX} directories")
        with os.scandir(directory) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                files += 1
                if stat.S_ISDIR(status.st_mode):
                    stack.append((entry.path, depth + 1))
                elif stat.S_ISREG(status.st_mode):
                    total += status.st_size
                elif stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
                    refuse(entry.path, "is a device node")
    if total > limits.bytes or files > limits.files:
        raise SpecError(f"the archive is larger than {limits.files} files or {limits.bytes >> 30} GiB")
    if not files:
        raise SpecError("the archive is empty")
    return total, files


def corrupt(stderr: str) -> SpecError:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return SpecError(f"the archive is corrupt: {lines[0].strip() if lines else 'unsquashfs failed'}")
