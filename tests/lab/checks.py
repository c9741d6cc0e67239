# SPDX-License-Identifier: GPL-3.0-or-later
"""What is checked in the guest, in this order, each on what the ones before have left.

`python3 -m tests.lab.checks` prints one line of JSON for each: its name, the seconds that it took, and what went wrong.
The command line runs in forks of this process: starting Python anew is the slowest thing that an emulated machine does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ctrmgr.backend import events, usage
from ctrmgr.kernel import control
from tests.conftest import dev_nodes, same, settle, snapshot
from tests.lab import dmem, fabric, plugs, shipped, side_doors, tpm
from tests.lab.commands import cgroup, ctr, host, info, sh, wait_for
from tests.lab.tries import get_contexts, outcome

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}
GPU, UVERBS, NVME = "/dev/dri/renderD128", "/dev/infiniband/uverbs0", "/dev/nvme0n1"
NVME_CHAR = "/dev/ng0n1"
DRM_IOCTL_VERSION, BLKGETSIZE64 = 0xC0406400, 0x80081272
FIRST_LINE = "the first line of the disk"
before: dict[str, object] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


class Holder:
    """A process in the instance's cgroup that opens the instance's own node, maps it if it can, and keeps both.

    `uses()` has it try everything that can be done with a descriptor: what came of each, `ok` or the error's name.
    """

    def __init__(self, node: str, ways: tuple[str, ...], ioctl: int, size: int) -> None:
        self.ways, self.ioctl, self.size = ways, ioctl, size
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = f"/proc/{info()['pid']}/root{node}"
        self.pid = os.fork()
        if not self.pid:
            try:
                Path("/sys/fs/cgroup/ctrmgr/c1/cgroup.procs").write_text("0")
                self._serve(theirs, os.open(path, os.O_RDWR))
            finally:
                os._exit(1)
        theirs.close()
        assert self.socket.recv(1), "it could not open the node"

    def _serve(self, asked: socket.socket, fd: int) -> None:
        kept = self._map(fd) if "kept" in self.ways else b""
        tries: dict[str, Callable[[], object]] = {
            "read": lambda: os.pread(fd, 1, 0),
            "ioctl": lambda: fcntl.ioctl(fd, self.ioctl, bytearray(self.size)),
            "map": lambda: self._map(fd),
            "kept": lambda: kept[0],
            "uring": lambda: side_doors.uring_command(fd),
            "ioctl32": lambda: side_doors.ioctl_of_32_bits(fd),
        }
        asked.send(b"\1")  # it is open
        while True:
            _, fds, _, _ = socket.recv_fds(asked, 1, 1)
            found = {way: outcome(tries[way]) for way in self.ways}
            found["received"] = str(len(fds))
            for theirs in fds:
                os.close(theirs)
            asked.send(json.dumps(found).encode())

    def _map(self, fd: int) -> mmap.mmap:
        return mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)

    def uses(self) -> dict[str, str]:
        """`received`: how many descriptors of the device that we send arrive."""
        with open(NVME, "rb") as ours:
            socket.send_fds(self.socket, [b"\1"], [ours.fileno()])
            answer: dict[str, str] = json.loads(self.socket.recv(4096))
        return answer

    def end(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.socket.close()


@check
def the_machine_is_as_wanted() -> None:
    """Pure cgroup2 with the controllers, AppArmor with our profile, and the hardware."""
    host("modprobe", "-a", "fuse", "rdma_rxe")
    host("ip", "link", "set", "eth0", "up")
    host("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
    host("apparmor_parser", "--replace", "--skip-cache", "native_helpers/apparmor/ctrmgr-instance")
    for node in (GPU, UVERBS, NVME):
        wait_for(node)
    with open(NVME, "wb") as disk:
        disk.write(FIRST_LINE.encode().ljust(4096, b"\n"))
    mounted = re.findall(r" - (cgroup2?) ", Path("/proc/self/mountinfo").read_text())
    assert mounted == ["cgroup2"]
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert {"cpu", "io", "memory", "pids"} <= set(controllers), controllers
    settle()
    before.update(snapshot())


@check
def it_launches() -> None:
    """With limits; root inside is nobody outside."""
    limits = ("limits.memory=64MiB", "limits.processes=30", "limits.cpu.allowance=20ms/100ms")
    options = [word for limit in limits for word in ("-c", limit)]
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", *options)
    inside, outside, count = sh("cat /proc/self/uid_map").split()
    assert inside == "0" and int(outside) >= 100000 and int(count) == 65536


@check
def the_memory_limit_kills() -> None:
    assert cgroup("memory.max") == str(64 << 20)
    done = ctr("exec", "c1", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1", code=None)
    assert done.code == 137, done
    assert re.search(r"^oom_kill [1-9]", cgroup("memory.events"), re.M)
    sh("dd if=/dev/zero of=/dev/null bs=10M count=1")


@check
def the_processes_limit_refuses() -> None:
    assert cgroup("pids.max") == "30"
    assert "fork" in sh("i=0; while [ $i -lt 60 ]; do sleep 999 & i=$((i+1)); done", code=None)
    for pid in cgroup("cgroup.procs").split():
        if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
            os.kill(int(pid), 9)
    assert re.search(r"^max [1-9]", cgroup("pids.events"), re.M)


@check
def the_cpu_allowance_throttles() -> None:
    assert cgroup("cpu.max") == "20000 100000"
    sh("timeout 1 sh -c 'while :; do :; done'", code=None)
    assert re.search(r"^nr_throttled [1-9]", cgroup("cpu.stat"), re.M)


@check
def limits_change_live() -> None:
    pid = info()["pid"]
    ctr("config", "set", "c1", "limits.memory=32MiB", "limits.processes=20", "limits.cpu.allowance=")
    assert (cgroup("memory.max"), cgroup("pids.max")) == (str(32 << 20), "20")
    assert cgroup("cpu.max").startswith("max ")
    assert info()["pid"] == pid
    done = ctr("exec", "c1", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=50M", "count=1", code=None)
    assert done.code == 137, done


def limits_of(name: str = "c1") -> dict[str, tuple[str, bool]]:
    """Key → what the kernel says, and whether that is what was asked for."""
    found: list[dict[str, object]] = info(name)["limits"]  # type: ignore[assignment]
    return {f"{limit['key']} {limit['file']}": (str(limit["value"]), limit["enforced"] is True) for limit in found}


@check
def every_controller_of_cgroup2_is_used() -> None:
    """Set while it runs, read back, and as before when they are taken away."""
    files = ("memory.oom.group", "memory.low", "cpuset.mems", "rdma.max", "cpu.weight", "hugetlb.2MB.max")
    wanted = {"limits.memory.oom_group": "true", "unified.memory.low": "4M", "limits.cpu.nodes": "0",
              "limits.rdma.rxe0.hca_handle": "1", "limits.rdma.rxe0.hca_object": "9", "limits.cpu.allowance": "40%",
              "limits.hugepages.2MB": "4MiB", "limits.memory.oom_priority": "-300"}  # fmt: skip
    ctr("config", "set", "c1", *(f"{key}={value}" for key, value in wanted.items()))
    assert [cgroup(file) for file in files] == [
        "1",
        str(4 << 20),
        "0",
        "rxe0 hca_handle=1 hca_object=9",
        "40",
        str(4 << 20),
    ]
    assert all(holds for _, holds in limits_of().values()), limits_of()
    assert get_contexts(UVERBS, "/sys/fs/cgroup/ctrmgr/c1", 2) == ["ok", "EAGAIN"]
    assert sh("cat /proc/1/oom_score_adj /proc/self/oom_score_adj").split() == ["-300", "-300"]
    assert "ermission" in sh("echo -301 > /proc/self/oom_score_adj", code=None)
    ctr("config", "unset", "c1", *wanted)
    assert sh("cat /proc/1/oom_score_adj /proc/self/oom_score_adj").split() == ["0", "0"]
    assert [cgroup(file) for file in files] == ["0", "0", "0", "rxe0 hca_handle=max hca_object=max", "100", "max"]
    assert get_contexts(UVERBS, "/sys/fs/cgroup/ctrmgr/c1", 2) == ["ok", "ok"]


@check
def a_disk_is_as_fast_as_it_may_be() -> None:
    """2 MiB at 1 MiB a second; the limit goes with the device."""
    attach = ("attach-device", "c1", "it", "type=unix-block", f"source={NVME}", "path=/dev/it")
    times = []
    for limit in ((), ("limits.max=1MiB",)):
        ctr(*attach, *limit)
        begin = time.monotonic()
        sh("dd if=/dev/it of=/dev/null bs=256K count=8 iflag=direct")
        times.append(time.monotonic() - begin)
        if limit:
            assert re.search(rf" rbps={1 << 20} wbps={1 << 20} ", cgroup("io.max")), cgroup("io.max")
            assert limits_of()["it.limits.read io.max"][1]
        ctr("detach-device", "c1", "it")
    assert cgroup("io.max") == ""
    assert times[1] > times[0] + 1, times


@check
def apparmor_confines() -> None:
    """Init and what is executed are in our profile; what it denies is refused by it and by nothing else."""
    assert sh("cat /proc/1/attr/current /proc/self/attr/current").split("\n") == ["ctrmgr-instance (enforce)"] * 2
    ctr("launch", "builtin:busybox", "c2", "-p", "no-network", "-c", "security.nesting=true")  # nothing is masked
    denied = "head -n 1 /proc/kallsyms"
    assert "Permission denied" in sh(denied, name="c2", code=1)
    Path("/sys/kernel/security/apparmor/.remove").write_text("ctrmgr-instance")
    try:
        ctr("restart", "--force", "c2")
        assert "ctrmgr" not in sh("cat /proc/1/attr/current", name="c2")
        sh(denied, name="c2")
        ctr("delete", "--force", "c2")
    finally:
        host("apparmor_parser", "--replace", "--skip-cache", "native_helpers/apparmor/ctrmgr-instance")


def owned_and_gone(node: str, group: str) -> None:
    """After `attach-device`: the owner is right; then detached, it cannot be opened by any name that it had."""
    assert sh(f"stat -c '%U %G %a' {node}") == f"root {group} 660"
    sh(f"exec 3<>{node}", user="1000", group=group)
    assert "Permission denied" in sh(f"exec 3<>{node}", user="1000", group="1000", code=None)
    sh(f"ln {node} /dev/kept; exec 3<{node}")
    ctr("detach-device", "c1", "it")
    assert "No such file" in sh(f"ls {node}", code=1)
    assert "Permission denied" in sh("exec 3</dev/kept", code=None)
    sh("rm /dev/kept")


@check
def a_gpu_comes_and_goes() -> None:
    """The render node of a real DRM driver, by the image's group `render`, and the driver answers inside."""
    ctr("attach-device", "c1", "it", "type=unix-char", f"source={GPU}", "gid=render", "mode=0660")
    holder = Holder(GPU, ("ioctl",), DRM_IOCTL_VERSION, 64)
    try:
        assert holder.uses()["ioctl"] == "ok"
        owned_and_gone(GPU, "render")
        assert holder.uses()["ioctl"] == "EPERM"
    finally:
        holder.end()


@check
def an_hca_comes_and_goes() -> None:
    ctr("attach-device", "c1", "it", "type=unix-char", f"source={UVERBS}", "gid=video", "mode=0660")
    owned_and_gone(UVERBS, "video")


@check
def a_disk_comes_and_goes() -> None:
    ctr("attach-device", "c1", "it", "type=unix-block", f"source={NVME}", "gid=disk", "mode=0660", "readonly=true")
    assert sh(f"head -n 1 {NVME}") == FIRST_LINE
    assert "Operation not permitted" in sh(f"echo no >{NVME}", code=None)
    ctr("detach-device", "c1", "it")
    ctr("attach-device", "c1", "it", "type=unix-block", f"source={NVME}", "gid=disk", "mode=0660")
    owned_and_gone(NVME, "disk")
    assert Path(NVME).open("rb").readline().decode().strip() == FIRST_LINE


@check
def devices_are_found_by_what_they_are() -> None:
    """The types `gpu`, `infiniband` and `unix-block`: the hardware is named, and the nodes follow; they last over a start."""
    (gpu,) = (row for row in json.loads(ctr("device", "list", "gpu", "--format", "json").stdout) if row["nodes"])
    ctr("attach-device", "c1", "gpu", "type=gpu", f"id={gpu['id']}", "gid=render", "lease=exclusive")
    ctr("attach-device", "c1", "hca", "type=infiniband", "parent=rxe0", "gid=video")
    ctr("attach-device", "c1", "disk", "type=unix-block", f"source={NVME}", "path=/dev/data", "readonly=true")
    assert "id: nvme-" in ctr("config", "show", "c1").stdout
    shared = ["infiniband/rdma_cm"] if os.path.exists("/dev/infiniband/rdma_cm") else []
    try:
        for again in (False, True):
            owners = sh("stat -c '%G %a' /dev/dri/renderD128 /dev/infiniband/uverbs0").split()
            assert owners == ["render", "660", "video", "666"], owners
            there = sh("cd /dev; echo dri/* infiniband/* data").split()
            assert there == ["dri/renderD128", *shared, "infiniband/uverbs0", "data"], there
            assert sh("head -n 1 /dev/data") == FIRST_LINE
            sh("exec 3<>/dev/dri/renderD128; exec 4<>/dev/infiniband/uverbs0")
            if not again:
                ctr("restart", "--force", "c1")
        ctr("launch", "builtin:busybox", "c2", "-p", "no-network", "-d", f"gpu,type=gpu,id={gpu['id']}", code=4)
    finally:
        for device in ("gpu", "hca", "disk"):
            ctr("detach-device", "c1", device)
    there = sh("cd /dev; ls dri/* infiniband/* data 2>/dev/null", code=None)
    assert not there, there
    ctr("launch", "builtin:busybox", "c2", "-p", "no-network", "-d", "gpu,type=gpu")
    assert sh("ls /dev/dri", name="c2") == "renderD128"
    ctr("delete", "--force", "c2")


check(shipped.profiles_give_what_they_say)
for more in (
    dmem.memory_is_kept_under_pressure,
    dmem.a_gpus_memory_is_limited_and_kept,
    dmem.what_is_kept_stays_when_others_want_more,
    tpm.a_tpm_of_its_own,
    *plugs.CHECKS,
):
    check(more)


@check
def open_descriptors_are_revoked() -> None:
    """What was open before a detach is refused, of this device and in this instance alone, until it is attached again."""
    attach = ("attach-device", "c1", "it", "type=unix-block", f"source={NVME}")
    assert info()["open-fds"] == "revoked"
    ctr(*attach)
    ways = ("read", "ioctl", "map", "kept")
    holder, ours = Holder(NVME, ways, BLKGETSIZE64, 8), os.open(NVME, os.O_RDONLY)
    try:
        everything = {"read": "ok", "ioctl": "ok", "map": "ok", "kept": "ok", "received": "1"}
        assert holder.uses() == everything
        said = ctr("detach-device", "c1", "it").stderr
        assert re.search(rf"on the host {holder.pid}\): \d open, 1 mappings", said), said
        assert "refused from now on; mappings that they have already stay" in said
        refused = {"read": "EPERM", "ioctl": "EPERM", "map": "EPERM", "kept": "ok", "received": "0"}
        assert holder.uses() == refused
        assert os.pread(ours, 4, 0) == FIRST_LINE[:4].encode()
        ctr(*attach)
        assert holder.uses() == everything
        ctr("attach-device", "c1", "again", "type=unix-block", f"source={NVME}", "path=/dev/other")
        ctr("detach-device", "c1", "it")
        assert holder.uses() == everything, "another device of this instance has the number"
        ctr("detach-device", "c1", "again")
        assert holder.uses() == refused
        assert info()["open-fds"] == "revoked"
    finally:
        holder.end()
        os.close(ours)


@check
def suspended_devices_are_revoked_until_they_are_resumed() -> None:
    ctr("attach-device", "c1", "it", "type=unix-block", f"source={NVME}")
    holder = Holder(NVME, ("read", "kept"), 0, 0)
    try:
        for op, read in ((control.SUSPEND, "EPERM"), (control.RESUME, "ok")):
            assert control.ask("/run/ctrmgr/c1", op, name="it").error == 0
            assert holder.uses()["read"] == read
        ctr("detach-device", "c1", "it")
        assert holder.uses() == {"read": "EPERM", "kept": "ok", "received": "0"}
    finally:
        holder.end()


@check
def side_doors_are_closed_too() -> None:
    """Commands of io_uring's own, and what 32-bit programs call."""
    for node, way, answer in ((NVME_CHAR, "uring", errno.errorcode[errno.EOPNOTSUPP]), (NVME, "ioctl32", "ok")):
        if way == "ioctl32" and not side_doors.has_32_bit_calls():
            continue
        kind = "unix-block" if node == NVME else "unix-char"
        ctr("attach-device", "c1", "it", f"type={kind}", f"source={node}")
        holder = Holder(node, (way,), 0, 0)
        try:
            assert holder.uses()[way] in (answer, "ENOSYS")
            ctr("detach-device", "c1", "it")
            assert holder.uses()[way] in ("EPERM", "ENOSYS")
        finally:
            holder.end()


@check
def what_every_instance_has_is_not_revoked() -> None:
    ctr("attach-device", "c1", "it", "type=unix-char", "source=/dev/zero", "path=/dev/zero2")
    ctr("detach-device", "c1", "it")
    assert sh("head -c 3 /dev/zero | wc -c") == "3"


@check
def the_hosts_nodes_are_untouched() -> None:
    assert dev_nodes() == before["nodes"]


@check
def the_doctor_finds_nothing_wrong() -> None:
    said = ctr("doctor").stdout.splitlines()
    for line in ("host: cgroups: pure cgroup2", "host: open-fds: revoked", "c1: all: runs well"):
        assert f"ok      {line}" in said, said
    ctr("attach-device", "c1", "it", "type=unix-char", f"source={GPU}")
    sh(f"rm {GPU}")
    assert "is gone" in ctr("doctor", "c1", code=5).stdout
    assert ctr("doctor", "c1", "--fix").stdout.startswith("mended ")
    sh(f"exec 3<>{GPU}")
    ctr("detach-device", "c1", "it")


@check
def use_and_limits_that_are_hit() -> None:
    """On pure cgroup2: what `top` reads, and what `monitor` is told of, by the files' own notifications."""
    limits = ("limits.memory=32MiB", "limits.processes=20", "limits.cpu.allowance=50ms/100ms")
    ctr("launch", "builtin:busybox", "eater", "-p", "no-network", *(word for limit in limits for word in ("-c", limit)))
    watcher, sampler = events.Watcher(["eater"], ["limit"]), usage.Sampler()
    sampler.sample(["eater"])
    sh("dd if=/dev/zero of=/dev/null bs=100M count=1", name="eater", code=137)
    told: list[events.Event] = []
    while not any(event.event == "oom_kill" for event in told):
        told += watcher.wait() or []
    watcher.close()
    assert {event.details["resource"] for event in told} == {"memory"}, [event.fields() for event in told]
    (found,) = sampler.sample(["eater"])
    values = found.values
    assert (values["cpu-limit"], values["memory-limit"], values["processes-limit"]) == (50.0, 32 << 20, 20)
    assert 0 < (values["cpu"] or 0) < 60 and 0 < (values["memory"] or 0) < 32 << 20 and values["processes"] == 1
    ctr("delete", "--force", "eater")


check(fabric.the_bridge_carries)
check(fabric.instances_speak_by_rdma)


@check
def nothing_is_left() -> None:
    ctr("delete", "--force", "c1")
    assert ctr("list", "--format", "csv").stdout.count("\n") == 1
    settle()
    after = snapshot()
    same(before, after, besides=("links", "cgroups"))
    assert set(after["links"]) - set(before["links"]) == {"ctrbr0"}  # type: ignore[call-overload]
    assert not list(Path("/sys/fs/cgroup/ctrmgr").glob("*/"))


def run() -> int:
    """All of them; a reader of the lines decides what that means."""
    for name, function in CHECKS.items():
        began, wrong = time.monotonic(), ""
        try:
            function()
        except BaseException:
            wrong = traceback.format_exc()
            ctr("detach-device", "c1", "it", code=None)  # so that the next one can be told from it
        print(json.dumps({"check": name, "seconds": round(time.monotonic() - began, 2), "wrong": wrong}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run())
