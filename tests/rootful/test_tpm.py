# SPDX-License-Identifier: GPL-3.0-or-later
"""Emulated TPMs from end to end, with doubles of the kernel's proxy and of swtpm: the real ones are in tests/lab/tpm.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Ctr

LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
TPM = ("type=tpm", "path=/dev/tpm5", "uid=3", "gid=7", "mode=0640")
GIVEN = ("-d", f"t,{','.join(TPM)}")
FUSE, TUN = "/dev/fuse", "/dev/net/tun"


@pytest.fixture(scope="module")
def doubles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of helpers whose ctrmgr-tpm asks a file for nodes, and programs that emulate nothing."""
    folder = tmp_path_factory.mktemp("tpm")
    for path in Path(os.environ["CTRMGR_LIBEXEC"]).iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path)
    (folder / "ctrmgr-tpm").unlink()
    compile_ = ("cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-static", "-o")
    double, sources = ROOT / "tests/rootful/tpm_double.c", ROOT / "native_helpers"
    own = (sources / "tpm.c", sources / "tpm_room.c")
    subprocess.run([*compile_, folder / "ctrmgr-tpm", f"-I{sources}", *own, double], check=True)
    subprocess.run([*compile_, folder / "swtpm", "-DPROGRAM", double], check=True)
    for kind in ("bad", "deaf"):
        os.link(folder / "swtpm", folder / f"swtpm-{kind}")
    (folder / "vtpmx").write_text(f"{FUSE} {TUN}\n")
    return folder


@pytest.fixture
def tpm(ctr: Ctr, doubles: Path) -> Iterator[Ctr]:
    """Afterwards nothing runs."""
    ctr.env.update(CTRMGR_LIBEXEC=str(doubles), CTRMGR_VTPMX=f"{doubles}/vtpmx", CTRMGR_SWTPM=f"{doubles}/swtpm")
    yield ctr
    ctr.clean_up()
    assert not processes(ctr)


def processes(ctr: Ctr, name: str = "ctrmgr-tpm") -> list[int]:
    """Those that keep a TPM of this test's; or their programs."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if words[0].endswith(b"ctrmgr-tpm") and os.fsencode(ctr.folder) in b" ".join(words) and state != "Z":
                below = (path / f"task/{path.name}/children").read_text().split()
                found += [int(path.name)] if name == "ctrmgr-tpm" else [int(pid) for pid in below]
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ran(ctr: Ctr, times: int, name: str = "c1") -> None:
    """How often the TPM was run, which only its state tells, and it after a moment."""
    path = ctr.folder / f"state/instances/{name}/tpm/t.state/permall"
    until(lambda: path.exists() and path.read_text() == f"{times}\n")


def held(ctr: Ctr) -> list[str]:
    folder = ctr.folder / "state/allocations"
    return sorted(os.listdir(folder)) if folder.exists() else []


def inside(ctr: Ctr) -> list[str]:
    return ctr("exec", "c1", "stat", "-c", "%a %u %g %t:%T", "/dev/tpm5", "/dev/tpmrm0", code=None).stdout.split("\n")


def test_it_lives_with_the_instance(tpm: Ctr) -> None:
    tpm(*LAUNCH, *GIVEN)
    assert inside(tpm) == ["640 3 7 a:e5", "640 3 7 a:c8", ""]
    ran(tpm, 1)
    (keeper,), (program,) = processes(tpm), processes(tpm, "swtpm")
    (shown,) = json.loads(tpm("info", "c1", "--format", "json").stdout)["tpms"]
    assert shown == {"name": "t", "emulator": "swtpm", "state": "running"}

    confined(tpm, keeper, program)

    # a device as others are: suspended, detached, attached and changed while the instance runs
    tpm("suspend-device", "c1", "t")
    assert tpm("exec", "c1", "sh", "-c", "echo <>/dev/tpm5", code=None).code
    tpm("resume-device", "c1", "t")
    tpm("detach-device", "c1", "t")
    assert (inside(tpm), processes(tpm), held(tpm)) == ([""], [], [])
    tpm("attach-device", "c1", "t", *TPM)
    assert inside(tpm) == ["640 3 7 a:e5", "640 3 7 a:c8", ""]
    ran(tpm, 2)
    tpm("config", "device", "set", "c1", "t", "mode=0600")
    assert inside(tpm) == ["600 3 7 a:e5", "600 3 7 a:c8", ""]
    ran(tpm, 3)

    # what it knows is kept, copied and put back with the instance's files
    tpm("snapshot", "create", "c1", "s")
    tpm("stop", "c1", "--force")
    assert (processes(tpm), held(tpm)) == ([], [])
    tpm("copy", "c1", "c2")
    tpm("start", "c2")
    ran(tpm, 4, "c2")
    tpm("delete", "--force", "c2")
    tpm("start", "c1")
    ran(tpm, 4)
    tpm("stop", "c1", "--force")
    tpm("snapshot", "restore", "c1", "s")
    tpm("rename", "c1", "c3")
    tpm("rename", "c3", "c1")
    tpm("start", "c1")
    ran(tpm, 4)
    whoever_is_killed(tpm)
    ran(tpm, 7)
    tpm("delete", "--force", "c1")
    assert (processes(tpm), held(tpm)) == ([], [])


def whoever_is_killed(tpm: Ctr) -> None:
    """Its program and what that has started, its keeper, the instance's monitor: no process stays, without any command."""
    (program,) = processes(tpm, "swtpm")
    os.kill(program, signal.SIGKILL)
    until(lambda: not processes(tpm))
    (shown,) = json.loads(tpm("info", "c1", "--format", "json").stdout)["tpms"]
    assert shown["state"] == "ended"
    assert "its emulator has ended" in tpm("doctor", "c1", code=None).stdout
    tpm("restart", "c1", "--force")
    (keeper,), (program,) = processes(tpm), processes(tpm, "swtpm")
    children = Path(f"/proc/{program}/task/{program}/children")
    until(children.read_text)
    stays = int(children.read_text())
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(program) and not alive(stays))
    tpm("restart", "c1", "--force")
    monitor = json.loads(tpm("info", "c1", "--format", "json").stdout)["monitor-pid"]
    os.kill(monitor, signal.SIGKILL)
    until(lambda: not processes(tpm))
    tpm("start", "c1")
    assert inside(tpm)[0]


def confined(tpm: Ctr, keeper: int, program: int) -> None:
    """The program has an id that is nobody's, no right, no network, and nothing but its state."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{program}/status").read_text().splitlines())
    assert {*status["Uid"].split(), *status["Gid"].split()} == {str(last_id(tpm))}
    assert (status["Groups"].strip(), status["CapEff"], status["NoNewPrivs"]) == ("", "0" * 16, "1")
    assert os.readlink(f"/proc/{program}/ns/net") != os.readlink("/proc/self/ns/net")
    assert sorted(os.listdir(f"/proc/{program}/fd")) == ["0", "1", "2", "3"]
    until(lambda: "write " in (tpm.folder / "state/instances/c1/tpm/t.state/facts").read_text())
    facts = (tpm.folder / "state/instances/c1/tpm/t.state/facts").read_text().splitlines()
    assert facts[0].startswith("chardev --tpm2 --fd 3 --tpmstate dir=/run/tpm")
    hidden = "/root/.profile", "/var/lib", "/dev/null", "/proc/self", "/sys/class", "/tmp/new"
    assert facts[1] == "/etc/hostname there" and facts[-1] == "write Read-only file system"
    assert facts[2:-1] == [f"{path} No such file or directory" for path in hidden]
    mounts = [line.split()[4] for line in Path(f"/proc/{program}/mountinfo").read_text().splitlines()]
    assert (
        {"/", "/usr", "/etc", "/run/tpm"} <= set(mounts) <= {"/", "/usr", "/lib", "/lib64", "/bin", "/etc", "/run/tpm"}
    )
    assert Path(f"/proc/{keeper}/status").read_text().count("CapEff:\t0000000000000020") == 1


def last_id(ctr: Ctr) -> int:
    """Of the instance's own."""
    plan = (ctr.folder / "state/instances/c1/plan").read_text().splitlines()
    first, count = next(map(int, row.split("\t")[2:]) for row in plan if row.startswith("uidmap"))
    return first + count - 1


def test_killed_at_each_step(tpm: Ctr) -> None:
    """What was begun is ended by itself, or by the next command; what it knows stays."""

    def crash(step: str, *words: str) -> None:
        result = tpm(*words, code=None, env={"CTRMGR_CRASH_AT": step})
        assert result.code == -signal.SIGKILL, f"{step} was not reached: {result}"

    tpm("create", *LAUNCH[1:], *GIVEN)
    for step in ("allocate-recorded", "tpm-begun", "tpm-recorded", "allocate-prepared", "start-directory"):
        crash(step, "start", "c1")
        until(lambda: not processes(tpm))  # no command runs
    tpm("start", "c1")
    assert len(processes(tpm)) == 1 and inside(tpm)[0]
    crash("detach-done", "detach-device", "c1", "t")
    tpm("attach-device", "c1", FUSE)  # any other change finds and mends it
    assert (processes(tpm), held(tpm), inside(tpm)) == ([], [], [""])
    attach = ("attach-device", "c1", "t", *TPM)
    tpm("detach-device", "c1", "fuse")
    for step, there in (("tpm-begun", 0), ("tpm-recorded", 0), ("attach-leased", 0), ("attach-done", 1)):
        crash(step, *attach)
        tpm("attach-device", "c1", FUSE, "path=/dev/other")
        assert (len(processes(tpm)), len(held(tpm)), bool(inside(tpm)[0])) == (there, there, bool(there)), step
        tpm("detach-device", "c1", "fuse")
    crash("stop-asked", "stop", "c1", "--force")
    until(lambda: not processes(tpm))
    tpm("start", "c1")
    crash("delete-renamed", "delete", "--force", "c1")
    tpm("create", *LAUNCH[1:])
    assert (processes(tpm), held(tpm)) == ([], [])


def test_refused_and_failed(tpm: Ctr, doubles: Path) -> None:
    tpm(*LAUNCH)
    attach = ("attach-device", "c1", "t", "type=tpm")
    before = tpm.traces()
    here: list[tuple[dict[str, str], tuple[str, str]]] = [
        ({"CTRMGR_VTPMX": "/dev/nothing"}, ("there is no `/dev/nothing` on this host", "modprobe tpm_vtpm_proxy")),
        ({"CTRMGR_SWTPM": "/usr/bin/nothing"}, ("`swtpm`, which emulates it, is not installed", "install the package")),
    ]
    for env, said in here:
        for words in (attach, ("create", "builtin:busybox", "c2", "-p", "no-network", "-d", "t,type=tpm")):
            refused = tpm(*words, code=5, env=env).stderr
            assert all(word in refused for word in said), refused
        assert said[0] in tpm("doctor", env=env, code=None).stdout
    for wrong in ("path=/dev/tpmrm0", "mode=9", "pathrm=/etc/x"):
        tpm(*attach, wrong, code=2)
    assert tpm.traces() == before
    (doubles / "empty").touch()
    failed = tpm(*attach, env={"CTRMGR_VTPMX": f"{doubles}/empty"}, code=5)
    assert "no TPM can be emulated" in failed.stderr and "empty" in failed.stderr
    # nodes that do not come, of a program that has ended
    (doubles / "never").write_text("/dev/ctr-never /dev/ctr-never\n")
    bad = {"CTRMGR_SWTPM": f"{doubles}/swtpm-bad", "CTRMGR_VTPMX": f"{doubles}/never"}
    failed = tpm(*attach, env=bad, code=5)
    assert "it ended before the TPM could be used: swtpm: it is broken" in failed.stderr
    assert (processes(tpm), held(tpm)) == ([], [])
    tpm(*attach, env={"CTRMGR_SWTPM": f"{doubles}/swtpm-deaf"})
    tpm("detach-device", "c1", "t")
    assert not processes(tpm)
