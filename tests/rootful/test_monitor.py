# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that stays with an instance: what it costs, what it records, and how it ends."""

from __future__ import annotations

import errno
import os
import pty
import re
import resource
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrmgr.errors import ConflictError
from ctrmgr.kernel import control
from tests.conftest import ROOT, Ctr, build, libc
from tests.rootful.planned import Planned, image, wait_for

LAUNCH = ("launch", "builtin:busybox", "-p", "no-network")
FUSE = "/dev/fuse"
PRIVATE_KB = 100
CLIENTS = 32
MS_BIND = 4096
Plan = Callable[..., Planned]


@pytest.fixture(scope="session")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def plan(layer: Path, tmp_path: Path) -> Iterator[Plan]:
    made: list[Planned] = []

    def make(script: str = "sleep 1000", rows: str = "") -> Planned:
        made.append(Planned(tmp_path / f"{len(made)}", layer, script, rows))
        return made[-1]

    yield make
    for planned in made:
        planned.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("script", "how", "number"), [("exit 0", "exited", 0), ("exit 3", "exited", 3), ("reboot -f -n", "signaled", 1)]
)
def test_an_end_by_itself_is_recorded(plan: Plan, script: str, how: str, number: int) -> None:
    """reboot(2) from inside is an end by SIGHUP, which begins anew: so the second run ends otherwise."""
    again = "[ -e /ran ] && exit 5; : > /ran; "
    planned = plan(f"{again}sleep 0.1; {script}")
    before = time.time_ns()
    planned.start()
    wait_for(planned.gone)
    said, code, when = planned.exit()
    assert (said, int(code)) == (("exited", 5) if how == "signaled" else (how, number))
    assert before < int(when) < time.time_ns()
    assert stat.S_IMODE((planned.home / "exit").stat().st_mode) == 0o600


def test_a_kill_is_recorded(plan: Plan) -> None:
    planned = plan()
    report = planned.start()
    os.kill(report.init_pid, signal.SIGKILL)
    wait_for(planned.gone)
    assert planned.exit()[:2] == ["signaled", "9"]


RUNS = "echo run >> /runs; set -- $(wc -l < /runs); "


@pytest.mark.parametrize(
    ("policy", "script", "runs"),
    [
        ("no", "exit 1", 1),
        ("on-failure", "exit 0", 1),
        ("on-failure", "[ $1 = 2 ]", 2),
        ("always", "[ $1 = 3 ] && poweroff -f -n; exit 0", 3),
    ],
)
def test_restart_policy(plan: Plan, policy: str, script: str, runs: int) -> None:
    planned = plan(RUNS + script, f"restart\t{policy}\n")
    planned.start()
    wait_for(planned.gone, 20)
    assert (planned.home / "upper/runs").read_text() == "run\n" * runs


@pytest.mark.parametrize("op", [control.STOP, control.KILL])
def test_what_was_asked_to_end_is_not_started_again(plan: Plan, op: int) -> None:
    planned = plan(f"{RUNS} trap 'exit 1' TERM; : > /ready; sleep 1000 & wait", "restart\talways\n")
    planned.start()
    wait_for((planned.home / "upper/ready").exists)
    assert planned.ask(op).error == 0
    assert planned.gone()
    assert (planned.home / "upper/runs").read_text() == "run\n"


def test_the_console_log_is_rotated_once_and_loses_nothing_else(plan: Plan) -> None:
    count, size = 3000, 16384
    script = f"i=0; while [ $i -lt {count} ]; do echo line-$i; i=$((i+1)); done; sleep 1000"
    planned = plan(script, f"console-size\t{size}\n")
    planned.start()
    last = f"line-{count - 1}"
    wait_for(lambda: planned.console().rstrip().endswith(last))
    for name in ("console.log", "console.log.1"):
        status = (planned.home / name).stat()
        assert 0 < status.st_size <= size
        assert stat.S_IMODE(status.st_mode) == 0o600
    kept = planned.console().split()
    first = int(kept[1].partition("-")[2])
    assert kept[1:] == [f"line-{number}" for number in range(first, count)]
    assert len(kept) > size // 2 // len(last)


def test_the_console_of_an_end_is_complete(plan: Plan) -> None:
    planned = plan("echo begin; echo end; exit 0")
    planned.start()
    wait_for(planned.gone)
    assert planned.console().split() == ["begin", "end"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGPWR, 7), (signal.SIGTERM, 8)])
@pytest.mark.parametrize("by", ["request", "signal"])
def test_a_stop_speaks_the_language_of_init(plan: Plan, number: int, code: int, by: str) -> None:
    """The monitor's own SIGTERM is that of a host going down."""
    script = "trap 'exit 7' PWR; trap 'exit 8' TERM; : > /ready; sleep 1000 & wait"
    planned = plan(script, f"halt-signal\t{int(number)}\n")
    report = planned.start()
    wait_for((planned.home / "upper/ready").exists)
    if by == "request":
        assert planned.ask(control.STOP).value == code << 8
    else:
        os.kill(report.monitor_pid, signal.SIGTERM)
    wait_for(planned.gone)
    assert planned.exit()[:2] == ["exited", str(code)]


@pytest.mark.parametrize(("asked_ms", "least", "most"), [(300, 0.25, 0.95), (0, 0.95, 5)])
def test_an_init_that_does_not_listen_is_killed_in_time(plan: Plan, asked_ms: int, least: float, most: float) -> None:
    """After the time that was asked for, else after the plan's, which is a second here."""
    planned = plan("trap '' TERM PWR; : > /ready; while :; do sleep 1000; done", "stop-timeout\t1\n")
    planned.start()
    wait_for((planned.home / "upper/ready").exists)
    begin = time.monotonic()
    planned.ask(control.STOP, asked_ms)
    assert least < time.monotonic() - begin < most
    assert planned.exit()[:2] == ["signaled", "9"]


def test_a_frozen_instance_can_be_stopped(plan: Plan) -> None:
    planned = plan("trap 'exit 8' TERM; : > /ready; sleep 1000 & wait")
    planned.start()
    wait_for((planned.home / "upper/ready").exists)
    assert planned.ask(control.FREEZE).error == 0
    assert planned.ask(control.STATUS).status()[2]
    assert planned.ask(control.STOP).value == 8 << 8


def test_it_survives_whoever_started_it(ctr: Ctr) -> None:
    """A terminal that closes, the end of its session: neither is the monitor's."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(ctr.argv[0], [*ctr.argv, *LAUNCH, "c1"], ctr.env)
    while True:
        try:
            if not os.read(terminal, 1024):
                break
        except OSError:
            break
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    monitor = int(state(ctr)["monitor"])
    fields = Path(f"/proc/{monitor}/stat").read_text().rpartition(")")[2].split()
    session, tty = int(fields[3]), int(fields[4])
    assert session == monitor != os.getsid(0)
    assert tty == 0
    open_files = [os.readlink(path) for path in Path(f"/proc/{monitor}/fd").iterdir()]
    assert not [path for path in open_files if "/dev/pts/" in path and path != "/dev/pts/ptmx"], open_files
    os.kill(monitor, signal.SIGHUP)
    assert ctr("exec", "c1", "echo", "alive").stdout == "alive\n"


def test_limits_of_whoever_started_it_are_not_its_own(ctr: Ctr) -> None:
    """Who may have few files open, or little time, has an instance that lives and can be stopped."""
    low = {resource.RLIMIT_NOFILE: 32, resource.RLIMIT_CPU: 20, resource.RLIMIT_FSIZE: 1 << 20}
    hard = {limit: resource.getrlimit(limit)[1] for limit in low}

    def lower() -> None:
        for limit, soft in low.items():
            resource.setrlimit(limit, (soft, hard[limit]))

    ctr("create", *LAUNCH[1:], "c1")
    started = ctr.popen("start", "c1", stderr=subprocess.PIPE, preexec_fn=lower)
    assert (started.communicate()[1], started.returncode) == (b"", 0)
    monitor = int(state(ctr)["monitor"])
    for limit, most in hard.items():
        wanted = resource.prlimit(1, limit)[0]
        assert resource.prlimit(monitor, limit)[0] in (wanted, most), limit
    ctr("stop", "c1", "--force")


def test_an_init_that_has_only_just_begun_is_asked_until_it_listens(plan: Plan) -> None:
    """What pid 1 does not catch yet, the kernel drops: it would be killed only when its time is over."""
    planned = plan("sleep 0.3; trap 'kill $!; exit 7' TERM; sleep 1000 & wait")
    planned.start()
    begin = time.monotonic()
    assert planned.ask(control.STOP, 20_000).value == 7 << 8
    assert 0.2 < time.monotonic() - begin < 10


def test_killed_it_takes_init_along_and_the_next_start_takes_over(plan: Plan) -> None:
    planned = plan()
    first = planned.start()
    assert planned.sh("sleep 1000 >/dev/null 2>&1 & echo entered").stdout == "entered\n"
    os.kill(first.monitor_pid, signal.SIGKILL)
    wait_for(lambda: not alive(first.init_pid))
    assert planned.cgroup.exists()
    assert (planned.run / "state").exists()
    second = planned.start()
    assert alive(second.init_pid)
    assert planned.ask(control.STATUS).status()[:2] == (second.monitor_pid, second.init_pid)


def test_killed_it_is_cleaned_up_after(plan: Plan) -> None:
    planned = plan()
    first = planned.start()
    running = planned.monitor("clean")
    assert (running.error, running.detail) == (errno.EAGAIN, "it is running")
    assert alive(first.init_pid)
    os.kill(first.monitor_pid, signal.SIGKILL)
    wait_for(lambda: not alive(first.init_pid))
    assert not planned.monitor("clean").error
    assert planned.gone()


def test_one_instance_has_one_monitor(plan: Plan) -> None:
    planned = plan()
    first = planned.start()
    second = planned.monitor()
    assert (second.error, second.step) == (errno.EBUSY, "take the instance's lock")
    assert planned.ask(control.STATUS).status()[0] == first.monitor_pid


def test_a_start_that_fails_leaves_nothing(plan: Plan) -> None:
    planned = plan(rows="init\t/no/such\n")
    report = planned.monitor()
    assert (report.error, report.step, report.detail) == (errno.ENOENT, "run init", "/no/such")
    wait_for(planned.gone)
    assert not (planned.home / "exit").exists()


@pytest.mark.parametrize("how", ["hears", "sees", "never began"])
def test_what_it_was_on_can_be_unmounted_at_once(plan: Plan, how: str) -> None:
    """By whoever knows that it does not run."""
    planned = plan(rows="init\t/no/such\n" if how == "never began" else "")
    home = bytes(planned.home)
    for _ in range(8):
        assert libc.mount(home, home, None, MS_BIND, None) == 0
        report = planned.monitor()
        if how == "hears":
            planned.ask(control.KILL)
        elif how == "sees":
            os.kill(report.init_pid, signal.SIGKILL)
            while (planned.run / "state").exists():
                pass
        assert libc.umount2(home, 0) == 0, "the monitor has it open yet"
        wait_for(planned.gone)


def test_what_it_does_not_know_it_refuses(plan: Plan) -> None:
    planned = plan()
    planned.start()
    reply = planned.ask(99)
    assert (reply.error, reply.detail) == (errno.ENOSYS, "this monitor has no operation 99")
    for packet in (b"", b"short", control.HEADER.pack(99, control.STATUS, 0, 0, b"") + control.EMPTY_DEVICE):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(5)
            client.connect(f"{planned.run}/control")
            client.send(packet)
            assert client.recv(1 << 16) == b""
    assert planned.ask(control.STATUS).error == 0


def test_more_clients_than_it_has_room_for(plan: Plan) -> None:
    planned = plan()
    planned.start()
    request = control.HEADER.pack(control.VERSION, control.WAIT, 0, 0, b"") + control.EMPTY_DEVICE
    waiting = []
    for _ in range(CLIENTS):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(10)
        client.connect(f"{planned.run}/control")
        client.send(request)
        waiting.append(client)
    with pytest.raises(ConflictError):
        planned.ask(control.STATUS)
    waiting.pop().close()
    wait_for(lambda: answers(planned))
    assert planned.ask(control.KILL).value == signal.SIGKILL
    replies = [control.Reply(client.recv(1 << 16)) for client in waiting]
    assert [reply.value for reply in replies] == [signal.SIGKILL] * (CLIENTS - 1)
    for client in waiting:
        client.close()


def answers(planned: Planned) -> bool:
    try:
        return planned.ask(control.STATUS).error == 0
    except ConflictError:
        return False


def test_owners_and_types_are_checked_again(plan: Plan) -> None:
    """The command has looked at them, but the host or the instance can have changed since."""
    planned = plan()
    planned.start()
    unknown = planned.attach("fuse", FUSE, "/dev/fuse", group="nosuch")
    assert (unknown.error, unknown.detail) == (errno.ENOENT, "the instance has no group `nosuch`")
    assert planned.attach("fuse", FUSE, "/dev/fuse", kind="block").error == errno.ENODEV
    assert planned.attach("fuse", FUSE, "/dev/../etc/fuse").error == errno.EINVAL
    assert planned.attach("fuse", FUSE, "/etc/fuse").error == errno.EINVAL
    assert planned.ask(control.DEVICES).count == 0
    assert planned.sh("ls /dev/fuse").returncode == 1
    assert planned.ask(control.DETACH, name="fuse").error == errno.ENOENT


def test_a_revoked_inode_stays_closed_while_its_number_is_allowed(plan: Plan) -> None:
    planned = plan()
    planned.start()
    for name in ("a", "b"):
        assert planned.attach(name, FUSE, f"/dev/{name}").error == 0
    assert planned.sh("ln /dev/a /dev/hard").returncode == 0
    assert planned.ask(control.DETACH, name="a").error == 0
    assert planned.sh("exec 9</dev/b").returncode == 0
    assert "denied" in planned.sh("exec 9</dev/hard").stderr


def state(ctr: Ctr, name: str = "c1") -> dict[str, str]:
    """What the monitor says of itself: pids, start time, `frozen`."""
    return dict(line.split("\t") for line in (ctr.folder / f"run/{name}/state").read_text().splitlines())


def private_kb(pid: str) -> int:
    """What would be free if this process had never been: neither program text nor files are its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def test_memory(ctr: Ctr) -> None:
    """Two, so that what they share is seen to be shared: as they start, and after they have done all that they can."""
    if b"__asan_init" in (Path(os.environ["CTRMGR_LIBEXEC"]) / "ctrmgr-monitor").read_bytes():
        ctr.env["CTRMGR_LIBEXEC"] = str(build(ROOT / "build" / "test"))  # sanitizers have memory of their own
    names = ("c1", "c2")
    for name in names:
        ctr(*LAUNCH, name)
    fresh = {name: private_kb(state(ctr, name)["monitor"]) for name in names}
    assert all(0 < kb <= PRIVATE_KB for kb in fresh.values()), fresh
    for name in names:
        ctr("attach-device", name, FUSE, "uid=user", "gid=render")
        hold = ("exec", name, "--", "sh", "-c", f"exec 3<{FUSE}; echo ready; exec sleep 100")
        holder = ctr.popen(*hold, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        assert "sleep" in ctr("detach-device", name, "fuse", "--holders=kill").stderr
        assert holder.wait(10) == 128 + 9
        holder.stdout.close()
        ctr("freeze", name)
        ctr("unfreeze", name)
        ctr("config", "set", name, "limits.processes=100")
        ctr("exec", name, "--", "sh", "-c", "seq 10000 > /dev/console")
    used = {name: private_kb(state(ctr, name)["monitor"]) for name in names}
    assert all(0 < kb <= PRIVATE_KB for kb in used.values()), used


def test_a_console_that_nobody_has_open(plan: Plan) -> None:
    """Its monitor sleeps, and hears what is said when it is open again."""
    planned = plan("exec 0<&- 1>&- 2>&-; sleep 1000")
    status = Path(f"/proc/{planned.start().monitor_pid}/status")
    time.sleep(0.1)
    before, _ = woken(status), time.sleep(0.3)
    assert woken(status) - before < 20
    planned.sh("echo again >/dev/console")
    wait_for(lambda: "again" in planned.console())


def woken(status: Path) -> int:
    return int(re.findall(r"^voluntary_ctxt_switches:\t(\d+)", status.read_text(), re.MULTILINE)[0])
