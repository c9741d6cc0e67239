# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs on `REMOTE:NAME`, with the output and the exit codes that they have on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from tests.conftest import Ctr
from tests.remote.daemons import PATIENCE, Remote, at_a_console


@pytest.fixture
def host(https: Remote) -> Remote:
    return https


def rows(ctr: Ctr, *words: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(ctr("list", *words, "--format", "json").stdout)
    return found


def status(ctr: Ctr, name: str = "c1") -> str:
    return next((row["status"] for row in rows(ctr, "host:") if row["name"] == f"host:{name}"), "")


def test_a_life(host: Remote) -> None:
    assert host("create", "tiny", "host:c1").stdout == "host:c1\n"
    assert status(host) == "STOPPED"
    assert "is not running" in host("exec", "host:c1", "--", "true", code=4).stderr
    host("start", "host:c1")
    assert status(host) == "RUNNING"
    assert "is running already" in host("start", "host:c1", code=4).stderr
    host("freeze", "host:c1")
    assert status(host) == "FROZEN"
    host("unfreeze", "host:c1")
    assert "hello from init" in host("logs", "host:c1").stdout
    first = host("exec", "host:c1", "--", "cat", "/proc/sys/kernel/random/boot_id", "/proc/uptime").stdout
    host("restart", "host:c1")
    assert host("exec", "host:c1", "--", "cat", "/proc/sys/kernel/random/boot_id", "/proc/uptime").stdout != first
    assert "is running" in host("delete", "host:c1", code=4).stderr
    host("stop", "host:c1", "--timeout", "5")
    assert status(host) == "STOPPED"
    assert host("stop", "host:c1", code=4).stderr.startswith("error: `host:c1` is not running")
    host("rename", "host:c1", "host:c2")
    host("delete", "host:c2")
    assert rows(host, "host:") == []


def test_launch_is_whole_or_nothing(host: Remote) -> None:
    host("launch", "tiny", "host:c1")
    assert "`host:c1`" in host("launch", "tiny", "host:c1", code=4).stderr
    near = host("launch", "tyny", "host:c2", code=3)
    assert "no image `host:tyny`" in near.stderr and "did you mean `tiny`" in near.stderr
    bad = host("launch", "tiny", "host:c2", "-d", "x,type=unix-char,source=/dev/nowhere", code=6)
    assert "`host:c2`" in bad.stderr and 'device "x"' in bad.stderr
    assert [row["name"] for row in rows(host, "host:")] == ["host:c1"]
    assert host.daemon.tool("list", "--format=csv", "--columns=n").split() == ["c1"]


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_names_are_made_up(host: Remote) -> None:
    name = host("launch", "tiny", "host:").stdout.strip()
    assert name.startswith("host:") and len(name) > 8
    assert rows(host, name)[0]["status"] == "RUNNING"
    host("remote", "set-default", "host")
    assert rows(host, ":")[0]["name"] == name
    host("stop", "--force", ":" + name.partition(":")[2])


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_our_image_is_brought_there_once(unix: Remote) -> None:
    unix("launch", "builtin:busybox", "host:c1")
    assert unix("exec", "host:c1", "--", "busybox").stdout.startswith("BusyBox")
    before = unix.daemon.tool("image", "list", "--format=csv")
    unix("launch", "builtin:busybox", "host:c2")
    assert unix.daemon.tool("image", "list", "--format=csv") == before


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_ephemeral(host: Remote) -> None:
    host("launch", "tiny", "host:c1", "--ephemeral")
    host("stop", "host:c1", "--force")
    assert rows(host, "host:") == []
    host("launch", "tiny", "host:c1", "--ephemeral")
    host("delete", "host:c1", "--force")
    assert rows(host, "host:") == []


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_several_and_mixed(host: Remote) -> None:
    for name in ("a1", "a2", "b1"):
        host("create", "tiny", f"host:{name}")
    host("start", "host:a1", "host:a2")
    half = host("stop", "--force", "host:a1", "host:nothere", "host:a2", code=3)
    assert "no instance `host:nothere`" in half.stderr
    assert {row["status"] for row in rows(host, "host:")} == {"STOPPED"}
    assert [row["name"] for row in rows(host, "host:a")] == ["host:a1", "host:a2"]
    assert host("start", "--all", "host:", "--dry-run").stdout == "start host:a1\nstart host:a2\nstart host:b1\n"
    host("delete", "--force", "host:a1", "host:a2", "host:b1")


def test_info(host: Remote) -> None:
    host("launch", "tiny", "host:c1", "-c", "limits.processes=100")
    found = json.loads(host("info", "host:c1", "--format", "json").stdout)
    assert found["status"] == "RUNNING" and found["pid"] > 1 and found["profiles"] == ["default"]
    assert {row["type"] for row in found["ids"]} == {"uid", "gid"} and all(row["host"] for row in found["ids"])
    assert {"name": "root", "path": "/", "pool": "default", "type": "disk"} in found["devices"]
    assert "status: RUNNING" in host("info", "host:c1").stdout
    assert "no instance `host:c9`" in host("info", "host:c9", code=3).stderr


def test_config(host: Remote) -> None:
    host("create", "tiny", "host:c1")
    host("config", "set", "host:c1", "user.a=1", "limits.memory=64MiB")
    assert host("config", "get", "host:c1", "limits.memory").stdout == "64MiB\n"
    shown = host("config", "show", "host:c1").stdout
    assert "user.a: '1'" in shown and "volatile" not in shown and "- default" in shown
    host("config", "unset", "host:c1", "user.a")
    assert "is not set" in host("config", "unset", "host:c1", "user.a", code=3).stderr
    assert host("config", "get", "host:c1", "user.a").stdout == "\n"
    wrong = host("config", "set", "host:c1", "limits.memory=much", code=2)
    assert "host:c1" in wrong.stderr
    host("config", "set", "host:c1", "security.no_new_privs=true")
    assert "lxc.no_new_privs = 1" in host("config", "get", "host:c1", "raw.lxc").stdout
    text = host("config", "show", "host:c1").stdout
    assert "nothing was changed" in host("config", "edit", "host:c1", stdin=text).stderr
    added = text.replace("limits.memory: 64MiB", "limits.memory: 96MiB\n  security.capabilities.drop: sys_nice")
    added = added.replace("devices: {}", "devices:\n  fuse: {type: unix-char, source: /dev/fuse, gid: '5'}")
    assert "96MiB" in host("config", "edit", "host:c1", "--dry-run", stdin=added).stdout
    host("config", "edit", "host:c1", stdin=added)
    assert host("config", "get", "host:c1", "limits.memory").stdout == "96MiB\n"
    raw = host("config", "get", "host:c1", "raw.lxc").stdout
    assert "lxc.no_new_privs = 1" in raw and "lxc.cap.drop = sys_nice" in raw
    assert "fuse,unix-char," in host("config", "device", "list", "host:c1", "-fcsv").stdout
    host("start", "host:c1")  # what the server notes for itself is still there
    assert "cannot be changed here" in host("config", "edit", "host:c1", stdin="profiles: [x]\n", code=2).stderr
    refused = host(
        "config",
        "edit",
        "host:c1",
        stdin=added + "  x: {type: unix-char, source: /dev/null, lease: exclusive}\n",
        code=5,
    )
    assert (
        "lease" in refused.stderr and "x" not in host("config", "show", "host:c1").stdout.split("devices:")[1].split()
    )


def test_config_device(host: Remote) -> None:
    host("launch", "tiny", "host:c1")
    assert "root,disk,(a profile's)" in host("config", "device", "list", "host:c1", "-fcsv").stdout
    host("config", "device", "add", "host:c1", "full", "unix-char", "source=/dev/full", "path=/dev/mine", "mode=0600")
    owner = ("exec", "host:c1", "--", "stat", "-c", "%u %a", "/dev/mine")
    assert host(*owner).stdout.split() == ["0", "600"]
    host("config", "device", "set", "host:c1", "full", "uid=7", "mode=0640")
    assert host("config", "device", "get", "host:c1", "full", "uid").stdout == "7\n"
    assert host(*owner).stdout.split() == ["7", "640"]
    host("config", "device", "unset", "host:c1", "full", "uid")
    assert "`uid` is not set" in host("config", "device", "unset", "host:c1", "full", "uid", code=3).stderr
    shown = host("config", "device", "show", "host:c1").stdout
    assert "mode: '0640'" in shown and "root" not in shown
    assert "pool: default" in host("config", "device", "show", "host:c1", "--expanded").stdout
    assert "of a profile" in host("config", "device", "set", "host:c1", "root", "size=1GiB", code=4).stderr
    assert "no device `other`" in host("config", "device", "get", "host:c1", "other", "uid", code=3).stderr
    host("config", "device", "remove", "host:c1", "full")
    assert host("exec", "host:c1", "--", "test", "-e", "/dev/mine", code=1).code == 1


def test_keys_of_two_at_once(host: Remote) -> None:
    """Each reads, changes and writes: nobody's key is lost."""
    host("create", "tiny", "host:c1")
    running = [host.popen("config", "set", "host:c1", f"user.k{n}=1", stderr=subprocess.PIPE) for n in range(8)]
    for each in running:
        assert each.wait(PATIENCE) == 0, each.communicate()
    shown = host("config", "show", "host:c1").stdout
    assert [n for n in range(8) if f"user.k{n}: '1'" not in shown] == []


def test_kill(host: Remote) -> None:
    host("launch", "tiny", "host:c1")
    host("kill", "host:c1", "--signal", "TERM")
    deadline = time.monotonic() + PATIENCE
    while status(host) != "STOPPED":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while host("start", "host:c1", code=None).code:  # a server that is not done with the end yet calls it running again
        assert time.monotonic() < deadline
        time.sleep(0.1)
    host("kill", "host:c1")
    assert status(host) == "STOPPED"


@pytest.mark.parametrize("daemon", ["incus"], indirect=True)
def test_ended_by_itself(unix: Remote) -> None:
    """A server may call it running for a moment: whoever needs it stopped waits for that."""
    unix("launch", "tiny", "host:c1")
    assert "exists already" in unix("move", "host:c1", "host:c1", code=4).stderr
    unix("snapshot", "create", "host:c1", "a/b", code=2)
    for verb in ("start", "info", "delete"):
        # Which ends when all in it is killed, as its init is gone.
        unix("exec", "host:c1", "--", "sh", "-c", "kill -TERM 1; sleep 60", code=None)
        unix(verb, "host:c1")
        if verb == "info":
            unix("start", "host:c1")
        if verb != "delete":
            assert unix("exec", "host:c1", "--", "echo", "up").stdout == "up\n"


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_logs_follow(unix: Remote) -> None:
    unix("launch", "tiny", "host:c1")
    follower = unix.popen("logs", "--follow", "host:c1", stdout=subprocess.PIPE)
    assert follower.stdout.readline() == b"hello from init\r\n"
    unix("exec", "host:c1", "--", "sh", "-c", "echo more from init > /dev/console")
    assert follower.stdout.readline() == b"more from init\r\n"
    unix("stop", "--force", "host:c1")
    assert follower.communicate(timeout=PATIENCE)[0] == b""


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_not_there(host: Remote) -> None:
    """What stays on one machine says so."""
    assert "did you mean `host`" in host("start", "hst:c1", code=3).stderr
    assert "an instance is missing" in host("start", "host:", code=2).stderr
    assert "this machine only" in host("suspend-device", "host:c1", "fuse", code=5).stderr
    assert "did you mean" in host("list", "hos:", code=3).stderr
    error = json.loads(host("info", "host:c9", "--format", "json", code=3).stderr)
    assert error["kind"] == "NotFoundError"


def test_list_of_all(both: Ctr) -> None:
    """Here and there; a remote that is gone does not hide the others, and is told in the exit code."""
    both("create", "tiny", "lxd:c1")
    both("create", "tiny", "incus:c2")
    both("create", "builtin:busybox", "c3", "-p", "no-network")
    assert [row["name"] for row in rows(both, "lxd:", "incus:", "local:")] == ["lxd:c1", "incus:c2", "c3"]
    assert [row["name"] for row in rows(both)] == ["c3"]
    etc = both.folder / "etc/remotes"
    etc.write_text(etc.read_text().replace("end\n", "remote\tgone\tunix:///nowhere\tlxd\t\nend\n"))
    found = both("list", "gone:", "incus:", "--format", "json", code=6)
    assert [row["name"] for row in json.loads(found.stdout)] == ["incus:c2"]
    assert "`gone` cannot be reached" in found.stderr


DUMP = """
import sys
sys.path.insert(0, {root!r})
sys.argv = ["ctrmgr", *{words!r}]
from ctrmgr.cli.main import main
code = main()
print(" ".join(sorted(name for name in sys.modules if "remote" in name or "distant" in name)), file=sys.stderr)
sys.exit(code)
"""


def test_words_without_a_colon_never_meet_this(ctr: Ctr) -> None:
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
    for words in (
        ["launch", "builtin:busybox", "c1", "-p", "no-network"],
        ["list"],
        ["list", "c"],
        ["stop", "c1", "--force"],
    ):
        script = DUMP.format(root=root, words=words)
        done = subprocess.run([sys.executable, "-I", "-c", script], env=ctr.env, capture_output=True, text=True)
        assert (done.returncode, done.stderr.strip()) == (0, ""), words


def test_profiles_go_and_come(unix: Remote) -> None:
    tag = unix.folder.name.replace("_", "-")
    unix(
        "profile", "create", "ours", "-",
        stdin="description: a card\nconfig:\n  security.no_new_privs: true\n  limits.processes: 99\n"
        "devices:\n  card:\n    type: unix-char\n    source: /dev/zero\n    path: /dev/card\n",
    )  # fmt: skip
    unix("profile", "push", "ours", f"host:{tag}")
    shown = unix("profile", "show", f"host:{tag}").stdout
    assert (
        "raw.lxc: lxc.no_new_privs = 1" in shown
        and "limits.processes: '99'" in shown
        and "description: a card" in shown
    )
    assert "has a profile" in unix("profile", "push", "ours", f"host:{tag}", code=4).stderr
    unix("profile", "push", "ours", f"host:{tag}", "--force")
    assert f"host:{tag}" in unix("profile", "list", "host:").stdout
    unix("launch", "tiny", "host:c1", "-p", "default", "-p", tag)
    assert unix("exec", "host:c1", "--", "ls", "/dev/card").stdout == "/dev/card\n"
    unix("profile", "pull", f"host:{tag}", "back")
    assert "lxc.no_new_privs" in unix("profile", "show", "back").stdout
    assert "exists" in unix("profile", "pull", f"host:{tag}", "back", code=4).stderr
    unix(
        "profile",
        "create",
        "named",
        "-",
        stdin="devices:\n  a:\n    type: unix-char\n    source: /dev/zero\n    gid: render\n    readonly: true\n",
    )
    refused = unix("profile", "push", "named", "host:", code=5)
    assert "`a.gid`" in refused.stderr and "`a.readonly`" in refused.stderr
    assert "no profile `host:named`" in unix("profile", "show", "host:named", code=3).stderr
    unix("delete", "--force", "host:c1")
    unix.daemon.tool("profile", "delete", tag)


@pytest.mark.parametrize("daemon", ["incus"], indirect=True)
def test_pylxd_for_programs(unix: Remote) -> None:
    """The same remote through the library, address and project included."""
    script = "from ctrmgr.remote import library; print([p.name for p in library.client('host').profiles.all()])"
    done = subprocess.run([sys.executable, "-c", script], env=unix.env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "default" in done.stdout


def test_console(unix: Remote) -> None:
    """What is written to it is seen, what is typed goes there; ctrl-a q leaves it, and so does the end of the input."""
    at_a_console(unix, lambda: _console(unix))


def _console(unix: Remote) -> None:
    unix("create", "tiny", "host:c1")
    assert "is not running" in unix("console", "host:c1", code=4).stderr
    unix("start", "host:c1")
    sitting = unix.popen("console", "host:c1", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert sitting.stderr.readline() == b"ctrl-a q leaves it\n"
    deadline = time.monotonic() + PATIENCE
    seen = b""
    os.set_blocking(sitting.stdout.fileno(), False)
    while b"to the console" not in seen:
        assert time.monotonic() < deadline, seen
        unix("exec", "host:c1", "--", "sh", "-c", "echo to the console >/dev/console")
        seen += sitting.stdout.read() or b""
    reader = unix.popen("exec", "host:c1", "--", "sh", "-c", "head -n 1 </dev/console", stdout=subprocess.PIPE)
    while reader.poll() is None:
        assert time.monotonic() < deadline
        sitting.stdin.write(b"typed\n")
        sitting.stdin.flush()
        time.sleep(0.3)
    assert reader.stdout.read() == b"typed\n"
    assert "`host:c1`: somebody is at its console" in unix("console", "host:c1", stdin="lost\n", code=4).stderr
    sitting.stdin.write(b"\x01q")
    sitting.stdin.flush()
    assert sitting.wait(PATIENCE) == 0
    assert unix("console", "host:c1", stdin="").stdout == ""
    script = "stty -echo; echo ready; head -n 2"
    reader = unix.popen("exec", "host:c1", "--", "sh", "-c", f"({script}) </dev/console", stdout=subprocess.PIPE)
    assert reader.stdout.readline() == b"ready\n"
    assert "shown nothing" in unix("console", "host:c1", stdin="a secret\n").stderr
    unix("exec", "host:c1", "--", "stty", "-F", "/dev/console", "echo")
    piped = unix("console", "host:c1", stdin="piped\n")
    assert "piped" in piped.stdout and "shown nothing" not in piped.stderr
    # when somebody leaves, servers type a terminal's reset, of which not all may get there
    assert re.sub(rb"\x1bc?", b"", reader.communicate(timeout=PATIENCE)[0]) == b"a secret\npiped\n"


def test_places(both: Ctr) -> None:
    """Networks and storage, here and there."""
    found = json.loads(both("storage", "list", "lxd:", "incus:", "local:", "-f", "json").stdout)
    assert [(row["name"], row["driver"]) for row in found] == [
        ("lxd:default", "dir"), ("incus:default", "dir"), ("local", "overlay"),
    ]  # fmt: skip
    assert all(0 < row["used"] < row["total"] for row in found)
    networks = json.loads(both("network", "list", "lxd:", "-f", "json").stdout)
    assert [row["managed"] for row in networks if row["name"] == "lxd:lo"] in ([], [False])
    both("create", "builtin:busybox", "c1")
    (bridge,) = json.loads(both("network", "list", "-f", "json").stdout)
    assert bridge["managed"] and bridge["used-by"] == 1 and bridge["ipv4"]
    assert "no remote `nope`" in both("network", "list", "nope:", code=3).stderr


def test_profiles_differ(unix: Remote) -> None:
    tag = unix.folder.name.replace("_", "-") + "d"
    text = "config:\n  security.no_new_privs: true\ndevices:\n  card:\n    type: unix-char\n    source: /dev/zero\n"
    unix("profile", "create", tag, "-", stdin=text)
    unix("profile", "push", tag, "host:")
    assert unix("profile", "diff", tag, "host:").stdout == ""
    unix.daemon.tool("profile", "device", "set", tag, "card", "mode", "0600")
    shown = unix("profile", "diff", tag, f"host:{tag}", code=1).stdout
    assert "+    mode: '0600'" in shown and shown.count("\n+ ") == 1
    unix("profile", "pull", f"host:{tag}", "back")
    assert "no_new_privs" in unix("profile", "diff", tag, "back", code=1).stdout
    unix.daemon.tool("profile", "delete", tag)


def test_the_same_words_as_here(unix: Remote, ctr: Ctr) -> None:
    """What is wrong is told with the words and the exit code that it has on this machine."""
    image = {"host:": "tiny", "": "builtin:busybox"}
    for where, run in (("host:", unix), ("", ctr)):
        own, more = f"{where}c1", ("-p", "no-network") if not where else ()
        run("launch", image[where], own, *more)
        for words, code, said in (
            (("create", image[where], own), 4, f"an instance `{own}` exists already"),
            (("create", image[where], f"{where}c_2"), 2, "c_2`"),
            (("create", image[where], f"{where}a/b"), 2, "a/b`"),
            (("create", image[where], f"{where}c2", *more, "-c", "limits.memory=lots"), 2, "lots"),
            (("create", image[where], f"{where}c2", *more, "-c", "nope=1"), 2, "nope"),
            (("start", own), 4, f"`{own}` is running already"),
            (("exec", "--cwd", "/nope", own, "--", "true"), 3, "go to `/nope`: No such file or directory"),
            (("config", "set", own, "limits.memory=lots"), 2, "lots"),
            (("config", "set", own, "nope=1"), 2, "nope"),
            (("snapshot", "create", own, "a b"), 2, "a b"),
            (("rename", own, f"{where}c2"), 4, f"`{own}` is running"),
            (("freeze", own), 0, ""),
            (("freeze", own), 0, ""),
            (("exec", own, "--", "true"), 4, "is frozen"),
            (("unfreeze", own), 0, ""),
            (("unfreeze", own), 0, ""),
            (("stop", "--force", own), 0, ""),
            (("stop", own), 4, f"`{own}` is not running"),
            (("create", image[where], f"{where}c2", *more), 0, ""),
            (("rename", own, f"{where}c2"), 4, f"an instance `{where}c2` exists already"),
        ):
            assert said in run(*words, code=code).stderr, words
    assert "no remote `nope`" in unix("image", "import", "/etc/hostname", "nope:", code=3).stderr
