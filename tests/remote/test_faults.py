# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong between us and a server: one clear error, exit code 6, and no doubt about what is left."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from ctrmgr.remote.wire import CONNECT_SECONDS
from tests.remote.daemons import PATIENCE, Remote, at_a_console, tiny_image
from tests.remote.middle import Middle


def names(host: Remote) -> list[str]:
    return [line.split(",")[0] for line in host("list", "host:", "--format", "csv").stdout.splitlines()[1:]]


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_gone_while_it_is_made(unix: Remote, middle: Middle) -> None:
    """The request did not arrive, or its answer did not: the error says what to look at, and nothing is told as done."""
    middle.rule = lambda data: "cut" if data.startswith(b"POST /1.0/instances ") else "pass"
    cut = unix("launch", "tiny", "far:c1", code=6)
    assert "`far` went away" in cut.stderr and "whether `far:c1` was made is not known" in cut.stderr
    assert names(unix) == []
    middle.rule = lambda data: "deaf" if data.startswith(b"POST /1.0/instances ") else "pass"
    assert "made is not known: one that is there may be half made" in unix("create", "tiny", "far:c1", code=6).stderr


def test_gone_while_it_starts(unix: Remote, middle: Middle) -> None:
    """What was made is taken away again, over another connection."""
    middle.rule = lambda data: "cut" if b"/state" in data.split(b"\r\n")[0] and data.startswith(b"PUT") else "pass"
    gone = unix("launch", "tiny", "far:c1", code=6)
    assert "`far` went away" in gone.stderr
    assert names(unix) == []


def test_gone_under_a_command(unix: Remote, middle: Middle) -> None:
    """Output that is not complete is not told as complete."""
    unix("launch", "tiny", "host:c1")
    running = unix.popen(
        "exec", "far:c1", "--", "sh", "-c", "echo begun; sleep 100", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout.readline() == b"begun\n"
    unix("kill", "host:c1")
    said = running.communicate(timeout=PATIENCE)
    assert running.returncode in (6, 137), said
    unix("start", "host:c1")
    running = unix.popen(
        "exec",
        "far:c1",
        "--",
        "sh",
        "-c",
        "echo begun; cat",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout.readline() == b"begun\n"
    middle.rule = lambda data: "cut"
    running.stdin.write(b"x")
    running.stdin.flush()
    said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 6 and b"went away" in said[1], said


@pytest.mark.parametrize("daemon", ["incus"], indirect=True)
def test_slow(unix: Remote, middle: Middle) -> None:
    """A second for every request is slow, and no failure."""
    middle.rule = lambda data: "slow"
    unix("create", "tiny", "far:c1")
    assert names(unix) == ["host:c1"]


@pytest.mark.parametrize("daemon", ["incus"], indirect=True)
def test_nobody_answers(unix: Remote) -> None:
    """Something listens and never says a word; CTRMGR_REMOTE_TIMEOUT is how long a connection may take."""
    listens = (
        "import socket; one = socket.create_server(('127.0.0.1', 0)); print(one.getsockname()[1], flush=True); input()"
    )
    words = [*unix.daemon.inside(), sys.executable, "-c", listens]
    mute = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert mute.stdin and mute.stdout
    etc, url = unix.folder / "etc/remotes", f"https://127.0.0.1:{mute.stdout.readline().strip()}"
    etc.write_text(etc.read_text().replace("end\n", f"remote\tmute\t{url}\tlxd\t\nend\n"))
    (unix.folder / "etc/servercerts").mkdir()
    (unix.folder / "etc/servercerts/mute.crt").write_bytes((unix.daemon.home / "server.crt").read_bytes())
    unix("remote", "show")
    begin = time.monotonic()
    gone = unix("list", "mute:", code=6, env={"CTRMGR_REMOTE_TIMEOUT": "1"})
    assert "`mute`: no TLS: no answer in time" in gone.stderr and time.monotonic() - begin < CONNECT_SECONDS
    mute.communicate()


@pytest.mark.parametrize("daemon", ["incus"], indirect=True)
def test_not_a_server(unix: Remote) -> None:
    """Whatever speaks no HTTP, or no LXD, is told so."""
    for answer in (
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ):
        path = unix.folder / "other.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()

        def talk(listener: socket.socket = listener, answer: bytes = answer) -> None:
            client, _ = listener.accept()
            client.recv(4096)
            client.sendall(answer)
            client.close()

        threading.Thread(target=talk, daemon=True).start()
        told = unix("remote", "add", "other", str(path), code=6)
        assert told.stderr.startswith("error: ") and "Traceback" not in told.stderr
        listener.close()
        path.unlink()


def test_interrupted(unix: Remote, middle: Middle) -> None:
    """Ctrl-C while an instance is made: 130, and nothing is left of it."""
    seen = threading.Event()

    def rule(data: bytes) -> str:
        if b"/wait" in data.split(b"\r\n")[0]:
            seen.set()
            return "slow"
        return "pass"

    middle.rule = rule
    running = unix.popen("create", "tiny", "far:c1", stderr=subprocess.PIPE)
    assert seen.wait(PATIENCE)
    running.send_signal(2)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert names(unix) == []


class Once:
    """A rule for the first request that begins like this, and what follows it on its connection."""

    def __init__(self, what: str, *words: bytes) -> None:
        self.what, self.words, self.seen = what, words, threading.Event()

    def __call__(self, data: bytes) -> str:
        if self.seen.is_set() or not all(word in data.split(b"\r\n")[0] for word in self.words):
            return "pass"
        self.seen.set()
        return self.what


def images(host: Remote) -> list[str]:
    return host("image", "list", "host:", "--format", "csv").stdout.splitlines()[1:]


def interrupted(host: Remote, middle: Middle, *words: str) -> None:
    """Ctrl-C while the server works."""
    rule = middle.rule = Once("slow", b"/wait")
    running = host.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert rule.seen.wait(PATIENCE)
    running.send_signal(2)
    said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, said


@pytest.mark.usefixtures("here")
def test_publish_and_copy(unix: Remote, middle: Middle, tmp_path: Path) -> None:
    """Whatever is cut off or interrupted, no image and no instance is left that nobody asked for, here or there."""
    tar = str(tiny_image(tmp_path / "new.tar"))
    before = images(unix)
    unix("create", "tiny", "host:c1")
    for rule, words, said in (
        (Once("cut", b"POST /1.0/images "), ("publish", "far:c1", "--alias", "p"), "whether there is an image of it"),
        (Once("cut", b"/wait"), ("publish", "far:c1", "--alias", "p"), "`far` went away"),
        (Once("cut", b"/export"), ("publish", "far:c1", "local:", "--alias", "p"), "`far` went away"),
        (Once("cut", b"/wait"), ("copy", "far:c1", "local:"), "`far` went away"),
        (Once("cut", b"/wait"), ("image", "import", tar, "far:"), "`far` went away"),
        (Once("cut", b"POST /1.0/images/aliases"), ("image", "import", tar, "far:", "--alias", "p"), "`far` went away"),
        (Once("cut", b"POST /1.0/instances "), ("copy", "far:c1", "far:c2"), "`far:c2` was made is not known"),
    ):
        middle.rule = rule
        assert said in unix(*words, code=6).stderr and rule.seen.is_set(), words
        assert images(unix) == before and names(unix) == ["host:c1"], words
    interrupted(unix, middle, "publish", "far:c1", "--alias", "p")
    interrupted(unix, middle, "copy", "far:c1", "far:c2")
    interrupted(unix, middle, "image", "import", tar, "far:")
    assert images(unix) == before and names(unix) == ["host:c1"]
    assert unix("image", "list", "--format", "json").stdout == "[]\n" and unix("list", "-f", "json").stdout == "[]\n"


@pytest.mark.usefixtures("here")
def test_killed(unix: Remote, middle: Middle, tmp_path: Path) -> None:
    """By SIGKILL, at each step: what was only on the way is taken away by the next command, which works."""
    tar = str(tiny_image(tmp_path / "new.tar"))
    before = images(unix)
    unix("create", "tiny", "host:c1")
    moments = (
        (b"POST /1.0/images ", ("publish", "far:c1", "local:", "--alias", "p")),
        (b"/wait", ("copy", "far:c1", "local:c1")),
        (b"/export", ("publish", "far:c1", "local:", "--alias", "p")),
        (b"DELETE /1.0/images/", ("copy", "far:c1", "local:c3")),
        (b"POST /1.0/images/aliases", ("image", "import", tar, "far:", "--alias", "p")),
        (b"POST /1.0/instances ", ("copy", "local:c1", "far:c2")),
    )
    # Each server at every other of them: what is at work there is ours.
    for step, words in moments[unix.daemon.kind == "incus" :: 2]:
        middle.rule = rule = Once("pass" if step.startswith(b"POST") else "slow", step)
        running = unix.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert rule.seen.wait(PATIENCE), words
        running.kill()
        running.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while os.listdir(unix.folder / "state/passing"):
            assert time.monotonic() < deadline, (step, words)
            unix("image", "list", "far:")
        if words[0] != "image":  # one that is whole, and gets its alias from who brings it again
            assert images(unix) == before, (step, words)
        unix("delete", "--force", "far:c2", code=None)
        unix(*words)
        unix("image", "delete", "far:p" if "far:" in words else "p", code=None)
    assert images(unix) == before and unix("image", "list", "far:").stderr == ""


def test_a_killed_launch(unix: Remote, middle: Middle) -> None:
    """What is there of it, the next one says whose it is."""
    middle.rule = rule = Once("pass", b"PUT /1.0/instances/c1/state")
    running = unix.popen("launch", "tiny", "far:c1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert rule.seen.wait(PATIENCE)
    running.kill()
    running.communicate(timeout=PATIENCE)
    again = unix("launch", "tiny", "far:c1", code=4)
    assert "exists already" in again.stderr
    assert "that was killed was making it: `ctrmgr delete --force far:c1`" in again.stderr
    unix("delete", "--force", "far:c1")
    unix("launch", "tiny", "far:c1")
    assert "choose another name" in unix("launch", "tiny", "far:c1", code=4).stderr
    assert os.listdir(unix.folder / "state/passing") == []


@pytest.mark.usefixtures("here")
def test_a_killed_move(unix: Remote) -> None:
    """When the copy was there and the source, too: the same words end it, or say what does, and never lose what was changed since."""

    def killed(*words: str) -> None:
        unix("move", *words, code=-9, env={"CTRMGR_CRASH_AT": "move-arrived"})
        left.update(os.listdir(passing))
        assert len(left) == 1

    def again(*words: str, said: str, code: int = 4) -> None:
        assert said in unix("move", *words, code=code).stderr
        assert set(os.listdir(passing)) == (left if code else set())
        if not code:
            left.clear()

    passing, left = unix.folder / "state/passing", set[str]()
    away, back = ("host:c1", "local:c7", "-p", "no-network"), ("c7", "host:c2", "-p", "default")
    unix("create", "tiny", "host:c1")
    killed(*away)
    again(
        *away,
        said="`c7` is the whole copy that a killed move made of `host:c1`, which is still there\n\nhint: `ctrmgr delete host:c1`",
    )
    unix("config", "set", "host:c1", "user.a=1")
    again(*away, said="which has changed since it was made: both are there")
    unix("delete", "c7")
    unix("image", "list", "host:")  # nothing is left to do
    assert os.listdir(passing) == []
    left.clear()
    killed(*away)
    unix("delete", "host:c1")
    again(*away, said="`host:c1` was moved by a command that was killed then", code=0)
    # From here to there: what is here tells whether it has changed.
    killed(*back)
    upper = unix.folder / "state/instances/c7/upper"
    (upper / "new").touch()
    again(*back, said="which has changed since it was made: both are there")
    unix("delete", "host:c2")
    left.clear()
    killed(*back)
    again(*back, said="`host:c2` was made by a command that was killed then; `c7` is gone now", code=0)
    assert [row["name"] for row in json.loads(unix("list", "local:", "host:", "-f", "json").stdout)] == ["host:c2"]


def test_files(unix: Remote, middle: Middle, tmp_path: Path) -> None:
    """It is said how much of a tree has come."""
    (tmp_path / "tree").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "tree" / name).write_text(name)
    unix("create", "tiny", "host:c1")
    middle.rule = lambda data: "cut" if data.startswith(b"POST") and b"%2Fb" in data.split(b"\r\n")[0] else "pass"
    gone = unix("file", "push", "--recursive", str(tmp_path / "tree"), "far:c1/opt", code=6)
    assert "`far` went away" in gone.stderr and "2 files and directories are there" in gone.stderr
    middle.rule = Once("cut", b"GET", b"%2Fetc%2Fgroup")
    gone = unix("file", "pull", "far:c1/etc/group", str(tmp_path / "group"), code=6)
    assert "`far` went away" in gone.stderr and not (tmp_path / "group").exists()


def test_console(unix: Remote, middle: Middle) -> None:
    """The server goes away under it, and then the instance: an error, and an end; the terminal is as it was."""
    at_a_console(unix, lambda: _console(unix, middle))


def _console(unix: Remote, middle: Middle) -> None:
    assert "no instance `host:c1`" in unix("console", "host:c1", code=3).stderr
    unix("launch", "tiny", "host:c1")
    for act, code, said in (("cut", 6, b"`far` went away"), ("stop", 0, b"ctrl-a q leaves it")):
        middle.rule = rule = Once("pass", b"/websocket")
        ours, theirs = pty.openpty()
        as_it_was = termios.tcgetattr(theirs)
        running = unix.popen("console", "far:c1", stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
        assert rule.seen.wait(PATIENCE)
        while termios.tcgetattr(theirs) == as_it_was:
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        if act == "stop":
            unix("stop", "--force", "host:c1")
        else:
            middle.rule = lambda data: "cut"
            os.write(ours, b"x")
        error = running.communicate(timeout=PATIENCE)[1]
        assert running.returncode == code and said in error, (act, error)
        assert termios.tcgetattr(theirs) == as_it_was
        os.close(ours)
        os.close(theirs)
    assert "is not running" in unix("console", "host:c1", code=4).stderr


def test_quota_and_project(unix: Remote) -> None:
    """What a project may not have is said, and not half made; neither is anything in a project that is gone."""
    shared = [word for key in ("images", "profiles") for word in ("-c", f"features.{key}=false")]
    unix.daemon.tool("project", "create", "small", *shared, "-c", "limits.instances=1")
    try:
        unix("remote", "add", "small", str(unix.daemon.socket), "--project", "small")
        unix("create", "tiny", "small:c1")
        full = unix("launch", "tiny", "small:c2", code=6)
        assert full.stderr.startswith("error: `small:c2`: ") and "maximum" in full.stderr.lower()
        full = unix("copy", "small:c1", "small:c2", code=6)
        assert "maximum" in full.stderr.lower()
        assert [row["name"] for row in json.loads(unix("list", "small:", "-f", "json").stdout)] == ["small:c1"]
        unix("delete", "small:c1")
    finally:
        unix.daemon.tool("project", "delete", "small")
    for words in (
        ("launch", "tiny", "small:c1"),
        ("info", "small:c1"),
        ("list", "small:"),
        ("exec", "small:c1", "--", "true"),
    ):
        assert "`small` has no project `small`" in unix(*words, code=6).stderr


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_an_old_server(unix: Remote) -> None:
    """One without an extension is not asked for what it needs."""
    path = unix.folder / "old.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    said = {"api_extensions": ["devlxd"], "auth": "trusted", "environment": {"server": "lxd", "server_version": "3.0"}}
    body = json.dumps({"type": "sync", "metadata": said}).encode()
    asked: list[bytes] = []

    def talk() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                while request := client.recv(4096):
                    asked.append(request.split(b"\r\n")[0])
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    threading.Thread(target=talk, daemon=True).start()
    unix("remote", "add", "old", str(path))
    refused = unix("attach-device", "old:c1", "g", "type=gpu", code=5)
    assert "`old` cannot do `g`: it has no API extension `gpu_devices`" in refused.stderr
    refused = unix("config", "set", "old:c1", "limits.cpu.nodes=0", code=5)
    assert "`numa_cpu_placement`" in refused.stderr
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    assert all(request.startswith(b"GET ") for request in asked), asked
