# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount namespaces to run peers in: one with a root filesystem of another Debian release, all else is the host's.

Both have a /dev/null of their own: crun gives the standard descriptors of a container to its root, whatever they are.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench.timing import CommandFailedError

CACHE = Path("/var/cache/ctrmgr-bench")
TRIXIE = CACHE / "trixie"
"""Made by bench/prepare, never written to: every run has an overlay over it."""

ENTER = """
set -eu
root=$1 scratch=$2 over=$2/.trixie
mkdir -p "$over/upper" "$over/work" "$over/root"
mount -t overlay -o "lowerdir=$root,upperdir=$over/upper,workdir=$over/work" overlay "$over/root"
cd "$over/root"
mount --rbind /dev dev
mount --bind "$scratch/null" dev/null
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p ".$scratch" .old
mount --bind "$scratch" ".$scratch"
echo "$3" | tee etc/subuid >etc/subgid
# crun refuses a host that has both versions of cgroups: it gets those that have the controllers
! mountpoint -q sys/fs/cgroup/unified || umount sys/fs/cgroup/unified
pivot_root . .old
umount -l .old
echo ready
exec sleep 60
"""


IDS = "root:1000000:1000000000"
"""Enough for hundreds of instances; what packages write into /etc/subuid often is not."""


def missing() -> str | None:
    """Why there is no such root here, or None."""
    return None if TRIXIE.is_dir() else f"`{TRIXIE}` is not there (bench/prepare makes it)"


HOST = """
set -eu
for file in subuid subgid; do
    echo "$2" >"$1/.$file"
    mount --bind "$1/.$file" "/etc/$file"
done
mount --bind "$1/null" /dev/null
mkdir -p "$1/run"
mount -t tmpfs -o mode=711 tmpfs "$1/run" # as /run is, also that of the other namespace
echo ready
exec sleep 60
"""


def enter(scratch: Path) -> int:
    """A mount namespace with the newer release's root; `scratch` is at the same place in it as outside."""
    return namespace(ENTER, str(TRIXIE), str(scratch), IDS)


def host(scratch: Path) -> int:
    """A mount namespace with this machine's root, where root has as many ids as in the other."""
    return namespace(HOST, str(scratch), IDS)


def namespace(script: str, *words: str) -> int:
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *words]
    with subprocess.Popen(unshare, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise CommandFailedError(f"no mount namespace: unshare exited with {holder.wait()}")
        found = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        holder.kill()
    return found
