# SPDX-License-Identifier: GPL-3.0-or-later
"""Device plugins from end to end: a package and a file, asked for by name and by function."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr, same, settle
from tests.rootful import plugins
from tests.unit.test_images_oci import layout

LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
SCRATCH = ("-d", "s,type=demo-scratch,size=8MiB,path=/dev/s,gid=disk")
Snapshot = Callable[[], dict[str, object]]


@pytest.fixture
def scratch(ctr: Ctr) -> Iterator[Ctr]:
    """ctrmgr with the package installed; nothing of it is left."""
    plugins.install_scratch(ctr)
    yield ctr
    ctr("delete", "--force", "c1", code=None)
    ctr("delete", "--force", "c2", code=None)
    assert plugins.slices() == {}


def held(ctr: Ctr) -> list[str]:
    folder = ctr.folder / "state/allocations"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_by_function(scratch: Ctr, host_snapshot: Snapshot) -> None:
    scratch(*LAUNCH)  # what is made on first use is there
    scratch("delete", "--force", "c1")
    settle()
    before = host_snapshot()
    profile = scratch.folder / "etc/profiles/fast.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(
        "devices:\n  disk:\n    type: any\n    function: storage.scratch\n    with: speed=fast\n    path: /dev/fast\n    mode: '0640'\n"
    )
    scratch(*LAUNCH, "-p", "fast")
    shown = scratch("exec", "c1", "ls", "-l", "/dev/fast").stdout
    assert shown.startswith("brw-r-----")
    assert scratch("exec", "c1", "head", "-c", "4", "/dev/fast").stdout == "\0\0\0\0"
    assert scratch("exec", "c1", "sh", "-c", "echo written > /dev/fast; head -c 7 /dev/fast").stdout == "written"
    assert held(scratch) == ["c1.disk"]
    ((token, disk),) = plugins.slices().items()
    assert Path(f"/sys/block/{disk}/size").read_text() == "2048\n"
    scratch("stop", "c1")
    assert (held(scratch), plugins.slices()) == ([], {})
    scratch("start", "c1")
    assert token not in plugins.slices()
    assert len(plugins.slices()) == 1
    scratch("restart", "c1")
    assert scratch("exec", "c1", "head", "-c", "4", "/dev/fast").stdout == "\0\0\0\0"  # a new one
    scratch("delete", "--force", "c1")
    settle()
    same(before, host_snapshot())


def test_by_type(scratch: Ctr) -> None:
    scratch(*LAUNCH, *SCRATCH)
    assert "SCRATCH_BYTES=8388608\n" in scratch("exec", "c1", "env").stdout
    ((_, disk),) = plugins.slices().items()
    assert Path(f"/sys/block/{disk}/size").read_text() == f"{(8 << 20) // 512}\n"
    listed = json.loads(scratch("device", "plugins", "--format", "json").stdout)
    (mine,) = [each for each in listed if each["type"] == "demo-scratch"]
    assert mine["state"] == "usable"
    assert mine["from"] == "demo-scratch 1.0"
    assert mine["held-by"] == ["c1/s"]
    wrong = scratch(*LAUNCH[:2], "c2", "-p", "no-network", "-d", "s,type=demo-scratch,size=1", code=2).stderr
    assert "(`1`) is not a multiple of 4KiB" in wrong


def test_all_of_its_parts_come_and_go(scratch: Ctr) -> None:
    scratch(*LAUNCH)
    scratch("attach-device", "c1", "s", "type=demo-scratch", "size=4KiB")
    assert "SCRATCH_BYTES=4096\n" in scratch("exec", "c1", "env").stdout
    assert scratch("exec", "c1", "test", "-b", "/dev/scratch").code == 0
    scratch("detach-device", "c1", "s")
    assert "SCRATCH" not in scratch("exec", "c1", "env").stdout
    assert scratch("exec", "c1", "test", "-e", "/dev/scratch", code=1).code == 1
    assert (held(scratch), plugins.slices()) == ([], {})
    scratch("attach-device", "c1", "s", "type=demo-scratch", "path=/dev/a")
    refused = scratch("attach-device", "c1", "t", "type=demo-scratch", "path=/dev/a", code=4).stderr
    assert "have the same path `/dev/a` inside" in refused
    assert held(scratch) == ["c1.s"]
    assert len(plugins.slices()) == 1


def test_the_pool_is_short(scratch: Ctr) -> None:
    scratch(*LAUNCH, "-d", "s,type=demo-scratch,size=60MiB")
    failed = scratch("launch", "builtin:busybox", "c2", "-p", "no-network", *SCRATCH, code=4).stderr
    assert "`memory` has 4194304 of 67108864 bytes left, and 8388608 are asked for" in failed
    assert "c1/s has 62914560" in failed
    assert held(scratch) == ["c1.s"]
    scratch("stop", "c1")
    scratch("launch", "builtin:busybox", "c2", "-p", "no-network", *SCRATCH)


def test_the_monitor_is_killed(scratch: Ctr) -> None:
    scratch(*LAUNCH, *SCRATCH)
    (old,) = plugins.slices()
    rows = dict(line.split("\t") for line in (scratch.folder / "run/c1/state").read_text().splitlines())
    os.kill(int(rows["monitor"]), signal.SIGKILL)
    time.sleep(0.1)
    scratch("start", "c1")
    (new,) = plugins.slices()
    assert new != old


def test_live(ctr: Ctr) -> None:
    plugins.install_noise(ctr)
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "one", "type=demo-noise", "path=/dev/one", "gid=disk")
    ctr("attach-device", "c1", "two", "type=any", "function=random.bytes", "path=/dev/two", "--volatile")
    assert len(ctr("exec", "c1", "sh", "-c", "head -c 8 /dev/one /dev/two | wc -c").stdout) > 1
    assert held(ctr) == ["c1.one", "c1.two"]
    refused = ctr("attach-device", "c1", "three", "type=demo-noise", "path=/dev/three", code=4).stderr
    assert "no device for `demo-noise` is free" in refused
    assert "urandom: 2 have it" in refused
    found = json.loads(ctr("device", "find", "random.bytes", "--explain", "--format", "json").stdout)
    assert [each["verdict"] for each in found if each["id"] == "urandom"] == ["no: 2 have it, and no more may"]
    shown = json.loads(ctr("device", "show", "demo-noise/urandom", "--format", "json").stdout)
    assert [(each["instance"], each["device"], each["live"]) for each in shown["holders"]] == [
        ("c1", "one", True),
        ("c1", "two", True),
    ]
    assert shown["functions"] == {"random.bytes": {"seeded": "yes"}}
    assert "functions: random.bytes seeded yes\n" in ctr("device", "show", "urandom").stdout
    (line,) = (line for line in ctr("device", "list").stdout.splitlines() if "urandom" in line)
    assert line.split()[:3] == ["demo-noise", "urandom", "urandom"]
    assert line.split()[-2:] == ["/dev/urandom", "c1"]  # once, for both devices
    (line,) = (line for line in ctr("device", "tree").stdout.splitlines() if "demo-noise urandom" in line)
    assert line.endswith("[c1]")
    ctr("config", "set", "c1", "limits.processes=50")
    ctr("detach-device", "c1", "one")
    assert held(ctr) == ["c1.two"]
    assert ctr("exec", "c1", "test", "-e", "/dev/one", code=1).code == 1
    ctr("restart", "c1")
    assert held(ctr) == []
    assert ctr("exec", "c1", "test", "-e", "/dev/two", code=1).code == 1


def test_attached_to_a_stopped_instance(ctr: Ctr) -> None:
    plugins.install_noise(ctr)
    ctr("create", "builtin:busybox", "c1", "-p", "no-network")
    ctr("attach-device", "c1", "noise", "type=any", "function=random.bytes", "path=/dev/noise")
    assert held(ctr) == []
    ctr("start", "c1")
    assert held(ctr) == ["c1.noise"]
    ctr("stop", "c1")
    ctr("rename", "c1", "c2")
    ctr("start", "c2")
    assert held(ctr) == ["c2.noise"]
    assert ctr("exec", "c2", "test", "-c", "/dev/noise").code == 0


def test_kept_until_deleted(ctr: Ctr) -> None:
    path = plugins.install_noise(ctr)
    path.write_text(path.read_text().replace('type = "demo-noise"', 'type = "demo-noise"\n    persistent = True'))
    ctr("create", "builtin:busybox", "c1", "-p", "no-network", "-d", "n,type=demo-noise,path=/dev/noise")
    assert held(ctr) == ["c1.n"]
    token = (ctr.folder / "state/allocations/c1.n").read_text()
    ctr("start", "c1")
    ctr("restart", "c1")
    ctr("stop", "c1")
    ctr("rename", "c1", "c2")
    ctr("config", "set", "c2", "user.x=y")
    ctr("start", "c2")
    assert ctr("exec", "c2", "test", "-c", "/dev/noise").code == 0
    assert (ctr.folder / "state/allocations/c2.n").read_text() == token
    good = path.read_text()
    path.unlink()
    ctr("restart", "c2")  # it is not even looked for
    assert ctr("exec", "c2", "test", "-c", "/dev/noise").code == 0
    assert "no plugin brings the device type `demo-noise`" in ctr("delete", "--force", "c2", code=7).stderr
    path.write_text(good)
    ctr("device", "plugins", "--release")
    assert held(ctr) == []


def test_what_it_does_not_release(ctr: Ctr) -> None:
    path = plugins.install_noise(ctr)
    good = path.read_text()
    ctr(*LAUNCH, "-d", "n,type=demo-noise,path=/dev/noise")
    path.write_text(good + "\n    def release(self, allocation):\n        raise OSError(5, 'the firmware hangs')\n")
    said = ctr("stop", "c1", code=7).stderr
    assert "device `n` of `c1` is not released" in said
    assert "the firmware hangs" in said
    assert "STOPPED" in ctr("list").stdout
    assert "the firmware hangs" in ctr("device", "plugins").stdout
    assert ctr("delete", "c1", code=7).stderr.count("not released") == 1
    assert "c1" not in ctr("list").stdout
    assert held(ctr) == ["c1.n"]
    ctr("launch", "builtin:busybox", "c2", "-p", "no-network")  # others are not kept
    assert "`urandom` (demo-noise) of `c1` is not released" in ctr("doctor", code=None).stdout
    path.write_text(good)
    ctr("doctor", "--fix", code=None)
    assert held(ctr) == []


def test_one_that_fails_to_prepare(ctr: Ctr) -> None:
    path = plugins.install_noise(ctr)
    log = ctr.folder / "log"
    path.write_text(
        path.read_text()
        + "\n    def prepare(self, allocation):\n        raise KeyError('no firmware')\n"
        + f"\n    def release(self, allocation):\n        open({str(log)!r}, 'a').write(allocation.id)\n"
    )
    failed = ctr(*LAUNCH, "-d", "n,type=demo-noise,path=/dev/noise", code=5).stderr
    assert "plugin `demo-noise` failed in `prepare`: KeyError" in failed
    assert held(ctr) == []
    assert len(log.read_text()) == 16  # once
    assert ctr("list", "--format", "csv").stdout == "name,status,ipv4,image\n"


def test_a_broken_one_keeps_nobody(ctr: Ctr) -> None:
    path = plugins.install_noise(ctr)
    (path.parent / "acme-broken.py").write_text("raise 1")
    (path.parent / "acme-open.py").write_text("")
    (path.parent / "acme-open.py").chmod(0o666)
    ctr(*LAUNCH, "-d", "n,type=any,function=random.bytes,path=/dev/noise")
    listed = {each["type"]: each["state"] for each in json.loads(ctr("device", "plugins", "-f", "json").stdout)}
    assert listed["demo-noise"] == "usable"
    assert "plugin `acme-broken`" in listed["acme-broken"]
    assert "not trusted" in listed["acme-open"]
    assert "warning: plugin `acme-broken`" in ctr("device", "find").stderr
    profiles = ctr.folder / "etc/profiles"
    profiles.mkdir(parents=True)
    (profiles / "bad.yaml").write_text("devices:\n  x:\n    type: acme-broken\n")
    assert "(wrong: plugin `acme-broken`" in ctr("profile", "list").stdout
    refused = ctr("attach-device", "c1", "x", "type=acme-broken", code=5).stderr
    assert "plugin `acme-broken`" in refused


def test_an_image_asks(ctr: Ctr, tmp_path: Path) -> None:
    plugins.install_noise(ctr)
    ctr("image", "export", "builtin:busybox", str(tmp_path / "image.tar"))
    work = tmp_path / "work"
    work.mkdir()
    os.system(f"tar -C {work} -xf {tmp_path}/image.tar")
    text = (work / "metadata.yaml").read_text()
    text = text.replace(
        "properties:\n", "properties:\n  ctrmgr.function.noise: random.bytes with=seeded=yes path=/dev/noise\n"
    )
    (work / "metadata.yaml").write_text(text)
    os.system(f"tar -C {work} -cf {tmp_path}/asks.tar .")
    ctr("image", "import", str(tmp_path / "asks.tar"), "--alias", "asks")
    refused = ctr("launch", "asks", "c1", "-p", "no-network", code=2).stderr
    assert "the image asks for devices: `noise` (random.bytes)" in refused
    assert "security.devices.image=true" in refused
    ctr("launch", "asks", "c1", "-p", "no-network", "-c", "security.devices.image=true")
    assert ctr("exec", "c1", "test", "-c", "/dev/noise").code == 0
    ctr("config", "set", "c1", "user.x=y")
    ctr("restart", "c1")
    assert held(ctr) == ["c1.noise"]
    ctr("launch", "asks", "c2", "-p", "no-network", "-d", "noise,type=none")
    ctr("launch", "asks", "c3", "-p", "no-network", "-c", "security.devices.image=false")
    assert held(ctr) == ["c1.noise"]
    os.system(f"tar -C {work}/rootfs -cf {tmp_path}/layer.tar .")
    folder = layout(tmp_path / "oci", (tmp_path / "layer.tar").read_bytes(), machine=os.uname().machine)
    os.system(f"tar -C {folder} -cf {tmp_path}/oci.tar .")
    for source, name in ((tmp_path / "oci.tar", "archive"), (folder, "layout")):
        ctr("image", "import", str(source), "--alias", name)  # its labels ask
        assert "the image asks for devices: `noise` (random.bytes)" in ctr("launch", name, "c4", code=2).stderr
    ctr("launch", "layout", "c4", "-p", "no-network", "-c", "security.devices.image=true")
    assert ctr("exec", "c4", "test", "-c", "/dev/noise").code == 0
    assert held(ctr) == ["c1.noise", "c4.noise"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("type=any",), 2, "does not say what it is for"),
        (("type=any", "function=gpu"), 2, "is not a function"),
        (("type=any", "function=acme.nothing"), 3, "no device fits `acme.nothing`"),
        (("type=any", "function=random.bytes", "min-memory=1GiB"), 3, "urandom: it does not say its memory"),
        (("type=any", "function=random.bytes", "lanes=4"), 2, "unknown key `lanes`"),
        (("type=demo-noisy",), 2, "type `demo-noisy` is unknown"),
        (("type=demo-noise", "uid=1", "user=2"), 2, "says both `uid` and `user`"),
    ],
)
def test_bad_requests(ctr: Ctr, words: tuple[str, ...], code: int, said: str) -> None:
    plugins.install_noise(ctr)
    ctr(*LAUNCH)
    before = ctr.traces()
    assert said in ctr("attach-device", "c1", "n", *words, code=code).stderr
    after = ctr.traces()
    after["files"].pop(str(ctr.folder / "state/allocations"), None)  # type: ignore[attr-defined]
    same(before, after)


def test_policies(ctr: Ctr) -> None:
    path = plugins.install_noise(ctr)
    told = ctr.folder / "told"
    told.write_text("")
    path.write_text(
        path.read_text().replace("shared=2", "shared=0")
        + f"""
    def events(self, found):
        from ctrmgr.devices.plugin import DeviceEvent
        return [DeviceEvent("urandom", *line.split()) for line in open({str(told)!r})]
"""
    )
    ctr(
        *LAUNCH,
        "-d",
        "a,type=demo-noise,path=/dev/a,on-lost=detach,on-reset=restart",
        "-d",
        "b,type=demo-noise,path=/dev/b,on-ecc=stop",
    )
    assert ctr("device", "events", "-f", "csv").stdout.count("\n") == 1
    watch = "import sys; from ctrmgr.backend import hearing; hearing.PAUSE = 0.1; sys.argv[0] = 'ctrmgr'"
    watch += "; from ctrmgr.cli.main import main; main()"
    words = ("monitor", "c1", "--type", "device", "--format", "json")
    with subprocess.Popen([sys.executable, "-c", watch, *words], env=ctr.env, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        assert json.loads(watcher.stdout.readline())["event"] == "watching"
        told.write_text("lost burnt\n")
        events = [json.loads(watcher.stdout.readline()) for _ in "ab"]
        watcher.terminate()
    for event, (device, policy) in zip(events, (("a", "detach"), ("b", "ignore")), strict=True):
        assert event.pop("time")
        told_of = {"instance": "c1", "device": device, "found": "urandom", "detail": "burnt", "policy": policy}
        assert event == {"type": "device", "event": "lost", **told_of}
    assert "not carried out" not in ctr("device", "events", "--dry-run").stdout
    assert ctr("exec", "c1", "test", "-c", "/dev/a").code == 0
    rows = json.loads(ctr("device", "events", "-f", "json").stdout)
    assert [(each["device"], each["policy"], each["outcome"]) for each in rows] == [
        ("a", "detach", "detached; the next start chooses again"),
        ("b", "ignore", "left as it is"),
    ]
    assert ctr("exec", "c1", "test", "-e", "/dev/a", code=1).code == 1
    assert ctr("exec", "c1", "test", "-c", "/dev/b").code == 0
    assert held(ctr) == ["c1.b"]
    assert json.loads(ctr("device", "events", "-f", "json").stdout) == []  # told once
    ctr("restart", "c1")
    assert ctr("exec", "c1", "test", "-c", "/dev/a").code == 0
    told.write_text("reset once 1\n")
    pid = ctr("info", "c1").stdout.partition("\npid: ")[2].partition("\n")[0]
    rows = json.loads(ctr("device", "events", "-f", "json").stdout)
    assert [(each["device"], each["outcome"]) for each in rows] == [("a", "restarted"), ("b", "left as it is")]
    assert pid != ctr("info", "c1").stdout.partition("\npid: ")[2].partition("\n")[0]
    told.write_text("ecc 5\n")
    follow = ctr.popen("device", "events", "--follow", "--interval", "0.1", stdout=subprocess.PIPE)
    assert follow.stdout is not None
    lines = [follow.stdout.readline().decode() for _ in "ab"]
    follow.terminate()
    follow.wait()
    follow.stdout.close()
    assert lines == [
        "c1/a: demo-noise urandom ecc: 5 (ignore: left as it is)\n",
        "c1/b: demo-noise urandom ecc: 5 (stop: stopped)\n",
    ]
    assert "STOPPED" in ctr("list").stdout
    refused = ctr("create", "builtin:busybox", "c2", "-d", "a,type=demo-noise,on-lost=explode", code=2).stderr
    assert "is not one of ignore, detach, stop, restart" in refused


def test_one_that_is_lost(ctr: Ctr) -> None:
    path = plugins.install_noise(ctr)
    ctr(*LAUNCH, "-d", "a,type=any,function=random.bytes,path=/dev/a,on-lost=stop")
    path.write_text(path.read_text().replace('"urandom",', '"other",', 1))
    (event,) = json.loads(ctr("device", "events", "-f", "json").stdout)
    assert event["detail"] == "it is not found any more"
    assert event["outcome"] == "stopped"
    ctr("start", "c1")
    assert "found\tother" in (ctr.folder / "state/allocations/c1.a").read_text()


def test_a_disk_by_its_id(ctr: Ctr, tmp_path: Path) -> None:
    """No plugin: what ctrmgr knows is asked for in the same way."""
    (tmp_path / "disk").write_bytes(b"data" * 1024)
    disk = subprocess.check_output(["losetup", "--find", "--show", str(tmp_path / "disk")], text=True).strip()
    try:
        id = disk.removeprefix("/dev/")
        asked = ("-d", f"d,type=any,function=storage.block,id={id},path=/dev/d,gid=disk,mode=0640")
        ctr(*LAUNCH, *asked)
        assert ctr("exec", "c1", "head", "-c", "4", "/dev/d").stdout == "data"
        assert held(ctr) == ["c1.d"]
        refused = ctr("launch", "builtin:busybox", "c2", "-p", "no-network", *asked, code=4).stderr
        assert f"{id}: 1 have it, and no more may" in refused
        assert held(ctr) == ["c1.d"]
        ctr("stop", "c1")
        ctr("launch", "builtin:busybox", "c2", "-p", "no-network", *asked)
        ctr("delete", "--force", "c2")
    finally:
        subprocess.run(["losetup", "--detach", disk], check=True)
