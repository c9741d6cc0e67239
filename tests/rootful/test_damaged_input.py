# SPDX-License-Identifier: GPL-3.0-or-later
"""Damaged plans, and the files of a hostile instance, read by the programs of the sanitizer build.

Every damage is made by a seeded generator, so what fails fails again.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import control, spawn
from tests.rootful.double import Double
from tests.rootful.planned import Planned, image
from tests.rootful.sanitized import Sanitized, sanitized

ROWS = """name\tplanned
hostname\tplanned
uidmap\t0\t1800000000\t65536
uidmap\t65536\t1900000000\t10
gidmap\t0\t1800000000\t65536
layer\t/nonexistent/a
layer\t/nonexistent/b
cgroup\tctrmgr-test-damaged
cgroup-file\tunified\tmemory.max\t1000
cgroup-file\tpids\tpids.max\t10
net\tbridge
link\tctrbr0\tctr1\teth0\t02:00:00:00:00:01\t1500
address\t4\t10.0.0.2\t24
address\t6\tfd00::2\t64
gateway\t4\t10.0.0.1
init\t/sbin/init
arg\tone
arg\ttwo with \\t and \\\\ and \\n
env\tPATH=/bin
env\tA=b
halt-signal\t15
stop-timeout\t10
capabilities\t00000000a80425fb
no-new-privs\t1
apparmor\tprofile
rlimit\tnofile\t100\t200
oom-score-adj\t-5
seccomp\t/nonexistent/seccomp
mask\t/proc/kcore
readonly\t/proc/sys
nesting\t0
shifted\t0
device\tfuse\tchar\t/dev/fuse\t/dev/fuse\t0\trender\t0660\trwm\trequired
device\tdisk\tblock\t/dev/loop0\t/dev/a/b\tuser\t0\t0600\tr\toptional
bind\tsocket\t/run/socket\t/run/socket\trw,noexec,optional
device-env\tfuse\tKEY\tvalue
hook\tfuse\tcreate\tone\ttwo
device-limit\tfuse\tunified\tio.max\t7:0 rbps=1000
lease\tfuse\tshared\t1
shares\tdisk\t/dev/fuse
restart\ton-failure
console-size\t4096
"""
FIRST, LAST = "ctrmgr-plan\t1", "end"
NASTY = (
    "", " ", "0", "-1", "+1", "00", "0x10", "4294967295", "4294967296", "18446744073709551615", "99999999999999999999999",
    ".", "..", "/", "//", "/..", "a/b", "../a", "/dev/", "/proc/", "\\", "\\x", "\\t", "\\\\", "%s%n%1000d", "\x7f", "\0",
    "\N{SNOWMAN}", "x" * 63, "x" * 64, "x" * 255, "x" * 256, "/dev/" + "x" * 251, "=" * 300, "x" * 70_000,
)  # fmt: skip
REFUSED = re.compile(
    r"line \d+: (wrong|unknown key) `.*|line \d+ cannot be read|it is cut off after line \d+"
    r"|it is not a run plan of version 1|it lacks a name, cgroup, init, layer or id map"
    r"|it has a bridged network without a link|fstat",
    re.DOTALL,
)
libc = ctypes.CDLL(None, use_errno=True)


def by_row(chance: random.Random, rows: list[str]) -> bytes:
    rows = [FIRST, *rows, LAST]
    for _ in range(chance.randrange(1, 4)):
        at, other = chance.randrange(len(rows)), chance.randrange(len(rows))
        fields = rows[at].split("\t")
        field = chance.randrange(len(fields))
        match chance.choice(("drop", "twice", "swap", "many", "less", "more", "nasty", "mix")):
            case "drop":
                rows.pop(at)
            case "twice":
                rows.insert(other, rows[at])
            case "swap":
                rows[at], rows[other] = rows[other], rows[at]
            case "many":
                rows[at:at] = [rows[at]] * chance.choice((16, 32, 33, 64, 65, 128, 129, 200))
            case "less":
                rows[at] = "\t".join(fields[:field])
            case "more":
                rows[at] += "\t" + chance.choice(NASTY) * chance.choice((1, 1, 20))
            case "nasty":
                rows[at] = "\t".join([*fields[:field], chance.choice(NASTY), *fields[field + 1 :]])
            case "mix":
                rows[at] = "\t".join([*fields[:field], chance.choice(rows[other].split("\t")), *fields[field + 1 :]])
    return "\n".join([*rows, ""]).encode()


def by_byte(chance: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(damaged) or 1)
        match chance.choice(("flip", "delete", "insert", "cut", "copy")):
            case "flip":
                damaged[at : at + 1] = bytes([chance.choice((9, 10, 0, 58, 92, chance.randrange(256)))])
            case "delete":
                del damaged[at : at + chance.choice((1, 1, 2, 20))]
            case "insert":
                damaged[at:at] = chance.choice((b"\t", b"\n", b"\\", b":", b",", b"\0", chance.randbytes(4)))
            case "cut" if chance.random() < 0.3:
                del damaged[at:]
            case _:
                damaged[at:at] = damaged[at // 2 : at // 2 + chance.randrange(200)]
    return bytes(damaged)


def damaged_plans(seed: int, rows: str = ROWS, count: int = 120) -> Iterator[bytes]:
    chance = random.Random(seed)
    lines = rows.splitlines()
    whole = "\n".join([FIRST, *lines, LAST, ""]).encode()
    for number in range(count):
        yield by_row(chance, lines) if number % 2 else by_byte(chance, whole)


@pytest.fixture(scope="module")
def build() -> Iterator[Sanitized]:
    with sanitized() as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CTRMGR_LIBEXEC", str(found.libexec))
        yield found


def without_cgroups(work: Callable[[], object]) -> object:
    """In a process that sees no cgroups: a plan that is taken ends there, and nothing of the host is changed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            assert libc.unshare(0x20000) == 0
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["umount", "--lazy", "--recursive", "/sys/fs/cgroup"], check=True)
            with os.fdopen(writing, "w") as channel:
                json.dump(work(), channel)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as channel:
        said = channel.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(said)


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_taken_or_refused_by_line(build: Sanitized, tmp_path: Path, seed: int) -> None:
    plan, run = tmp_path / "plan", tmp_path / "run"
    run.mkdir()

    def read() -> list[tuple[int, str, str]]:
        said = []
        for text in damaged_plans(seed):
            plan.write_bytes(text)
            report = spawn.monitor("clean", str(plan), str(tmp_path), str(run))
            said.append((report.error, report.step, report.detail))
        return said

    build.forget()
    said = without_cgroups(read)
    assert isinstance(said, list)
    assert build.said() == ""
    steps = {step for _, step, _ in said}
    assert steps >= {"read the plan", "read the seccomp filter"}, "too much damage, or too little"
    for error, step, detail in said:
        assert error, "it has cleaned up without cgroups?"
        if step == "read the plan":
            assert REFUSED.fullmatch(detail), detail
        else:
            assert step in ("read the seccomp filter", "find the cgroups", "map ids", "find our init"), step
    assert list(run.iterdir()) == []


EXEC_ROWS = "env\tPATH=/usr/bin:/bin\nenv\tA=b\\tc\ncapabilities\t00000000a80425fb\nno-new-privs\t1\nrlimit\tnofile\t100\t200\noom-score-adj\t5\nname\tx\n"


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    instance = Double(EXEC_ROWS)
    yield instance
    instance.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_command_runs_or_is_refused(build: Sanitized, double: Double, seed: int) -> None:
    words = [build.libexec / "ctrmgr-exec", "--control", double.control, "--", "true"]
    codes = set()
    for text in damaged_plans(100 + seed, EXEC_ROWS, 60):
        double.plan.write_bytes(text)
        done = subprocess.run(words, capture_output=True, timeout=30)
        assert done.returncode in (0, 7, 126, 127), done
        assert (done.returncode == 0) == (done.stderr == b""), done
        codes.add(done.returncode)
    assert build.said() == ""
    assert codes >= {0, 7}


PASSWD = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/tmp:/bin/sh\nbob:x:1001:44::/home/bob:\n"
GROUP = "root:x:0:\nann:x:1000:bob\nvideo:x:44:ann,bob\nrender:x:105:bob,ann\n"
LONG = (
    "ann:" * 2000,
    "ann:x:1000:1000::" + "/x" * 5000 + ":/bin/sh\n",
    "a" * 5000 + ":x:1000:1000::/:/bin/sh\n",
    "".join(f"g{number}:x:{number}:ann\n" for number in range(5000)),
    ":" * 100_000,
    "\n" * 100_000,
)


def damaged_users(seed: int) -> Iterator[tuple[bytes, bytes]]:
    chance = random.Random(seed)
    for text in LONG:
        yield text.encode(), text.encode()
    for _ in range(60):
        yield by_byte(chance, PASSWD.encode()), by_byte(chance, GROUP.encode())


def test_users_of_a_hostile_instance(build: Sanitized, double: Double) -> None:
    """As a command's user. Whoever is found is one whom the files name so, or nobody is."""
    double.plan.write_text(f"{FIRST}\n{EXEC_ROWS}{LAST}\n")
    words = [
        build.libexec / "ctrmgr-exec",
        "--control",
        double.control,
        "--user",
        "ann",
        "--cwd",
        "/",
        "--",
        "id",
        "-u",
    ]
    codes = set()
    for passwd, group in damaged_users(200):
        (double.folder / "etc/passwd").write_bytes(passwd)
        (double.folder / "etc/group").write_bytes(group)
        done = subprocess.run(words, capture_output=True, timeout=30)
        assert done.returncode in (0, 3, 7), done
        codes.add(done.returncode)
        if done.returncode == 0:
            uid = done.stdout.strip()
            assert re.search(rb"(^|\n)ann:[^:\n]*:0*" + uid + rb":", passwd.partition(b"\0")[0]), (done, passwd)
    assert build.said() == ""
    assert codes >= {0, 3}


def test_owners_of_a_hostile_instance(build: Sanitized, tmp_path: Path) -> None:
    """The same files, read by the monitor, which is root of the host."""
    planned = Planned(tmp_path, image(tmp_path))
    report = planned.start()
    try:
        script = "for f in passwd group; do cat /etc/$f >/etc/new; ln -f /etc/new /etc/$f; rm /etc/new; done"
        assert planned.sh(script).returncode == 0, planned.sh(script)
        etc = Path(f"/proc/{report.init_pid}/root/etc")
        errors = set()
        for passwd, group in damaged_users(300):
            (etc / "passwd").write_bytes(passwd)
            (etc / "group").write_bytes(group)
            reply = planned.attach("fuse", "/dev/fuse", "/dev/fuse", user="ann", group="render")
            errors.add(reply.error)
            if not reply.error:
                assert planned.ask(control.DETACH, name="fuse").error == 0
        assert planned.ask(control.STATUS).status()[0] == report.monitor_pid
        assert build.said() == ""
        assert errors >= {0, errno.ENOENT}
    finally:
        planned.close()
