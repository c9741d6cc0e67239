# SPDX-License-Identifier: GPL-3.0-or-later
"""Real LXD and Incus servers, each in mount, pid, network, ipc, uts and cgroup namespaces of its own and with folders of its own."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

from tests.conftest import ROOT, Ctr

BENCH = Path("/var/cache/ctrmgr-bench/trixie")
TRIXIE = Path("/var/cache/ctrmgr-test/trixie")
IDS = "root:1000000:1000000000"
ADDRESS = "127.0.0.1:8443"
PATIENCE = 120.0
"""Seconds for what takes one or two, on a machine that does much else."""

ENTER = """
set -eu
root=$1 scratch=$2
# A /sys that shows the links of this network, with what is mounted in it.
mkdir -p "$scratch/sys"
mount --rbind /sys "$scratch/sys"
mount -t sysfs sysfs /sys
for folder in fs/cgroup kernel/security; do
    mount --rbind "$scratch/sys/$folder" "/sys/$folder"
done
umount -l "$scratch/sys"
if [ "$root" != / ]; then
    mkdir -p "$scratch/over/upper" "$scratch/over/work" "$scratch/over/root"
    mount -t overlay -o "lowerdir=$root,upperdir=$scratch/over/upper,workdir=$scratch/over/work" overlay "$scratch/over/root"
    cd "$scratch/over/root"
    mount --rbind /dev dev
    mount --rbind /sys sys
    mount -t proc proc proc
    mount -t tmpfs tmpfs tmp
    mkdir -p ".$scratch" .old
    mount --bind "$scratch" ".$scratch"
    pivot_root . .old
    umount -l .old
else
    mount -t proc proc /proc
fi
mount -t tmpfs tmpfs /run
for file in subuid subgid; do
    echo "$3" >"$scratch/$file"
    mount --bind "$scratch/$file" "/etc/$file"
done
ip link set lo up
shift 3
exec "$@"
"""


def trixie() -> Path:
    """A root of Debian trixie with Incus; made once on a machine."""
    for root in (BENCH, TRIXIE):
        if (root / "usr/libexec/incus/incusd").exists():
            return root
    TRIXIE.parent.mkdir(parents=True, exist_ok=True)
    new = TRIXIE.with_name(f"new-{os.getpid()}")
    try:
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--include=incus-base,iproute2", "trixie", new],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        new.rename(TRIXIE)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return TRIXIE


def tiny_image(path: Path) -> Path:
    """A busybox root with an init, as a tarball that both take."""
    files = {
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n",
        "etc/group": b"root:x:0:\nrender:x:107:\nuser:x:1000:\n",
        "sbin/init": b"#!/bin/sh\ntrap 'exit 0' PWR TERM\necho hello from init\nwhile :; do sleep 86400 & wait; done\n",
    }
    with tarfile.open(path, "w") as tar:

        def add(name: str, kind: bytes, data: bytes = b"", mode: int = 0o755, link: str = "") -> None:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), link
            tar.addfile(entry, BytesIO(data))

        metadata = f"architecture: {os.uname().machine}\ncreation_date: {int(time.time())}\n"
        add("metadata.yaml", tarfile.REGTYPE, metadata.encode(), 0o644)
        for folder in ("", "bin", "sbin", "dev", "proc", "sys", "etc", "tmp", "run", "root"):
            add(f"rootfs/{folder}".rstrip("/"), tarfile.DIRTYPE)
        add("rootfs/bin/busybox", tarfile.REGTYPE, Path("/bin/busybox").read_bytes())
        for applet in subprocess.check_output(["/bin/busybox", "--list"], text=True).split():
            if applet not in ("busybox", "init"):
                add(f"rootfs/bin/{applet}", tarfile.SYMTYPE, link="busybox", mode=0o777)
        for name, data in files.items():
            add(f"rootfs/{name}", tarfile.REGTYPE, data, 0o755 if name == "sbin/init" else 0o644)
    return path


class Daemon:
    """A running server. `run` is the vendor's own client in its namespaces."""

    kind = ""
    client: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    variable = ""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.home = scratch, scratch / "home"
        self.home.mkdir(parents=True)
        self.socket = self.home / "unix.socket"
        self.env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(scratch),
            f"{self.variable}_DIR": str(self.home),
            f"{self.variable}_CONF": str(scratch / "client"),
        }
        self.log = (scratch / "log").open("wb")
        self.start()

    def root(self) -> str:
        return "/"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)  # of one that was killed: nobody answers there
        unshare = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--net",
            "--ipc",
        ]
        self.process = subprocess.Popen(
            [*unshare, "--uts", "--cgroup", "sh", "-c", ENTER, "sh", self.root(), self.scratch, IDS,
             *self.program, "--group", "root"],
            env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.scratch / "log").read_text()
            self.pid = int((children.read_text().split() or ["0"])[0])
            if (
                self.pid
                and self.socket.exists()
                and self.run(*self.admin, "waitready", "--timeout=30", code=None)[0] == 0
            ):
                return
            time.sleep(0.05)
        raise AssertionError((self.scratch / "log").read_text())

    def has_panicked(self) -> bool:
        """LXD 5.0.2 may write to a console's websocket from two goroutines at once, of which it dies."""
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            return False
        return b"concurrent write to websocket" in (self.scratch / "log").read_bytes()

    def alive(self) -> Daemon:
        """Itself. One that has died by itself is begun again, and its last words are shown: whoever it died on has failed already."""
        if self.process.poll() is not None:
            print((self.scratch / "log").read_text()[-8000:])
            self.start()
        return self

    def set_up(self, image: Path) -> None:
        preseed = {
            "config": {"core.https_address": ADDRESS},
            "storage_pools": [{"name": "default", "driver": "dir"}],
            "profiles": [{"name": "default", "devices": {"root": {"type": "disk", "path": "/", "pool": "default"}}}],
        }
        self.run(*self.admin, "init", "--preseed", stdin=json.dumps(preseed).encode())
        shutil.copy(image, self.scratch / "image.tar")
        self.run(*self.client, "image", "import", str(self.scratch / "image.tar"), "--alias", "tiny")

    def run(self, *words: str, code: int | None = 0, stdin: bytes = b"") -> tuple[int, str]:
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--ipc", "--uts", "--wd=/"]
        done = subprocess.run([*enter, *words], env=self.env, input=stdin, capture_output=True, timeout=PATIENCE)
        text = (done.stdout + (b"" if done.returncode == 0 else done.stderr)).decode(errors="replace")
        assert code is None or done.returncode == code, f"{words}: {text}"
        return done.returncode, text

    def tool(self, *words: str, code: int | None = 0) -> str:
        """The vendor's client."""
        return self.run(*self.client, *words, code=code)[1]

    def inside(self) -> list[str]:
        """The words before a command that is to see the server's network (and nothing else of it)."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def stop(self) -> None:
        """Its instances, the daemon, and with it all its namespaces."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run(*self.admin, "shutdown", "--force", "--timeout=20", code=None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()

    def kill(self) -> None:
        """With all that is in its namespaces, and wait until that is over."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.01)
        self.log.close()


class Lxd(Daemon):
    kind = "lxd"
    client = ("lxc",)
    admin = ("lxd",)
    program = ("lxd",)
    variable = "LXD"

    def token(self, name: str) -> str:
        return self.tool("config", "trust", "add", "--name", name).split()[-1]


class Incus(Daemon):
    kind = "incus"
    client = ("incus",)
    admin = ("incus", "admin")
    program = ("/usr/libexec/incus/incusd",)
    variable = "INCUS"

    def root(self) -> str:
        return str(trixie())

    def token(self, name: str) -> str:
        return self.tool("config", "trust", "add", name).split()[-1]


class Remote(Ctr):
    """`ctrmgr` that sees a server's network."""

    def __init__(self, folder: Path, daemon: Daemon) -> None:
        super().__init__(folder)
        self.daemon = daemon
        self.words = self.argv
        self.enter()

    def enter(self) -> None:
        """Again where the daemon is another process."""
        self.argv = [*self.daemon.inside(), *self.words]

    def clean_up(self) -> None:
        empty(self, "host")


def empty(ctr: Ctr, *remotes: str) -> None:
    """No instances are left. A server may still be at something that a test began and did not wait for."""
    deadline = time.monotonic() + PATIENCE
    while listed := json.loads(ctr("list", *(f"{name}:" for name in remotes), "-f", "json", code=None).stdout or "[]"):
        done = ctr("delete", "--force", *(row["name"] for row in listed), code=None)
        assert done.code == 0 or time.monotonic() < deadline, done
        time.sleep(0.2 if done.code else 0)


class Known(Ctr):
    """`ctrmgr` that knows servers by their sockets."""

    def __init__(self, folder: Path, servers: Mapping[str, Daemon]) -> None:
        super().__init__(folder)
        self.servers = servers
        for name, daemon in servers.items():
            self("remote", "add", name, str(daemon.socket))

    def forget_instances(self) -> None:
        empty(self, *self.servers)


@contextlib.contextmanager
def knowing(servers: Mapping[str, Daemon]) -> Iterator[Known]:
    """It leaves nothing on them but images."""
    folder = Path(tempfile.mkdtemp(prefix="ctr-", dir="/var/tmp"))
    folder.chmod(0o711)
    runner = Known(folder, {kind: daemon.alive() for kind, daemon in servers.items()})
    try:
        yield runner
    finally:
        runner.forget_instances()
        runner.clean_up()
        shutil.rmtree(folder)


def cgroups() -> set[Path]:
    """Those of LXC, in every hierarchy: the two leave some when they end."""
    return {Path(path) for pattern in ("lxc.*", "*/lxc.*") for path in glob.glob(f"/sys/fs/cgroup/{pattern}")}


def remove_cgroups(left: set[Path]) -> None:
    for path in left:
        for folder, *_ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


@contextlib.contextmanager
def started(kinds: Sequence[type[Daemon]], scratch: Path) -> Iterator[list[Daemon]]:
    """Servers with an image `tiny`."""
    scratch.chmod(0o711)
    before = cgroups()
    image = tiny_image(scratch / "tiny.tar")
    found: dict[str, Daemon] = {}

    def begin(kind: type[Daemon]) -> None:
        found[kind.kind] = kind(scratch / kind.kind)
        found[kind.kind].set_up(image)

    # Both wait more than they work: at the same time.
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(begin, kinds))
            yield [found[kind.kind] for kind in kinds]
        finally:
            list(pool.map(Daemon.stop, found.values()))
            remove_cgroups(cgroups() - before)


__all__ = (
    "ADDRESS",
    "PATIENCE",
    "ROOT",
    "Daemon",
    "Incus",
    "Known",
    "Lxd",
    "Remote",
    "cgroups",
    "empty",
    "knowing",
    "remove_cgroups",
    "started",
    "tiny_image",
)


def at_a_console(remote: Remote, body: Callable[[], None]) -> None:
    """Once more if its daemon has panicked, and twice at most."""
    for tries in range(3):
        try:
            body()
            return
        except AssertionError:
            if tries == 2 or not remote.daemon.has_panicked():
                raise
            remote.daemon.alive()
            remote.enter()
            remote("delete", "--force", "host:c1", code=None)
