# SPDX-License-Identifier: GPL-3.0-or-later
"""The C programs under AddressSanitizer and UndefinedBehaviorSanitizer: they do their work, and nothing is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Ctr

from .double import SOURCES, WARNINGS
from .sanitized import FLAGS, Sanitized, reported, sanitized

EXERCISES = {
    "test_verbs.py": (
        "test_life",
        "test_exec_codes_and_streams",
        "test_exec_with_a_terminal",
        "test_logs_follow_the_console",
        "test_freeze",
        "test_stop_gives_up_on_an_init_that_does_not_listen",
        "test_a_limit_that_cannot_be_kept_stops_the_launch",
        "test_exit_status_and_restart_policy",
    ),
    "test_attach.py": (
        "test_owner_by_name_and_number",
        "test_short_form_and_subdirectory",
        "test_block_device",
        "test_detach_leaves_no_way_back",
        "test_holders",
        "test_two_leases_of_one_number",
        "test_the_containers_root_cannot_lead_a_node_astray",
    ),
    "test_configure.py": (
        "test_a_first_limit",
        "test_a_reboot_from_inside_finds_the_devices_as_they_are_now",
        "test_kernel_parameters_change_live_or_not_at_all",
        "test_resource_limits_reach_what_runs_and_what_comes",
    ),
    "test_isolation_keys.py": ("test_more_system_calls_denied", "test_resource_limits", "test_nesting"),
    "test_bridge.py": ("test_addresses_routes_and_nat", "test_host_network"),
    "test_net.py": ("test_bridge", "test_again_and_at_once", "test_bad_input"),
    "test_seccomp.py": ("test_actions_and_comparisons", "test_other_architectures", "test_wrong_policies"),
    "test_exec.py": ("",),
    "test_run_plan.py": ("",),
    "test_disk.py": (
        "test_recursive_brings_what_is_mounted_below",
        "test_a_file_system_on_a_disk",
        "test_options_that_are_refused",
    ),
    "test_vendor.py": ("test_groups_that_come_with_it", "test_memory_that_comes_with_it", "test_a_mode_is_given_back"),
    "../unit/test_front.py": ("",),
}
"""The tests of everything that the programs do, but for those that wait long or measure."""


@pytest.fixture
def build() -> Iterator[Sanitized]:
    with sanitized() as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("apart")
def test_nothing_is_reported(build: Sanitized) -> None:
    tests = [f"tests/rootful/{file}{'::' * bool(name)}{name}" for file, names in EXERCISES.items() for name in names]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *tests],
        cwd=ROOT, env={**env, "CTRMGR_LIBEXEC": str(build.libexec)}, capture_output=True, text=True,
    )  # fmt: skip
    assert build.said() == ""
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "words"), [("free", "AddressSanitizer: heap-use-after-free"), ("shift", "shift exponent 33 is too large")]
)
def test_a_fault_is_reported_from_anywhere(tmp_path: Path, kind: str, words: str) -> None:
    """With what sanitize.c is for: without a descriptor, an environment or the host's root."""
    program, report = tmp_path / "fault", tmp_path / "report"
    sources = (Path(__file__).with_name("fault.c"), SOURCES / "sanitize.c")
    subprocess.run(["cc", *WARNINGS, *FLAGS, f'-DSANITIZER_REPORT="{report}"', "-o", program, *sources], check=True)
    (tmp_path / "root").mkdir()
    assert subprocess.run([program, "none", tmp_path / "root"], env={}).returncode == 0
    assert reported(report) == ""
    assert subprocess.run([program, kind, tmp_path / "root"], env={}).returncode not in (0, 99)
    assert words in reported(report)


def test_the_programs_report(build: Sanitized, ctr: Ctr) -> None:
    """Each as it is when it works: a signal that only a fault sends is reported as one."""
    ctr.env["CTRMGR_LIBEXEC"] = str(build.libexec)
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    state = dict(line.split("\t", 1) for line in (ctr.folder / "run/c1/state").read_text().splitlines())
    command = ctr.popen("exec", "c1", "--", "sh", "-c", "echo ready; sleep 100", stdout=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stdout.readline() == b"ready\n"
    assert build.said() == ""
    for pid, source in ((command.pid, "exec.c"), (int(state["monitor"]), "ctrmgr-monitor")):
        before = len(build.said())
        os.kill(pid, signal.SIGSEGV)
        for _ in range(500):
            if "ABORTING" in build.said()[before:]:
                break
            time.sleep(0.01)
        assert f"=={pid}==ERROR: AddressSanitizer: SEGV" in build.said()
        assert source in build.said()[before:]
    command.wait(10)
    command.stdout.close()
