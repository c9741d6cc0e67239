# SPDX-License-Identifier: GPL-3.0-or-later
"""`limits.cpu.nodes: devices` while an instance runs: its real cpuset goes where the devices are, on made-up NUMA nodes.

The commands run in this process, which says what the host's nodes are and at which of them a device is: the last digit of its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from ctrmgr.backend import checkup, doctor, limits, record, repair
from ctrmgr.backend.info import read
from ctrmgr.cli import main
from ctrmgr.errors import HostError
from ctrmgr.host import features
from ctrmgr.plan import numa
from tests.conftest import Ctr
from tests.rootful import plugins

Nodes = dict[int, tuple[int, ...]]


@pytest.fixture
def here(ctr: Ctr, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for key, value in ctr.env.items():
        if key.startswith("CTRMGR_"):
            monkeypatch.setenv(key, value)

    def found(rows: Sequence[Sequence[str]], _: object) -> set[int]:
        return {int(row[1][-1]) for row in rows if row[0] in ("lease", "device") and row[1][-1:].isdecimal()}

    monkeypatch.setattr(numa, "nodes", found)
    return monkeypatch


def cpus() -> tuple[str, str]:
    """What the plan and what the kernel say."""
    own = record.Record("c1")
    plan = own.plan()
    planned = {row[2]: row[3] for row in plan if row[0] == "cgroup-file"}
    (actual,) = (each for each in limits.read(plan) if each["file"] == "cpuset.cpus")
    assert actual["enforced"]
    return planned["cpuset.cpus"], planned["cpuset.mems"]


def killed(step: str, *words: str) -> None:
    """The command dies at a step, and the next one on the instance goes on."""
    pid = os.fork()
    if not pid:
        os.environ["CTRMGR_CRASH_AT"] = step
        main.run(list(words))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    with record.lock("c1"):
        assert repair.instance("c1")


ATTACH = ("attach-device", "c1")
CHAR = "type=unix-char"
FIRST, *MORE = sorted(os.sched_getaffinity(0))
EVERY = ",".join(map(str, (FIRST, *MORE)))


def launched(here: pytest.MonkeyPatch) -> Callable[[Nodes], None]:
    """With a device at node 0; what sets the host's nodes."""

    def nodes(found: Nodes) -> None:
        here.setattr(features, "nodes", lambda root: found)

    nodes({0: (FIRST, *MORE)})
    device = "a0,type=unix-char,source=/dev/null,path=/dev/a"
    main.run(["launch", "builtin:busybox", "c1", "-p", "no-network", "-c", "limits.cpu.nodes=devices", "-d", device])
    assert cpus() == (EVERY, "0")
    return nodes


def test_the_cpus_follow_what_is_attached_and_detached(ctr: Ctr, here: pytest.MonkeyPatch) -> None:
    nodes = launched(here)

    # the same words mean something else now, as they do at another node
    nodes({0: (FIRST,)})
    main.run([*ATTACH, "b0", CHAR, "source=/dev/zero", "path=/dev/b"])
    assert cpus() == (str(FIRST), "0")
    nodes({0: (FIRST, *MORE)})
    main.run(["detach-device", "c1", "b0"])
    assert cpus() == (EVERY, "0")

    # a node that there is not is refused by the kernel, and with it the device
    nodes({0: (FIRST,), 1: tuple(MORE) or (FIRST,)})
    before = ctr("info", "c1", "--format", "json").stdout
    with pytest.raises(HostError, match=r"the kernel refuses `cpuset.mems` = `0,1`"):
        main.run([*ATTACH, "b1", CHAR, "source=/dev/zero", "path=/dev/b"])
    assert cpus() == (EVERY, "0") and ctr("info", "c1", "--format", "json").stdout == before
    assert ctr("exec", "c1", "--", "test", "-e", "/dev/b", code=1).code == 1

    # killed between the device and the limits: the next command goes on
    nodes({0: (FIRST,)})
    killed("attach-done", *ATTACH, "b0", CHAR, "source=/dev/zero", "path=/dev/b")
    assert cpus() == (str(FIRST), "0") and "b0" in record.Record("c1").devices
    nodes({0: (FIRST, *MORE)})
    killed("detach-moved", "detach-device", "c1", "b0")
    assert cpus() == (EVERY, "0") and "b0" not in record.Record("c1").devices
    nodes({0: (FIRST,)})

    # and one that is stopped is where its devices are when it starts
    main.run(["stop", "c1"])
    nodes({0: (FIRST, *MORE)})
    main.run([*ATTACH, "b0", CHAR, "source=/dev/zero", "path=/dev/b"])
    main.run(["start", "c1"])
    assert cpus() == (EVERY, "0")


def test_what_no_plan_knows_is_followed_too(
    ctr: Ctr, here: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device for this run only; and what nobody says the place of changes nothing, and stops nothing."""
    nodes = launched(here)
    # for this run only
    volatile = [*ATTACH, "v0", CHAR, "source=/dev/zero", "path=/dev/b", "--volatile"]
    main.run(volatile)
    assert cpus() == (EVERY, "0"), "a0 is at the same node"
    nodes({0: (FIRST,), 1: tuple(MORE) or (FIRST,)})
    before = ctr("info", "c1", "--format", "json").stdout
    with pytest.raises(HostError, match=r"the kernel refuses `cpuset.mems` = `0,1`"):
        main.run([*ATTACH, "v1", CHAR, "source=/dev/full", "path=/dev/c", "--volatile"])
    assert ctr("info", "c1", "--format", "json").stdout == before
    nodes({0: (FIRST,)})
    killed("follow-recorded", "detach-device", "c1", "v0")
    assert cpus() == (str(FIRST), "0")
    nodes({0: (FIRST, *MORE)})
    main.run(["config", "set", "c1", "user.note=looks again, too"])
    assert cpus() == (EVERY, "0")

    # what took another's place is at other CPUs, as these have become: it is said until something follows
    nodes({0: (FIRST,)})
    said: list[dict[str, object]] = read("c1").fields["limits"]  # type: ignore[assignment]
    assert {limit["state"] for limit in said} == {"behind" if MORE else "enforced"}
    assert [finding.text for finding in doctor.examine(["c1"]) if finding.check == "placement"] == [
        f"its devices are at CPUs {FIRST} of NUMA node 0, where the next change of it or of its devices takes it"
    ][: len(MORE)]
    assert {finding.status for finding in doctor.mend(["c1"])} <= {checkup.MENDED, checkup.OK}
    assert cpus() == (str(FIRST), "0") and doctor.examine(["c1"])[0].text == "runs well"

    # nobody is left to follow
    nodes({0: (FIRST,)})
    capsys.readouterr()
    main.run(["detach-device", "c1", "a0"])
    assert "its CPUs and memory stay where they are: `limits.cpu.nodes: devices`" not in capsys.readouterr().err
    assert cpus() == (str(FIRST), "0")
    nodes({0: (FIRST,), 1: (FIRST,)})
    main.run([*ATTACH, "b0", CHAR, "source=/dev/zero", "path=/dev/b"])
    main.run(["detach-device", "c1", "b0"])
    assert "its CPUs and memory stay where they are: `limits.cpu.nodes: devices`" in capsys.readouterr().err
    main.run(["config", "set", "c1", "user.note=it can still be changed"])
    main.run([*ATTACH, "nowhere", CHAR, "source=/dev/zero", "path=/dev/b"])
    main.run(["restart", "--force", "c1"])
    assert cpus() == (str(FIRST), "0")
    main.run(["detach-device", "c1", "nowhere"])


def test_what_is_chosen_at_the_start(ctr: Ctr, here: pytest.MonkeyPatch) -> None:
    plugins.install_scratch(ctr)
    here.syspath_prepend(str(ctr.folder / "site"))
    here.setattr(features, "nodes", lambda root: {0: (FIRST,), 1: (FIRST, *MORE)})
    words = ("-p", "no-network", "-c", "limits.cpu.nodes=devices", "-d")
    main.run(["launch", "builtin:busybox", "c1", *words, "s0,type=any,function=storage.scratch,path=/dev/s"])
    assert cpus() == (str(FIRST), "0")
