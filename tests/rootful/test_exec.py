# SPDX-License-Identifier: GPL-3.0-or-later
"""ctrmgr-exec against a double of the monitor: who the command is, what goes through, and what comes back."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from .double import BASE, Double, build

T = TypeVar("T")

PASSWD = """root:x:0:0:root:/root:/bin/sh
broken:line
ann:x:1000:1000:Ann:/tmp:/bin/sh
evil:x:notanumber:0::/:/bin/sh
"""
GROUP = "ann:x:1000:\nvideo:x:44:ann,bob\nrender:x:105:bob,ann\n"
ROWS = "env\tPATH=/usr/bin:/bin\nenv\tFROM_PLAN=with\\ttab\ncapabilities\t00000000a80425fb\nno-new-privs\t1\nrlimit\tnofile\t100\t200\n"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = ["exec.c", "join.c", "enter.c", "identity.c", "pty.c", "flat.c", "confine.c"]
    return build(tmp_path_factory.mktemp("bin") / "ctrmgr-exec", sources, "-static")


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    instance = Double(ROWS, PASSWD, GROUP)
    yield instance
    instance.close()


class Runner:
    def __init__(self, program: Path, double: Double) -> None:
        self.base = [str(program), "--control", str(double.control)]
        self.double = double

    def words(self, *words: str, options: tuple[str, ...] = ()) -> list[str]:
        return [*self.base, *options, "--", *words]

    def __call__(
        self, *words: str, options: tuple[str, ...] = (), data: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.words(*words, options=options), input=data, capture_output=True, timeout=30)

    def sh(self, script: str, *options: str) -> str:
        result = self("sh", "-c", script, options=options)
        assert result.returncode == 0, result
        return result.stdout.decode()

    def popen(self, *words: str, **more: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.words(*words), stdout=subprocess.PIPE, **more)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def run(program: Path, double: Double) -> Runner:
    return Runner(program, double)


def status(text: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def test_exit_codes(run: Runner, tmp_path: Path) -> None:
    assert run("true").returncode == 0
    assert run("sh", "-c", "exit 37").returncode == 37
    assert run("sh", "-c", "kill -9 $$").returncode == 128 + 9
    assert run("sh", "-c", "kill -TERM $$").returncode == 128 + 15
    missing = run("no-such-command")
    assert missing.returncode == 127
    assert missing.stderr == b"error: run `no-such-command`: No such file or directory\n"
    assert run("/etc/passwd").returncode == 126


def test_is_inside(run: Runner, double: Double) -> None:
    """All namespaces are init's, the cgroup is the instance's, and the ids are its own."""
    child = run.popen("sleep", "60")
    pid = wait_for(lambda: [p for p in double.pids() if comm(p) == "sleep"])[0]
    for kind in ("user", "mnt", "pid", "uts", "ipc", "net", "cgroup"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/{double.init}/ns/{kind}"), kind
    host = status(Path(f"/proc/{pid}/status").read_text())
    assert host["Uid"].split() == [str(BASE)] * 4
    assert host["Gid"].split() == [str(BASE)] * 4
    child.send_signal(signal.SIGTERM)
    assert child.wait(5) == 128 + 15


def test_confinement_is_the_plans(run: Runner) -> None:
    inside = status(run.sh("cat /proc/self/status"))
    assert inside["CapBnd"] == inside["CapEff"] == "00000000a80425fb"
    assert inside["CapInh"] == inside["CapAmb"] == "0" * 16
    assert inside["NoNewPrivs"] == "1"
    assert run.sh("ulimit -Sn; ulimit -Hn") == "100\n200\n"
    assert inside["SigIgn"] == inside["SigBlk"] == "0" * 16
    assert inside["Groups"] == ""


def test_nothing_leaks(run: Runner) -> None:
    """Of the host's open files and directories the command gets the three standard ones."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    words = run.words("sh", "-c", "ls /proc/self/fd; pwd; readlink /proc/self/root; cut -d' ' -f6 /proc/self/stat")
    result = subprocess.run(words, capture_output=True, pass_fds=[write], timeout=10, cwd="/sys")
    os.close(read)
    os.close(write)
    names, session = result.stdout.decode().split()[:-1], result.stdout.decode().split()[-1]
    assert names == ["0", "1", "2", "3", "/root", "/"], "3 is ls's own directory"
    assert session != "0", "a session of its own, so no controlling terminal of the host"


def test_users_and_groups(run: Runner) -> None:
    numbers = "id -u; id -g; id -G; echo $HOME; pwd"
    assert run.sh(numbers).split() == ["0", "0", "0", "/root", "/root"]
    assert run.sh(numbers, "--user", "ann").split() == ["1000", "1000", *"1000 44 105".split(), "/tmp", "/tmp"]
    assert run.sh("id -g; id -G", "--user", "1000", "--group", "video").split() == ["44", "44"]
    assert run.sh("id -u; id -g", "--user", "4242").split() == ["4242", "0"]
    inside = status(run.sh("cat /proc/self/status", "--user", "ann"))
    assert inside["CapEff"] == inside["CapPrm"] == "0" * 16
    for name in ("nobody-there", "evil", "broken"):
        result = run("true", options=("--user", name))
        assert (result.returncode, result.stderr) == (3, f"error: no such user in the instance: `{name}`\n".encode())
    assert run("true", options=("--group", "nope")).returncode == 3
    unmapped = run("true", options=("--user", "70000"))
    assert unmapped.returncode == 7
    assert b"`70000`" in unmapped.stderr


def test_environment(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "host")
    monkeypatch.setenv("WANTED", "caller's")
    lines = run.sh("env", "--env", "A=b=c", "--env", "WANTED", "--env", "UNSET_HERE", "--env", "HOME=/x").splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    assert "SECRET" not in environment
    assert "UNSET_HERE" not in environment
    assert environment["A"] == "b=c"
    assert environment["WANTED"] == "caller's"
    assert environment["FROM_PLAN"] == "with\ttab"
    assert environment["PATH"] == "/usr/bin:/bin"
    assert environment["HOME"] == "/x"
    assert environment["USER"] == "root"
    assert "TERM" not in environment


def test_directory(run: Runner) -> None:
    assert run.sh("pwd", "--cwd", "/usr/bin") == "/usr/bin\n"
    missing = run("true", options=("--cwd", "/nowhere"))
    assert (missing.returncode, missing.stderr) == (3, b"error: go to `/nowhere`: No such file or directory\n")
    for number in range(3, 20):
        assert run("true", options=("--cwd", f"/proc/self/fd/{number}")).returncode != 0


def test_streams_are_untouched(run: Runner) -> None:
    data = os.urandom(5 << 20)
    result = run("sh", "-c", "cat; echo aside >&2", data=data)
    assert result.stdout == data
    assert result.stderr == b"aside\n"


def test_closed_stdin(run: Runner) -> None:
    words = " ".join(f"'{word}'" for word in run.words("sh", "-c", "cat; ls -l /proc/self/fd/0"))
    result = subprocess.run(["sh", "-c", f"{words} <&-"], capture_output=True, timeout=10)
    assert result.returncode == 0, result
    assert result.stdout.endswith(b"/dev/null\n")


def test_sigpipe_is_the_default(run: Runner) -> None:
    """Python ignores SIGPIPE; `yes | head` in an instance must end all the same."""
    assert run.sh("yes 2>&1 | head -n 1; trap") == "y\n"
    child = run.popen("yes", stderr=subprocess.PIPE, restore_signals=False)
    assert child.stdout
    child.stdout.read(10)
    child.stdout.close()
    assert child.wait(5) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH"])
def test_signals_are_forwarded(run: Runner, name: str) -> None:
    script = f"trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
    child = run.popen("sh", "-c", script)
    assert child.stdout
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(getattr(signal, f"SIG{name}"))
    assert child.stdout.readline() == b"got\n"
    assert child.wait(5) == 5


def test_killed_parent_takes_the_command_along(run: Runner, double: Double) -> None:
    for options in ((), ("--user", "ann")):
        child = subprocess.Popen(run.words("sleep", "77", options=options))
        wait_for(lambda: [p for p in double.pids() if comm(p) == "sleep"])
        child.kill()
        child.wait()
        wait_for(lambda: not double.pids())


def test_not_running(program: Path, tmp_path: Path) -> None:
    result = subprocess.run([program, "--control", tmp_path / "control", "--", "true"], capture_output=True)
    assert result.returncode == 4
    assert result.stderr.startswith(b"error: the instance is not running")


def test_frozen(run: Runner, double: Double) -> None:
    (double.cgroup / "cgroup.freeze").write_text("1")
    try:
        result = run("true")
    finally:
        (double.cgroup / "cgroup.freeze").write_text("0")
    assert result.returncode == 4
    assert b"frozen" in result.stderr


@pytest.mark.parametrize("words", [["--"], ["--shell", "--", "x"], ["--nonsense", "--", "x"]])
def test_usage(program: Path, words: list[str]) -> None:
    result = subprocess.run([program, "--control", "/x", *words], capture_output=True)
    assert result.returncode == 2
    assert b"usage: ctrmgr-exec" in result.stderr


def test_damaged_plan(program: Path) -> None:
    for rows in ("rlimit\tnofile\t5\t2\n", "capabilities\tzz\n", "env\ta\\x\n", "seccomp\trelative\n"):
        instance = Double(rows)
        try:
            result = Runner(program, instance)("true")
        finally:
            instance.close()
        assert (result.returncode, result.stderr) == (7, b"error: the instance's plan is damaged\n")


class Terminal:
    """A command of ours on a terminal of ours."""

    def __init__(self, words: list[str], rows: int = 24, columns: int = 80) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "vt220"
            os.execv(words[0], words)
        self.resize(rows, columns)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def expect(self, text: bytes, timeout: float = 10) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.seen:
            assert select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0], self.seen
            self.seen += self.read()

    def read(self) -> bytes:
        try:
            return os.read(self.master, 1 << 16)
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
            return b""

    def finish(self) -> tuple[bytes, int]:
        output = self.seen
        while piece := self.read():
            output += piece
        _, code = os.waitpid(self.pid, 0)
        os.close(self.master)
        return output, os.waitstatus_to_exitcode(code)


def test_terminal(run: Runner) -> None:
    t = Terminal(
        run.words(
            "sh",
            "-c",
            "tty; stat -c %u:%a $(tty); echo $TERM; stty size; read a; echo <$a>; exit 3".replace("<", "[").replace(
                ">", "]"
            ),
        ),
        33,
        101,
    )
    t.expect(b"33 101")
    t.type(b"hello\r")
    output, code = t.finish()
    assert code == 3
    assert output.split() == [b"/dev/pts/0", b"0:620", b"vt220", b"33", b"101", b"hello", b"[hello]"]


def test_terminal_of_a_user(run: Runner) -> None:
    output, code = Terminal(
        run.words("sh", "-c", "stat -c %u $(tty); : > /dev/tty; exit 0", options=("--user", "ann"))
    ).finish()
    assert (output.split(), code) == ([b"1000"], 0)


def test_window_size_follows(run: Runner) -> None:
    t = Terminal(run.words("sh", "-c", "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"))
    t.expect(b"ready")
    t.resize(40, 120)
    output, code = t.finish()
    assert (output.split()[1:], code) == ([b"40", b"120"], 0)


def test_keyboard_signals(run: Runner) -> None:
    t = Terminal(run.words("sh", "-c", "trap 'echo caught' INT; sh -c 'echo ready; exec sleep 60'; echo after"))
    t.expect(b"ready")
    t.type(b"\x03")
    output, code = t.finish()
    assert code == 0
    assert output.split()[1:] == [b"^Ccaught", b"after"]
    t = Terminal(run.words("sleep", "60"))
    time.sleep(0.3)
    t.type(b"\x1c")
    assert t.finish()[1] == 128 + signal.SIGQUIT


def test_end_of_file_on_a_terminal(run: Runner) -> None:
    t = Terminal(run.words("sh", "-c", "echo ready; cat"))
    t.expect(b"ready")
    t.type(b"one\r\x04")
    output, code = t.finish()
    assert (output.split(), code) == ([b"ready", b"one", b"one"], 0)


def test_terminal_loses_nothing(run: Runner) -> None:
    """The command's last bytes come, though it has ended before they were read."""
    t = Terminal(run.words("sh", "-c", "stty -opost; seq 1 200000"))
    time.sleep(0.5)
    output, code = t.finish()
    assert code == 0
    assert output == b"".join(b"%d\n" % n for n in range(1, 200001))
    for _ in range(30):
        assert Terminal(run.words("printf", "x%.0s", *["."] * 3000)).finish() == (b"x" * 3000, 0)


def test_terminal_is_restored(run: Runner) -> None:
    """Normal end, an end by signal, and a failure to start all leave the caller's terminal as it was."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    for words in (["true"], ["no-such-command"], ["sh", "-c", "kill -9 $$"]):
        subprocess.run(run.words(*words), stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, timeout=10)
        assert termios.tcgetattr(slave) == before, words
    child = subprocess.Popen(run.words("sleep", "60"), stdin=slave, stdout=slave)
    wait_for(lambda: termios.tcgetattr(slave) != before)
    child.terminate()
    assert child.wait(5) == 128 + 15
    assert termios.tcgetattr(slave) == before
    child = subprocess.Popen(run.words("sleep", "60"), stdin=slave, stdout=slave)
    wait_for(lambda: termios.tcgetattr(slave) != before)
    child.send_signal(signal.SIGTSTP)
    wait_for(lambda: status(Path(f"/proc/{child.pid}/status").read_text())["State"].startswith("T"))
    assert termios.tcgetattr(slave) == before
    child.send_signal(signal.SIGCONT)
    wait_for(lambda: termios.tcgetattr(slave) != before)
    child.terminate()
    assert child.wait(5) == 128 + 15
    os.close(master)
    os.close(slave)


def test_forced_terminal_on_pipes(run: Runner) -> None:
    """`--tty` without a terminal: the end of our input ends the command's, and all of its output comes."""
    result = run("sh", "-c", "test -t 0 && cat", options=("--tty",), data=b"line\nunfinished")
    assert result.returncode == 0
    assert result.stdout.replace(b"\r\n", b"\n").count(b"unfinished") == 2, "echoed, and from cat"
    result = run("true", options=("--no-tty",))
    assert result.returncode == 0


def test_shell(program: Path, double: Double) -> None:
    t = Terminal([str(program), "--control", str(double.control), "--shell", "--user", "ann"])
    t.type(b"echo $0 $SHELL $(pwd); exit 4\r")
    output, code = t.finish()
    assert code == 4
    assert b"-sh /bin/sh /tmp" in output


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def wait_for(condition: Callable[[], T], timeout: float = 5) -> T:
    """The first true answer of `condition`; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    return answer
