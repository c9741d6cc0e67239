# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances copied and moved between this machine, LXD and Incus; the source goes only when the target is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr
from tests.remote.cluster import Switch
from tests.remote.daemons import ADDRESS, PATIENCE, Daemon, Incus, Lxd, knowing, started
from tests.remote.middle import Middle

Servers = dict[str, Daemon]


@pytest.fixture(scope="module")
def known(servers: Servers) -> Iterator[Servers]:
    """Two LXDs and two Incus, which reach each other."""
    scratch = Path(tempfile.mkdtemp(prefix="ctr-second-", dir="/var/tmp"))
    switch = Switch()
    with started((Lxd, Incus), scratch) as found:
        every = {**servers, **{f"{daemon.kind}2": daemon for daemon in found}}
        for number, daemon in enumerate(every.values(), 1):
            switch.plug(number, daemon.pid)
            listen(daemon, "[::]:8443")
        yield every
        for daemon in servers.values():
            listen(daemon, ADDRESS)
    switch.close()
    shutil.rmtree(scratch)


def listen(daemon: Daemon, address: str) -> None:
    daemon.tool("config", "set", "core.https_address", address)


@pytest.fixture
def all_of_them(known: Servers) -> Iterator[Ctr]:
    """A ctrmgr that knows `lxd`, `lxd2`, `incus` and `incus2`, with an instance `c1` on `lxd`."""
    with knowing(known) as runner:
        fill(runner, "lxd:c1", "tiny")
        yield runner
        for daemon in known.values():
            left = json.loads(daemon.tool("image", "list", "--format=json"))
            assert [image["aliases"][0]["name"] for image in left] == ["tiny"], "images that were on the way"


def fill(ctr: Ctr, word: str, image: str, *more: str) -> None:
    ctr("launch", image, word, "-c", "user.a=1", "-d", "zero,type=unix-char,source=/dev/zero,path=/dev/card", *more)
    ctr(
        "exec",
        word,
        "--",
        "sh",
        "-c",
        "echo mine >/etc/x; chown 5:107 /etc/x; chmod 640 /etc/x; ln -s x /etc/l; rm /bin/vi",
    )
    ctr("stop", "--force", word)


def look(ctr: Ctr, word: str) -> None:
    """All of it is there."""
    assert ctr("config", "get", word, "user.a").stdout == "1\n"
    ctr("start", word)
    said = ctr(
        "exec",
        word,
        "--",
        "sh",
        "-c",
        "cat /etc/l; stat -c '%u %g %a' /etc/x; ls /bin/vi /dev/card 2>/dev/null || true",
    )
    assert said.stdout.split() == ["mine", "5", "107", "640", "/dev/card"]
    ctr("stop", "--force", word)


def there(ctr: Ctr, *words: str) -> list[str]:
    return [row["name"] for row in json.loads(ctr("list", *words, "-f", "json").stdout)]


@pytest.mark.parametrize("target", ["lxd:c2", "incus:c2"])
def test_between_servers(all_of_them: Ctr, target: str) -> None:
    ctr = all_of_them
    assert ctr("copy", "lxd:c1", target, "--dry-run").stdout.startswith(f"copy lxd:c1 {target} ")
    assert ctr("copy", "lxd:c1", target).stdout == f"{target}\n"
    look(ctr, target)
    assert "exists already" in ctr("copy", "lxd:c1", target, code=4).stderr
    look(ctr, "lxd:c1")


@pytest.mark.usefixtures("here")
def test_round_the_world(all_of_them: Ctr) -> None:
    """LXD → Incus → here → the other LXD, and at the end there is one."""
    ctr = all_of_them
    assert ctr("move", "lxd:c1", "incus:").stdout == "incus:c1\n"
    assert ctr("move", "incus:c1", "local:c7", "-p", "no-network").stdout == "c7\n"
    look(ctr, "c7")
    assert ctr("copy", "c7", "c8").stdout == "c8\n"
    look(ctr, "c8")
    assert ctr("exec", "c8", "--", "true", code=4) and "c8" in there(ctr)
    ctr("move", "c8", "c9")
    ctr("delete", "c9")
    assert ctr("move", "c7", "lxd2:c1", "-p", "default").stdout == "lxd2:c1\n"
    look(ctr, "lxd2:c1")
    assert there(ctr, "lxd:", "lxd2:", "incus:", "local:") == ["lxd2:c1"]


def test_snapshots(all_of_them: Ctr) -> None:
    ctr = all_of_them
    ctr("snapshot", "create", "lxd:c1", "before")
    ctr("copy", "lxd:c1", "lxd2:c1")
    assert "before" in ctr("snapshot", "list", "lxd2:c1").stdout
    assert "its snapshots (before) stay behind" in ctr("move", "lxd:c1", "incus:", code=4).stderr
    assert "its snapshots (before) stay behind" in ctr("copy", "lxd:c1", "incus:").stderr
    assert there(ctr, "lxd:", "incus:") == ["lxd:c1", "incus:c1"]
    ctr("copy", "lxd:c1", "lxd:c2", "--instance-only")
    assert "before" not in ctr("snapshot", "list", "lxd:c2").stdout


@pytest.mark.parametrize("kind", ["lxd", "incus"])
def test_directly(all_of_them: Ctr, known: Servers, kind: str) -> None:
    """One server gets it from the other, or is brought it, as they reach each other; else it passes through us. Snapshots and all."""
    ctr, there2 = all_of_them, f"{kind}2"
    if kind == "incus":
        ctr("move", "lxd:c1", "incus:")
    ctr("snapshot", "create", f"{kind}:c1", "before")
    assert ctr("copy", f"{kind}:c1", f"{there2}:", "--dry-run").stdout.endswith(" directly, or as a backup\n")
    listen(known[there2], "")
    pulled = ctr("copy", f"{kind}:c1", f"{there2}:c2")
    listen(known[there2], "[::]:8443")
    listen(known[kind], "")
    pushed = ctr("copy", f"{kind}:c1", f"{there2}:c3", "-p", "default")
    assert (pulled.stderr, pushed.stderr) == ("", "")
    listen(known[there2], ADDRESS)
    detour = ctr("copy", f"{kind}:c1", f"{there2}:c4")
    assert detour.stderr.startswith("note: not directly: ") and detour.stderr.endswith("; it goes as a backup\n")
    for address, name in (("[::]:8443", kind), ("[::]:8443", there2)):
        listen(known[name], address)
    for name in ("c2", "c3", "c4"):
        assert ctr("snapshot", "list", f"{there2}:{name}", "-f", "csv").stdout.splitlines()[1].startswith("before,")
    look(ctr, f"{there2}:c2")
    said = ctr("move", f"{kind}:c1", f"{there2}:c1", "--instance-only")
    assert (said.stdout, said.stderr) == (f"{there2}:c1\n", "")
    assert "before" not in ctr("snapshot", "list", f"{there2}:c1").stdout
    assert there(ctr, f"{kind}:", f"{there2}:") == [f"{there2}:c{n}" for n in (1, 2, 3, 4)]


def test_one_server_by_two_names(all_of_them: Ctr, known: Servers) -> None:
    """Another address or project of the same server: it does it itself, and nothing goes through the network."""
    ctr = all_of_them
    known["lxd"].tool("project", "create", "other", "-c", "features.profiles=false", "-c", "features.images=false")
    ctr("remote", "add", "again", str(known["lxd"].socket))
    ctr("remote", "add", "other", str(known["lxd"].socket), "--project", "other")
    assert ctr("copy", "lxd:c1", "again:c2", "--dry-run").stdout == "copy lxd:c1 again:c2 on the server\n"
    ctr("snapshot", "create", "lxd:c1", "before")
    ctr("move", "lxd:c1", "again:c3")
    ctr("copy", "again:c3", "other:")
    assert there(ctr, "lxd:", "other:") == ["lxd:c3", "other:c3"]
    assert "before" in ctr("snapshot", "list", "other:c3").stdout
    ctr("move", "other:c3", "again:c4")
    assert there(ctr, "lxd:", "other:") == ["lxd:c3", "lxd:c4"]
    known["lxd"].tool("project", "delete", "other")


@pytest.mark.usefixtures("here")
def test_refused_before_anything_is_made(all_of_them: Ctr) -> None:
    ctr = all_of_them
    ctr("start", "lxd:c1")
    assert "is running" in ctr("move", "lxd:c1", "incus:", code=4).stderr
    ctr("stop", "--force", "lxd:c1")
    ctr("config", "set", "lxd:c1", "raw.lxc=lxc.environment=A=1")
    assert "raw.lxc" in ctr("copy", "lxd:c1", "local:c1", "-p", "no-network", code=5).stderr
    assert ctr("image", "list", "-f", "csv").stdout.count("\n") <= 1 and there(ctr) == []
    assert "no profile" in ctr("copy", "lxd:c1", "incus:", "-p", "nope", code=3).stderr
    assert "no instance `lxd:c9`" in ctr("copy", "lxd:c9", "incus:", code=3).stderr
    assert there(ctr, "incus:") == []


def test_gone_in_the_middle(all_of_them: Ctr, known: Servers) -> None:
    """The target goes away while it gets the image, or the source while it gives it: the source stays, nothing is on the other side."""
    ctr = all_of_them
    for number, (behind, cut) in enumerate(
        (("incus", b"POST /1.0/images"), ("incus", b"POST /1.0/instances "), ("lxd", b"GET /1.0/images/"))
    ):
        path = ctr.folder / f"far{number}.sock"
        middle = Middle(path, known[behind].socket)
        ctr("remote", "add", f"far{number}", str(path))
        middle.rule = lambda data, cut=cut: "cut" if data.startswith(cut) else "pass"  # type: ignore[misc]
        words = ("lxd:c1", f"far{number}:") if behind == "incus" else (f"far{number}:c1", "incus:")
        gone = ctr("move", *words, code=6)
        assert f"`far{number}` went away" in gone.stderr
        middle.close()
        assert there(ctr, "lxd:", "incus:") == ["lxd:c1"]


def test_gone_under_a_backup(all_of_them: Ctr, known: Servers) -> None:
    """Neither server keeps anything of a backup that did not arrive."""
    ctr = all_of_them
    for name in ("lxd", "lxd2"):
        listen(known[name], "")
    for number, (socket, cut) in enumerate(
        ((known["lxd2"].socket, b"POST /1.0/instances "), (known["lxd"].socket, b"/export"))
    ):
        path = ctr.folder / f"middle{number}.sock"
        middle = Middle(path, socket)
        ctr("remote", "add", f"middle{number}", str(path))
        middle.rule = lambda data, cut=cut: "cut" if cut in data.split(b"\r\n")[0] + b" " else "pass"  # type: ignore[misc]
        words = ("lxd:c1", "middle0:c5") if number == 0 else ("middle1:c1", "lxd2:c5")
        gone = ctr("copy", *words, code=6)
        assert f"`middle{number}` went away" in gone.stderr and "was made is not known" in gone.stderr
        middle.close()
        assert there(ctr, "lxd2:") == []
        assert known["lxd"].tool("query", "/1.0/instances/c1/backups").strip() == "[]"
    for name in ("lxd", "lxd2"):
        listen(known[name], "[::]:8443")


@pytest.mark.parametrize("kind", ["lxd", "incus"])
def test_the_target_dies(all_of_them: Ctr, known: Servers, kind: str) -> None:
    """We die, and the next command says what the servers made of it; we hear no more of the target, and then it is dead: the source is
    as it was and at once of use, and nothing half-made is left."""
    ctr, target = all_of_them, known[f"{kind}2"]
    if kind == "incus":
        ctr("move", "lxd:c1", "incus:")
    middle = Middle(ctr.folder / "far.sock", target.socket)
    ctr("remote", "add", "far", str(ctr.folder / "far.sock"))
    begun = threading.Event()

    def wait(data: bytes) -> str:
        if not data.startswith(b"GET /1.0/operations/"):
            return "pass"
        begun.set()
        return "slow"

    middle.rule = wait
    running = ctr.popen("move", f"{kind}:c1", "far:c4", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert begun.wait(PATIENCE)
    running.kill()
    running.communicate()
    middle.rule = lambda data: "pass"
    said, deadline = "", time.monotonic() + PATIENCE
    while os.listdir(ctr.folder / "state/passing"):
        assert time.monotonic() < deadline, said
        said += ctr("image", "list", "far:").stderr
    assert "`far:c4` was made for a command that was killed" in said
    assert ctr("move", f"{kind}:c1", "far:c4", code=4).stderr.startswith("error: an instance `far:c4` exists")
    ctr("delete", "far:c4")
    seen: list[bytes] = []

    def cut(data: bytes) -> str:
        if data.startswith(b"GET /1.0/operations/") and not seen:
            seen.append(data)
            return "cut"
        return "pass"

    middle.rule = cut
    gone = ctr("move", f"{kind}:c1", "far:c5", code=6)
    assert "`far` went away" in gone.stderr and "nothing was made on `far`" in gone.stderr
    assert there(ctr, f"{kind}:", f"{kind}2:") == [f"{kind}:c1"]

    def kill(data: bytes) -> str:
        if data.startswith(b"GET /1.0/operations/") and target.process.poll() is None:
            target.process.kill()
            target.process.wait()
        return "cut" if target.process.poll() is not None else "pass"

    middle.rule = kill
    gone = ctr("move", f"{kind}:c1", "far:c5", code=6)
    assert "`far` went away" in gone.stderr and "whether `far:c5` was made is not known" in gone.stderr
    middle.close()
    ctr("snapshot", "create", f"{kind}:c1", "after")
    look(ctr, f"{kind}:c1")
    target.start()
    assert there(ctr, f"{kind}2:") in ([], [f"{kind}2:c5"])
