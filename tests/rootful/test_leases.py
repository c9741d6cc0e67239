# SPDX-License-Identifier: GPL-3.0-or-later
"""One holder or several: leases are kept between instances, and given back by whatever ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import Ctr

FUSE = ("type=unix-char", "source=/dev/fuse")


def leases(ctr: Ctr) -> list[str]:
    folder = ctr.folder / "run/.leases"
    return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.fixture
def two(ctr: Ctr) -> Ctr:
    for name in ("c1", "c2"):
        ctr("launch", "builtin:busybox", name, "-p", "no-network")
    return ctr


def attach(ctr: Ctr, name: str, lease: str = "", code: int = 0, device: str = "fuse") -> str:
    words = [f"lease={lease}"] if lease else []
    return ctr("attach-device", name, device, *FUSE, f"path=/dev/{device}", *words, code=code).stderr


def test_shared_is_the_default(two: Ctr) -> None:
    attach(two, "c1")
    attach(two, "c2")
    assert leases(two) == ["char:10:229 shared c1 fuse", "char:10:229 shared c2 fuse"]
    said = attach(two, "c2", "exclusive", 4, "other")
    assert "`c1` (shared, as `fuse`)" in said and "`c2`" in said
    two("detach-device", "c1", "fuse")
    two("detach-device", "c2", "fuse")
    assert leases(two) == []


@pytest.mark.parametrize(
    "end", [("stop", "--force", "c1"), ("delete", "--force", "c1"), ("detach-device", "c1", "fuse")]
)
def test_exclusive_until_it_is_given_back(two: Ctr, end: tuple[str, ...]) -> None:
    attach(two, "c1", "exclusive")
    before = two.traces()
    for lease in ("", "exclusive", "shared:5"):
        assert "`c1` (exclusive, as `fuse`)" in attach(two, "c2", lease, 4)
    assert two.traces() == before
    two(*end)
    assert leases(two) == []
    attach(two, "c2", "exclusive")


def test_at_most_two(two: Ctr) -> None:
    two("launch", "builtin:busybox", "c3", "-p", "no-network")
    attach(two, "c1", "shared:2")
    attach(two, "c2")
    assert "`c1`" in attach(two, "c3", "", 4)
    two("detach-device", "c2", "fuse")
    attach(two, "c3", "shared:2")


def test_another_name_of_the_same_node_is_the_same(two: Ctr) -> None:
    attach(two, "c1", "exclusive")
    link = two.folder / "link"
    link.symlink_to("/dev/fuse")
    assert (
        "char:10:229"
        in two("attach-device", "c2", "x", "type=unix-char", f"source={link}", "path=/dev/x", code=4).stderr
    )


def test_start_takes_them_and_says_who_has_them(two: Ctr) -> None:
    two("stop", "--force", "c1")
    attach(two, "c1", "exclusive")
    assert leases(two) == []
    attach(two, "c2", "exclusive")
    assert "`c2` (exclusive" in two("start", "c1", code=4).stderr
    assert not (two.folder / "run/c1").exists()
    two("detach-device", "c2", "fuse")
    two("start", "c1")
    assert leases(two) == ["char:10:229 exclusive c1 fuse"]
    shown = json.loads(two("device", "show", "/dev/fuse", "--format", "json").stdout)
    assert {"instance": "c1", "device": "fuse", "live": True, "lease": "exclusive"} in shown["holders"]
    assert "c1 exclusive" in two("device", "list", "unix-char", "--all").stdout


def test_two_devices_of_one_instance(two: Ctr) -> None:
    attach(two, "c1", "exclusive")
    assert "`c1` (exclusive, as `fuse`)" in attach(two, "c1", "", 4, "again")
    two("restart", "--force", "c1")
    assert leases(two) == ["char:10:229 exclusive c1 fuse"]


def test_an_instance_that_died_has_nothing(two: Ctr) -> None:
    attach(two, "c1", "exclusive")
    rows = dict(line.split("\t") for line in (two.folder / "run/c1/state").read_text().splitlines())
    os.kill(int(rows["monitor"]), signal.SIGKILL)
    time.sleep(0.1)
    attach(two, "c2", "exclusive")
    assert leases(two) == ["char:10:229 exclusive c2 fuse"]


@pytest.mark.parametrize("step", ["attach-leased", "attach-recorded", "attach-done", "detach-recorded", "detach-done"])
def test_a_command_that_was_killed(two: Ctr, step: str) -> None:
    """The lease and the device agree again as soon as somebody wants it."""
    crash = {"CTRMGR_CRASH_AT": step}
    words = ("attach-device", "c1", "fuse", *FUSE, "lease=exclusive")
    if step.startswith("detach"):
        two(*words)
        words = ("detach-device", "c1", "fuse")
    assert two(*words, code=None, env=crash).code == -signal.SIGKILL
    has_it = two("exec", "c1", "--", "test", "-e", "/dev/fuse", code=None).code == 0
    attach(two, "c2", "exclusive", 4 if has_it else 0)
    assert leases(two) == [f"char:10:229 exclusive {'c1' if has_it else 'c2'} fuse"]


def test_a_start_that_was_killed(two: Ctr) -> None:
    two("stop", "--force", "c1")
    attach(two, "c1", "exclusive")
    assert two("start", "c1", code=None, env={"CTRMGR_CRASH_AT": "start-leased"}).code == -signal.SIGKILL
    assert leases(two) == ["char:10:229 exclusive c1 fuse"]
    attach(two, "c2", "exclusive")
    assert leases(two) == ["char:10:229 exclusive c2 fuse"]


def test_many_at_once_and_one_wins(ctr: Ctr) -> None:
    names = [f"c{number}" for number in range(4)]
    for name in names:
        ctr("launch", "builtin:busybox", name, "-p", "no-network")
    with ThreadPoolExecutor() as pool:
        words = [("attach-device", name, "fuse", *FUSE, "lease=exclusive") for name in names]
        codes = sorted(result.code for result in pool.map(lambda asked: ctr(*asked, code=None), words))
    assert codes == [0, 4, 4, 4]
    assert len(leases(ctr)) == 1


def test_a_plan_that_was_lost_has_its_leases_again(two: Ctr) -> None:
    two("stop", "--force", "c1")
    attach(two, "c1", "exclusive")
    plan = two.folder / "state/instances/c1/plan"
    whole = plan.read_bytes()
    plan.write_bytes(whole[: whole.index(b"lease")])
    attach(two, "c2", "exclusive")
    assert "`c2` (exclusive" in two("start", "c1", code=4).stderr
    assert not (two.folder / "run/c1").exists()
    two("detach-device", "c2", "fuse")
    plan.write_bytes(whole[: whole.index(b"lease")])
    two("start", "c1")
    assert leases(two) == ["char:10:229 exclusive c1 fuse"]


def test_a_count_is_told_who_has_what(two: Ctr) -> None:
    """What running instances hold; a lease that nobody has anything for does not count, and one's own is told apart."""
    attach(two, "c1", "exclusive")
    folder = two.folder / "run/.leases"
    for file in ("pci:0000:18:00.0%2Fgi1%2Fci0 shared c1 fuse", "pci:0000:9a:00.0 exclusive c2 nothing"):
        (folder / file).touch()
    script = "from ctrmgr.backend import leases; from ctrmgr.devices import choose; leases.tell({!r}); print(*map(sorted, choose.held()))"
    said = {
        name: subprocess.check_output([sys.executable, "-c", script.format(name)], env=two.env, text=True).strip()
        for name in ("c1", "c2", "")
    }
    has = "['char:10:229', 'pci:0000:18:00.0/gi1/ci0']"
    assert said == {"c1": f"{has} []", "c2": f"['pci:0000:9a:00.0'] {has}", "": f"[] {has}"}
