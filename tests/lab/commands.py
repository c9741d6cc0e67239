# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands in the guest: ours in forks of this process, because starting Python anew is slow there, and the system's."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

import ctrmgr
from ctrmgr.cli.main import main
from tests.conftest import Result

for module in pkgutil.walk_packages(ctrmgr.__path__, "ctrmgr."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # of packages that are not in the guest
            importlib.import_module(module.name)  # once, and not in each fork that wants it
gc.freeze()


def ctr(*words: str, code: int | None = 0) -> Result:
    """`ctrmgr` as a process of its own; its exit code must be `code`, unless that is None."""
    files = [os.memfd_create(name) for name in ("out", "err")]
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        sys.argv = ["ctrmgr", *words]
        status = 70
        try:
            status = main()
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    out, err = (os.pread(file, 1 << 20, 0).decode(errors="replace") for file in files)
    for file in files:
        os.close(file)
    assert code is None or ended == code, f"ctrmgr {' '.join(words)}: {ended}: {out}{err}"
    return Result(ended, out, err)


def host(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def wait_for(path: str) -> None:
    for _ in range(200):
        if os.path.exists(path):
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} does not come")


def sh(script: str, *, code: int | None = 0, name: str = "c1", user: str = "0", group: str = "0") -> str:
    """What a shell in the instance says."""
    done = ctr("exec", "--user", user, "--group", group, name, "--", "sh", "-c", script, code=code)
    return (done.stdout + done.stderr).strip()


def info(name: str = "c1") -> dict[str, object]:
    found: dict[str, object] = json.loads(ctr("info", name, "--format", "json").stdout)
    return found


def cgroup(file: str, name: str = "c1") -> str:
    return Path(f"/sys/fs/cgroup/ctrmgr/{name}/{file}").read_text().strip()
