# SPDX-License-Identifier: GPL-3.0-or-later
"""ctrmgr on a kernel of another kind, with hardware that this machine has not: one boot, of which each check is a test."""

from __future__ import annotations

import json
import os

import pytest

from tests.lab import checks, vm

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the lab is a PC"),
]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """What went wrong in each check; nothing, in most."""
    done = vm.boot("python3 -m tests.lab.checks", ["gpu", "net", "nvme", "usb"], seconds=560)
    assert done.code == 0, done.output
    return {line["check"]: line["wrong"] for line in map(json.loads, done.output.splitlines())}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", list(checks.CHECKS))
def test_in_the_guest(results: dict[str, str], name: str) -> None:
    assert name in results, "the guest ended before it"
    assert not results[name], results[name]


def test_the_commands_exit_code_and_output_come_back() -> None:
    done = vm.boot("echo out; echo err >&2; uname -r; exit 3")
    assert done.code == 3
    assert done.output.splitlines() == ["out", "err", vm.kernel().version]


@pytest.mark.timeout(400)
def test_hardware_changes_its_network_namespace() -> None:
    done = vm.boot("python3 -m tests.lab.links", ["net", "nics", "far-nvme"], seconds=300)
    assert done.code == 0, done.output
