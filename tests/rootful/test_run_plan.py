# SPDX-License-Identifier: GPL-3.0-or-later
"""The run plan as the monitor reads it: written by hand, refused by line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ctrmgr.kernel import spawn

PLAN = """ctrmgr-plan\t1
name\tplanned
hostname\tplanned
uidmap\t0\t1800000000\t65536
gidmap\t0\t1800000000\t65536
layer\t/nonexistent
cgroup\tctrmgr-test-planned
net\tnone
init\t/sbin/init
"""
NEXT = PLAN.count("\n") + 1
LONG = "x" * 256
DEVICE = "device\tfuse\tchar\t/dev/fuse\t{path}\t0\t0\t0660\trwm\trequired"


def read(folder: Path, text: str) -> spawn.Report:
    """`clean` reads the plan as `start` does, and starts nothing."""
    for name in ("instance", "run"):
        (folder / name).mkdir()
    (folder / "instance/plan").write_text(text)
    return spawn.monitor("clean", str(folder / "instance/plan"), str(folder / "instance"), str(folder / "run"))


@pytest.mark.parametrize(
    "row",
    [
        "",
        "mask\t/proc/kcore",
        "mask\t/proc/..hidden",
        "readonly\t/sys/kernel/a..b",
        "cgroup-file\tunified\tmemory.max\t1000",
        DEVICE.format(path="/dev/net/tun"),
        f"{DEVICE.format(path='/dev/a')}\n{DEVICE.format(path='/dev/b')}",
        "bind\tgpu\t/usr/lib/libx.so\t/usr/lib/libx.so\tro,nosuid,nodev,noexec,optional",
        "bind\tgpu\t/srv\t/mnt\trw",
        "device-env\tgpu\tVISIBLE_2\tall\\tof=it",
        "device-env\tgpu\tEMPTY\t",
        "hook\tgpu\tsymlink\tlibx.so.1\t/usr/lib/libx.so",
        "hook\tgpu\tldcache" + "\t/d" * 8,
        "identity\tgpu\t/sys/class/drm/card0/device/vendor\t0x10de",
        "hotplug\tstick\t0\tplugdev\t0660\trwm\tusb\tvendorid=1a86\tserial=A B",
        "lease\tgpu\tpci:0000:01:00.0\tshared:2",
    ],
)
def test_taken(tmp_path: Path, row: str) -> None:
    report = read(tmp_path, f"{PLAN}{row}\nend\n")
    assert not report.error, (report.step, report.detail)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("bogus\t1", "unknown key `bogus`"),
        ("mask\t/etc/shadow", "wrong `mask`"),
        ("mask\tproc/kcore", "wrong `mask`"),
        ("mask\t/proc", "wrong `mask`"),
        ("mask\t/proc/", "wrong `mask`"),
        ("mask\t/process", "wrong `mask`"),
        ("mask\t/proc/../etc/shadow", "wrong `mask`"),
        ("mask\t/proc/sys/..", "wrong `mask`"),
        ("mask\t/proc/./kcore", "wrong `mask`"),
        ("mask\t/proc//kcore", "wrong `mask`"),
        (f"mask\t/proc/{LONG}", "wrong `mask`"),
        ("mask\t/sys/fs/cgroup", "wrong `mask`"),
        ("readonly\t/sys/fs/cgroup/memory.max", "wrong `readonly`"),
        ("address\t4\t10.0.0.2\t33", "wrong `address`"),
        ("\n".join(["address\t4\t10.0.0.2\t24"] * 5), "wrong `address`"),
        ("\n".join(["gateway\t4\t10.0.0.1"] * 3), "wrong `gateway`"),
        ("address\t6\tfd00::2\t256", "wrong `address`"),
        ("readonly\t/usr", "wrong `readonly`"),
        ("readonly\t/sys/../usr", "wrong `readonly`"),
        ("readonly\t/sysroot/x", "wrong `readonly`"),
        ("cgroup-file\tunified\t../memory.max\t1", "wrong `cgroup-file`"),
        ("cgroup-file\tunified\tbelow/memory.max\t1", "wrong `cgroup-file`"),
        ("cgroup-file\tunified\t..\t1", "wrong `cgroup-file`"),
        ("cgroup-file\tunified\t\t1", "wrong `cgroup-file`"),
        ("cgroup-file\t../cpu\tcpu.shares\t1", "wrong `cgroup-file`"),
        (f"cgroup-file\tunified\tmemory.max\t{LONG}", "wrong `cgroup-file`"),
        ("cgroup\t../up", "wrong `cgroup`"),
        ("cgroup\t/up", "wrong `cgroup`"),
        ("cgroup\ta/../../up", "wrong `cgroup`"),
        ("layer\trelative", "wrong `layer`"),
        ("uidmap\t0\tx\t1", "wrong `uidmap`"),
        ("uidmap\t0\t4294967000\t65536", "wrong `uidmap`"),
        ("net\twifi", "wrong `net`"),
        ("env\tX", "wrong `env`"),
        ("halt-signal\t0", "wrong `halt-signal`"),
        ("restart\tsometimes", "wrong `restart`"),
        (DEVICE.format(path="/etc/fuse"), "wrong `device`"),
        (DEVICE.format(path="/dev/../etc/fuse"), "wrong `device`"),
        ("device\tgpu\tchar", "wrong `device`"),
        ("bind\tgpu\trelative\t/mnt\tro", "wrong `bind`"),
        ("bind\tgpu\t/srv\tmnt\tro", "wrong `bind`"),
        ("bind\tgpu\t/srv\t/\tro", "wrong `bind`"),
        ("bind\tgpu\t/srv\t/mnt/../etc\tro", "wrong `bind`"),
        (f"bind\tgpu\t/srv\t/{LONG}\tro", "wrong `bind`"),
        (f"bind\t{LONG}\t/srv\t/mnt\tro", "wrong `bind`"),
        ("bind\tgpu\t/srv\t/mnt\tro,suid", "wrong `bind`"),
        ("bind\tgpu\t/srv\t/mnt\t", "wrong `bind`"),
        ("bind\tgpu\t/srv\t/mnt", "wrong `bind`"),
        ("device-env\tgpu\tA=B\tc", "wrong `device-env`"),
        ("device-env\tgpu\t2A\tc", "wrong `device-env`"),
        ("device-env\tgpu\t\tc", "wrong `device-env`"),
        ("device-env\tgpu\tA\\tB\tc", "wrong `device-env`"),
        (f"device-env\tgpu\tA\t{LONG * 16}", "wrong `device-env`"),
        ("device-env\tgpu\tA", "wrong `device-env`"),
        ("hook\tgpu\tsymlink", "wrong `hook`"),
        (f"hook\tgpu\tldcache\t{LONG * 16}", "wrong `hook`"),
        ("hook\tgpu\tldcache" + "\t/d" * 48, "wrong `hook`"),
        ("hotplug\tstick\t0\t0\t0660\trw", "wrong `hotplug`"),
        ("hotplug\tstick\t0\t0\t1777\trw\tusb", "wrong `hotplug`"),
        ("hotplug\tstick\t0\t0\t0660\tx\tusb", "wrong `hotplug`"),
        ("identity\tgpu\t/sys/x", "wrong `identity`"),
        ("lease\tgpu\tpci:1", "wrong `lease`"),
        (f"env\tA={'x' * 10}\\x", "cannot be read"),
    ],
)
def test_refused(tmp_path: Path, row: str, why: str) -> None:
    report = read(tmp_path, f"{PLAN}{row}\nend\n")
    assert (report.error, report.step) == (errno.EINVAL, "read the plan")
    assert report.detail.startswith(f"line {NEXT + row.count(chr(10))}"), report.detail
    assert why in report.detail


@pytest.mark.parametrize(
    ("row", "room"),
    [
        ("device\tgpu\tchar\t/dev/x\t/dev/{}\t0\t0\t0660\trw\toptional", 128),
        ("bind\tgpu\t/x\t/{}\tro,optional", 128),
        ("device-env\tgpu\tA{}\tb", 128),
        ("hook\tgpu\tsymlink\tx\t/{}", 64),
    ],
    ids=lambda value: str(value).partition("\t")[0],
)
def test_room(tmp_path: Path, row: str, room: int) -> None:
    full = "".join(row.format(number) + "\n" for number in range(room))
    (tmp_path / "full").mkdir()
    assert not read(tmp_path / "full", f"{PLAN}{full}end\n").error
    report = read(tmp_path, f"{PLAN}{full}{row.format('more')}\nend\n")
    assert (report.step, report.detail) == ("read the plan", f"line {NEXT + room}: wrong `{row.partition(chr(9))[0]}`")


@pytest.mark.parametrize("text", ["", "ctrmgr-plan\t2\n", "name\tx\n", PLAN, "ctrmgr-plan\t1\nname\tx\nend\n"])
def test_not_a_plan(tmp_path: Path, text: str) -> None:
    report = read(tmp_path, text)
    assert (report.error, report.step) == (errno.EINVAL, "read the plan")
