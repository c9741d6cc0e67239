# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs through the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import ctrmgr
from tests.conftest import Ctr, same, settle

Snapshot = Callable[[], dict[str, object]]
OFFLINE = ("-p", "no-network")


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    return ctr


def test_version_and_help(ctr: Ctr) -> None:
    assert ctr("--version").stdout == f"ctrmgr {ctrmgr.__version__}\n"
    listed = ctr("help").stdout
    for verb in ("launch", "attach-device", "profile validate", "image alias list"):
        assert f"  {verb} " in listed
    assert ctr("launch", "--help").stdout == ctr("help", "launch").stdout
    assert "--profile" in ctr("launch", "--help").stdout
    assert ctr().stdout == listed


def test_life(ctr: Ctr) -> None:
    assert ctr("create", "builtin:busybox", "c1", *OFFLINE).stdout == "c1\n"
    assert "STOPPED" in ctr("list").stdout
    ctr("start", "c1")
    assert "RUNNING" in ctr("list").stdout
    assert "running already" in ctr("start", "c1", code=4).stderr
    assert ctr("exec", "c1", "cat", "/etc/hostname").stdout == "c1\n"
    ctr("exec", "c1", "touch", "/root/kept")
    ctr("restart", "c1")
    assert ctr("exec", "c1", "ls", "/root").stdout == "kept\n"
    ctr("stop", "c1")
    assert "not running" in ctr("stop", "c1", code=4).stderr
    ctr("rename", "c1", "c2")
    ctr("start", "c2")
    assert ctr("exec", "c2", "hostname").stdout == "c2\n"
    assert ctr("exec", "c2", "cat", "/etc/hostname").stdout == "c2\n"
    hosts = ctr("exec", "c2", "cat", "/etc/hosts").stdout
    assert "\tc2\n" in hosts and "\tc1\n" not in hosts
    assert "is running" in ctr("delete", "c2", code=4).stderr
    ctr("kill", "c2")
    ctr("delete", "c2")
    assert ctr("list", "--format", "json").stdout == "[]\n"


def test_made_up_names_and_ephemeral(ctr: Ctr) -> None:
    name = ctr("launch", "builtin:busybox", "--ephemeral", *OFFLINE).stdout.strip()
    assert "-" in name
    assert name in ctr("list").stdout
    ctr("stop", name)
    assert name not in ctr("list").stdout


def test_formats(c1: Ctr) -> None:
    row = {"name": "c1", "status": "RUNNING", "ipv4": "", "image": "builtin:busybox"}
    assert json.loads(c1("list", "--format", "json").stdout) == [row]
    assert yaml.safe_load(c1("list", "-f", "yaml").stdout) == [row]
    assert list(csv.DictReader(io.StringIO(c1("list", "-fcsv").stdout))) == [row]
    assert c1("list").stdout.splitlines()[0].split() == ["NAME", "STATUS", "IPV4", "IMAGE"]
    info = json.loads(c1("info", "c1", "--format", "json").stdout)
    assert info["status"] == "RUNNING"
    assert Path(f"/proc/{info['pid']}").is_dir()
    assert "json" not in c1("list", "nothing-like-it").stdout


def test_exec_codes_and_streams(c1: Ctr) -> None:
    assert c1("exec", "c1", "--", "sh", "-c", "exit 42", code=42).stdout == ""
    assert c1("exec", "c1", "--", "sh", "-c", "kill -9 $$", code=137).code == 137
    assert "`nonsense`: No such file" in c1("exec", "c1", "nonsense", code=127).stderr
    assert c1("exec", "c1", "/etc", code=126).code == 126
    data = os.urandom(3 << 20)
    done = subprocess.run([*c1.argv, "exec", "c1", "cat"], env=c1.env, input=data, capture_output=True)
    assert done.stdout == data
    assert c1("exec", "c1", "--", "sh", "-c", "echo err >&2").stderr == "err\n"


def test_exec_options(c1: Ctr) -> None:
    assert c1("exec", "--user", "user", "c1", "id").stdout.startswith("uid=1000(user) gid=1000(user)")
    assert c1("exec", "-u", "1000", "-g", "disk", "c1", "id", "-gn").stdout == "disk\n"
    assert c1("exec", "--cwd", "/tmp", "c1", "pwd").stdout == "/tmp\n"
    assert c1("exec", "--env", "A=b c", "c1", "--", "sh", "-c", "echo $A").stdout == "b c\n"
    assert c1("exec", "c1", "ls", "-d", "/tmp").stdout == "/tmp\n"
    assert "SECRET" not in c1("exec", "c1", "env", env={"SECRET": "1"}).stdout


def test_exec_with_a_terminal(c1: Ctr) -> None:
    master, slave = pty.openpty()
    command = ["exec", "c1", "--", "sh", "-c", "tty; stty size; exit 7"]
    process = subprocess.Popen([*c1.argv, *command], env=c1.env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    said = b""
    while True:
        try:
            block = os.read(master, 1024)
        except OSError:
            break
        said += block
        if not block:
            break
    os.close(master)
    assert process.wait(10) == 7
    assert b"/dev/pts/" in said


def test_isolation(c1: Ctr) -> None:
    c1("launch", "builtin:busybox", "c2", *OFFLINE)
    maps = {name: c1("exec", name, "cat", "/proc/self/uid_map").stdout.split() for name in ("c1", "c2")}
    assert maps["c1"][0] == maps["c2"][0] == "0"
    assert maps["c1"][2] == maps["c2"][2] == "65536"
    assert abs(int(maps["c1"][1]) - int(maps["c2"][1])) >= 65536
    status = c1("exec", "c1", "cat", "/proc/1/status").stdout
    assert "Seccomp:\t2" in status
    assert c1("exec", "c1", "ps").stdout.count("ctrmgr-init") == 1
    for refused in (
        "umount /proc/sys",
        "mount -o remount,rw /proc/sys",
        "umount /dev",
        "mknod /x c 1 3",
        "umount -l /sys",
    ):
        assert c1("exec", "c1", "--", "sh", "-c", refused, code=None).code != 0, refused
    written = c1("exec", "c1", "--", "sh", "-c", "echo 1 > /proc/sys/kernel/panic", code=None)
    assert written.code != 0


def test_logs_follow_the_console(c1: Ctr) -> None:
    c1("exec", "c1", "--", "sh", "-c", "echo hello from inside > /dev/console")
    deadline = time.monotonic() + 5
    while "hello" not in c1("logs", "c1").stdout and time.monotonic() < deadline:
        time.sleep(0.02)
    assert c1("logs", "c1").stdout.strip() == "hello from inside"


def test_freeze(c1: Ctr) -> None:
    assert c1("exec", "c1", "--user", "1000:27", "--", "id", "-g").stdout == "27\n"
    assert "both say a group" in c1("exec", "c1", "-u", "1:2", "-g", "3", "--", "id", code=2).stderr
    c1("freeze", "c1")
    assert "`c1` is frozen\n\nhint: `ctrmgr unfreeze c1`" in c1("exec", "c1", "--", "id", code=4).stderr
    assert "FROZEN" in c1("list").stdout
    c1("unfreeze", "c1")
    assert c1("exec", "c1", "true").code == 0
    c1("freeze", "c1")
    c1("stop", "c1", "--timeout", "5")  # thaws it, or init could not hear
    assert "STOPPED" in c1("list").stdout


def test_stop_gives_up_on_an_init_that_does_not_listen(ctr: Ctr, tmp_path: Path) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    ctr("exec", "c1", "--", "sh", "-c", "trap '' TERM; (while :; do sleep 1; done) >/dev/null 2>&1 </dev/null &")
    begin = time.monotonic()
    ctr("stop", "c1", "--timeout", "0.3")
    assert 0.2 < time.monotonic() - begin < 5


def test_limits_are_real(ctr: Ctr) -> None:
    limits = ("-c", "limits.processes=20", "-c", "limits.memory=64MiB")
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, *limits)
    info = json.loads(ctr("info", "c1", "--format", "json").stdout)
    values = {limit["value"] for limit in info["limits"] if limit["enforced"]}
    assert {"20", "67108864"} <= values, info["limits"]
    fork = "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; wait"
    assert "fork" in ctr("exec", "c1", "--", "sh", "-c", fork, code=None).stderr
    eaten = ctr("exec", "c1", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1", code=None)
    assert eaten.code == 137


def test_a_limit_that_cannot_be_kept_stops_the_launch(ctr: Ctr) -> None:
    refused = ctr("launch", "builtin:busybox", "c1", *OFFLINE, "-c", "limits.hugepages.2MB=1MiB", code=None)
    assert refused.code in (2, 5)
    assert "limits.hugepages" in refused.stderr
    assert "c1" not in ctr("list").stdout


def test_dry_run_is_what_is_done_then(ctr: Ctr) -> None:
    """But for what is made up: names, MAC addresses, the network's own at its first use. And nothing is taken."""
    state = ctr.folder / "state"
    words = ("create", "builtin:busybox", "c1", "-c", "limits.cpu=1")
    shown = ctr(*words, "--dry-run")
    assert shown.stderr.startswith("note: nothing is taken: host ids, addresses, ")
    assert not [name for name in ("ids", "addresses", "networks", "instances") if (state / name).exists()]
    ctr("create", "builtin:busybox", "c0")
    shown = ctr(*words, "--dry-run")
    ctr(*words)
    foreseen, made = (
        [row for row in text.splitlines() if not row.startswith("link\t")]
        for text in (shown.stdout, (state / "instances/c1/plan").read_text())
    )
    assert foreseen == made and "\naddress\t4\t" in shown.stdout
    assert "`c1` exists already" in ctr(*words, "--dry-run", code=4).stderr
    alone = ctr("launch", "builtin:busybox", *OFFLINE, "--dry-run", "-q")
    assert alone.stderr == "" and "hostname\t" in alone.stdout


def test_dry_run_changes_nothing(c1: Ctr, host_snapshot: Snapshot) -> None:
    settle()
    before = host_snapshot()
    assert "\nlayer\t" in c1("launch", "builtin:busybox", "c2", *OFFLINE, "--dry-run").stdout
    assert c1("attach-device", "c1", "/dev/fuse", "--dry-run").stdout.startswith("device\tfuse\tchar\t/dev/fuse")
    assert c1("delete", "c1", "--dry-run").stdout == "delete c1\n"
    assert c1("stop", "c1", "--dry-run").stdout == "stop c1\n"
    assert c1("list", "--format", "csv").stdout.count("\n") == 2
    same(before, host_snapshot())


def test_debug_prints_the_steps(ctr: Ctr) -> None:
    said = ctr("launch", "builtin:busybox", "c1", *OFFLINE, "--debug").stderr
    assert "spawn" in said
    for operation in ("PRIV_IDMAP", "PRIV_OVERLAY", "PRIV_PROGRAM", "PRIV_KERNEL_MOUNTS", "PRIV_MASK sys/firmware"):
        assert f": {operation}\n" in said
    said = ctr("--debug", "attach-device", "c1", "/dev/fuse").stderr
    assert re.findall(r"PRIV.*", said)[:3] == ["PRIV_NODE", "PRIV_ALLOW", "PRIV_PLACE fuse"]
    assert "PRIV_REVOKE fuse\n" in ctr("detach-device", "c1", "fuse", "--debug").stderr
    assert "PRIV_CGROUP_REMOVE c1\n" in ctr("stop", "c1", "--debug").stderr


def test_two_commands_at_once(ctr: Ctr) -> None:
    """On one instance they follow each other; on several they do not meet."""
    ctr("image", "list")
    starts = [ctr.popen("launch", "builtin:busybox", f"p{n}", *OFFLINE, stdout=subprocess.DEVNULL) for n in range(6)]
    assert [process.wait(60) for process in starts] == [0] * 6
    same_name = [
        ctr.popen("launch", "builtin:busybox", "one", *OFFLINE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(4)
    ]
    assert sorted(process.wait(60) for process in same_name) == [0, 4, 4, 4]
    stops = [ctr.popen("stop", "one", stderr=subprocess.DEVNULL) for _ in range(3)]
    assert sorted(process.wait(60) for process in stops) == [0, 4, 4]
    ctr("delete", "--force", *(f"p{n}" for n in range(6)), "one")


def test_exit_status_and_restart_policy(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, "-c", "boot.autorestart=true")
    info = json.loads(ctr("info", "c1", "--format", "json").stdout)
    os.kill(info["pid"], 9)
    deadline = time.monotonic() + 10
    again: dict[str, object] = {}
    while time.monotonic() < deadline:
        again = json.loads(ctr("info", "c1", "--format", "json", code=None).stdout or "{}")
        if again.get("pid") not in (None, info["pid"]):
            break
        time.sleep(0.1)
    assert again["pid"] != info["pid"]
    assert again["monitor-pid"] == info["monitor-pid"]
    assert ctr("exec", "c1", "echo", "back").stdout == "back\n"
    ctr("stop", "c1")
    assert "STOPPED" in ctr("list").stdout


def test_a_copy_has_what_was_written_and_ids_of_its_own(ctr: Ctr) -> None:
    ctr(
        "launch",
        "builtin:busybox",
        "c1",
        "-p",
        "no-network",
        "-c",
        "limits.processes=77",
        "-d",
        "f,type=unix-char,source=/dev/fuse",
    )
    ctr("exec", "c1", "sh", "-c", "echo mine > /root/f; chown 1000:1000 /root/f")
    assert "is running" in ctr("copy", "c1", "c2", code=4).stderr
    ctr("stop", "c1")
    ctr("copy", "c1", "c2")
    assert "exists already" in ctr("copy", "c1", "c2", code=4).stderr
    one, two = (json.loads(ctr("info", name, "--format", "json").stdout) for name in ("c1", "c2"))
    assert one["ids"] != two["ids"]
    assert {key: one[key] for key in ("image", "fingerprint", "devices")} == {
        key: two[key] for key in ("image", "fingerprint", "devices")
    }
    ctr("start", "c1", "c2")
    assert (
        ctr("exec", "c2", "sh", "-c", "cat /root/f; stat -c %u /root/f; ls /dev/fuse").stdout
        == "mine\n1000\n/dev/fuse\n"
    )
    ctr("exec", "c2", "rm", "/root/f")
    assert ctr("exec", "c1", "cat", "/root/f").stdout == "mine\n"


def test_the_python_api(ctr: Ctr, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in ctr.env.items():
        if key.startswith("CTRMGR_"):
            monkeypatch.setenv(key, value)
    with ctrmgr.launch("builtin:busybox", profiles=["no-network"]) as instance:
        assert instance.attach("fuse", type="unix-char", source="/dev/fuse", gid="render")
        result = instance.exec(["stat", "-c", "%G", "/dev/fuse"])
        assert (result.code, result.stdout) == (0, b"render\n")
        assert instance.detach("fuse").live
        with pytest.raises(ctrmgr.NotFoundError):
            instance.detach("fuse")
        assert instance.info().fields["status"] == "RUNNING"
        assert [known.name for known in ctrmgr.instances()] == [instance.name]
    assert ctrmgr.instances() == []
