# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong between us and a server: one clear error, exit code 6, and no doubt about what is left."""

from __future__ import annotations

import socket
import subprocess
import threading
import time

import pytest

from tests.remote.daemons import Remote
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
    assert "whether `far:c1` was made is not known" in unix("create", "tiny", "far:c1", code=6).stderr


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
    said = running.communicate(timeout=30)
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
    said = running.communicate(timeout=30)
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
    etc = unix.folder / "etc/remotes"
    etc.write_text(etc.read_text().replace("end\n", "remote\tmute\thttps://192.0.2.1:8443\tlxd\t\nend\n"))
    (unix.folder / "etc/servercerts").mkdir()
    (unix.folder / "etc/servercerts/mute.crt").write_bytes((unix.daemon.home / "server.crt").read_bytes())
    unix("remote", "show")
    begin = time.monotonic()
    gone = unix("list", "mute:", code=6, env={"CTRMGR_REMOTE_TIMEOUT": "1"})
    assert "`mute` cannot be reached" in gone.stderr and time.monotonic() - begin < 5


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
    assert seen.wait(20)
    running.send_signal(2)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert names(unix) == []
