# SPDX-License-Identifier: GPL-3.0-or-later
"""ctrmgr-seccomp and the default policy: each system call is really made under the loaded filter."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .double import SOURCES, build

POLICY = (SOURCES / "seccomp" / "default.policy").read_text()
NUMBERS = {
    name: int(number)
    for name, number in re.findall(
        r"#define __NR_(\w+)\s+(\d+)$",
        subprocess.run(
            ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout,
        re.MULTILINE,
    )
}
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bin") / "ctrmgr-seccomp", ["seccomp.c"], "-lseccomp")


def compile_policy(program: Path, policy: str) -> bytes:
    return subprocess.run([program], input=policy.encode(), capture_output=True, check=True).stdout


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def load(bpf: bytes) -> None:
    text = ctypes.create_string_buffer(bpf, len(bpf))
    program = Program(len(bpf) // 8, ctypes.addressof(text))
    if libc.prctl(38, 1, 0, 0, 0) or libc.syscall(NUMBERS["seccomp"], 1, 0, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "seccomp")


def under(bpf: bytes, work: Callable[[], int]) -> int:
    """What `work` answers in a child with the filter; 200 + the signal if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            load(bpf)
            os._exit(work())
        except OSError as problem:
            os._exit(problem.errno or 199)
        finally:
            os._exit(198)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 200 - code if code < 0 else code


def call(name: str, *arguments: int) -> int:
    """errno of the call, 0 for success. -1 everywhere else: nothing that gets through does harm."""
    words = [ctypes.c_long(word) for word in (*arguments, *[-1] * (6 - len(arguments)))]
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(NUMBERS[name]), *words) == -1 else 0


def denied() -> list[tuple[str, str, tuple[int, ...]]]:
    """The policy's own rules, as calls that they must catch."""
    rules = []
    for line in POLICY.splitlines():
        words = line.split("#")[0].split()
        if words[:1] != ["deny"] or words[2].lstrip("?") not in NUMBERS:
            continue
        arguments = [0] * 6 if len(words) > 3 else []
        for comparison in words[3:]:
            number, wanted = re.fullmatch(r"a(\d)&\w+==(\w+)", comparison).groups()  # type: ignore[union-attr]
            arguments[int(number)] = int(wanted, 0)
        rules.append((words[2].lstrip("?"), words[1], tuple(arguments)))
    return rules


@pytest.fixture(scope="module")
def default(program: Path) -> bytes:
    return compile_policy(program, POLICY)


@pytest.mark.parametrize(("name", "error", "arguments"), denied(), ids=str)
def test_denied(default: bytes, name: str, error: str, arguments: tuple[int, ...]) -> None:
    """Every rule of the default policy, called with what it says it catches."""
    assert under(default, lambda: call(name, *arguments)) == getattr(errno, error)


def test_the_answer_is_the_filters(program: Path) -> None:
    """The kernel would refuse many of these with the same error: the same rules with another error give the other."""
    bpf = compile_policy(program, re.sub(r"^deny \w+", "deny 18", POLICY, flags=re.MULTILINE))
    rules = denied()
    assert len(rules) > 35
    for name, _, arguments in rules:
        assert under(bpf, lambda n=name, a=arguments: call(n, *a)) == errno.EXDEV, name  # type: ignore[misc]


def test_high_half_does_not_help(default: bytes) -> None:
    assert under(default, lambda: call("ioctl", 0, 0x5412 | 1 << 40)) == errno.EPERM
    assert under(default, lambda: call("socket", 40 | 1 << 33, 1, 0)) == errno.EAFNOSUPPORT


NEEDED = [
    "mount", "umount2", "unshare", "clone3", "reboot", "ptrace", "name_to_handle_at", "fsopen", "move_mount", "mount_setattr",
    "pivot_root", "setns", "inotify_init1", "signalfd4", "timerfd_create", "fanotify_init", "prctl", "seccomp", "memfd_create",
    "pidfd_open", "close_range", "openat2", "statx", "rseq", "sethostname", "capset", "personality", "socket", "ioctl", "epoll_create1",
]  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_needed_by_an_init(program: Path, name: str) -> None:
    """What systemd and container managers use reaches the kernel: a filter with another error everywhere does not hit it."""
    bpf = compile_policy(program, re.sub(r"^deny \w+", "deny 18", POLICY, flags=re.MULTILINE))
    arguments = {
        "umount2": (0, 0),
        "reboot": (0, 0, 0),
        "personality": (0xFFFFFFFF,),
        "socket": (1, 1, 0),
        "ptrace": (99,),
    }
    assert under(bpf, lambda: call(name, *arguments.get(name, ()))) != errno.EXDEV


def test_actions_and_comparisons(program: Path) -> None:
    def outcome(rules: str, name: str, *arguments: int) -> int:
        return under(compile_policy(program, "default allow\narch native\n" + rules), lambda: call(name, *arguments))

    assert outcome("deny EPERM getppid", "getppid") == errno.EPERM
    assert outcome("kill getppid", "getppid") == 200 + 31
    assert outcome("deny 77 dup a0>5", "dup", 6) == 77
    assert outcome("deny 77 dup a0>5", "dup", 1) == 0
    assert outcome("deny 77 dup a0!=1", "dup", 1) == 0
    assert outcome("deny 77 dup a0<=1", "dup", 1) == 77
    assert outcome("deny 77 dup3 a0==1 a2>=1", "dup3", 1, 9, 1) == 77
    assert outcome("deny 77 dup3 a0==1 a2>=1", "dup3", 1, 9, 0) == 0
    assert outcome("deny 77 ?no_such_call\nallow getppid", "getppid") == 0
    allowlist = "default deny ENOSYS\narch native\nallow getppid\nallow exit_group\n"
    bpf = compile_policy(program, allowlist)
    assert under(bpf, lambda: call("getppid")) == 0
    assert under(bpf, lambda: call("dup", 0)) == errno.ENOSYS


def test_other_architectures(default: bytes, program: Path) -> None:
    """i386's init_module (128) is refused too; without `arch compat` its processes are killed."""
    numbers = struct.unpack(f"<{len(default) // 8}Q", default)
    assert any(word >> 32 == 0x40000003 for word in numbers), "compares with AUDIT_ARCH_I386"
    native = compile_policy(program, POLICY.replace("arch compat", "arch native"))
    numbers = struct.unpack(f"<{len(native) // 8}Q", native)
    assert not any(word >> 32 == 0x40000003 for word in numbers)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("", "empty"),
        ("deny EPERM dup\n", "begins with `default ACTION`"),
        ("default allow\ndeny EPERM no_such_call\n", "`no_such_call`"),
        ("default allow\ndeny EWHAT dup\n", "`EWHAT`"),
        ("default allow\nforbid dup\n", "`forbid`"),
        ("default allow\ndeny EPERM dup a9==1\n", "`a9==1`"),
        ("default allow\ndeny EPERM dup a0=1\n", "`a0=1`"),
        ("default allow\ndeny EPERM dup a0==x\n", "`x`"),
        ("default allow\ndeny EPERM\n", "a system call is missing"),
        ("default allow\narch vax\n", "`compat` or `native`"),
    ],
)
def test_wrong_policies(program: Path, policy: str, reason: str) -> None:
    result = subprocess.run([program], input=policy, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: policy line {policy.count(chr(10))}: ")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_load_time(default: bytes) -> None:
    """A tree of this size loads in well under a millisecond; the limit leaves room for a busy machine."""
    times = []
    for _ in range(15):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            start = time.perf_counter_ns()
            load(default)
            os.write(write, struct.pack("q", time.perf_counter_ns() - start))
            os._exit(0)
        os.close(write)
        times.append(struct.unpack("q", os.read(read, 8))[0])
        os.waitpid(child, 0)
        os.close(read)
    print(f"{len(default) // 8} instructions, load {min(times) / 1000:.0f} µs")
    assert min(times) < 2_000_000
