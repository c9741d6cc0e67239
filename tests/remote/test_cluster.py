# SPDX-License-Identifier: GPL-3.0-or-later
"""A real cluster of three members: who they are, what they have, and which of them gets an instance."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.cluster import Cluster, Front, Outside, clustered
from tests.remote.daemons import Incus, Lxd

A100 = {"vendor_id": "10de", "vendor": "NVIDIA Corporation", "product_id": "20b2", "product": "GA100 [A100 SXM4 80GB]"}


@pytest.fixture(scope="module", params=[Lxd, Incus], ids=["lxd", "incus"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with clustered(request.param) as found:
        yield found


@pytest.fixture
def host(cluster: Cluster) -> Iterator[Outside]:
    folder = Path(tempfile.mkdtemp(prefix="ctr-", dir="/var/tmp"))
    runner = Outside(folder, cluster)
    try:
        runner("remote", "add", "host", str(cluster.first.socket))
        runner("remote", "set-default", "host")
        yield runner
        runner.clean_up()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def front(host: Outside) -> Iterator[Front]:
    """`far` is `host`, whose members say that they have what the test says."""
    path = host.folder / "far.sock"
    found = Front(path, host.cluster.first.socket)
    host("remote", "add", "far", str(path))
    yield found
    found.close()


def location(host: Outside, name: str) -> str:
    found: str = json.loads(host("info", f"host:{name}", "--format", "json").stdout)["location"]
    return found


def table(host: Outside, *words: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(host(*words, "--format", "json").stdout)
    return found


def gpu(number: int, numa: int = 0) -> dict[str, object]:
    drm = {"id": number, "card_name": f"card{number}", "render_name": f"renderD{128 + number}"}
    return {**A100, "pci_address": f"0000:{0x10 + number:02x}:00.0", "numa_node": numa, "drm": drm}


def having(cards: dict[str, list[dict[str, object]]], cluster: Cluster) -> object:
    """An answer for `Front`: the members' own resources, these GPUs, and memory of which nobody uses much, whatever else runs here."""
    real = {name: json.loads(cluster.tool("query", f"/1.0/resources?target={name}")) for name in cluster.members}

    def answer(method: str, path: str) -> object:
        name = path.partition("target=")[2].partition("&")[0]
        if method != "GET" or not path.startswith("/1.0/resources?"):
            return None
        gpus = {"cards": cards.get(name, []), "total": len(cards.get(name, []))}
        return {**real[name], "gpu": gpus, "memory": {**real[name]["memory"], "used": 1 << 30, "total": 16 << 30}}

    return answer


def test_who_is_in_it(host: Outside) -> None:
    rows = table(host, "cluster", "list", "host:")
    assert [row["name"] for row in rows] == ["m1", "m2", "m3"]
    assert {row["status"] for row in rows} == {"ONLINE"}
    assert rows[0]["groups"] == ["default"] and "database-leader" in str(rows[0]["roles"])
    assert rows[1]["url"] == "https://10.77.0.2:8443"
    shown = host("cluster", "list").stdout.splitlines()
    assert shown[0].split()[:4] == ["NAME", "STATUS", "ROLES", "GROUPS"] and len(shown) == 4


def test_what_they_have(host: Outside) -> None:
    rows = table(host, "cluster", "resources")
    kinds = {(row["member"], row["kind"]) for row in rows}
    assert {(name, kind) for name in ("m1", "m2", "m3") for kind in ("memory", "cpu", "pool")} <= kinds
    memory = next(row for row in rows if row["member"] == "m2" and row["kind"] == "memory")
    assert isinstance(memory["total"], int) and 0 < int(str(memory["free"])) < memory["total"]
    lines = list(csv.DictReader(io.StringIO(host("cluster", "resources", "host", "--format", "csv").stdout)))
    assert len(lines) == len(rows) and lines[0]["member"] == "m1"
    assert host("cluster", "resources").stdout.startswith("MEMBER")


def test_a_member_by_its_name(host: Outside) -> None:
    said = host("launch", "tiny", "host:c1", "--target", "m3")
    assert said.stdout == "host:c1\n" and "is on `m3`" in said.stderr
    assert location(host, "c1") == "m3"
    assert host("exec", "host:c1", "--", "echo", "hello").stdout == "hello\n"
    wrong = host("launch", "tiny", "host:c2", "--target", "m4", code=3)
    assert "no member `m4`" in wrong.stderr and "m1, m2, m3" in wrong.stderr
    assert "no group `fast`" in host("launch", "tiny", "host:c2", "--target", "@fast", code=3).stderr


def test_guarantees(host: Outside, front: Front) -> None:
    """Memory is promised once. Who names a member is not asked for guarantees."""
    front.answer = having({}, host.cluster)  # type: ignore[assignment]
    most = "limits.memory=9GiB"
    for name in ("c1", "c2", "c3"):
        host("create", "tiny", f"far:{name}", "--target", "auto", "-c", most)
    assert sorted(location(host, name) for name in ("c1", "c2", "c3")) == ["m1", "m2", "m3"]
    full = host("create", "tiny", "far:c4", "--target", "auto", "-c", most, code=4)
    assert full.stderr.count("of memory left, and not") == 3
    host("create", "tiny", "far:c4", "--target", "m2", "-c", most)
    assert location(host, "c4") == "m2"


def test_it_says_why(host: Outside) -> None:
    shown = host("launch", "tiny", "host:c1", "--target=auto", "-c", "limits.cpu=1", "--explain", "--dry-run", "-fjson")
    rows = json.loads(shown.stdout)
    assert len(rows) == 3 and all(row["score"] and not row["why"] for row in rows)
    rows = json.loads(host("create", "tiny", "host:c1", "-d", "g,type=gpu,vendorid=10de", "--target=auto",
                           "--explain", "--dry-run", "-fjson", code=4).stdout)  # fmt: skip
    assert {row["why"] for row in rows} == {"has no GPU with vendorid=10de"}
    planned = host("launch", "tiny", "host:c1", "--target", "m2", "--dry-run").stdout
    assert planned.endswith("target: m2\n")
    made = host("create", "tiny", "host:c1", "--target", "auto", "--explain")
    assert made.stdout == "host:c1\n" and "MEMBER" in made.stderr
    assert "about a cluster" in host("create", "tiny", "host:c2", "--explain", code=2).stderr
    assert "is for clusters" in host("create", "tiny", "c2", "--target", "auto", code=2).stderr


def test_groups(host: Outside) -> None:
    tool = host.cluster.tool
    tool("cluster", "group", "create", "fast")
    tool("cluster", "group", "assign", "m2", "default,fast")
    try:
        host("create", "tiny", "host:c1", "--target", "@fast")
        assert location(host, "c1") == "m2"
        rows = table(host, "cluster", "list")
        assert rows[1]["groups"] == ["default", "fast"]
        tool("cluster", "set", "m2", "scheduler.instance", "group")
        why = json.loads(host("create", "tiny", "host:c2", "--target=auto", "--explain", "--dry-run", "-fjson").stdout)
        assert [row["member"] for row in why if row["why"]] == ["m2"] and "scheduler.instance=group" in why[2]["why"]
        host("create", "tiny", "host:c2", "--target", "@fast")
        assert location(host, "c2") == "m2"
    finally:
        tool("cluster", "set", "m2", "scheduler.instance", "all")
        tool("cluster", "group", "assign", "m2", "default")
        tool("cluster", "group", "delete", "fast")


def test_gpus_are_chosen_and_named(host: Outside, front: Front) -> None:
    front.answer = having({"m2": [gpu(0), gpu(1), gpu(2, 1)], "m3": [gpu(0)]}, host.cluster)  # type: ignore[assignment]
    rows = [row for row in table(host, "cluster", "resources", "far") if row["kind"] == "gpu"]
    assert [(row["member"], row["total"], row["free"]) for row in rows] == [("m2", 3, 3), ("m3", 1, 1)]
    host("create", "tiny", "far:c1", "--target", "auto", "-d", "g,type=gpu,vendorid=10de,count=2")
    assert location(host, "c1") == "m2"
    devices = json.loads(host("info", "host:c1", "--format", "json").stdout)["devices"]
    chosen = {device["name"]: device.get("pci") for device in devices if device["type"] == "gpu"}
    assert chosen == {"g": "0000:10:00.0", "g-2": "0000:11:00.0"}
    rows = [row for row in table(host, "cluster", "resources", "far") if row["kind"] == "gpu"]
    assert [row["free"] for row in rows] == [1, 1]
    for name in ("c2", "c3"):
        host("create", "tiny", f"far:{name}", "--target", "m3", "-d", "g,type=gpu,vendorid=10de,lease=shared:2")
        assert host("config", "get", f"host:{name}", "user.ctrmgr.lease.g").stdout == "shared:2\n"
    third = host("create", "tiny", "far:c4", "--target", "m3", "-d", "g,type=gpu,pci=10:00.0,lease=shared", code=4)
    assert "`m3` has 0 of 1 GPUs with pci=0000:10:00.0 free, and not 1" in third.stderr
    host("create", "tiny", "far:c4", "--target", "auto", "-d", "g,type=gpu,vendorid=10de")
    assert location(host, "c4") == "m2"
    none = host("create", "tiny", "far:c5", "--target", "auto", "-d", "g,type=gpu,vendorid=10de", code=4)
    assert "`m2` has 0 of 3 GPUs with vendorid=10de free, and not 1" in none.stderr


def test_architectures(host: Outside, front: Front) -> None:
    """Where members differ, the image's is asked for."""
    rows = json.loads(host.cluster.tool("query", "/1.0/cluster/members?recursion=1"))
    for row in rows:
        row["architecture"] = "riscv64" if row["server_name"] != "m3" else row["architecture"]
    front.answer = lambda method, path: rows if path.startswith("/1.0/cluster/members?") else None
    for image in ("tiny", "far:tiny", "builtin:busybox"):
        said = host("create", image, "far:c1", "--target", "auto", "--explain", "--dry-run", "--format", "json")
        why = {row["member"]: row["why"] for row in json.loads(said.stdout)}
        machine = os.uname().machine
        assert why == {"m3": "", **dict.fromkeys(("m1", "m2"), f"is riscv64, and the image is {machine}")}
    host("create", "tiny", "far:c1", "--target", "auto")
    assert location(host, "c1") == "m3"


def test_two_want_the_last_one(host: Outside, front: Front) -> None:
    """A server gives one GPU to both; here one of them has it, and the other is told."""
    front.answer = having({"m1": [gpu(0)]}, host.cluster)  # type: ignore[assignment]
    words = ("--target", "auto", "-d", "g,type=gpu,vendorid=10de")
    both = [host.popen("create", "tiny", f"far:c{number}", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for number in (1, 2)]  # fmt: skip
    said = [each.communicate(timeout=120) for each in both]
    assert sorted(each.returncode for each in both) == [0, 4], said
    winner = said[[each.returncode for each in both].index(0)][0].decode().strip()
    assert [row["name"] for row in table(host, "list", "far:")] == [winner]


def test_the_next_is_tried(host: Outside, front: Front) -> None:
    """No member can start it: each is tried, and nothing is left."""
    front.answer = having({"m1": [gpu(0)], "m3": [gpu(0)]}, host.cluster)  # type: ignore[assignment]
    failed = host("launch", "tiny", "far:c1", "--target", "auto", "-d", "g,type=gpu,vendorid=10de", code=6)
    assert "`m1`: " in failed.stderr and "`m3`: " in failed.stderr and failed.stderr.count("trying the next") == 2
    assert table(host, "list", "host:") == []


def test_not_a_cluster(servers: dict[str, object], host: Outside) -> None:
    alone = servers[host.cluster.kind]
    host("remote", "add", "alone", str(alone.socket))  # type: ignore[attr-defined]
    for words, cure in ((("cluster", "list", "alone"), "`ctrmgr list alone:`"), (("cluster", "resources", "alone"), "`ctrmgr list alone:`"),
                        (("create", "tiny", "alone:c1", "--target", "auto"), "without --target")):  # fmt: skip
        said = host(*words, code=6).stderr
        assert "`alone` is no cluster" in said and f"hint: {cure}" in said


def test_evacuated(host: Outside) -> None:
    host.cluster.tool("cluster", "evacuate", "m2", "--force")
    try:
        assert table(host, "cluster", "list")[1]["status"] == "EVACUATED"
        why = json.loads(host("create", "tiny", "host:c1", "--target=auto", "--explain", "--dry-run", "-fjson").stdout)
        assert [(row["member"], row["why"]) for row in why if row["why"]] == [("m2", "is evacuated")]
        assert "`m2` is evacuated" in host("create", "tiny", "host:c1", "--target", "m2", code=4).stderr
    finally:
        host.cluster.tool("cluster", "restore", "m2", "--force")


def test_a_member_and_the_leader_are_gone(host: Outside) -> None:
    """The last: it takes a member away. One that is not known to be gone yet is asked, does not answer, and is passed over;
    without the leader the others choose another, and go on. Of Incus the whole machine vanishes; LXD, for which that is a matter of
    30 seconds, dies alone."""
    cluster = host.cluster
    remotes = host.folder / "etc/remotes"
    remotes.write_text(remotes.read_text().replace(str(cluster.first.socket), str(cluster.members["m2"].socket)))
    assert table(host, "cluster", "list")[0]["roles"]
    stays = ["sh", "-c", "echo; cat"] if cluster.kind == "lxd" else ["echo"]
    machine = subprocess.Popen([*cluster.first.inside(), *stays], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert machine.stdout.readline() == b"\n"
    cluster.first.kill()  # its namespaces go with it, but for what somebody is in: no goodbye
    host.env["CTRMGR_REMOTE_TIMEOUT"] = "2"
    deadline = time.monotonic() + 60
    while True:
        listed = host("cluster", "resources", code=None)
        if listed.code in (0, 6) and "m2" in listed.stdout and "\nm3 " in listed.stdout:
            break
        assert time.monotonic() < deadline, listed.stderr
        time.sleep(0.5)
    assert "`m1` " in listed.stderr and "\nm3 " in listed.stdout
    host("create", "tiny", "host:c1", "--target", "auto")
    assert location(host, "c1") in ("m2", "m3")
    told = host("create", "tiny", "host:c2", "--target", "m1", code=None)
    assert told.code in (4, 6) and "`m1`" in told.stderr and "Traceback" not in told.stderr
    machine.communicate()
