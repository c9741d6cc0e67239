# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of an OCI runtime configuration: each becomes a key, or is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrmgr import source
from ctrmgr.cli import profile as verbs
from ctrmgr.cli.command import Command, parse
from ctrmgr.errors import SpecError
from ctrmgr.spec import oci, profile

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
        ({"devices": [{"allow": False, "access": "rwm"}], "memory": None}, {}),
    ],
)  # fmt: skip
def test_a_key_for_each(resources: dict[str, object], config: dict[str, str]) -> None:
    assert taken(**resources) == config


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"blockIO": {"weight": 5}}, "`linux: resources: blockIO` has no counterpart"),
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
