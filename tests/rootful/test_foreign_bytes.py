# SPDX-License-Identifier: GPL-3.0-or-later
"""What the C programs read of others' making: whatever it says, nothing is read or written beyond it, and only the kernel is
believed to be the kernel."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from tests.rootful.double import SOURCES, WARNINGS
from tests.rootful.sanitized import FLAGS

READERS = ("btf", "confine", "flat", "netlink", "plan", "plan_devices", "plan_map", "schemata", "uevent")
ROUNDS = 1000


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("foreign") / "driver"
    sources = [SOURCES / f"{name}.c" for name in READERS]
    include = f"-I{SOURCES}"
    driver = Path(__file__).with_name("foreign_driver.c")
    subprocess.run(["cc", *WARNINGS, "-O0", *FLAGS, include, driver, *sources, "-o", program], check=True)
    return program


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", len(data) + 4, kind) + data + bytes(-len(data) % 4)


def corpus(folder: Path) -> list[Path]:
    rows = (
        "uidmap\t0\t100000\t65536", "gidmap\t0\t100000\t65536", "layer\t/a", "cgroup\ta/b", "init\t/sbin/init", "arg\t-c",
        "env\tA=b", "net\tbridge", "link\tbr0\tveth\teth0\t02:00:00:00:00:01\t1500", "address\t4\t10.0.0.2\t24",
        "gateway\t4\t10.0.0.1", "sysctl\tnet/ipv4/ip_forward\t1", "mask\t/proc/kcore", "readonly\t/proc/sys",
        "cgroup-file\tunified\tpids.max\t100", "link-limit\tveth\t1000\t1000\t3", "rlimit\tnofile\t10\tunlimited", "oom-score-adj\t1000",
        "device\tgpu\tchar\t/dev/dri/card0\t/dev/dri/card0\troot\t44\t660\trw\toptional",
        "bind\tlib\t/usr/lib/a\\tb\t/usr/lib/a\tro,optional,shift", "filesystem\td\text4\t/dev/sda\t/mnt\trw\tdata=ordered",
        "device-env\tgpu\tKEY\tvalue", "device-group\tgpu\t44", "hook\tgpu\tsymlink\t/a\t/b",
        "hotplug\tu\t0\t0\t660\trw\tusb\tvendorid=1234", "netdev\tn\teth1\teth1\t\t0\toptional", "rdma\tr\tmlx5_0",
        "resctrl\tc\t.\t/sys/fs/resctrl\t\tL3:0=f", "shares\tn\t/dev/nvidiactl", "capabilities\tff", "seccomp\t/a",
    )  # fmt: skip
    link = struct.pack("=IHHII", 0, 16, 0, 1, 0) + struct.pack("=BBHiII", 0, 0, 1, 7, 0x1043, 0)
    link += attribute(3, b"eth0\0") + attribute(4, struct.pack("=I", 1500)) + attribute(1, bytes(range(6)))
    link += attribute(54, bytes(20)) + attribute(56, b"0000:01:00.0\0") + attribute(18, attribute(1, b"veth\0"))
    names = b"\0file\0f_inode\0bpf_lsm_mmap_file\0"
    types = (
        struct.pack("=III", 1, 4 << 24 | 1, 8) + struct.pack("=III", 6, 0, 32) + struct.pack("=III", 14, 12 << 24, 0)
    )
    btf = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names)) + types + names
    texts = {
        "plan": "\n".join(("ctrmgr-plan\t1", "name\tc1", *rows, "end", "")).encode(),
        "link": link,
        "btf": btf,
        "uevent": b"add@/devices/a\0ACTION=add\0SUBSYSTEM=usb\0MAJOR=189\0MINOR=3\0DEVNAME=bus/usb/001/004\0",
        "class": b"L3",
        "schemata": b"    L3:0=f;1=ff0\n    MB:0=100;1=50\n",
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return [folder / name for name in texts]


@pytest.mark.parametrize("seed", [1, 2])
def test_noise(driver: Path, tmp_path: Path, seed: int) -> None:
    done = subprocess.run(
        [driver, "noise", str(seed), str(ROUNDS), *corpus(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_is_not_the_kernels(driver: Path) -> None:
    """Root in an instance can send to sockets in its network namespace."""
    assert subprocess.run([driver, "forged"], capture_output=True, text=True).stdout == "lo\n"
