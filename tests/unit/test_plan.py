# SPDX-License-Identifier: GPL-3.0-or-later
"""From keys to rows, on recorded hosts; claims; templates and their stamps."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrmgr import state
from ctrmgr.errors import ConflictError, HostError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.host import cgroup, net, subid
from ctrmgr.host.machine import Host
from ctrmgr.images.store import Image
from ctrmgr.plan import compile, idmap, instance, limits, network, seccomp, template
from ctrmgr.spec import capabilities

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "".join(
    f"3{i} 31 0:3{i} / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"
    for i, name in enumerate(("cpu,cpuacct", "cpuset", "memory", "pids", "blkio"))
)
HYBRID = V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
LAYOUTS = {"v2": V2, "v1": V1, "hybrid": HYBRID}


def tree(root: Path, layout: str, *, online: str = "0-3", delegated: str | None = None) -> Host:
    """A recorded host."""
    files = {
        "proc/self/mountinfo": LAYOUTS[layout],
        "proc/self/cgroup": "0::/user.slice/user-1000.slice\n",
        "proc/sys/kernel/cap_last_cap": "40\n",
        "proc/meminfo": "MemTotal:       1048576 kB\nMemFree: 1 kB\n",
        "sys/devices/system/cpu/online": online + "\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node1/cpulist": "2-3\n",
        "sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n",
        "sys/fs/cgroup/memory/ctrmgr/memory.memsw.limit_in_bytes": "9\n",
    }
    if layout == "v2":
        files["sys/fs/cgroup/cgroup.controllers"] = "cpuset cpu io memory pids\n"
        files["sys/fs/cgroup/system.slice/io.weight"] = "default 100\n"
        files["sys/fs/cgroup/user.slice/user-1000.slice/cgroup.controllers"] = (delegated or "") + "\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(str(root), privileged=delegated is None)


IMAGE = Image("ab" * 32, "/images/x", {"init": "/sbin/init", "halt-signal": "37"})
LIMITS = {
    "limits.cpu": "1-2",
    "limits.cpu.allowance": "20ms/100ms",
    "limits.cpu.priority": "5",
    "limits.memory": "50%",
    "limits.memory.swap": "64MiB",
    "limits.processes": "100",
}
HALF = 1 << 29
GOLDEN_V1 = [
    "cpuset cpuset.mems 0,1", "cpuset cpuset.cpus 1-2", "cpu cpu.shares 1019", "cpu cpu.cfs_period_us 100000",
    "cpu cpu.cfs_quota_us 20000", f"memory memory.limit_in_bytes {HALF}",
    f"memory memory.memsw.limit_in_bytes {HALF + (64 << 20)}", "pids pids.max 100",
]  # fmt: skip
GOLDEN = {
    "v1": GOLDEN_V1,
    "hybrid": GOLDEN_V1,
    "v2": [
        "unified cpuset.cpus 1-2", "unified cpu.weight 95", "unified cpu.max 20000 100000", f"unified memory.max {HALF}",
        f"unified memory.swap.max {64 << 20}", "unified pids.max 100",
    ],
}  # fmt: skip


@pytest.mark.parametrize("layout", GOLDEN)
def test_limits_go_where_the_controller_is(tmp_path: Path, layout: str) -> None:
    host = tree(tmp_path, layout)
    assert host.cgroups.layout == layout
    assert [" ".join(row[1:]) for row in limits.rows(LIMITS, host)] == GOLDEN[layout]


def test_delegated_without_a_controller_is_refused_or_left_out(tmp_path: Path) -> None:
    host = tree(tmp_path, "v2", delegated="memory pids")
    with pytest.raises(UnsupportedError, match=r"`limits.cpu` .*delegated"):
        limits.rows(LIMITS, host)
    rows = limits.rows({**LIMITS, "limits.enforcement": "best-effort"}, host)
    assert [row[2] for row in rows if row[0] == "left-out"] == [
        "limits.cpu", "limits.cpu.allowance", "limits.cpu.priority",
    ]  # fmt: skip
    assert [row[2] for row in rows if row[0] == "cgroup-file"] == ["memory.max", "memory.swap.max", "pids.max"]


def test_disk_priority_needs_a_scheduler_with_weights(tmp_path: Path) -> None:
    assert limits.rows({"limits.disk.priority": "5"}, tree(tmp_path / "a", "v2")) == [
        ["cgroup-file", "unified", "io.weight", "500"]
    ]
    with pytest.raises(UnsupportedError, match="scheduler"):
        limits.rows({"limits.disk.priority": "5"}, tree(tmp_path / "b", "v1"))


@pytest.mark.parametrize("value", ["5", "0-4", "9"])
def test_cpus_that_the_host_lacks(tmp_path: Path, value: str) -> None:
    with pytest.raises(HostError):
        limits.rows({"limits.cpu": value}, tree(tmp_path, "v2"))


def test_live_changes_are_in_an_order_that_v1_takes(tmp_path: Path) -> None:
    host = tree(tmp_path, "v1")

    def plan(memory: str) -> list[list[str]]:
        return limits.rows({"limits.memory": memory, "limits.memory.swap": "1MiB"}, host)

    small, large = plan("64MiB"), plan("128MiB")
    assert [row[2] for row in limits.changes(small, large, host)] == [
        "memory.memsw.limit_in_bytes",
        "memory.limit_in_bytes",
    ]
    assert [row[2] for row in limits.changes(large, small, host)] == [
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
    ]
    assert [row[3] for row in limits.changes(small, [], host)] == ["-1", "-1"]
    assert limits.changes(small, small, host) == []


def test_every_file_that_is_written_can_be_undone(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        host = tree(tmp_path / layout, layout)
        for swap in ("false", "1MiB"):
            for enforce in ("hard", "soft"):
                config = {**LIMITS, "limits.memory.swap": swap, "limits.memory.enforce": enforce}
                if layout != "v2" and (swap, enforce) == ("1MiB", "soft"):
                    continue
                rows = limits.rows(config, host)
                undone = limits.changes(rows, [], host)
                assert {row[2] for row in undone} == {row[2] for row in rows}


def build(tmp_path: Path, config: dict[str, str], devices: dict[str, dict[str, str]] | None = None) -> list[list[str]]:
    return compile.build(IMAGE, config, devices or {}, tree(tmp_path, "v2"))


def test_confinement_rows(tmp_path: Path) -> None:
    rows = build(tmp_path, {"security.capabilities.drop": "net_raw", "security.capabilities.keep": "syslog"})
    mask = int(next(row[1] for row in rows if row[0] == "capabilities"), 16)
    kept = {name for name, number in capabilities.NUMBERS.items() if mask >> number & 1}
    assert "net_raw" not in kept and "syslog" in kept
    assert "sys_boot" in kept and not {"sys_module", "sys_rawio", "sys_time", "mac_admin", "bpf"} & kept
    assert any(row == ["mask", "/proc/kcore"] for row in rows)
    assert not any(row[0] in ("mask", "readonly") for row in build(tmp_path, {"security.nesting": "true"}))


def test_refused_before_anything_and_ignored_on_demand(tmp_path: Path) -> None:
    host = tree(tmp_path, "v2")
    with pytest.raises(UnsupportedError, match=r"`security\.privileged`"):
        compile.build(IMAGE, {"security.privileged": "true"}, {}, host)
    gpu = {"g": {"type": "pci"}, "f": {"type": "unix-char", "source": "/dev/fuse"}}
    with pytest.raises(UnsupportedError, match="`g`"):
        compile.build(IMAGE, {}, gpu, host)
    rows = compile.build(IMAGE, {}, gpu, host, ignore_unsupported=True)
    assert [name for name, _ in compile.ignored(rows)] == ["g"]
    assert [row[1] for row in rows if row[0] == "device"] == ["f"]


def test_device_row_and_clash(tmp_path: Path) -> None:
    fuse = {"type": "unix-char", "source": "/dev/fuse", "gid": "render", "mode": "0660", "readonly": "true"}
    rows = build(tmp_path, {}, {"f": fuse})
    assert ["device", "f", "char", "/dev/fuse", "/dev/fuse", "0", "render", "0660", "r", "required"] in rows
    with pytest.raises(SpecError, match="same path"):
        build(tmp_path, {}, {"f": fuse, "g": fuse})


def test_no_more_than_the_monitor_has_room_for(tmp_path: Path) -> None:
    """The numbers are those of the C code."""
    header = (Path(__file__).resolve().parents[2] / "native_helpers/plan.h").read_text()
    room = dict(re.findall(r"^#define PLAN_(\w+) +(\d+)$", header, re.MULTILINE))
    assert int(room["DEVICES"]) == compile.ROOM["device"][0]
    assert int(room["BINDS"]) == compile.ROOM["bind"][0]
    assert int(room["HOOKS"]) == compile.ROOM["hook"][0]
    assert int(room["WORDS"]) == compile.ROOM["env"][0] + 1 == compile.ROOM["device-env"][0]
    assert int(room["MAPS"]) == idmap.EXTENTS_MAX
    many = {f"d{n}": {"type": "unix-char", "source": f"/dev/x{n}"} for n in range(129)}
    with pytest.raises(SpecError, match="129 device nodes"):
        build(tmp_path, {}, many)
    with pytest.raises(SpecError, match="extents"):
        idmap.build(65536, 100000, [(n * 2 + 1, 1 + n * 2, 1) for n in range(20)])


def test_network_modes(tmp_path: Path) -> None:
    assert ["net", "none"] in build(tmp_path, {})
    host = {"type": "nic", "nictype": "host"}
    bridge = {"type": "nic", "network": "ctrbr0"}
    assert ["net", "host"] in build(tmp_path, {}, {"a": host})
    with pytest.raises(SpecError, match="exclude"):
        build(tmp_path, {}, {"a": host, "b": bridge})
    for other in (bridge, {**bridge, "name": "eth1"}):
        with pytest.raises(UnsupportedError, match="one link"):
            build(tmp_path, {}, {"a": bridge, "b": other})
    with pytest.raises(SpecError, match="network"):
        build(tmp_path, {}, {"a": {"type": "nic"}})


HOLES = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 60)), max_size=6)


@given(HOLES)
def test_idmap_covers_each_id_once(holes: list[tuple[int, int]]) -> None:
    raw = [(inside, 10_000_000 + 100_000 * index, count) for index, (inside, count) in enumerate(holes)]
    meet = any(a < c + d and c < a + b for i, (a, b) in enumerate(holes) for j, (c, d) in enumerate(holes) if i < j)
    if meet:
        with pytest.raises(SpecError, match="twice"):
            idmap.build(600, 1_000_000, raw)
        return
    rows = idmap.build(600, 1_000_000, raw)
    found = {}
    for inside, outside, count in rows:
        for step in range(count):
            assert inside + step not in found
            found[inside + step] = outside + step
    assert len(set(found.values())) == len(found)
    wanted = {i: 1_000_000 + i for i in range(600)}
    for inside, outside, count in raw:
        wanted.update({inside + step: outside + step for step in range(count)})
    assert found == wanted


def test_one_host_id_is_never_two_ids_inside() -> None:
    with pytest.raises(SpecError, match="mapped twice"):
        idmap.build(65536, 100000, [(1000, 100005, 1)])


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 200)), max_size=6), st.integers(1, 120))
def test_free_ranges_meet_nothing(taken: list[tuple[int, int]], size: int) -> None:
    ranges = [(100, 300), (600, 250)]
    found = list(subid.free(ranges, taken, size))
    for base in found:
        assert any(first <= base and base + size <= first + count for first, count in ranges)
        assert not any(base < used + count and used < base + size for used, count in taken)
    assert all(b - a >= size for a, b in itertools.pairwise(found))


def test_subid_files(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/subuid").write_text(
        "# x\nroot:100000:65536\nme:0:10\n1000:300000:100\nme:bad:1\nme:4294967290:65536\n"
    )
    (tmp_path / "etc/subgid").write_text("root:120000:65536\nme:300050:100\n")
    assert subid.allowed("root", 0, str(tmp_path)) == ((120000, 45536),)
    assert subid.allowed("me", 1000, str(tmp_path)) == ((300050, 50),)
    assert subid.allowed("other", 7, str(tmp_path)) == ()
    assert subid.allowed("root", 0, str(tmp_path / "empty")) == subid.DEFAULT


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "RUN", "CONFIG"):
        monkeypatch.setenv(f"CTRMGR_{name}_DIR", str(tmp_path / name))
    monkeypatch.setattr(subid, "mine", lambda: ((100000, 65536 * 3),))
    return tmp_path


def ids(size: int = 65536, base: int = 0, isolated: bool = True) -> instance.Needs:
    return instance.Needs(size, base, isolated, [])


def test_ids_are_their_own_until_there_are_none(place: Path) -> None:
    assert [instance.claim(ids(), f"c{n}").base for n in range(3)] == [100000, 165536, 231072]
    with pytest.raises(ConflictError, match="no 65536 host ids"):
        instance.claim(ids(), "c3")
    instance.unclaim("c1")
    assert instance.claim(ids(), "c4").base == 165536


def test_overlap_is_refused_whatever_the_sizes(place: Path) -> None:
    instance.claim(ids(), "c0")
    with pytest.raises(ConflictError, match="are not free"):
        instance.claim(ids(base=120000), "c1")
    with pytest.raises(ConflictError):
        instance.claim(ids(size=70000, base=100000), "c1")
    with pytest.raises(SpecError, match="not yours"):
        instance.claim(ids(base=5000), "c1")
    assert set(state.claims("ids").values()) == {"c0"}


def test_those_that_are_not_isolated_share(place: Path) -> None:
    bases = {instance.claim(ids(isolated=False), name).base for name in ("a", "b")}
    assert bases == {100000}
    instance.unclaim("a")
    assert instance.claim(ids(), "c").base == 165536


TEMPLATE = [
    ["@ids", "65536", "0", "1"], ["layer", "/r"], ["@cpus", "2", "unified", "0,1,2"], ["net", "bridge"],
    ["@link", "ctrbr0", "eth0", "", "0", ""], ["init", "builtin"],
]  # fmt: skip


def test_fill_and_refill(place: Path) -> None:
    claims = instance.claim(instance.needs(TEMPLATE), "c1")
    plan = instance.fill(TEMPLATE, name="c1", claims=claims)
    assert plan[:2] == [["ctrmgr-plan", "1"], ["name", "c1"]]
    assert not any(row[0].startswith("@") for row in plan)
    link = next(row for row in plan if row[0] == "link")
    assert len(link[2]) <= 15 and int(link[4][:2], 16) & 3 == 2
    assert [row[0] for row in plan if row[0] in ("net", "link", "address", "gateway")] == [
        "net", "link", "address", "address", "gateway", "gateway",
    ]  # fmt: skip
    again = instance.fill(TEMPLATE, name="c1", claims=instance.held(instance.needs(TEMPLATE), "c1", plan), old=plan)
    assert again == plan
    other = instance.claim(instance.needs(TEMPLATE), "c2")
    cpus = [row[3] for row in instance.fill(TEMPLATE, name="c2", claims=other) if row[0] == "cgroup-file"]
    assert cpus != [row[3] for row in plan if row[0] == "cgroup-file"]
    with pytest.raises(ConflictError, match="other host ids"):
        instance.held(ids(size=70000), "c1", plan)


def test_a_failed_claim_takes_nothing(place: Path) -> None:
    network.load("ctrbr0")
    foreign = instance.Needs(65536, 0, True, [instance.Link("ctrbr0", "eth0", "", "0", "8.8.8.8")])
    with pytest.raises(SpecError, match="not an address"):
        instance.claim(foreign, "c1")
    assert state.claims("ids") == {}


def test_addresses_are_all_given_once(place: Path) -> None:
    bridge = network.Network("b", "10.9.0.1", 28, "fd00::1", 64)
    found = list(bridge.candidates("c1"))
    assert len(found) == len(set(found)) == 13 and all(map(bridge.holds, found))
    assert found[0] == next(bridge.candidates("c1"))
    assert bridge.address6("10.9.0.12") == "fd00::c"


def test_corrupt_network_file_is_named(place: Path) -> None:
    path = Path(network.path("ctrbr0"))
    path.parent.mkdir(parents=True)
    path.write_text("ipv4\tx\n")
    with pytest.raises(Exception, match="corrupt"):
        network.load("ctrbr0")


def test_free_subnet_meets_no_route() -> None:
    assert net.free_subnet([]) == "10.113.0.0"
    assert net.free_subnet([(net.number("10.113.0.0"), net.mask_of(16))]) == "10.114.0.0"
    assert net.free_subnet([(net.number("10.113.1.7"), net.mask_of(32))]) == "10.113.4.0"
    assert net.free_subnet([(0, net.mask_of(1)), (1 << 31, net.mask_of(1))]) == ""


def test_nameservers_pass_over_the_stub(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "run/systemd/resolve").mkdir(parents=True)
    (tmp_path / "etc/resolv.conf").write_text("nameserver 127.0.0.53\nsearch lan\n")
    (tmp_path / "run/systemd/resolve/resolv.conf").write_text("nameserver 9.9.9.9\n")
    assert net.nameservers(str(tmp_path)) == (["9.9.9.9"], ["lan"])
    files = network.files("c1", ["10.0.0.2"], *net.nameservers(str(tmp_path)))
    assert files["etc/resolv.conf"] == "nameserver 9.9.9.9\nsearch lan\n"
    assert "10.0.0.2\tc1" in files["etc/hosts"]


def test_cgroups_of_an_odd_mountinfo(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("garbage\n1 2 3 / /a\\040b rw - cgroup2 x rw\n")
    found = cgroup.read(str(tmp_path))
    assert found.unified == "/a b" and found.layout == "v2" and found.where("memory") == ""


POLICY = "default allow\narch compat\ndeny EPERM bpf\n"


def test_seccomp_policies() -> None:
    assert seccomp.policy({}, POLICY) == POLICY
    denied = seccomp.policy({"security.syscalls.deny": "mount\nchmod errno 13\nptrace kill"}, POLICY)
    assert denied == POLICY + "deny EPERM mount\ndeny 13 chmod\nkill ptrace\n"
    assert "arch native" in seccomp.policy({"security.syscalls.deny_compat": "true"}, POLICY)
    assert "bpf" not in seccomp.policy({"security.syscalls.deny_default": "false"}, POLICY)
    allowed = seccomp.policy({"security.syscalls.allow": "read\nwrite"}, POLICY)
    assert allowed.startswith("default kill\n") and "allow execve\n" in allowed and "allow write\n" in allowed
    with pytest.raises(SpecError, match="exclude"):
        seccomp.policy({"security.syscalls.allow": "read", "security.syscalls.deny": "write"}, POLICY)
    with pytest.raises(SpecError, match="not a rule"):
        seccomp.policy({"security.syscalls.deny": "chmod perhaps"}, POLICY)


@pytest.fixture
def compiler(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler of policies that makes eight zero bytes of anything: these tests are about what is kept and when."""
    libexec = place / "libexec"
    libexec.mkdir()
    (libexec / "ctrmgr-seccomp").write_text("#!/bin/sh\ncat >/dev/null; head -c 8 /dev/zero\n")
    (libexec / "ctrmgr-seccomp").chmod(0o755)
    (libexec / "default.policy").write_text(POLICY)
    monkeypatch.setenv("CTRMGR_LIBEXEC", str(libexec))
    return place


def test_template_holds_until_a_file_changes(compiler: Path) -> None:
    own = compiler / "CONFIG/profiles"
    own.mkdir(parents=True)
    assert template.cached(IMAGE, ["default"]) is None
    rows = compile.compile_template(IMAGE, ["default"], {}, {})
    assert (template.cached(IMAGE, ["default"]) or [])[-len(rows) :] == rows
    assert template.cached(Image("cd" * 32, "/y", {}), ["default"]) is None
    # A stronger profile of the same name appears.
    (own / "default.yaml").write_text("config: {limits.kernel.nofile: 7}\n")
    assert template.cached(IMAGE, ["default"]) is None
    compile.compile_template(IMAGE, ["default"], {}, {})
    assert ["rlimit", "nofile", "7", "7"] in (template.cached(IMAGE, ["default"]) or [])
    # The same size and time, but another file.
    before = os.stat(own / "default.yaml")
    (own / "new").write_text("config: {limits.kernel.nofile: 8}\n")
    os.utime(own / "new", ns=(before.st_mtime_ns, before.st_mtime_ns))
    (own / "new").rename(own / "default.yaml")
    assert template.cached(IMAGE, ["default"]) is None
    compile.compile_template(IMAGE, ["default"], {}, {})
    (own / "default.yaml").unlink()
    assert template.cached(IMAGE, ["default"]) is None


def test_template_without_its_filter_is_none(compiler: Path) -> None:
    os.unlink(compile.compile_template(IMAGE, ["default"], {}, {})[-1][1])
    assert template.cached(IMAGE, ["default"]) is None


def test_overrides_are_not_kept(compiler: Path) -> None:
    compile.compile_template(IMAGE, ["default"], {"user.x": "1"}, {})
    assert template.cached(IMAGE, ["default"]) is None


def test_recompile_keeps_what_is_its_own(compiler: Path) -> None:
    rows = compile.compile_template(IMAGE, ["default"], {}, {})
    plan = instance.fill(rows, name="c1", claims=instance.claim(instance.needs(rows), "c1"))
    again = compile.recompile("c1", IMAGE, ["default"], {"security.nesting": "true"}, {}, plan)
    own = ("uidmap", "gidmap", "link", "address", "gateway", "cgroup")
    assert [row for row in again if row[0] in own] == [row for row in plan if row[0] in own]
    assert ["nesting", "1"] in again


def test_missing_profile_has_the_nearest_as_hint(place: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        compile.find("defalt")
    assert caught.value.hint == "did you mean `default`?"
    with pytest.raises(SpecError):
        compile.find("../../etc/passwd")
