# SPDX-License-Identifier: GPL-3.0-or-later
"""Plugins: where they come from, whom they are trusted of, and what they may do wrong."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ctrmgr
from ctrmgr.backend import brought
from ctrmgr.cli import main
from ctrmgr.devices import driver, request
from ctrmgr.devices.plugin import Allocation, Found, Holder
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError
from ctrmgr.plugins import adopt, call, registry, wire
from ctrmgr.spec import device

HEAD = """
from ctrmgr.devices.plugin import *
from ctrmgr.devices.plugin import Plugin as Base
from ctrmgr.errors import ConflictError
class Plugin(Base):
    type = "acme-npu"
"""
GOOD = """
def identify(self, host):
    return [Found("npu0", nodes=["/dev/null"], functions={"npu.infer": {"memory": 16 << 30}})]
"""
Write = Callable[..., registry.Source]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Make a plugin of one file: what its class has."""
    monkeypatch.setenv("CTRMGR_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "PLUGINS", {})
    folder = tmp_path / "devices.d"
    folder.mkdir(mode=0o755)

    def make(body: str = GOOD, name: str = "acme-npu", head: str = HEAD) -> registry.Source:
        file = folder / f"{name}.py"
        file.write_text(head + textwrap.indent(textwrap.dedent(body), "    "))
        file.chmod(0o644)
        return registry.sources()[name]

    return make


@pytest.fixture
def listed(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """What the list of this machine has of plugins, of which two are of no use."""
    monkeypatch.setenv("CTRMGR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CTRMGR_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(brought, "PATIENCE", 2.0)
    write(GOOD.replace("/dev/null", "/dev/console"))
    write(
        "seconds = 60\ndef identify(self, host): import time; time.sleep(60)", "acme-slow", HEAD.replace("npu", "slow")
    )
    write("def identify(self, host): raise ValueError('ouch')", "acme-wrong", HEAD.replace("npu", "wrong"))

    def look(*kinds: str) -> list[str]:
        return [f"{device.kind} {device.id}" for device in ctrmgr.host_devices(*kinds)]

    return look


def test_a_list_waits_for_no_plugin(
    listed: Callable[..., list[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="acme-") as told:
        found = listed()
    assert time.monotonic() - start < 20
    assert found[-1] == "acme-npu npu0"
    assert len(found) > 1
    assert "unix-char /dev/console" not in found  # the plugin's
    assert sorted(str(each.message) for each in told) == [
        "plugin `acme-slow` failed in `identify`: it has not answered within 2 seconds",
        "plugin `acme-wrong` failed in `identify`: ValueError: ouch",
    ]
    assert "unix-char /dev/console" in listed("unix-char")  # nobody was asked
    assert listed("acme-npu") == ["acme-npu npu0"]
    with pytest.raises(SpecError, match="`acme-nothing` is no kind of device"):
        listed("acme-nothing")
    monkeypatch.setattr(sys, "argv", ["ctrmgr", "device", "list", "acme-npu", "acme-wrong"])
    assert main.main() == 0
    shown = capfd.readouterr()
    assert shown.out.splitlines()[1].split() == ["acme-npu", "npu0", "npu0", "/dev/console"]
    assert shown.err == "warning: plugin `acme-wrong` failed in `identify`: ValueError: ouch\n"


def test_a_good_one(write: Write) -> None:
    source = write(
        'description = "of ours"\nFIELDS = {"lanes": Field(str, "how many", default="4")}\n' + GOOD.strip("\n")
    )
    assert source.problem is None
    description, persistent, fields = call.describe(source)
    assert (description, persistent) == ("of ours", False)
    assert fields["lanes"].default == "4"
    (found,) = call.identify(source)
    assert found == Found("npu0", nodes=["/dev/null"], functions={"npu.infer": {"memory": 16 << 30}})
    chosen, _ = call.allocate(source, {}, [found], [])
    assert chosen.found == found
    assert [node.path for node in call.prepare(source, chosen).device_nodes] == ["/dev/null"]
    call.release(source, chosen)
    assert call.events(source, [found]) == []


def test_the_least_held_and_then_the_first(write: Write) -> None:
    source = write()
    found = [Found("b", shared=0), Found("a", shared=0), Found("c", shared=0)]
    holders = [Holder("c1", "x", "a"), Holder("c2", "x", "c")]
    assert call.allocate(source, {}, found, holders)[0].found.id == "b"
    assert call.allocate(source, {}, found, [])[0].found.id == "a"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def identify(self, host): raise RuntimeError('no card')", "failed in `identify`: RuntimeError: no card"),
        ("def identify(self, host): return 5", "TypeError"),
        ("def identify(self, host): return ['x']", "answered with str instead of Found"),
        ("def identify(self, host): return [Found('')]", "`id` is empty"),
        ("def identify(self, host): return [Found('a'), Found('a')]", "two devices have the id `a`"),
        ("def identify(self, host): return [Found('a\\x1b[2J')]", "letters that cannot be printed"),
        ("def identify(self, host): return [Found('a', nodes=['/etc/shadow'])]", "is not below /dev"),
        ("def identify(self, host): return [Found('a', nodes=['/dev/../etc/shadow'])]", "no plain absolute path"),
        ("def identify(self, host): return [Found('a', shared=-1)]", "`shared` of a is below zero"),
        ("def identify(self, host): return [Found('a', pools={'cores': 1.5})]", "no plain data"),
        ("def identify(self, host): return [Found('a', pools={'cores': 1 << 70})]", "is no whole number"),
        ("def identify(self, host): return [Found('a', functions={'f': {'x': object()}})]", "no plain data"),
        ("def identify(self, host): import os; os._exit(3)", "ended with exit code 3 and no answer"),
        ("def identify(self, host): import os; os.kill(os.getpid(), 11)", "ended with signal 11 and no answer"),
        ("def identify(self, host): raise SystemExit(0)", "SystemExit"),
        ("def identify(self, host): import os; os.close(0); os.closerange(3, 99); os._exit(0)", "no answer"),
        ("API = 2", "written for version 2"),
        ("type = 'other'", "its `type` is `other`"),
        ("seconds = -1", "`seconds` is not a number"),
        ("pass", "`identify` is missing"),
        ("def __init__(self): raise OSError(5, 'gone')", "gone"),
    ],
)
def test_one_that_is_broken(write: Write, body: str, said: str) -> None:
    source = write(body)
    with pytest.raises(HostError, match="plugin `acme-npu`") as error:
        call.identify(source)
    assert said in error.value.message


@pytest.mark.parametrize(
    "text", ["1 +", "import nothing_of_that_name", "class Other: pass", "raise SystemExit", "Plugin = 5"]
)
def test_one_that_is_no_plugin(write: Write, text: str) -> None:
    source = write("", head=text)
    with pytest.raises(HostError, match="plugin `acme-npu`"):
        call.describe(source)


def test_one_that_hangs(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = "def identify(self, host):\n    import os, time\n    open({!r}, 'w').write(str(os.getpid()))\n    time.sleep(60)"
    file = os.environ["CTRMGR_CONFIG_DIR"] + "/pid"
    source = write(pids.format(file))
    monkeypatch.setenv("CTRMGR_PLUGIN_SECONDS", "0.7")
    begin = time.monotonic()
    with pytest.raises(HostError, match=r"has not answered within 0\.7 seconds"):
        call.identify(source)
    assert time.monotonic() - begin < 5
    assert not os.path.exists(f"/proc/{Path(file).read_text()}")


def test_one_at_work_when_the_command_is_killed(write: Write, tmp_path: Path) -> None:
    """What it would go on doing, the next command is undoing."""
    file = tmp_path / "pid"
    write(
        "def prepare(self, allocation):\n    import os, time\n"
        f"    open({str(file)!r}, 'w').write(str(os.getpid()))\n    time.sleep(60)"
    )
    pid = os.fork()
    if pid == 0:
        try:
            call.prepare(registry.find("acme-npu"), Allocation(Found("npu0")))
        finally:
            os._exit(0)
    while not file.exists() or not file.read_text():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{file.read_text()}/exe") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.monotonic() < deadline


def test_its_own_seconds(write: Write) -> None:
    source = write("seconds = 0.2\ndef identify(self, host):\n    import time\n    time.sleep(1)\n    return []")
    assert call.identify(source) == []  # never less than the ordinary ones
    assert call.seconds(3.0) == 3.0


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan", "1e9"])
def test_wrong_seconds(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("CTRMGR_PLUGIN_SECONDS", wrong)
    with pytest.raises(SpecError, match="CTRMGR_PLUGIN_SECONDS"):
        call.seconds(10)


def test_what_it_prints_is_no_answer(write: Write) -> None:
    source = write('def identify(self, host):\n    print("{" * 100000)\n    return [Found("a")]')
    assert [each.id for each in call.identify(source)] == ["a"]


def test_it_says_no(write: Write) -> None:
    source = write(
        GOOD
        + "def allocate(self, values, found, holders):\n    raise ConflictError('all lanes are taken', hint='wait')\n"
    )
    with pytest.raises(ConflictError, match="plugin `acme-npu`: all lanes are taken") as error:
        call.allocate(source, {}, [Found("npu0")], [])
    assert error.value.hint == "wait"


def test_it_chooses_what_it_may_not(write: Write) -> None:
    source = write("def allocate(self, values, found, holders):\n    return Allocation(Found('mine'))")
    with pytest.raises(HostError, match="it chose `mine`"):
        call.allocate(source, {}, [Found("npu0")], [])


def test_its_state_comes_back(write: Write) -> None:
    source = write(
        "def allocate(self, values, found, holders):\n    return Allocation(found[0], takes={'cores': 2}, state={'slot': '7'})\n"
        "def prepare(self, allocation):\n    return ContainerEdits(env=[f'SLOT={allocation.state[\"slot\"]}{allocation.id}'])\n"
    )
    chosen, _ = call.allocate(source, {}, [Found("npu0", pools={"cores": 4})], [])
    assert call.prepare(source, chosen.replace(id="x")).env == ("SLOT=7x",)


@pytest.mark.parametrize(
    "edits",
    [
        "ContainerEdits(device_nodes=[DeviceNode('/dev/x', host_path='/etc/shadow')])",
        "ContainerEdits(device_nodes=[DeviceNode('')])",
        "ContainerEdits(device_nodes=[DeviceNode('/dev/x', major='7')])",
        "ContainerEdits(mounts=[Mount('/etc', '../etc')])",
        "ContainerEdits(env=['NO'])",
        "ContainerEdits(env=[5])",
        "None",
        "'rm -rf /'",
    ],
)
def test_wrong_edits(write: Write, edits: str) -> None:
    source = write(f"def prepare(self, allocation):\n    return {edits}")
    with pytest.raises(HostError, match="plugin `acme-npu`"):
        call.prepare(source, Allocation(Found("npu0")))


# Whom a file is trusted of


def test_open_to_others(write: Write) -> None:
    source = write()
    Path(source.path).chmod(0o666)
    assert "can be written by others" in str(registry.sources()["acme-npu"].problem)
    Path(source.path).chmod(0o664)
    assert "can be written by others" in str(registry.sources()["acme-npu"].problem)
    Path(source.path).chmod(0o644)
    Path(source.path).parent.chmod(0o777)
    assert "devices.d` can be written by others" in str(registry.sources()["acme-npu"].problem)
    with pytest.raises(HostError, match="not trusted"):
        call.identify(source)  # it was good when it was looked up


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody")
def test_of_somebody_else(write: Write) -> None:
    source = write()
    os.chown(source.path, 12345, 0)
    with pytest.raises(HostError, match="belongs to user 12345"):
        registry.find("acme-npu")


def test_links_and_pipes(write: Write, tmp_path: Path) -> None:
    source = write()
    folder = Path(source.path).parent
    Path(source.path).rename(tmp_path / "elsewhere.py")
    (folder / "acme-npu.py").symlink_to(tmp_path / "elsewhere.py")
    assert "no link" in str(registry.sources()["acme-npu"].problem.hint)  # type: ignore[union-attr]
    (folder / "acme-npu.py").unlink()
    os.mkfifo(folder / "acme-npu.py", 0o644)
    assert "no file" in str(registry.sources()["acme-npu"].problem)


@pytest.mark.parametrize("name", ["gpu", "disk", "any", "unix-char", "proxy", "Acme", "a b", "9lives", "-x", "x" * 64])
def test_wrong_names(write: Write, name: str) -> None:
    problem = write(GOOD, name).problem
    assert problem is not None
    assert f"`{name}`" in problem.message


def test_one_that_is_broken_hides_no_other(write: Write) -> None:
    write("raise 1", "acme-broken")
    write()
    assert call.identify(registry.find("acme-npu"))[0].id == "npu0"
    with pytest.raises(NotFoundError, match="no plugin brings the device type `acme-gpu`"):
        registry.find("acme-gpu")


def test_packages(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def package(name: str, entry: str) -> None:
        info = tmp_path / f"site/{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[ctrmgr.devices.v1]\nacme-tpu = {entry}\n")

    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    package("one", "acme_tpu:inner.Tpu")
    (tmp_path / "site/acme_tpu.py").write_text(
        "from ctrmgr.devices.plugin import *\nclass inner:\n    class Tpu(Plugin):\n        type = 'acme-tpu'\n"
        "        def identify(self, host): return [Found('t')]\n"
    )
    source = registry.find("acme-tpu")
    assert source.origin == "one 1.2"
    assert call.identify(source)[0].id == "t"
    package("two", "other:Tpu")
    with pytest.raises(ConflictError, match=r"comes from two packages: one 1\.2 and two 1\.2"):
        registry.find("acme-tpu")
    assert write(GOOD, "acme-tpu", HEAD.replace("npu", "tpu")).path  # the administrator's file wins
    assert call.identify(registry.find("acme-tpu"))[0].id == "npu0"


# Its device type in profiles


def test_keys(write: Write) -> None:
    write(
        "def even(value):\n    if int(value) % 2: raise ValueError('is odd')\n    return str(int(value))\n"
        "FIELDS = {'lanes': Field(even, 'an even number')}\n" + GOOD
    )
    good = {"type": "acme-npu", "lanes": "08", "gid": "render", "min-memory": "1GiB"}
    assert device.check("n", good) == {**good, "lanes": "8", "min-memory": str(1 << 30)}
    for wrong, said in (({"lanes": "7"}, "is odd"), ({"lane": "8"}, "is not a key"), ({"mode": "9"}, "is not a mode")):
        with pytest.raises(device.DeviceError) as error:
            device.check("n", {"type": "acme-npu", **wrong})
        assert said in str(error.value)
    assert adopt.types() == ["acme-npu"]


def test_keys_that_all_have(write: Write) -> None:
    write("FIELDS = {'gid': Field(str, 'mine')}")
    with pytest.raises(HostError, match=r"`FIELDS\[gid\]` is a key that all devices have"):
        device.check("n", {"type": "acme-npu"})


def test_a_type_that_nobody_brings(write: Write) -> None:
    write()
    with pytest.raises(device.DeviceError) as error:
        device.check("n", {"type": "acme-npv"})
    assert error.value.hint == "did you mean `acme-npu`?"


def test_a_broken_one_is_an_error_of_those_who_use_it(write: Write) -> None:
    write("raise 1")
    device.check("f", {"type": "unix-char", "source": "/dev/fuse"})
    with pytest.raises(CtrmgrError, match="plugin `acme-npu`"):
        device.check("n", {"type": "acme-npu"})


# What is asked for


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, ""),
        ({"function": "gpu.compute"}, ""),
        ({"function": "gpu.compute", "min-memory": str(16 << 30)}, ""),
        ({"function": "gpu.compute", "min-memory": str(17 << 30)}, "its memory is 17179869184"),
        ({"function": "gpu.compute", "min-cores": "1"}, "it does not say its cores"),
        ({"function": "gpu.render"}, "it has gpu.compute"),
        ({"vendor": "ACME"}, ""),
        ({"vendor": "other"}, "its vendor is `Acme Inc.`"),
        ({"model": "N"}, "it does not say its model"),
        ({"id": "npu1"}, "is not `npu1`"),
        ({"with": "precision=fp16,memory>=16GiB"}, ""),
        ({"with": "precision!=fp16"}, "its precision is fp16"),
        ({"with": "precision>1"}, "its precision is fp16"),
        ({"with": "memory<16GiB"}, "its memory is 17179869184"),
        ({"with": "memory=16GiB"}, ""),
    ],
)
def test_why_not(asked: dict[str, str], reason: str) -> None:
    functions = {"gpu.compute": {"memory": 16 << 30, "precision": "fp16"}}
    assert request.why_not(asked, id="npu0", vendor="Acme Inc.", model="", functions=functions) == reason


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("function", "gpu"), ("function", "Gpu.x"), ("function", ".x"), ("min-memory", "lots"), ("min-memory", "-1"), ("min-memory", "1XB"),
        ("min-memory", "9999999EiB"), ("with", "x"), ("with", "x=="), ("with", "=1"), ("with", "x>many"), ("with", "a=1,,b=2"), ("with", "a b=1"),
    ],
)  # fmt: skip
def test_wrong_requests(key: str, value: str) -> None:
    with pytest.raises(device.DeviceError):
        device.check("n", {"type": "any", "function": "gpu.compute", key: value})


def test_a_request_for_nothing() -> None:
    from ctrmgr.devices import rows

    with pytest.raises(SpecError, match="does not say what it is for"):
        rows.rows("n", {"type": "any", "gid": "5"})


def test_what_is_said_comes_back() -> None:
    found = Found("a", model="m", vendor="v", nodes=["/dev/x"], functions={"f.x": {"n": 1, "w": "y"}, "f.y": {}}, shared=3,
                  pools={"cores": 4}, identity=[("/sys/x", "1:2")], numa=1)  # fmt: skip
    assert wire.found(wire.plain(found)) == found
