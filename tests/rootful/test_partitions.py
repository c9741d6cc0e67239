# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions from end to end, of a plugin that stands for a card's firmware and makes real nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr
from tests.rootful import plugins

LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
SECOND = ("launch", "builtin:busybox", "c2", "-p", "no-network")


def part(size: str, path: str = "/dev/s") -> tuple[str, str]:
    return ("-d", f"s,type=demo-scratch,partition={size},path={path}")


@pytest.fixture
def scratch(ctr: Ctr) -> Iterator[Ctr]:
    """ctrmgr with the plugin; nothing of it is left."""
    plugins.install_scratch(ctr)
    yield ctr
    for name in ("c1", "c2"):
        ctr("delete", "--force", name, code=None)
    for line in json.loads(ctr("partition", "list", "--format", "json").stdout):
        if line["name"]:
            ctr("partition", "delete", line["name"])
    assert plugins.slices() == {}


def listed(ctr: Ctr, *words: str) -> list[dict[str, object]]:
    """What is this plugin's of `partition list`."""
    found: list[dict[str, object]] = json.loads(ctr("partition", "list", *words, "--format", "json").stdout)
    return [each for each in found if each["type"] == "demo-scratch"]


def size_of(disk: str) -> int:
    return int(Path(f"/sys/block/{disk}/size").read_text()) * 512


def profile(ctr: Ctr, text: str) -> None:
    path = ctr.folder / "etc/profiles/part.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_from_a_profile(scratch: Ctr) -> None:
    profile(
        scratch,
        "devices:\n  fast:\n    type: any\n    function: storage.scratch\n    partition: bytes=8MiB\n    path: /dev/fast\n    gid: disk\n",
    )
    scratch(*LAUNCH, "-p", "part")
    ((token, disk),) = plugins.slices().items()
    assert size_of(disk) == 8 << 20
    assert scratch("exec", "c1", "sh", "-c", "echo written > /dev/fast; head -c 7 /dev/fast").stdout == "written"
    (line,) = listed(scratch)
    assert (line["used-by"], line["takes"], line["state"], line["part"]) == (
        "c1/fast",
        {"bytes": 8388608},
        "in use",
        token,
    )
    assert line["nodes"] == [f"/dev/{disk}"]
    (pool,) = listed(scratch, "--pools")
    assert (pool["free"], pool["partitions"], pool["most"]) == ({"bytes": 56 << 20}, 1, 16)
    scratch("stop", "c1")
    assert (listed(scratch), plugins.slices()) == ([], {})
    scratch("start", "c1")
    assert token not in plugins.slices()
    scratch("restart", "c1")
    assert scratch("exec", "c1", "head", "-c", "4", "/dev/fast").stdout == "\0\0\0\0"  # a new one
    scratch("delete", "--force", "c1")
    assert (listed(scratch), plugins.slices()) == ([], {})


def test_comes_and_goes_live(scratch: Ctr) -> None:
    scratch(*LAUNCH)
    scratch("attach-device", "c1", "s", "type=demo-scratch", "partition=bytes=5000")
    ((_, disk),) = plugins.slices().items()
    assert size_of(disk) == 8192  # rounded up by the plugin, and so it counts
    assert listed(scratch)[0]["takes"] == {"bytes": 8192}
    scratch("detach-device", "c1", "s")
    assert plugins.slices() == {}


def test_the_pool_is_short(scratch: Ctr) -> None:
    scratch(*LAUNCH, *part("bytes=60MiB"))
    failed = scratch(*SECOND, *part("bytes=8MiB"), code=4).stderr
    assert "`memory` has 4194304 of 67108864 bytes left, and 8388608 are asked for" in failed
    assert "c1/s has 62914560" in failed
    failed = scratch("partition", "create", "big", "memory", "bytes=8MiB", code=4).stderr
    assert "c1/s has 62914560" in failed
    failed = scratch("attach-device", "c1", "t", "type=demo-scratch", "size=8MiB", code=4).stderr
    assert "4194304 of 67108864" in failed  # the plugin's own key takes from the same pool
    scratch("stop", "c1")
    scratch(*SECOND, *part("bytes=8MiB"))


def test_no_more_nodes(scratch: Ctr) -> None:
    plugin = scratch.folder / "site/demo_scratch.py"
    plugin.write_text(plugin.read_text().replace("MOST = 16", "MOST = 3"))
    for number in range(3):
        scratch("partition", "create", f"p{number}", "memory", "bytes=4KiB")
    failed = scratch("partition", "create", "p3", "memory", "bytes=4KiB", code=4).stderr
    assert "`memory` has 3 partitions, and no more than 3 may be" in failed
    scratch("partition", "delete", "p1")
    scratch("partition", "create", "p3", "memory", "bytes=4KiB")


def test_with_a_name(scratch: Ctr) -> None:
    scratch("partition", "create", "big", "memory", "bytes=16MiB")
    (line,) = listed(scratch)
    assert (line["name"], line["used-by"], line["state"]) == ("big", "", "free")
    scratch(*LAUNCH, "-d", "s,type=demo-scratch,partition=big,path=/dev/s,gid=disk,mode=0640")
    assert scratch("exec", "c1", "ls", "-l", "/dev/s").stdout.startswith("brw-r-----")
    scratch("exec", "c1", "sh", "-c", "echo kept > /dev/s")
    assert (listed(scratch)[0]["used-by"], listed(scratch)[0]["state"]) == ("c1/s", "in use")
    failed = scratch(*SECOND, "-d", "s,type=any,function=storage.scratch,partition=big", code=4).stderr
    assert "partition `big` is taken" in failed
    assert "c1/s has it" in failed
    assert "c1/s has it" in scratch("partition", "delete", "big", code=4).stderr
    scratch("stop", "c1")
    assert listed(scratch)[0]["state"] == "free"
    scratch("start", "c1")
    assert scratch("exec", "c1", "head", "-c", "4", "/dev/s").stdout == "kept"  # nobody has made it anew
    scratch("delete", "--force", "c1")
    scratch("partition", "delete", "big")
    assert plugins.slices() == {}
    assert "there is no partition `big`" in scratch("partition", "delete", "big", code=3).stderr


def test_what_else_takes_it_away(scratch: Ctr) -> None:
    """A partition with a name that the machine has lost is made anew when it is used."""
    scratch("partition", "create", "big", "memory", "bytes=1MiB")
    ((token, disk),) = plugins.slices().items()
    subprocess.run(["losetup", "-d", f"/dev/{disk}"], check=True)
    (plugins.SLICES / token).unlink()
    assert listed(scratch)[0]["state"] == "gone: made again when it is used"
    scratch(*LAUNCH, "-d", "s,type=demo-scratch,partition=big")
    (new,) = plugins.slices()
    assert new != token
    assert scratch("exec", "c1", "test", "-b", "/dev/scratch").code == 0


def test_two_users_of_one_machine(scratch: Ctr) -> None:
    """Another state directory has books of its own: what is counted is what the hardware has."""
    scratch(*LAUNCH, *part("bytes=40MiB"))
    other = {
        **scratch.env,
        "CTRMGR_STATE_DIR": str(scratch.folder / "other"),
        "CTRMGR_RUN_DIR": str(scratch.folder / "run2"),
    }

    def second(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from ctrmgr.cli.main import main; raise SystemExit(main())", *words]
        return subprocess.run(command, env=other, capture_output=True, text=True, check=False)

    failed = second("partition", "create", "big", "memory", "bytes=40MiB")
    assert failed.returncode == 4
    assert "another user or tool has 41943040" in failed.stderr
    made = second("partition", "create", "big", "memory", "bytes=20MiB")
    assert made.returncode == 0, made.stderr
    assert sorted(str(each["state"]) for each in listed(scratch)) == ["in use", "not ctrmgr's"]
    assert "another user or tool has 20971520" in scratch(*SECOND, *part("bytes=8MiB"), code=4).stderr
    second("partition", "delete", "big")
    assert len(listed(scratch)) == 1


STEPS = ("allocate-recorded", "allocate-prepared", "release-done")


def killed(ctr: Ctr, step: str, *words: str) -> None:
    ctr.env["CTRMGR_CRASH_AT"] = step
    assert ctr(*words, code=None).code == -signal.SIGKILL
    del ctr.env["CTRMGR_CRASH_AT"]


@pytest.mark.parametrize("step", STEPS)
def test_killed_with_a_name(scratch: Ctr, step: str) -> None:
    if step == "release-done":
        scratch("partition", "create", "big", "memory", "bytes=60MiB")
        killed(scratch, step, "partition", "delete", "big")
        assert len(plugins.slices()) == 0
        scratch("partition", "delete", "big")  # what is left of it goes
    else:
        killed(scratch, step, "partition", "create", "big", "memory", "bytes=60MiB")
        assert len(plugins.slices()) == (step == "allocate-prepared")
        scratch("partition", "create", "other", "memory", "bytes=60MiB")  # there would be no room beside it
        assert [each["name"] for each in listed(scratch)] == ["other"]
        scratch("partition", "delete", "other")
    assert plugins.slices() == {}
    assert listed(scratch) == []


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_start(scratch: Ctr, step: str) -> None:
    scratch(*LAUNCH, *part("bytes=60MiB"))
    if step == "release-done":
        killed(scratch, step, "stop", "c1")
    else:
        scratch("stop", "c1")
        killed(scratch, step, "start", "c1")
    scratch("start", "c1")
    assert scratch("exec", "c1", "test", "-b", "/dev/s").code == 0
    assert len(plugins.slices()) == 1
    scratch("delete", "--force", "c1")
    assert plugins.slices() == {}


def test_launch_killed_and_never_tried_again(scratch: Ctr) -> None:
    killed(scratch, "allocate-prepared", *LAUNCH, *part("bytes=60MiB"))
    assert len(plugins.slices()) == 1
    scratch(*SECOND, *part("bytes=60MiB"))
    assert len(plugins.slices()) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("bytes=8XiB",), 2, "has the unknown unit `XiB`"),
        (("bytes=0",), 2, "asks for nothing of `bytes`"),
        (("bytes=-1",), 2, "is not a size"),
        (("bytes=1,bytes=2",), 2, "says `bytes` twice"),
        (("=3",), 2, "is not POOL=AMOUNT"),
        (("bytes=1,,",), 2, "is not POOL=AMOUNT"),
        (("cores=2",), 2, "`memory` has no pool `cores`"),
        (("bytes=1GiB",), 4, "`memory` has 67108864 bytes in all, and 1073741824 are asked for"),
        (("profile=big",), 2, "`memory` has no profile `big`"),
        (("profile=a b",), 2, "is not one word"),
    ],
)
def test_bad_amounts(scratch: Ctr, words: tuple[str], code: int, said: str) -> None:
    failed = scratch("partition", "create", "big", "memory", *words, code=code).stderr
    assert said in failed
    assert listed(scratch) == []


def test_bad_words(scratch: Ctr) -> None:
    assert (
        "`Big` is not the name of a partition"
        in scratch("partition", "create", "Big", "memory", "bytes=1", code=2).stderr
    )
    assert (
        "`nowhere` is no device that can be divided"
        in scratch("partition", "create", "b", "nowhere", "bytes=1", code=3).stderr
    )
    scratch("partition", "create", "b", "memory", "bytes=4096")
    assert "there is a partition `b` already" in scratch("partition", "create", "b", "memory", "bytes=1", code=4).stderr
    scratch(*LAUNCH)
    attach = ("attach-device", "c1", "s")
    assert "there is no partition `c`" in scratch(*attach, "type=demo-scratch", "partition=c", code=3).stderr
    assert "is of type `demo-scratch`, and not `gpu`" in scratch(*attach, "type=gpu", "partition=b", code=2).stderr
    assert "take `count` out" in scratch(*attach, "type=gpu", "partition=b", "count=2", code=2).stderr
    assert "`NOT` is not the name" in scratch(*attach, "type=demo-scratch", "partition=NOT", code=2).stderr.replace(
        "`partition`: ", ""
    )
    assert [each["name"] for each in listed(scratch)] == ["b"]
    shown = scratch("partition", "create", "x", "memory", "bytes=1", "--dry-run").stdout
    assert shown == "create partition x of memory: bytes=1\n"


def test_somebody_holds_the_lock(scratch: Ctr) -> None:
    """Two commands at once follow each other; nothing is given twice."""
    words = [sys.executable, "-c", "from ctrmgr.cli.main import main; raise SystemExit(main())", "partition", "create"]
    running = [
        subprocess.Popen([*words, f"p{number}", "memory", "bytes=20MiB"], env=scratch.env, stderr=subprocess.PIPE)
        for number in range(5)
    ]
    ends = sorted([process.wait() for process in running])
    for process in running:
        assert process.stderr is not None
        process.stderr.close()
    assert ends == [0, 0, 0, 4, 4]
    assert len(plugins.slices()) == 3


def test_formats(scratch: Ctr) -> None:
    scratch("partition", "create", "big", "memory", "bytes=16MiB")
    assert "big" in scratch("partition", "list").stdout
    assert scratch("partition", "list", "--format", "csv").stdout.startswith(
        "name,used-by,type,device,part,takes,nodes,state\n"
    )
    assert "- name: big" in scratch("partition", "list", "--format", "yaml").stdout
    assert os.listdir(scratch.folder / "state/allocations") == ["@.big"]
    assert scratch("completion", "words", "--", "partition", "delete", "").stdout.split() == ["big"]
