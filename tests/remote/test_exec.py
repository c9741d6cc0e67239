# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands on a server: bytes, exit codes, signals, terminals, and every byte every time."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.remote.daemons import PATIENCE, Daemon, Remote


@pytest.fixture(scope="module", params=["lxd-unix", "lxd-https", "incus-unix", "incus-https"])
def c1(request: pytest.FixtureRequest, servers: dict[str, Daemon]) -> Iterator[Remote]:
    """One instance for all tests of this file."""
    kind, _, way = request.param.partition("-")
    folder = Path(tempfile.mkdtemp(prefix="ctr-", dir="/var/tmp"))
    host = Remote(folder, servers[kind])
    words = (str(host.daemon.socket),) if way == "unix" else ("--token", host.daemon.token(folder.name))
    host("remote", "add", "host", *words)
    host("launch", "tiny", "host:c1")
    yield host
    host.clean_up()
    shutil.rmtree(folder)


def test_exit_codes(c1: Remote) -> None:
    both = c1("exec", "host:c1", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    assert (both.stdout, both.stderr) == ("out\n", "err\n")
    c1("exec", "host:c1", "--", "sh", "-c", "kill -9 $$", code=137)
    assert c1("exec", "host:c1", "--", "nope", code=127).stderr == "error: run `nope`: No such file or directory\n"
    assert (
        c1("exec", "host:c1", "--", "/etc/passwd", code=126).stderr == "error: run `/etc/passwd`: Permission denied\n"
    )
    assert "no instance `host:c9`" in c1("exec", "host:c9", "--", "true", code=3).stderr


def test_every_byte_both_ways(c1: Remote) -> None:
    data = os.urandom(5_000_000)
    done = subprocess.run([*c1.argv, "exec", "host:c1", "--", "cat"], env=c1.env, input=data, capture_output=True)
    assert (done.returncode, done.stdout == data) == (0, True)


def test_complete_every_time(c1: Remote) -> None:
    """5 MB from a command that ends as soon as it has written, twenty times."""
    want = hashlib.sha256(b"\xff\0\n\x80" * 1_250_000).hexdigest()
    doubled = "cat /tmp/f /tmp/f > /tmp/g; mv /tmp/g /tmp/f;" * 21
    c1(
        "exec",
        "host:c1",
        "--",
        "sh",
        "-c",
        rf"printf '\377\000\n\200' > /tmp/f; {doubled} head -c 5000000 /tmp/f > /tmp/big",
    )
    for _ in range(20):
        done = subprocess.run([*c1.argv, "exec", "host:c1", "--", "cat", "/tmp/big"], env=c1.env, capture_output=True)
        assert (done.returncode, hashlib.sha256(done.stdout).hexdigest()) == (0, want), (len(done.stdout), done.stderr)


def test_who_and_where(c1: Remote) -> None:
    told = c1(
        "exec",
        "-u",
        "user",
        "-C",
        "/tmp",
        "--env",
        "A=b c",
        "host:c1",
        "--",
        "sh",
        "-c",
        'id -u; id -g; pwd; echo "$A $HOME $USER"',
    )
    assert told.stdout == "1000\n1000\n/tmp\nb c / user\n"
    assert c1("exec", "-g", "render", "host:c1", "--", "id", "-g").stdout == "107\n"
    assert "no user `nobody9`" in c1("exec", "-u", "nobody9", "host:c1", "--", "id", code=3).stderr
    assert c1("shell", "host:c1", stdin="id -u; exit 5\n", code=5).stdout == "0\n"


def test_a_reader_that_goes(c1: Remote) -> None:
    """`exec … yes | head -1` ends."""
    line = " ".join([*c1.argv, "exec", "host:c1", "--", "yes", "|", "head", "-n", "1"])
    done = subprocess.run(["sh", "-c", line], env=c1.env, capture_output=True, timeout=PATIENCE)
    assert done.stdout == b"y\n"


def test_input_that_nobody_reads(c1: Remote) -> None:
    done = subprocess.run(
        [*c1.argv, "exec", "host:c1", "--", "head", "-c", "3"],
        env=c1.env,
        input=b"abc" * 1_000_000,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, b"abc")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_go_there(c1: Remote, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done"
    running = c1.popen("exec", "host:c1", "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert running.stdout.readline() == b"ready\n"  # type: ignore[union-attr]
    running.send_signal(number)
    assert running.communicate(timeout=PATIENCE)[0] == f"got {name}\n".encode()
    assert running.returncode == 9


def read_until(fd: int, what: bytes, again: bytes = b"") -> bytes:
    """`again` is typed whenever there is silence."""
    found, deadline = b"", time.monotonic() + PATIENCE
    os.write(fd, again)
    while what not in found:
        assert time.monotonic() < deadline, found
        if select.select([fd], [], [], 0.5)[0]:
            found += os.read(fd, 4096)
        else:
            os.write(fd, again)
    return found


def test_terminal(c1: Remote) -> None:
    """A terminal inside, its size followed, control characters handed through, ours as it was afterwards."""
    outer, inner = pty.openpty()
    ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    before = termios.tcgetattr(inner)
    running = c1.popen("shell", "host:c1", stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.write(outer, b"tty; stty size; echo $TERM-$HOME\n")
    assert b"33 111" in read_until(outer, b"/root\r\n")
    ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 122, 0, 0))
    running.send_signal(signal.SIGWINCH)
    os.write(outer, b"until stty size | grep 122; do sleep 0.1; done\n")
    read_until(outer, b"44 122")
    os.write(outer, b"echo sleep$((40+2)); sleep 1000\n")
    read_until(outer, b"sleep42\r\n")
    # A shell that is about to start something takes it for itself.
    read_until(outer, b"still 42\r\n", again=b"\x03echo still $((40+2))\n")
    os.write(outer, b"exit 6\n")
    assert running.wait(PATIENCE) == 6
    assert termios.tcgetattr(inner) == before
    os.close(inner)
    os.close(outer)


def test_a_second_connection_resumes(https: Remote) -> None:
    """A command needs five connections: only the first is a whole handshake, and each is compared with the pinned certificate."""
    script = (
        "from ctrmgr.remote.server import open_server\n"
        "server = open_server('host')\n"
        "for _ in range(3):\n"
        "    server.get('')\n"
        "    found = server.connection.socket\n"
        "    print(found.resumed, found.getpeercert() == server.target.certificate)\n"
        "    server.connection.close()\n"
    )
    words = [*https.daemon.inside(), sys.executable, "-c", script]
    done = subprocess.run(words, env=https.env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False True\nTrue True\nTrue True\n", "")
