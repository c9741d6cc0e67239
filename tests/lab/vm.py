# SPDX-License-Identifier: GPL-3.0-or-later
"""A throwaway virtual machine with real device drivers, under QEMU without hardware acceleration.

Its kernel is the distribution's, or the one in `CTRMGR_LAB_KERNEL` (a folder with `bzImage`, `initrd.gz`: busybox and the
modules that find a virtio disk, `mods.erofs`: the others, `version`). Its root is Debian, made once by mmdebstrap and kept in
`$XDG_CACHE_HOME/ctrmgr/lab`, as the kernel is. It boots in seconds; nothing of it is left afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ctrmgr.images import build as debian
from tests.conftest import ROOT, build
from tests.lab.evict import module as evict

HERE = Path(__file__).parent
SUITE = "trixie"
PACKAGES = (
    "apparmor", "busybox-static", "ibverbs-providers", "ibverbs-utils", "iproute2", "iputils-ping", "kmod", "libseccomp2", "nftables",
    "mount", "procps", "python3", "python3-pydantic", "python3-pyroute2", "python3-pytest", "python3-rich", "python3-yaml",
    "rdma-core", "strace", "uidmap",
)  # fmt: skip
WITH_TPM = ("swtpm", "tpm2-tools")
"""With the distribution's kernel, which can have emulated TPMs."""
TOOLS = ("qemu-system-x86", "mmdebstrap", "erofs-utils", "cpio", "kmod", "busybox-static", "lz4", "xz-utils", "zstd")
FIRST_MODULES = ("virtio_pci", "virtio_blk", "erofs", "overlay", "virtio_rng", "virtio_console")
WAY_IN = "52:54:00:00:00:01"
"""Hardware address of the link of `port=`."""
STALE = re.compile(r"Oops: int3.*?^RIP: 0010:\w+\+0x1/", re.DOTALL | re.MULTILINE)
"""What the kernel says when one emulated CPU still runs the breakpoint of another that has changed a function's first instruction."""
TREE = ("ctrmgr", "native_helpers", "profiles", "scripts", "tests")


class LabError(Exception):
    """The lab itself cannot do it."""


class Kernel:
    """What QEMU needs of one."""

    def __init__(self, folder: Path) -> None:
        self.image, self.initrd, self.modules = folder / "bzImage", folder / "initrd.gz", folder / "mods.erofs"
        self.version = (folder / "version").read_text().strip()


class Done:
    """How the command in the guest ended."""

    def __init__(self, code: int, output: str, console: str) -> None:
        self.code, self.output, self.console = code, output, console


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "ctrmgr" / "lab"
    path.mkdir(parents=True, exist_ok=True)
    return path


def need() -> None:
    """Install the tools of the host that are missing."""
    done = subprocess.run([ROOT / "scripts/need", *TOOLS], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise LabError(done.stderr.strip())


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made aside by `make` unless it is there; a killed run leaves nothing that is taken for whole."""
    if not path.exists():
        aside = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
        aside.chmod(0o755)
        try:
            make(aside / "it")
            (aside / "it").rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return path


def guest_root() -> Path:
    """The image of the guest's root filesystem."""

    def make(image: Path) -> None:
        folder = image.parent / "root"
        sources = debian._sources(debian.DISTRIBUTIONS["debian"], "debian", SUITE)
        without = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")]
        words = ["--variant=minbase", "--mode=root", f"--include={','.join(packages)}", *without]
        run("mmdebstrap", *words, *debian._apt_options(), SUITE, folder, *sources)
        run("mkfs.erofs", "-zlz4", image, folder)

    packages = PACKAGES if os.environ.get("CTRMGR_LAB_KERNEL") else (*PACKAGES, *WITH_TPM)
    recipe = hashlib.sha256(" ".join([SUITE, *packages]).encode()).hexdigest()[:12]
    return once(cache() / f"root-{recipe}.erofs", make)


def distribution_version() -> str:
    """Which kernel this machine's distribution has now."""
    for ask in (["apt-cache", "depends", "linux-image-amd64"], ["apt-get", "update"]) * 2:
        try:
            said = run(*ask)
        except LabError:
            continue  # apt does not know the package before its first update
        if found := re.search(r"Depends: linux-image-(\d\S+)", said):
            return found[1]
    raise LabError("apt knows no linux-image-amd64")


def distribution_kernel() -> Kernel:
    version = distribution_version()

    def make(folder: Path) -> None:
        folder.mkdir()
        unpacked = folder.parent / "unpacked"
        # Newer suites have the kernel and its modules in packages of their own.
        for package in (f"linux-image-{version}", f"linux-binary-{version}", f"linux-modules-{version}"):
            if run("apt-cache", "search", "--names-only", f"^{re.escape(package)}$"):
                run("apt-get", "download", "-o", "APT::Sandbox::User=root", package, cwd=folder.parent)
        for package in folder.parent.glob("*.deb"):
            run("dpkg-deb", "-x", package, unpacked)
        if not (unpacked / "lib").exists():
            (unpacked / "lib").symlink_to("usr/lib")
        (image,) = unpacked.glob("**/vmlinuz*")
        image.rename(folder / "bzImage")
        run("depmod", "-b", unpacked, version)
        first_ramdisk(folder / "initrd.gz", unpacked, version)
        run("mkfs.erofs", folder / "mods.erofs", unpacked / "lib/modules" / version)
        (folder / "version").write_text(f"{version}\n")

    return Kernel(once(cache() / f"kernel-{version}", make))


def first_ramdisk(image: Path, root: Path, version: str) -> None:
    """busybox, and the modules without which there is no disk."""
    folder = image.parent / "ramdisk"
    for part in ("bin", "m", "dev"):
        (folder / part).mkdir(parents=True)
    shutil.copy("/bin/busybox", folder / "bin/busybox")
    order: list[str] = []
    for module in FIRST_MODULES:
        for line in run("modprobe", "-d", root, "-S", version, "--show-depends", module).splitlines():
            if line.startswith("insmod ") and (path := line.split()[1]) not in order:
                order.append(path)
    for path in order:
        unpack = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dcq"]}.get(Path(path).suffix, ["cat"])
        name = Path(path).name.partition(".ko")[0] + ".ko"
        (folder / "m" / name).write_bytes(subprocess.check_output([*unpack, path]))
        with (folder / "mods").open("a") as file:
            file.write(f"{name}\n")
    image.write_bytes(ramdisk(folder))
    shutil.rmtree(folder)


def ramdisk(folder: Path) -> bytes:
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    cpio = ["cpio", "-o", "-H", "newc", "--quiet"]
    packed = subprocess.run(cpio, input=names.encode(), cwd=folder, stdout=subprocess.PIPE, check=True).stdout
    return subprocess.run(["gzip", "-1"], input=packed, stdout=subprocess.PIPE, check=True).stdout


def kernel() -> Kernel:
    """`CTRMGR_LAB_KERNEL`, or the distribution's."""
    given = os.environ.get("CTRMGR_LAB_KERNEL")
    return Kernel(Path(given)) if given else distribution_kernel()


def evict_driver(on: Kernel) -> Path:
    """The module of tests/lab/evict for that kernel; empty where it has no device memory in cgroups."""

    def make(path: Path) -> None:
        if not evict.build(on.image, path):
            path.touch()

    recipe = hashlib.sha256(b"".join(path.read_bytes() for path in (on.image, evict.SOURCE, Path(evict.__file__))))
    return once(cache() / f"evict-{recipe.hexdigest()[:12]}.ko", make)


def job(image: Path, command: str, driver: Path | None) -> None:
    """What the guest finds in /job: the command, this tree, the programs; a driver of our own."""
    script = image.with_name("command")
    script.write_text(command + "\n")
    programs = Path(os.environ.get("CTRMGR_LIBEXEC") or build(ROOT / "build" / "test"))

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in member.name or member.name == "tree/tests/fixtures" else member

    with tarfile.open(image, "w") as tar:
        tar.add(script, "command")
        if driver:
            tar.add(driver, "evict.ko")
        for name in TREE:
            tar.add(ROOT / name, f"tree/{name}", filter=wanted)
        for path in programs.iterdir():
            if path.is_file() and (path.name.startswith("ctrmgr-") or path.suffix == ".policy"):
                tar.add(path, f"libexec/{path.name}")


def hardware(kinds: Sequence[str], folder: Path, memory: int) -> list[str]:
    """QEMU's words for what the guest shall have."""
    words: list[str] = []
    for kind in sorted(kinds, key="far-nvme".__eq__):  # what comes after another bus would go there
        match kind:
            case "gpu":
                # The two that nobody drives are what NVIDIA's driver is said to have.
                words += ["-device", "virtio-gpu-pci", "-device", "pci-testdev", "-device", "pci-testdev"]
            case "net":
                words += ["-netdev", "hubport,id=hub,hubid=0", "-device", "virtio-net-pci,netdev=hub"]
            case "nics":
                words += ["-device", "virtio-net-pci", "-device", "virtio-net-pci"]
            case "nvme" | "far-nvme":
                (folder / "nvme").touch()
                os.truncate(folder / "nvme", 64 << 20)
                words += ["-drive", f"if=none,id=nvme,file={folder}/nvme,format=raw"]
                at = ""
                if kind == "far-nvme":
                    # A second NUMA node, with half of the memory, one of the CPUs, and a bus.
                    for node in range(2):
                        words += ["-object", f"memory-backend-ram,id=node{node},size={memory // 2}M"]
                        words += ["-numa", f"node,nodeid={node},cpus={node},memdev=node{node}"]
                    words += [
                        "-device",
                        "pxb-pcie,id=far,bus_nr=64,numa_node=1",
                        "-device",
                        "pcie-root-port,bus=far,id=far-port",
                    ]
                    at = ",bus=far-port"
                words += ["-device", f"nvme,drive=nvme,serial=lab-nvme{at}"]
            case "usb":
                # QEMU's own monitor as a port, by which the guest plugs things into itself.
                words += ["-device", "qemu-xhci,id=xhci", "-chardev", "null,id=wire0", "-chardev", "null,id=wire1"]
                words += [
                    "-chardev",
                    f"socket,id=monitor,path={folder}/monitor,server=on,wait=off",
                    "-qmp",
                    "chardev:monitor",
                ]
                words += ["-chardev", f"socket,id=plug,path={folder}/monitor"]
                words += ["-device", "virtserialport,chardev=plug,name=lab.plug"]
            case "host":
                # The programs of this machine, for the guest to read.
                share = "local,id=host,path=/usr,security_model=none,readonly=on"
                words += ["-fsdev", share, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
            case _ if kind.startswith("port="):
                # A port of this machine's loopback, which leads to 10.0.2.15:8443; nothing leads out of the guest.
                way = f"user,id=way,restrict=on,hostfwd=tcp:127.0.0.1:{kind.partition('=')[2]}-10.0.2.15:8443"
                words += ["-netdev", way, "-device", f"virtio-net-pci,netdev=way,mac={WAY_IN}"]
            case _:
                raise LabError(
                    f"no hardware `{kind}`; there are far-nvme, gpu, host, net, nics, nvme, port=NUMBER and usb"
                )
    return words


def machine(on: Kernel, folder: Path, kinds: Sequence[str], memory: int, append: str) -> list[str]:
    """The whole command line of QEMU."""

    def disk(name: str, path: Path) -> list[str]:
        drive = f"if=none,id={name},file={path},format=raw,readonly=on"
        return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},serial=lab-{name}"]

    def port(name: str) -> list[str]:
        (folder / name).touch()
        device = f"virtserialport,chardev={name},name=lab.{name}"
        return ["-chardev", f"file,id={name},path={folder}/{name}", "-device", device]

    append = f"console=ttyS0 quiet panic=-1 reboot=t mitigations=off {os.environ.get('CTRMGR_LAB_APPEND', '')} {append}"
    words = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-M", "q35"]
    words += ["-accel", os.environ.get("CTRMGR_LAB_ACCEL", "tcg,thread=multi"), "-cpu", "max", "-smp", "2"]
    words += ["-m", str(memory), "-kernel", str(on.image), "-initrd", f"{folder}/initrd.gz", "-append", append]
    words += ["-serial", f"file:{folder}/console", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
    words += disk("root", guest_root()) + disk("modules", on.modules) + disk("job", folder / "job")
    return words + port("out") + port("code") + hardware(kinds, folder, memory)


class Guest:
    """One that runs. `output` is where what its command says can be read."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process, self.folder, self.output = process, folder, folder / "out"

    def follow(self, seconds: float, hear: Callable[[str], object]) -> None:
        """Until it ends, or the time is over. `hear` gets the output as it comes, and ends it with something true."""
        deadline = time.monotonic() + seconds
        while not self.output.exists() and self.process.poll() is None:
            time.sleep(0.05)
        with self.output.open(errors="replace") as file:
            while True:
                ended = self.process.poll() is not None or time.monotonic() > deadline
                if text := file.read():
                    if hear(text):
                        return
                elif ended:
                    return
                else:
                    time.sleep(0.05)

    def failed(self) -> LabError:
        """With all that is known of it."""
        qemu, out, console = (_text(self.folder / part) for part in ("qemu", "out", "console"))
        return LabError(f"the guest did not end by itself: {qemu}\n{out[-3000:]}\n{console[-3000:]}")


@contextlib.contextmanager
def running(
    command: str,
    kinds: Sequence[str] = (),
    *,
    on: Kernel | None = None,
    memory: int = 1536,
    append: str = "",
) -> Iterator[Guest]:
    """A guest of its own in which a shell command runs, in this tree; it is gone afterwards. Raises LabError."""
    need()
    on = on or kernel()
    with tempfile.TemporaryDirectory(prefix="ctrmgr-lab-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "first").mkdir()
        shutil.copy(HERE / "stage1", folder / "first/init")
        shutil.copy(HERE / "stage2", folder / "first/stage2")
        (folder / "initrd.gz").write_bytes(on.initrd.read_bytes() + ramdisk(folder / "first"))
        job(folder / "job", command, evict_driver(on) if "gpu" in kinds else None)
        words = machine(on, folder, kinds, memory, append)
        with (folder / "qemu").open("wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                yield Guest(process, folder)
            finally:
                process.kill()
                process.wait()


def boot(
    command: str,
    kinds: Sequence[str] = (),
    *,
    on: Kernel | None = None,
    seconds: float = 300,
    memory: int = 1536,
    hear: Callable[[str], object] = lambda text: None,
) -> Done:
    """Run a shell command in a guest of its own, in this tree; in another one when QEMU has failed the first. `hear` gets its output
    as it comes. Raises LabError."""
    for may_fail in (True, False):
        with running(command, kinds, on=on, memory=memory) as guest:
            guest.follow(seconds, hear)
            out, code, console = (_text(guest.folder / part) for part in ("out", "code", "console"))
            if code.strip():
                break
            if not (may_fail and STALE.search(console)):
                raise guest.failed()
    return Done(int(code), out, console)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/lab/run", description="Run a command in a VM with real device drivers."
    )
    parser.add_argument("-d", "--devices", default="", help="comma list of gpu, host, net, nvme, port=N, usb")
    parser.add_argument("-m", "--memory", type=int, default=1536, help="MiB")
    parser.add_argument("-t", "--seconds", type=float, default=300, help="how long it may take")
    parser.add_argument("--distribution", action="store_true", help="its kernel, whatever CTRMGR_LAB_KERNEL says")
    parser.add_argument("command", help="run by sh in a copy of this tree")
    args = parser.parse_args()
    kinds = [kind for kind in args.devices.split(",") if kind]
    try:
        if args.distribution:
            os.environ.pop("CTRMGR_LAB_KERNEL", None)
        done = boot(args.command, kinds, seconds=args.seconds, memory=args.memory, hear=_show)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 125
    return done.code


if __name__ == "__main__":
    sys.exit(main())
