# SPDX-License-Identifier: GPL-3.0-or-later
"""What `top` says about real loads, and the live screen on a real terminal."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import Ctr
from tests.rootful.test_bridge import Place

OFFLINE = ("-p", "no-network")


@pytest.fixture
def two(ctr: Ctr) -> Iterator[Ctr]:
    """`busy` has limits and something to do; `idle` has neither."""
    limits = ("limits.memory=128MiB", "limits.processes=50", "limits.cpu.allowance=40ms/100ms")
    ctr("launch", "builtin:busybox", "busy", *OFFLINE, *(word for limit in limits for word in ("-c", limit)))
    ctr("launch", "builtin:busybox", "idle", *OFFLINE)
    return ctr


def once(ctr: Ctr, *words: str) -> dict[str, dict[str, float]]:
    found = json.loads(ctr("top", "--once", "--format", "json", *words).stdout)
    return {each["name"]: each for each in found["instances"]}


def load(ctr: Ctr, name: str, script: str) -> subprocess.Popen[bytes]:
    return ctr.popen("exec", name, "--", "sh", "-c", script, stdin=subprocess.DEVNULL)


def test_cpu_and_processes_against_limits(two: Ctr) -> None:
    running = load(two, "busy", "sleep 60 & sleep 60 & while :; do :; done")
    try:
        time.sleep(0.5)
        found = once(two, "-i", "2")
        assert 8 < found["busy"]["cpu"] < 50 and found["busy"]["cpu-limit"] == 40
        assert found["busy"]["processes"] == 4 and found["busy"]["processes-limit"] == 50
        assert found["busy"]["memory"] > 0 and found["busy"]["memory-limit"] == 128 << 20
        assert found["idle"]["cpu"] < 5 and found["idle"]["processes"] == 1
        assert found["idle"]["cpu-limit"] is found["idle"]["processes-limit"] is found["idle"]["memory-limit"] is None
        assert [line.split()[0] for line in two("top", "--once", "--sort", "cpu").stdout.splitlines()] == [
            "NAME",
            "busy",
            "idle",
        ]
    finally:
        two("stop", "--force", "busy")
        running.wait()


def test_memory_that_is_used_is_seen(two: Ctr) -> None:
    before = once(two, "busy")["busy"]["memory"]
    two("exec", "busy", "--", "dd", "if=/dev/zero", "of=/dev/shm/full", "bs=1M", "count=32")
    # what it had besides may have become less meanwhile
    assert 31 << 20 <= once(two, "busy")["busy"]["memory"] - before < 48 << 20


def test_io(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    running = load(ctr, "c1", "while :; do dd if=/dev/zero of=/root/load bs=1M count=4 conv=fsync; done 2>/dev/null")
    try:
        time.sleep(0.5)
        assert once(ctr, "-i", "2")["c1"]["io-write"] > 1 << 20
    finally:
        ctr("stop", "--force", "c1")
        running.wait()


def test_network(ctr: Ctr) -> None:
    place = Place(ctr)
    try:
        ctr("launch", "builtin:busybox", "c1")
        running = load(ctr, "c1", "ping -q -s 20000 $(ip route | grep default | cut -d' ' -f3) >/dev/null")
        time.sleep(2)
        found = once(ctr, "-i", "2")["c1"]
        assert found["network-in"] > 4000 and found["network-out"] > 4000
        ctr("stop", "--force", "c1")
        running.wait()
    finally:
        place.end()


def test_a_stream_of_each_format(two: Ctr) -> None:
    """A document for each sample, at once and not only when a buffer is full; ends quietly when nobody reads on."""
    for form, heads in (("json", '{"time"'), ("yaml", "---"), ("csv", "time,name,"), ("table", "NAME ")):
        running = two.popen("top", "--format", form, "-i", "0.2", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text = b""
        while text.count(b"idle") < 3:
            text += os.read(running.stdout.fileno(), 4096)  # type: ignore[union-attr]
        running.stdout.close()  # type: ignore[union-attr]
        assert running.wait(timeout=10) == 141
        assert running.stderr.read() == b""  # type: ignore[union-attr]
        running.stderr.close()  # type: ignore[union-attr]
        said = text.decode()
        assert said.startswith(heads)
        if form == "json":
            assert all(json.loads(line)["instances"] for line in said.splitlines()[:3])
        elif form == "yaml":
            assert len(list(yaml.safe_load_all(said.rpartition("---")[0]))) >= 2
        elif form == "csv":
            rows = list(csv.DictReader(io.StringIO(said)))
            assert [row["name"] for row in rows[:4]] == ["busy", "idle", "busy", "idle"]
            assert rows[1]["memory-limit"] == "" and rows[0]["memory-limit"] == str(128 << 20)


class Terminal:
    """`ctrmgr top` on a terminal of its own."""

    def __init__(self, ctr: Ctr, *words: str, size: tuple[int, int] = (24, 100)) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(ctr.argv[0], [*ctr.argv, "top", "-i", "0.2", *words], {**ctr.env, "TERM": "xterm"})
        self.resize(*size)
        self.before = termios.tcgetattr(self.fd)
        self.said = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def until(self, pattern: str, seconds: float = 15) -> str:
        """Wait for it in what is drawn from now on."""
        drawn, end = "", time.monotonic() + seconds
        while not re.search(pattern, drawn):
            assert time.monotonic() < end, f"no {pattern!r} in {drawn!r}"
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    drawn += os.read(self.fd, 65536).decode()
                except OSError:
                    break
        self.said += drawn
        return drawn

    def end(self) -> int:
        """The exit status, once all has been drawn; the terminal must be as it was."""
        end = time.monotonic() + 15
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.fd, 65536).decode()
                except OSError:
                    break
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(("how", "code"), [("q", 0), ("\x03", 0), ("TERM", 143), ("HUP", 129)])
def test_the_screen_ends_cleanly(two: Ctr, how: str, code: int) -> None:
    terminal = Terminal(two)
    terminal.until(r"idle")
    changed = termios.tcgetattr(terminal.fd)
    assert not changed[3] & termios.ICANON and not changed[3] & termios.ECHO
    if len(how) == 1:
        os.write(terminal.fd, how.encode())
    else:
        os.kill(terminal.pid, getattr(signal, f"SIG{how}"))
    assert terminal.end() == code
    assert termios.tcgetattr(terminal.fd)[3] == terminal.before[3]
    assert terminal.said.index("\x1b[?1049h") < terminal.said.index("idle") < terminal.said.index("\x1b[?1049l")
    assert terminal.said.endswith("\x1b[?25h\x1b[?1049l"), "nothing is drawn over the shell's own lines"
    os.close(terminal.fd)


def test_the_screen_follows_the_terminal_and_the_instances(two: Ctr) -> None:
    terminal = Terminal(two)
    drawn = terminal.until(r"1/50")
    assert "by name" in drawn and "WRITE/s" in drawn
    os.write(terminal.fd, b"m")
    terminal.until("by memory")
    terminal.resize(3, 30)
    drawn = terminal.until(r"… \d more lines")
    last = drawn[drawn.rindex("\x1b[1;1H") :]
    shown = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in last.split("\x1b[K")]
    assert max(map(len, shown)) <= 30 and len(shown) <= 4
    terminal.resize(24, 100)
    terminal.until("WRITE/s")
    two("launch", "builtin:busybox", "later", *OFFLINE)
    terminal.until("later")
    two("stop", "--force", "later")
    terminal.until(r"2 running[^\x1b]*\x1b(?!.*later)")
    os.kill(terminal.pid, signal.SIGKILL)
    os.waitpid(terminal.pid, 0)
    os.close(terminal.fd)


def test_it_costs_little(two: Ctr) -> None:
    """Watching must not be the load: CPU time of ten samples of two instances."""
    running = two.popen("top", "--format", "json", "-i", "0.2", stdout=subprocess.PIPE)
    lines = [running.stdout.readline() for _ in range(2)]  # type: ignore[union-attr]
    before = ticks(running.pid)
    lines += [running.stdout.readline() for _ in range(10)]  # type: ignore[union-attr]
    used = ticks(running.pid) - before
    running.kill()
    running.wait()
    running.stdout.close()  # type: ignore[union-attr]
    assert all(json.loads(line)["instances"] for line in lines)
    assert used < 0.3, f"{used} s for ten samples"


def ticks(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_record_survives_a_kill_and_is_plotted(two: Ctr, tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    running = two.popen("top", "--record", str(path), "-i", "0.1", stdout=subprocess.PIPE)
    busy = load(two, "busy", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    while not path.exists() or path.read_bytes().count(b"\n.\n") < 15:
        time.sleep(0.05)
    running.kill()
    assert running.communicate() == (b"", None)
    busy.wait()
    two("top", "--once", "-i", "0.1", "--record", str(path))
    assert path.read_bytes().count(b'{"format"') == 2
    for form in ("svg", "html"):
        output = tmp_path / f"use.{form}"
        assert two("plot", str(path), "--output", str(output), "--metric", "cpu", "--metric", "memory").stdout == ""
        assert "<polyline" in output.read_text() and "memory" in output.read_text() and "swap" not in output.read_text()
    assert two("plot", str(path), "--instance", "idle").stdout.count(">idle<") >= 1
    assert "nothing to show" in two("plot", str(path), "--instance", "nosuch", code=3).stderr
