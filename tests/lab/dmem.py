# SPDX-License-Identifier: GPL-3.0-or-later
"""Device memory, where the guest's kernel has a module with a region of it: what is written to its node is charged to who writes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ctrmgr.backend import usage
from tests.lab.commands import cgroup, ctr, info, sh

MIB = 1 << 20
GPU = "/dev/dri/renderD128"


def address() -> str:
    """The GPU's own."""
    folder = Path(os.path.realpath(f"/sys/class/drm/{Path(GPU).name}/device"))
    return next(part for part in reversed(folder.parts) if part.count(":") == 2)


def lines(file: str, name: str = "") -> dict[str, str]:
    text = cgroup(file, name) if name else Path(f"/sys/fs/cgroup/ctrmgr/{file}").read_text()
    return {region: value for region, _, value in (line.rpartition(" ") for line in text.splitlines())}


def charge(*sizes: int) -> str:
    """A script that charges this many MiB one after the other, and says of each whether it was taken."""
    tries = "; ".join(f"echo {size * MIB} >&5 2>/dev/null && echo yes || echo no" for size in sizes)
    return f"exec 5>/dev/labdmem0; {tries}"


def limits(name: str) -> dict[str, tuple[str, object, object]]:
    found: list[dict[str, object]] = info(name)["limits"]  # type: ignore[assignment]
    return {str(limit["key"]): (str(limit["value"]), limit["mechanism"], limit["state"]) for limit in found}


def a_gpus_memory_is_limited_and_kept() -> None:
    """By the kernel's dmem; lowered live, but not below what is in use; another instance does not notice."""
    region = f"drm/{address()}/vram0"
    gpu = f"gpu,type=gpu,id={Path(GPU).name}"
    launch = ("launch", "builtin:busybox")
    if subprocess.run(["modprobe", "labdmem", f"regions={region}", "size_mb=256"], capture_output=True).returncode:
        refused = ctr(*launch, "m1", "-p", "no-network", "-d", f"{gpu},memory=64MiB", code=5)
        assert "`gpu.memory` cannot be enforced here" in refused.stderr and "dmem" in refused.stderr, refused
        return
    given = ("-p", "no-network", "-d", "lab,type=unix-char,source=/dev/labdmem0,mode=0666")
    for wrong, code, said in (
        ("memory=1GiB", 5, "has 256 MiB of memory, not 1024"),
        ("memory=1MiB,memory.reserve=2MiB", 2, "above the limit"),
        ("memory=1Q", 2, "unknown unit"),
    ):
        assert said in ctr(*launch, "m0", *given, "-d", f"{gpu},{wrong}", code=code).stderr
    assert not Path("/sys/fs/cgroup/ctrmgr/m0").exists()

    ctr(*launch, "m1", *given, "-d", f"{gpu},memory=64MiB,memory.reserve=16MiB")
    ctr(*launch, "m2", *given, "-d", gpu, "-c", "limits.gpu.memory=32MiB", "-c", "limits.gpu.memory.reserve=3%")
    assert lines("dmem.max", "m1")[region] == str(64 * MIB)
    assert lines("dmem.min", "m1")[region] == str(16 * MIB)
    kept = int(lines("dmem.min", "m2")[region])
    assert 7 * MIB < kept < 8 * MIB
    assert lines("dmem.min")[region] == str(16 * MIB + kept)  # what the cgroup above has not, the kernel does not keep
    assert limits("m1") == {
        "gpu.memory": (f"{region} {64 * MIB}", "dmem", "enforced"),
        "gpu.memory.reserve": (f"{region} {16 * MIB}", "dmem", "enforced"),
    }
    assert sh(charge(32, 30, 4, 1), name="m1") == "yes\nyes\nno\nyes"
    assert sh(charge(31, 2), name="m2") == "yes\nno"

    sh(f"({charge(20)}; sleep 600) >/dev/null 2>&1 </dev/null & sleep 0.2", name="m2")
    (sample,) = usage.Sampler().sample(["m2"])
    assert (sample.gpus[address()]["gpu-memory"], sample.gpus[address()]["gpu-memory-limit"]) == (20 * MIB, 32 * MIB)
    assert info("m2")["gpus"] == [{"gpu": address(), "memory": 20 * MIB, "memory-limit": 32 * MIB}]
    refused = ctr("config", "set", "m2", "limits.gpu.memory=16MiB", code=5)
    assert f"{20 * MIB} bytes are in use" in refused.stderr
    assert lines("dmem.max", "m2")[region] == str(32 * MIB)
    ctr("config", "set", "m2", "limits.gpu.memory=24MiB")
    assert lines("dmem.max", "m2")[region] == str(24 * MIB)
    assert sh(charge(3, 2), name="m2") == "yes\nno"
    assert sh(charge(60), name="m1") == "yes"
    ctr("config", "unset", "m2", "limits.gpu.memory")
    assert sh(charge(100), name="m2") == "yes"

    ctr("detach-device", "m1", "gpu")
    assert (lines("dmem.max", "m1")[region], lines("dmem.min")[region]) == ("max", str(kept))
    ctr("attach-device", "m1", "gpu", "type=gpu", f"id={Path(GPU).name}", "memory=50%")
    assert sh(charge(100, 40), name="m1") == "yes\nno"
    for name in ("m1", "m2"):
        ctr("delete", "--force", name)
    assert lines("dmem.min")[region] == "0"
    subprocess.run(["rmmod", "labdmem"], check=True)
