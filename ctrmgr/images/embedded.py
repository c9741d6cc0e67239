# SPDX-License-Identifier: GPL-3.0-or-later
"""`builtin:busybox`: the image that is always there, made on first use from the distribution's static busybox."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import time

from ctrmgr import state
from ctrmgr.errors import HostError
from ctrmgr.images import elf, store
from ctrmgr.images.staging import Staging

PASSWD = """\
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/:/bin/false
nobody:x:65534:65534:nobody:/:/bin/false
user:x:1000:1000:user:/home/user:/bin/sh
"""
# Numbers as Debian has them where Debian fixes them; the others are free in a system range.
GROUP = """\
root:x:0:
daemon:x:1:
tty:x:5:
disk:x:6:
lp:x:7:
dialout:x:20:
cdrom:x:24:
tape:x:26:
sudo:x:27:user
audio:x:29:
video:x:44:
plugdev:x:46:
users:x:100:
input:x:101:
kvm:x:102:
render:x:103:
sgx:x:104:
rdma:x:105:
user:x:1000:
nogroup:x:65534:
"""
FILES = {
    "etc/passwd": PASSWD,
    "etc/group": GROUP,
    "etc/shadow": "root:*:::::::\nuser:*:::::::\n",
    "etc/hostname": "busybox\n",
    "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n",
    "etc/resolv.conf": "",
    "etc/os-release": 'ID=busybox\nNAME="BusyBox"\nPRETTY_NAME="BusyBox"\n',
    "etc/profile": "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
DIRECTORIES = {
    "": 0o755, "bin": 0o755, "sbin": 0o755, "usr": 0o755, "usr/bin": 0o755, "usr/sbin": 0o755, "etc": 0o755,
    "proc": 0o555, "sys": 0o555, "dev": 0o755, "tmp": 0o1777, "run": 0o755, "var": 0o755, "var/log": 0o755,
    "var/tmp": 0o1777, "mnt": 0o755, "home": 0o755, "home/user": 0o755, "root": 0o700,
}  # fmt: skip
RECIPE = "1"
"""Part of the fingerprint: changes when the tree that is made from the same busybox does."""


def busybox_path() -> str:
    """A static busybox: the package's own copy, or the host's. Raises HostError."""
    libexec = state.libexec_dir()
    share = os.path.normpath(libexec + "/../../share/ctrmgr/busybox")
    found = []
    for path in (
        libexec + "/busybox",
        share,
        "/bin/busybox",
        "/usr/bin/busybox",
        "/sbin/busybox",
        "/usr/lib/busybox/busybox-static",
    ):
        try:
            program = elf.read(path)
        except OSError:
            continue
        if program and program.static and elf.runs_here(program.machine):
            return path
        found.append(path)
    hint = "install the package `busybox-static` (Debian, Ubuntu) or `busybox` (Fedora, Alpine)"
    if found:
        raise HostError(f"`{found[0]}` is not a static program of this architecture", hint=hint)
    raise HostError(f"image `{store.BUSYBOX}` needs a static busybox and this host has none", hint=hint)


def build() -> str:
    """Make the image and its alias; returns the fingerprint.

    Several first users may come at once: each builds its own and the first rename wins.
    Raises HostError.
    """
    path = busybox_path()
    try:
        with open(path, "rb") as file:
            program = file.read()
        recipe = "\0".join([RECIPE, repr(sorted(FILES.items())), repr(sorted(DIRECTORIES.items()))])
        fingerprint = hashlib.sha256(recipe.encode() + program).hexdigest()
        with Staging() as staging:
            if not os.path.isdir(f"{store.images_dir()}/{fingerprint}"):
                _fill(staging.path + "/rootfs", program, _applets(path))
                staging.commit(fingerprint, _metadata(program))
        store.set_alias(store.BUSYBOX, fingerprint)
    except OSError as error:
        hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "run it as root"
        raise HostError(
            f"image `{store.BUSYBOX}` cannot be made: {error.strerror}: `{error.filename or path}`", hint=hint
        ) from error
    return fingerprint


def _applets(path: str) -> list[str]:
    """Paths of the applets' links, as this busybox wants them (`usr/bin/env`)."""
    listed = subprocess.run([path, "--list-full"], capture_output=True, text=True, check=False)
    names = listed.stdout.split()
    if listed.returncode or not names:
        raise HostError(f"`{path} --list-full` failed", hint="is it a busybox?")
    return [
        name for name in names if ".." not in name and os.path.dirname(name) in DIRECTORIES and name != "bin/busybox"
    ]


def _fill(rootfs: str, program: bytes, applets: list[str]) -> None:
    umask = os.umask(0)
    try:
        for name, mode in DIRECTORIES.items():
            os.mkdir(f"{rootfs}/{name}", mode)
        _write(f"{rootfs}/bin/busybox", program, 0o755)
        for name, text in FILES.items():
            _write(f"{rootfs}/{name}", text.encode(), 0o600 if name == "etc/shadow" else 0o644)
        for name in applets:
            os.symlink("/bin/busybox", f"{rootfs}/{name}")
        os.chown(f"{rootfs}/home/user", 1000, 1000)
    finally:
        os.umask(umask)


def _write(path: str, content: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)


def _metadata(program: bytes) -> dict[str, str]:
    return {
        "init": "builtin",
        "halt-signal": str(int(signal.SIGPWR)),
        "os": "BusyBox",
        "architecture": os.uname().machine,
        "description": "embedded busybox",
        "size": str(len(program) + sum(map(len, FILES.values()))),
        "created": str(int(time.time())),
        "source": store.BUSYBOX,
    }
