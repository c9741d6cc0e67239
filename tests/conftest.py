# SPDX-License-Identifier: GPL-3.0-or-later
"""What all tests stand on: the built helpers, the command line in folders of its own, and a look at the host before and after."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import glob
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MUST_WORK = os.environ.get("CTRMGR_MUST_WORK") == "1"
ALONE = re.compile(r"\b(host_snapshot|alone: None|Loop, loop)\b|\(\"alone\"\)")
"""In the text of a file with tests that look at the whole host, or change what others may be looking at."""
libc = ctypes.CDLL(None, use_errno=True)


def build(folder: Path, *options: str) -> Path:
    """Build the C helpers with meson (again only what has changed); returns the folder with the programs."""
    bin_dir = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "build.ninja").exists():
            subprocess.run(["meson", "setup", *options, folder, ROOT], check=True, env=env, stdout=subprocess.DEVNULL)
        done = subprocess.run(["ninja", "-C", folder], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        programs = folder / "native_helpers"
        # in one step: tests of another process may be reading it
        shutil.copy(ROOT / "native_helpers/seccomp/default.policy", programs / "new.policy")
        (programs / "new.policy").rename(programs / "default.policy")
    return programs


def pytest_configure(config: pytest.Config) -> None:
    # Under nohup, or behind a shell's `&`, they would be ignored, here and in all that is tested.
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    own_mounts()
    if "CTRMGR_LIBEXEC" not in os.environ:
        os.environ["CTRMGR_LIBEXEC"] = str(build(ROOT / "build" / "test"))


CLONE_NEWNS, MS_REC_SLAVE = 0x20000, 0x4000 | 0x80000


def own_mounts() -> None:
    """What this process and the other one with `-n 2` mount, they do not see of each other. Who may not do this, mounts nothing."""
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(None, b"/", None, MS_REC_SLAVE, None)


FIRST = ("cleanroot", "lab", "alone", "remote", "tests/lab/test_lxd.py", "tests/rootful/test_images.py", "unit")
"""Lanes in the order in which they are begun, the longest first. One process begins with two tests in a root of their
own, so few that it gets the next but one, too, which wants the host for itself: beside it is what does nothing to it."""


@functools.cache
def lane(file: str) -> str:
    """Tests of one lane follow each other in one process."""
    folder = file.split("/")[1]
    if folder in ("cleanroot", "lab", "remote") and file not in FIRST:
        return folder
    return "alone" if folder == "rootful" and ALONE.search((ROOT / file).read_text()) else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        name = lane(item.nodeid.partition("::")[0])
        name = "unit" if name.startswith("tests/unit/") else name
        return FIRST.index(name) if name in FIRST else len(FIRST)

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With `-n 2` each process takes the next lane when it is done with one."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid.partition("::")[0])

    config.option.loadscopereorder = False
    return Lanes(config, log)


HELD = "CTRMGR_TEST_HOLDS_THE_HOST"
"""In the environment of what a test runs: pytest again, maybe."""


@contextlib.contextmanager
def on_the_host(alone: bool, folder: Path = ROOT / "build") -> Iterator[None]:
    """Alone on the host, or beside others who are not: of all the tests of this tree."""
    folder.mkdir(exist_ok=True)
    with (folder / ".turn").open("w") as turn, (folder / ".host").open("w") as host:
        # who waits to be alone keeps the turn: nobody overtakes
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(host, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(host, fcntl.LOCK_UN)  # a child may have the file open yet


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):  # type: ignore[no-untyped-def]
    """Before its time is counted, a test waits for its turn, if it is one that does anything to the host."""
    fixtures = {*getattr(item, "fixturenames", ())}
    alone = "alone" in fixtures
    here = fixtures & {"ctr", "here"} or item.nodeid.split("/")[1] in ("cleanroot", "rootful")
    if HELD in os.environ or "apart" in fixtures or not (alone or here):
        return (yield)
    with on_the_host(alone), pytest.MonkeyPatch.context() as patch:
        patch.setenv(HELD, "1")
        return (yield)


@pytest.fixture
def alone() -> None:
    """Of a test that looks at the whole host, or changes what others may be looking at."""


@pytest.fixture
def here() -> None:
    """Of a test of servers that runs an instance on this machine, too, without `ctr`."""


@pytest.fixture
def apart() -> None:
    """Of a test that does nothing to the host that others can see, or by tests only, which wait for their own turns."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """A skip at home is a failure where everything must work."""
    report = yield
    if MUST_WORK and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although CTRMGR_MUST_WORK=1: {report.longrepr}"
    return report


class Result:
    """How a command ended and what it said."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr

    def __repr__(self) -> str:
        return f"Result({self.code}, {self.stdout!r}, {self.stderr!r})"


class Ctr:
    """`ctrmgr` from this tree, in state, run and configuration folders of its own.

    `ctr("list")` fails the test unless the exit code is `code` (0); `code=None` takes any.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": str(ROOT),
            "CTRMGR_STATE_DIR": str(folder / "state"),
            "CTRMGR_RUN_DIR": str(folder / "run"),
            "CTRMGR_CONFIG_DIR": str(folder / "etc"),
            "CTRMGR_CGROUP_PARENT": f"ctrmgr-test-{folder.name}",
        }
        self.argv = [sys.executable, str(ROOT / "scripts/ctrmgr")]

    def __call__(
        self, *words: str, code: int | None = 0, stdin: str | bytes = b"", env: dict[str, str] | None = None
    ) -> Result:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [*self.argv, *words], env={**self.env, **(env or {})}, input=given, capture_output=True, timeout=120
        )
        result = Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        assert code is None or result.code == code, f"ctrmgr {' '.join(words)}: {result}"
        return result

    def popen(self, *words: str, **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self.argv, *words], env=self.env, **options)  # type: ignore[call-overload,no-any-return]

    def traces(self) -> dict[str, object]:
        """All that these folders' instances have on the host, and what is in the folders: what a command that failed must
        leave as it was. Images and templates are caches that a command may fill."""
        files = {}
        for path in self.folder.rglob("*"):
            if "/templates/" not in str(path) and "/state/images/" not in str(path) and path.name != ".leases":
                is_file = path.is_file() and not path.is_symlink()
                files[str(path)] = (path.lstat().st_mode, path.read_bytes() if is_file else b"")
        parent = self.env["CTRMGR_CGROUP_PARENT"]
        return {
            "files": files,
            "mounts": Path("/proc/self/mountinfo").read_text(),
            "cgroups": sorted(glob.glob(f"/sys/fs/cgroup/**/{parent}/**/", recursive=True)),
            "processes": [line for line in helpers_running() if self._ours(line.split()[0])],
            "nodes": dev_nodes(),
        }

    def _ours(self, pid: str) -> bool:
        try:
            return any(str(self.folder) in os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return False

    def clean_up(self) -> None:
        """End and remove whatever a test has left."""
        for line in self("list", "--format", "csv", code=None).stdout.splitlines()[1:]:
            self("delete", "--force", line.split(",")[0], code=None)
        for cgroup in reversed(cgroups(self.env["CTRMGR_CGROUP_PARENT"])):
            os.rmdir(cgroup)


@pytest.fixture
def ctr() -> Iterator[Ctr]:
    """Each test its own; the path is short because sockets and people read it."""
    folder = Path(tempfile.mkdtemp(prefix="ctr-", dir="/var/tmp"))
    folder.chmod(0o711)
    runner = Ctr(folder)
    yield runner
    runner.clean_up()
    shutil.rmtree(folder)


BPF_PROG_GET_NEXT_ID, BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD = 11, 13, 15
BPF_NAME = slice(64, 80)
"""Where `struct bpf_prog_info` has the name."""
SYS_BPF = {"x86_64": 321, "aarch64": 280}


def bpf(command: int, *words: int) -> tuple[int, bytes]:
    """The result of bpf(2) and its `attr` afterwards; a result that is refused must be one that asks for what is gone."""
    attr = ctypes.create_string_buffer(struct.pack(f"={len(words)}Q", *words), 64)
    result = libc.syscall(SYS_BPF[os.uname().machine], command, attr, 64)
    assert result >= 0 or ctypes.get_errno() == errno.ENOENT, os.strerror(ctypes.get_errno())
    return result, attr.raw


def bpf_programs() -> int:
    """How many BPF programs of ctrmgr's the kernel has: others come and go with other people's containers."""
    count, last = 0, 0
    while True:
        result, attr = bpf(BPF_PROG_GET_NEXT_ID, last)
        if result < 0:
            return count
        last = int.from_bytes(attr[4:8], sys.byteorder)
        fd, _ = bpf(BPF_PROG_GET_FD_BY_ID, last)
        if fd >= 0:
            info = ctypes.create_string_buffer(256)
            bpf(BPF_OBJ_GET_INFO_BY_FD, fd | len(info) << 32, ctypes.addressof(info))
            os.close(fd)
            count += info.raw[BPF_NAME].startswith(b"ctrmgr_")


def cgroups(parent: str = "ctrmgr*") -> list[str]:
    """Those of ctrmgr, in every hierarchy, with what is below them. Others may come and go meanwhile: `Path.glob` minds."""
    top = "/sys/fs/cgroup"
    found = [
        path for pattern in (parent, f"*/{parent}") for path in glob.glob(f"{top}/{pattern}") if os.path.isdir(path)
    ]
    return sorted(below for path in found for below, *_ in os.walk(path))


def helpers_running() -> list[str]:
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            name = comm.read_text().strip()
            state = (comm.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        # the compiler of filters comes and goes with the unit tests
        if name.startswith("ctrmgr-") and name != "ctrmgr-seccomp" and state != "Z":
            found.append(f"{comm.parent.name} {name}")
    return found


def dev_nodes() -> dict[str, tuple[int, int, int]]:
    """Owner and mode of the host's own nodes, which no attach may change."""
    found = {}
    for path in Path("/dev").rglob("*"):
        if not path.is_symlink() and (path.is_char_device() or path.is_block_device()) and "/pts/" not in str(path):
            stat = path.stat()
            found[str(path)] = (stat.st_mode, stat.st_uid, stat.st_gid)
    return found


def snapshot() -> dict[str, object]:
    """What must be equal before a test and after it."""
    return {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "cgroups": cgroups(),
        "programs": bpf_programs(),
        "processes": helpers_running(),
        "loops": subprocess.check_output(["losetup", "--list", "--noheadings"], text=True),
        "links": sorted(os.listdir("/sys/class/net")),
        "nodes": dev_nodes(),
    }


@pytest.fixture
def host_snapshot(alone: None) -> Callable[[], dict[str, object]]:
    return snapshot


def settle() -> None:
    """The kernel frees programs, namespaces and links in its own time: wait until it has been quiet for a while."""
    last, quiet = None, 0
    for _ in range(100):
        now = (bpf_programs(), sorted(os.listdir("/sys/class/net")), cgroups(), helpers_running())
        quiet = quiet + 1 if now == last else 0
        if quiet == 4:
            return
        last = now
        time.sleep(0.05)


def same(before: dict[str, object], after: dict[str, object], *, besides: Sequence[str] = ()) -> None:
    """Assert that two snapshots are equal, and say in what they are not."""
    for key, value in before.items():
        if key not in besides:
            assert after[key] == value, f"{key} changed"
