# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of an OCI runtime configuration: each becomes a key, or is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrmgr import source
from ctrmgr.cli import profile as verbs
from ctrmgr.cli.command import Command, parse
from ctrmgr.errors import SpecError, UnsupportedError
from ctrmgr.spec import keys, oci, oci_write, profile

COMMANDS: dict[str, Command] = {command.name: command for command in verbs.COMMANDS}


def taken(**resources: object) -> dict[str, str]:
    text = json.dumps({"ociVersion": "1.2.0", "linux": {"resources": resources}}, indent="\t")
    return oci.config(source.parse_json("config.json", text))


@pytest.mark.parametrize(
    ("resources", "config"),
    [
        ({"gpu": {"memory": 1 << 30, "prio": 7}}, {"limits.gpu.memory": str(1 << 30), "limits.gpu.priority": "7"}),
        ({"gpu": {"memory": -1}}, {}),
        ({"unified": {"dmem.max": "drm/0000:03:00.0/vram0 64M", "memory.low": "5M"}},
         {"unified.dmem.max": "drm/0000:03:00.0/vram0 64M", "unified.memory.low": "5M"}),
        ({"memory": {"limit": 100, "swap": 150, "reservation": 50, "disableOOMKiller": False}},
         {"limits.memory": "100", "limits.memory.swap": "50", "unified.memory.low": "50"}),
        ({"cpu": {"quota": 20000, "period": 50000, "cpus": "3", "mems": "0"}},
         {"limits.cpu": "3-3", "limits.cpu.nodes": "0", "limits.cpu.allowance": "20ms/50ms"}),
        ({"cpu": {"shares": 512, "cpus": "0-1", "realtimePeriod": None}}, {"limits.cpu": "0-1", "limits.cpu.allowance": "50%"}),
        ({"pids": {"limit": 9}, "hugepageLimits": [{"pageSize": "2MB", "limit": 1 << 21}]},
         {"limits.processes": "9", "limits.hugepages.2MB": str(1 << 21)}),
        ({"rdma": {"mlx5_0": {"hcaHandles": 3, "hcaObjects": 9}}},
         {"limits.rdma.mlx5_0.hca_handle": "3", "limits.rdma.mlx5_0.hca_object": "9"}),
        ({"blockIO": {"weight": 300}, "unified": {"misc.max": "a 1\nb max"}},
         {"limits.disk.priority": "3", "limits.misc.a": "1", "limits.misc.b": "max"}),
        ({"devices": [{"allow": False, "access": "rwm"}], "memory": None}, {}),
    ],
)  # fmt: skip
def test_a_key_for_each(resources: dict[str, object], config: dict[str, str]) -> None:
    assert taken(**resources) == config


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"blockIO": {"weight": 5}}, "is not in hundreds"),
        ({"blockIO": {"leafWeight": 500}}, "leafWeight` has no counterpart"),
        ({"freezer": {}}, "`linux: resources: freezer` has no counterpart"),
        ({"network": {}}, "network` has no counterpart"),
        ({"devices": [{"allow": True, "type": "c", "major": 195, "minor": 0}]}, "allow devices"),
        ({"gpu": {"memory": "1G"}}, "memory` is not a number"),
        ({"gpu": {"prio": 11}}, "limits.gpu.priority"),
        ({"gpu": {"shares": 4}}, "shares` has no counterpart"),
        ({"gpu": [1]}, "is not a map"),
        ({"memory": {"swap": 5}}, "without one"),
        ({"memory": {"kernel": 5}}, "kernel` has no counterpart"),
        ({"cpu": {"quota": 1500}}, "whole milliseconds"),
        ({"cpu": {"quota": 1000, "shares": 4}}, "are one key here"),
        ({"unified": {"cgroup.procs": "1"}}, "unknown key `unified.cgroup.procs`"),
        ({"hugepageLimits": {}}, "is not a list"),
        ({"pids": {"limit": True}}, "is not a number"),
    ],
)
def test_what_cannot_be_taken_over_is_named(resources: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as raised:
        taken(**resources)
    assert said in raised.value.message


def test_a_profile_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRMGR_CONFIG_DIR", str(tmp_path))
    given = tmp_path / "config.json"
    given.write_text(json.dumps({"ociVersion": "1.0.2", "process": {"args": ["sh"]},
                                 "linux": {"resources": {"gpu": {"memory": 4096}, "unified": {"memory.low": "1M"}}}}, indent="\t"))  # fmt: skip
    command = COMMANDS["profile create"]
    command.run(parse(command, ["limited", str(given)]))
    made = profile.load(str(tmp_path / "profiles/limited.yaml"))
    assert made.config == {"limits.gpu.memory": "4096", "unified.memory.low": "1M"}
    given.write_text('{"ociVersion": "1.0.2"}')
    command.run(parse(command, ["empty", str(given)]))
    assert profile.load(str(tmp_path / "profiles/empty.yaml")).config == {}


# Written


def again(config: dict[str, str]) -> dict[str, str]:
    """What is taken over of what is written; nothing may be left out."""
    made, left = oci_write.config(config, {})
    assert left == {}
    return oci.config(source.parse_json("config.json", json.dumps(made)))


AMOUNT = st.integers(1, 1 << 50).map(str)
COUNT = st.one_of(st.just("max"), st.integers(0, 1 << 31).map(str))
RLIMIT = st.tuples(st.integers(0, 1000), st.one_of(st.integers(1000, 1 << 63), st.just("unlimited")))


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "limits.memory": AMOUNT,
            "limits.cpu": st.sampled_from(["0-0", "0-3", "1,5-6"]),
            "limits.cpu.allowance": st.one_of(
                st.integers(1, 10000).map("{}%".format), st.sampled_from(["20ms/100ms", "300ms/100ms", "1ms/1000ms"])
            ),
            "limits.processes": st.integers(1, 4194304).map(str),
            "limits.hugepages.2MB": AMOUNT,
            "limits.hugepages.1GB": AMOUNT,
            "limits.disk.priority": st.integers(0, 10).map(str),
            "limits.misc.sev_es": COUNT,
            "limits.misc.tdx": COUNT,
            "limits.rdma.mlx5_0.hca_handle": st.integers(0, 1 << 31).map(str),
            "limits.rdma.mlx5_1.hca_object": st.integers(0, 1 << 31).map(str),
            "limits.gpu.memory": AMOUNT,
            "limits.gpu.priority": st.integers(0, 10).map(str),
            "limits.kernel.nofile": RLIMIT.map(lambda pair: f"{pair[0]}:{pair[1]}"),
            "limits.memory.oom_priority": st.integers(-1000, 1000).map(str),
            "limits.kernel.memlock": st.just("unlimited:unlimited"),
            "linux.sysctl.net.ipv4.ip_forward": st.sampled_from("01"),
            "unified.dmem.max": st.just("drm/0000:03:00.0/vram0 64M"),
            "unified.memory.low": st.just("5M"),
        },
    )
)
def test_what_is_written_is_taken_over_again(config: dict[str, str]) -> None:
    assert again(config) == {key: keys.check(key, value) for key, value in config.items()}


@pytest.mark.parametrize(
    ("config", "same"),
    [
        ({"limits.memory": "100B", "limits.memory.swap": "50B"}, {"limits.memory": "100", "limits.memory.swap": "50"}),
        ({"limits.memory": "100B", "limits.memory.swap": "false"}, {"limits.memory": "100", "limits.memory.swap": "0"}),
        ({"limits.memory.swap": "false"}, {"unified.memory.swap.max": "0"}),
        ({"limits.memory.swap": "true", "limits.enforcement": "best-effort", "user.x": "y"}, {}),
        ({"limits.memory": "1KiB", "limits.memory.enforce": "soft"}, {"unified.memory.high": "1024"}),
        ({"limits.memory.oom_group": "yes"}, {"unified.memory.oom.group": "1"}),
        ({"limits.cpu": "0-1", "limits.cpu.nodes": "0"}, {"limits.cpu": "0-1", "limits.cpu.nodes": "0"}),
        ({"limits.rdma.x.hca_handle": "max", "limits.memory": ""}, {}),
    ],
)
def test_other_words_for_the_same(config: dict[str, str], same: dict[str, str]) -> None:
    assert again(config) == same


def test_what_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CTRMGR_CONFIG_DIR", str(tmp_path))
    unsaid = ("limits.cpu", "limits.cpu.nodes", "limits.cpu.priority", "limits.memory", "limits.gpu.memory", "limits.gpu.memory.reserve",
              "limits.gpu.shares", "limits.ingress", "limits.memory.swap.priority")  # fmt: skip
    config = dict(zip(unsaid, ("2", "0", "3", "50%", "10%", "1GiB", "5%", "1Mbit", "3"), strict=True))
    config["limits.processes"] = "9"
    devices = {
        "g": {"type": "gpu", "memory": "1GiB"},
        "d": {"type": "unix-block", "source": "/dev/x", "limits.read": "5iops"},
    }
    made, left = oci_write.config(config, devices)
    assert set(left) == {*unsaid, "g.memory", "d.limits.read"}
    assert made == {"ociVersion": "1.2.0", "linux": {"resources": {"pids": {"limit": 9}}}}
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/p.yaml").write_text(json.dumps({"name": "p", "config": config, "devices": devices}))
    command = COMMANDS["profile show"]
    with pytest.raises(UnsupportedError, match=r"`limits\.cpu` cannot be written: OCI has no number of CPUs"):
        command.run(parse(command, ["p", "--oci"]))
    command.run(parse(command, ["p", "--oci", "--ignore-unsupported"]))
    said = capsys.readouterr()
    assert json.loads(said.out) == made and said.err.count("note: ") == len(left)
