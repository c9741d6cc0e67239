# SPDX-License-Identifier: GPL-3.0-or-later
"""Device memory, where the guest's kernel has a module with a region of it: what is written to its node is charged to who writes."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from ctrmgr.backend import usage
from tests.lab.commands import cgroup, ctr, info, sh

MIB = 1 << 20
GPU = "/dev/dri/renderD128"
LAUNCH = ("launch", "builtin:busybox")
GIVEN = ("-p", "no-network", "-d", "lab,type=unix-char,source=/dev/labdmem0,mode=0666")


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


def memory_is_kept_under_pressure() -> None:
    """Two instances have read the same amount from the disk. When the whole machine takes memory back, the one with a guarantee keeps
    what it has; and that it has none any more is known above it, too."""

    def cached(name: str) -> int:
        return int(
            next(line.split()[1] for line in cgroup("memory.stat", name).splitlines() if line.startswith("file "))
        )

    disk = ("-p", "no-network", "-d", "d,type=unix-block,source=/dev/nvme0n1,path=/dev/d")
    ctr("launch", "builtin:busybox", "k1", *disk, "-c", "unified.memory.min=14M")
    ctr("launch", "builtin:busybox", "k2", *disk)
    assert Path("/sys/fs/cgroup/ctrmgr/memory.min").read_text() == f"{14 * MIB}\n"
    for name, skip in (("k1", 0), ("k2", 12)):
        # the kernel forgets what it has of a disk that nobody has open
        kept = "sleep 600 </dev/d >/dev/null 2>&1 &"
        sh(f"{kept} dd if=/dev/d of=/dev/null bs=1M count=12 skip={skip}", name=name)
    before = cached("k1"), cached("k2")
    assert min(before) > 11 * MIB, before
    for _ in range(40):
        try:
            Path("/sys/fs/cgroup/memory.reclaim").write_text("64M")
        except OSError:
            pass  # it was not that much
        if cached("k2") < 6 * MIB:
            break
    assert cached("k1") > 10 * MIB and cached("k2") < 6 * MIB, (before, cached("k1"), cached("k2"))
    ctr("config", "set", "k2", "unified.memory.low=4M")
    ctr("delete", "--force", "k1")
    assert [Path(f"/sys/fs/cgroup/ctrmgr/memory.{file}").read_text() for file in ("min", "low")] == [
        "0\n",
        f"{4 * MIB}\n",
    ]
    ctr("delete", "--force", "k2")
    assert Path("/sys/fs/cgroup/ctrmgr/memory.low").read_text() == "0\n"


def _promised(region: str, kept: int) -> None:
    """What m1 (16 MiB) and m2 have is promised to nobody else, neither at a start nor live."""
    rest = 256 * MIB - 16 * MIB - kept
    said = f"of 256MiB of memory {rest} bytes are promised to nobody"
    refused = ctr(*LAUNCH, "m0", *GIVEN, "-d", f"gpu,type=gpu,id={Path(GPU).name},memory.reserve=234MiB", code=4).stderr
    assert said in refused and f"`m1` has 16MiB, `m2` has {kept} bytes" in refused, refused
    assert not Path("/sys/fs/cgroup/ctrmgr/m0").exists() and "m0" not in ctr("list", "--format", "csv").stdout
    assert "254" in ctr("config", "device", "set", "m1", "gpu", "memory.reserve=254MiB", "memory=255MiB", code=4).stderr
    assert "above the limit" in ctr("config", "set", "m2", "limits.gpu.memory.reserve=33MiB", code=2).stderr
    assert "has 256 MiB of memory, not 1024" in ctr("config", "set", "m2", "limits.gpu.memory=1GiB", code=5).stderr
    refused = ctr("config", "set", "m2", "limits.gpu.memory.reserve=98%", "limits.gpu.memory=100%", code=4).stderr
    assert "of 256MiB of memory 240MiB are promised to nobody" in refused, refused
    assert (lines("dmem.min", "m1")[region], lines("dmem.min", "m2")[region]) == (str(16 * MIB), str(kept))


def a_gpus_memory_is_limited_and_kept() -> None:
    """By the kernel's dmem; lowered live, but not below what is in use; another instance does not notice."""
    region = f"drm/{address()}/vram0"
    gpu = f"gpu,type=gpu,id={Path(GPU).name}"
    if subprocess.run(["modprobe", "labdmem", f"regions={region}", "size_mb=256"], capture_output=True).returncode:
        refused = ctr(*LAUNCH, "m1", "-p", "no-network", "-d", f"{gpu},memory=64MiB", code=5)
        assert "`gpu.memory` cannot be enforced here" in refused.stderr and "dmem" in refused.stderr, refused
        return
    for wrong, code, said in (
        ("memory=1GiB", 5, "has 256 MiB of memory, not 1024"),
        ("memory=1MiB,memory.reserve=2MiB", 2, "above the limit"),
        ("memory=1Q", 2, "unknown unit"),
    ):
        assert said in ctr(*LAUNCH, "m0", *GIVEN, "-d", f"{gpu},{wrong}", code=code).stderr
    assert not Path("/sys/fs/cgroup/ctrmgr/m0").exists()

    ctr(*LAUNCH, "m1", *GIVEN, "-d", f"{gpu},memory=64MiB,memory.reserve=16MiB")
    ctr(*LAUNCH, "m2", *GIVEN, "-d", gpu, "-c", "limits.gpu.memory=32MiB", "-c", "limits.gpu.memory.reserve=3%")
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

    _promised(region, kept)
    ctr("config", "set", "m2", "limits.gpu.memory.reserve=8MiB")
    kept = 8 * MIB
    assert (lines("dmem.min", "m2")[region], lines("dmem.min")[region]) == (str(kept), str(24 * MIB))

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
    attach = ("attach-device", "m1", "gpu", "type=gpu", f"id={Path(GPU).name}")
    assert "of 256MiB of memory 248MiB are promised" in ctr(*attach, "memory.reserve=249MiB", code=4).stderr
    assert lines("dmem.min")[region] == str(kept)
    ctr(*attach, "memory=50%")
    assert sh(charge(100, 40), name="m1") == "yes\nno"
    for name in ("m1", "m2"):
        ctr("delete", "--force", name)
    assert lines("dmem.min")[region] == "0"
    subprocess.run(["rmmod", "labdmem"], check=True)


SERVER = """mkfifo /tmp/ask /tmp/said
(exec 5<>/dev/evict
while read sizes </tmp/ask; do
    { for size in $sizes; do echo $((size << 20)) >&5 && echo yes || echo no; done; cat <&5; } >/tmp/said
done) </dev/null >/dev/null 2>&1 &"""
"""A program of the instance that keeps buffers in device memory. It makes those of the sizes that it is told, and says what came of it."""


@functools.cache
def _fifos(name: str) -> str:
    return f"/proc/{info(name)['pid']}/root/tmp"


def buffers(name: str, sizes: str = "") -> tuple[str, int, int]:
    """What became of new ones of these MiB; how many MiB of all that the program made are there, and how many had to go."""
    tmp = _fifos(name)
    Path(f"{tmp}/ask").write_text(f"{sizes}\n")
    *taken, held = Path(f"{tmp}/said").read_text().splitlines()
    there, gone = (int(size) // MIB for size in held.split())
    assert lines("dmem.current", name)[f"drm/{address()}/vram0"] == str(there * MIB)
    return "".join(word[0] for word in taken), there, gone


def what_is_kept_stays_when_others_want_more() -> None:
    """A driver that evicts as those of GPUs do: who has been there for longest goes, as far as the kernel does not keep it."""
    gpu = f"gpu,type=gpu,id={Path(GPU).name}"
    if "dmem" not in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split():
        refused = ctr(*LAUNCH, "e1", "-p", "no-network", "-d", f"{gpu},memory.reserve=16MiB", code=5)
        assert "`gpu.memory.reserve` cannot be enforced here" in refused.stderr and "dmem" in refused.stderr, refused
        return
    region = f"drm/{address()}/vram0"
    subprocess.run(["insmod", "/job/evict.ko", f"region={region}", "mib=64"], check=True)
    os.environ["CTRMGR_CGROUP_PARENT"] = "above/ctrmgr"
    try:
        refused = ctr(*LAUNCH, "e1", "-p", "no-network", "-d", f"{gpu},memory.reserve=16MiB", code=5).stderr
    finally:
        del os.environ["CTRMGR_CGROUP_PARENT"]
    assert "the cgroup above, `/sys/fs/cgroup/above`, keeps 0 bytes" in refused, refused
    given = ("-p", "no-network", "-d", "lab,type=unix-char,source=/dev/evict,mode=0666")
    ctr(*LAUNCH, "e1", *given, "-d", f"{gpu},memory.reserve=16MiB")
    ctr(*LAUNCH, "e2", *given, "-d", gpu)
    for name in ("e1", "e2"):
        sh(SERVER, name=name)
    assert buffers("e1", "4 4 4 4 4") == ("yyyyy", 20, 0)
    assert buffers("e2", "4 " * 11) == ("y" * 11, 44, 0)  # now it is full
    assert buffers("e2", "4") == ("y", 48, 0)
    assert buffers("e1") == ("", 16, 4)  # what it had beyond its reserve had to go
    assert buffers("e2", "4 4 4") == ("yyy", 48, 12)  # and from then on it is its own
    assert buffers("e1") == ("", 16, 4)
    above = Path("/sys/fs/cgroup/ctrmgr/dmem.min")
    above.write_text(f"{region} 0")  # somebody else does
    assert limits("e1")["gpu.memory.reserve"] == (f"{region} {16 * MIB}", "dmem", "not in force")
    assert buffers("e2", "4") == ("y", 52, 12)
    assert buffers("e1") == ("", 12, 8)
    reserve = ("config", "device", "set", "e1", "gpu")
    ctr(*reserve, "memory.reserve=8MiB")
    assert limits("e1")["gpu.memory.reserve"] == (f"{region} {8 * MIB}", "dmem", "enforced")
    assert buffers("e2", "4 4") == ("yy", 56, 16)
    assert buffers("e1") == ("", 8, 12)
    ctr("config", "device", "unset", "e1", "gpu", "memory.reserve")
    assert buffers("e2", "4 4 4") == ("yyy", 64, 20)
    assert buffers("e1") == ("", 0, 20)  # nothing is kept, and nothing stays

    ctr(*reserve, "memory.reserve=16MiB")
    assert buffers("e1", "4 4 4 4") == ("yyyy", 16, 20)  # others have to go for it
    assert buffers("e2", "4 52") == ("yn", 0, 88)  # for which all its own had to go, and it is not enough
    assert buffers("e1") == ("", 16, 20)
    ctr(*reserve, "memory=16MiB")
    assert buffers("e1", "4") == ("y", 16, 24)  # its limit, for which its own had to go
    for name in ("e1", "e2"):
        ctr("delete", "--force", name)
    subprocess.run(["rmmod", "evict"], check=True)
