# SPDX-License-Identifier: GPL-3.0-or-later
"""`security.syscalls.*` → a policy → a compiled filter, kept by the hash of its text."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping

from ctrmgr import state
from ctrmgr.errors import CtrmgrError, HelperError, SpecError, UnsupportedError
from ctrmgr.spec import values

STARTING = (
    "execve", "setgroups", "setresgid", "setresuid", "prctl", "rt_sigprocmask", "?poll", "ppoll", "?dup2", "dup3", "fcntl",
    "close", "close_range", "chdir", "getcwd", "?access", "faccessat", "faccessat2", "sendto", "exit", "exit_group", "brk",
    "mmap", "munmap", "getpid",
)  # fmt: skip
"""What a process calls between the loading of its filter and the program that it becomes."""


def policy(config: Mapping[str, str], default: str) -> str:
    """The policy's text. `default` is the default policy's. Raises SpecError for keys that exclude each other."""
    deny, allow = config.get("security.syscalls.deny", ""), config.get("security.syscalls.allow", "")
    compat = "native" if values.is_true(config.get("security.syscalls.deny_compat")) else "compat"
    if allow:
        clash = [name for name in ("deny", "deny_default") if config.get(f"security.syscalls.{name}")]
        if clash:
            raise SpecError(f"`security.syscalls.allow` and `security.syscalls.{clash[0]}` exclude each other")
        names = [f"allow {name}" for name in STARTING]
        names += [f"allow {line.split()[0]}" for line in allow.splitlines() if line.strip()]
        return "\n".join(["default kill", f"arch {compat}", *names]) + "\n"
    if not values.is_true(config.get("security.syscalls.deny_default", "true")):
        default = "default allow\narch compat\n"
    if compat == "native":
        default = default.replace("\narch compat\n", "\narch native\n")
    rules = [_rule(line.split()) for line in deny.splitlines() if line.strip()]
    return "\n".join([default.rstrip("\n"), *rules]) + "\n"


def _rule(words: list[str]) -> str:
    name, *what = words
    if not what:
        return f"deny EPERM {name}"
    if what == ["kill"]:
        return f"kill {name}"
    if len(what) == 2 and what[0] == "errno" and what[1].isdecimal() and 0 < int(what[1]) < 4096:
        return f"deny {what[1]} {name}"
    raise SpecError(
        f"`security.syscalls.deny`: `{' '.join(words)}` is not a rule", hint="`NAME`, `NAME errno 1`, `NAME kill`"
    )


def default_policy() -> str:
    """The text of the default policy that is installed. Raises HelperError."""
    path = default_policy_path()
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError as error:
        raise HelperError(
            f"the default system call policy `{path}` cannot be read: {error.strerror}",
            operation="read the default policy",
            hint="ctrmgr is not fully installed",
        ) from error


def default_policy_path() -> str:
    """Beside the helpers; in a source tree, among their sources."""
    installed = state.libexec_dir() + "/default.policy"
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    source = os.path.dirname(package) + "/native_helpers/seccomp/default.policy"
    return source if not os.path.exists(installed) and os.path.exists(source) else installed


def compiled(text: str) -> str:
    """Path of the filter for a policy, compiled if it is new. Raises SpecError for an unknown system call, HelperError."""
    folder = state.state_dir() + "/seccomp"
    # The same text gives another filter with another compiler or library: its stamp is part of the name.
    program = state.libexec_dir() + "/ctrmgr-seccomp"
    try:
        found = os.stat(program)
    except OSError as error:
        raise HelperError(
            f"`{program}` cannot be used: {error.strerror}",
            operation="compile the system call policy",
            hint="ctrmgr is not fully installed; CTRMGR_LIBEXEC says where its programs are",
        ) from error
    key = hashlib.sha256(f"{found.st_mtime_ns} {found.st_size}\n{text}".encode()).hexdigest()[:32]
    path = f"{folder}/{key}"
    if os.path.exists(path):
        return path
    run = subprocess.run([program], input=text.encode(), capture_output=True, check=False)
    if run.returncode != 0 or not run.stdout:
        raise _refused(text, run.returncode, run.stderr.decode(errors="replace").strip())
    state.make_dir(folder)
    state.write_file(path, run.stdout)
    return path


def _refused(text: str, code: int, reason: str) -> CtrmgrError:
    if code == 5:
        return UnsupportedError(
            f"this kernel lacks {reason.removeprefix('error: ')}",
            hint="or a sandbox, an outer container or a security module refuses it",
        )
    line = reason.removeprefix("error: policy line ").partition(":")[0]
    if code == 2 and line.isdecimal() and 0 < int(line) <= len(text.splitlines()):
        return SpecError(
            f"`security.syscalls`: `{text.splitlines()[int(line) - 1]}`: {reason.partition(': ')[2].partition(': ')[2]}",
            hint="names are those of the kernel's system calls",
        )
    return HelperError(f"`ctrmgr-seccomp` failed ({code}): {reason}", operation="compile the system call policy")
