# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans that read well and ask for what cannot be, or hardly: the step that fails is named, and nothing is left."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rootful.planned import Planned, image, wait_for
from tests.rootful.sanitized import Sanitized, sanitized


def device(name: str = "x", source: str = "/dev/null", path: str = "/dev/x", owner: str = "0\t0") -> str:
    return f"device\t{name}\tchar\t{source}\t{path}\t{owner}\t0600\trw\trequired\n"


LINK = "net\tbridge\nlink\t{}\t{}\teth0\t{}\t1500\n"
MAC = "02:00:00:00:00:01"

POSSIBLE = {
    "long hostname": "hostname\t" + "h" * 64 + "\n",
    "what is not there needs no cover": "mask\t/proc/none\n",
    "covered twice": "mask\t/proc/kcore\nmask\t/proc/kcore\nreadonly\t/proc/sys\nmask\t/proc/sys\n",
    "many devices": "".join(device(f"d{number}", path=f"/dev/deep/er/d{number}") for number in range(64)),
    "deep device": device(path="/dev/" + "a/" * 100 + "x"),
    "long device": device(path="/dev/" + "a" * 245),
    "many maps": "".join(f"uidmap\t{100_000 + i}\t{1_900_000_000 + i}\t1\n" for i in range(31)),
    "many words": "".join(f"arg\t{i}\n" for i in range(123)) + "".join(f"env\tA{i}=\n" for i in range(126)),
    "no rights": "capabilities\t0\n",
    "all rights": "capabilities\tffffffffffffffff\n",
    "no files": "rlimit\tnofile\t0\t0\n",
    "no log": "console-size\t0\n",
    "endless log": "console-size\t18446744073709551615\n",
    "endless stop": "stop-timeout\t4294967295\n",
}

IMPOSSIBLE = {
    "hostname\t" + "h" * 65 + "\n": ("set the hostname", errno.EINVAL),
    "init\t/bin\n": ("run init", errno.EACCES),
    "init\tsh\n": ("run init", errno.ENOENT),
    "init\t/etc/passwd\n": ("run init", errno.EACCES),
    "init\t/" + "x" * 5000 + "\n": ("run init", errno.ENAMETOOLONG),
    "arg\t" + "x" * 200_000 + "\n": ("run init", errno.E2BIG),
    "mask\t/proc/self\n": ("mask a path", errno.ELOOP),
    "readonly\t/proc/self/fd\n": ("mask a path", errno.ELOOP),
    device(source="/etc/passwd"): ("check the device", errno.ENODEV),
    device(source="/dev/none"): ("open the device", errno.ENOENT),
    device(path="/dev/null"): ("name the node", errno.EEXIST),
    device(path="/dev/console"): ("name the node", errno.EEXIST),
    device(path="/dev/null/x"): ("make the node", errno.ENOTDIR),
    device(path="/dev/pts/99"): ("make the node", errno.EXDEV),
    device(path="/dev/fd/x"): ("make the node", errno.ELOOP),
    device() + device(): ("name the node", errno.EEXIST),
    device() + device("y"): ("name the node", errno.EEXIST),
    device(owner="nosuch\t0"): ("find the owner", errno.ENOENT),
    device(owner="0\t70000"): ("find the owner", errno.EOVERFLOW),
    device(owner="4294967295\t0"): ("find the owner", errno.ENOENT),
    LINK.format("nosuchbr", "ctrtest", MAC): ("make the network link", errno.ENODEV),
    LINK.format("b" * 40, "h" * 40, MAC): ("make the network link", errno.ENODEV),
    LINK.format("b", "h", "no mac"): ("read the plan", errno.EINVAL),
    LINK.format("b", "h", MAC) + "address\t4\tx\t24\n": ("read the plan", errno.EINVAL),
    LINK.format("b", "h", MAC) + "gateway\t6\t1.2.3.4\n": ("read the plan", errno.EINVAL),
    "seccomp\t/etc/passwd\n": ("read the seccomp filter", errno.EINVAL),
    "seccomp\t/dev/null\n": ("read the seccomp filter", errno.EINVAL),
    "uidmap\t0\t1700000000\t10\n": ("map user ids", errno.EINVAL),
    "gidmap\t100000\t1800000000\t10\n": ("map group ids", errno.EINVAL),
    "uidmap\t100000\t0\t1\n": ("check our own programs", errno.EPERM),
    "layer\t/etc/passwd\n": ("open a layer", errno.ENOTDIR),
    "cgroup-file\tnone\tx.y\t1\n": ("set a limit", errno.ENOENT),
    "cgroup-file\tunified\tother\t1\n": ("write a cgroup file", errno.EINVAL),
    "cgroup-file\tunified\tcgroup.procs\t0\n": ("write a cgroup file", errno.EINVAL),
    "cgroup-file\tunified\tcgroup.freeze\t1\n": ("write a cgroup file", errno.EINVAL),
    "cgroup-file\tunified\tcgroup.kill\t1\n": ("write a cgroup file", errno.EINVAL),
    "cgroup-file\tunified\tcgroup.max.depth\tmany\n": ("set a limit", errno.EINVAL),
}


@pytest.fixture(scope="module")
def build() -> Iterator[Sanitized]:
    with sanitized() as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CTRMGR_LIBEXEC", str(found.libexec))
        yield found


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image(tmp_path_factory.mktemp("image"))


@pytest.mark.parametrize("what", POSSIBLE)
def test_possible(build: Sanitized, layer: Path, tmp_path: Path, what: str) -> None:
    planned = Planned(tmp_path, layer, rows=POSSIBLE[what])
    try:
        planned.start()
    finally:
        planned.close()
    assert build.said() == ""


@pytest.mark.parametrize("rows", IMPOSSIBLE, ids=lambda rows: rows[:40].strip().replace("\t", " "))
def test_impossible(build: Sanitized, layer: Path, tmp_path: Path, rows: str) -> None:
    planned = Planned(tmp_path, layer, rows=rows)
    try:
        report = planned.monitor()
        assert (report.step, report.error) == IMPOSSIBLE[rows], report.detail
        wait_for(planned.gone)
    finally:
        planned.close()
    assert build.said() == ""
