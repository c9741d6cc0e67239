# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's half of the doctor, on machines that lack one thing each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.backend import checkup, upgrades
from ctrmgr.backend.checkup import Finding

FILES = {
    "proc/sys/kernel/osrelease": "6.12.3-lab\n",
    "proc/sys/kernel/seccomp/actions_avail": "kill allow\n",
    "proc/sys/user/max_user_namespaces": "7000\n",
    "proc/filesystems": "".join(f"nodev\t{name}\n" for name in checkup.FILESYSTEMS),
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
    "sys/kernel/security/lsm": "capability,apparmor,bpf\n",
    "sys/kernel/security/apparmor/profiles": "ctrmgr-instance (enforce)\n",
    "sys/kernel/btf/vmlinux": "",
    "etc/subuid": "root:100000:6553600\nann:200000000:65536\n",
    "etc/subgid": "root:100000:6553600\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTRMGR_STATE_DIR", str(tmp_path / "state"))
    for name, text in FILES.items():
        write(tmp_path, name, text)
    return tmp_path


def write(root: Path, name: str, text: str | None) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


def look(root: Path) -> Iterator[Finding]:
    for part in (checkup.kernel, checkup.cgroups, checkup.modules, checkup.ids):
        yield from part(str(root))


def test_nothing_is_lacking(root: Path) -> None:
    found = list(look(root))
    assert {finding.status for finding in found} == {"ok"}
    texts = [finding.text for finding in found]
    assert texts == [
        "Linux 6.12", "pure cgroup2", "security modules: apparmor, bpf", "revoked",
        "room for 100 instances, 0 in use",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "status", "says"),
    [
        ("proc/sys/kernel/osrelease", "5.4.0", "wrong", "Linux 5.4 is older than 5.9"),
        ("proc/sys/kernel/osrelease", "5.15.0", "note", "before 5.19 an image's layers are copied"),
        ("proc/sys/kernel/seccomp/actions_avail", None, "wrong", "has no seccomp"),
        ("proc/sys/user/max_user_namespaces", "0", "wrong", "user namespaces are switched off"),
        ("proc/filesystems", "nodev proc tmpfs sysfs devpts mqueue", "note", "when they are needed: overlay"),
        ("proc/self/mountinfo", "", "wrong", "none are mounted"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory pids", "note", "no controller: limits.cpu, limits.disk"),
        ("sys/kernel/security/apparmor/profiles", "", "wrong", "profile `ctrmgr-instance` is not loaded"),
        ("sys/kernel/security/lsm", "capability,yama", "note", "held: `bpf` is no active security module"),
        ("sys/kernel/security/lsm", None, "note", "held: securityfs is not mounted"),
        ("sys/kernel/btf/vmlinux", None, "note", "held: the kernel does not describe its types"),
        ("etc/subuid", "root:100000:65535\n", "wrong", "`root` has no 65536 ids"),
        ("etc/subuid", "root:100000:6553600\nann:6000000:65536\n", "wrong", "gives `ann` ids of ours (6000000 and 65535"),
        ("etc/subgid", "root:100000:6553600\nbob:1:100000\n", "wrong", "`/etc/subgid` gives `bob` ids of ours (100000 and 0"),
    ],
)  # fmt: skip
def test_one_thing_is(root: Path, file: str, text: str | None, status: str, says: str) -> None:
    if text is None and file.endswith("actions_avail"):
        write(root, file, None)
        (root / file).parent.rmdir()
    else:
        write(root, file, text)
    (found,) = [finding for finding in look(root) if says in finding.text]
    assert found.status == status
    if status == "wrong":
        assert found.hint


@pytest.mark.parametrize(
    ("loaded", "said"),
    [("535.129.03", None), ("550.54.15", "is of 550.54.15 now, and it was given libraries of 535.129.03"), ("", "is not loaded")],
)  # fmt: skip
def test_a_driver_that_was_upgraded(tmp_path: Path, loaded: str, said: str | None) -> None:
    """The first line is as open and closed modules write it; libraries of others have versions of their own."""
    first = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {loaded}  Thu Oct 19 18:56:32 UTC 2023\n"
    if loaded:
        write(tmp_path, "proc/driver/nvidia/version", first)
    folder = "/usr/lib/x86_64-linux-gnu"
    sources = ["libcuda.so.535.129.03", "libnvidia-ml.so.535.129.03", "libvendor.so.1.2.3", "libcuda.so.1"]
    plan = [["bind", "gpu0", f"{folder}/{name}", f"{folder}/{name}", "ro"] for name in sources]
    found = [finding.text for finding in upgrades.findings("c1", plan, str(tmp_path))]
    assert len(found) == (said is not None)
    assert all(said is not None and said in text for text in found)
    assert list(upgrades.findings("c1", plan[2:], str(tmp_path))) == []
