# SPDX-License-Identifier: GPL-3.0-or-later
"""What a `gpu` device becomes on recorded machines: which nodes, known again by what, and what is said when it cannot be had."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.devices import choose, rows
from ctrmgr.errors import CtrmgrError, HostError, NotFoundError, SpecError
from ctrmgr.host import libraries, sysfs
from ctrmgr.spec import device
from tests import trees

Machine = Callable[..., str]
FIRST, SECOND = "0000:18:00.0", "0000:9a:00.0"
LIBS = "/usr/lib/x86_64-linux-gnu"
VERSION = "535.129.03"


def planned(root: str, **keys: str) -> list[list[str]]:
    """The rows of a gpu; `__` in a key is a dot."""
    given = {key.replace("__", "."): value for key, value in keys.items()}
    return rows.rows("g", device.check("g", {"type": "gpu", **given}), root)


def nodes(found: list[list[str]]) -> list[str]:
    return [row[4] for row in found if row[0] == "device"]


def bare(root: str, **keys: str) -> list[str]:
    """The nodes alone."""
    return nodes(planned(root, driver__capabilities="none", **keys))


NVIDIA = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]


@pytest.mark.parametrize(
    "keys",
    [
        {"pci": FIRST},
        {"pci": "18:00.0"},
        {"id": "1"},  # the number of its DRM card, as LXD has it
        {"id": "card1"},
        {"id": "renderD128"},
        {"id": "nvidia0"},
        {"id": FIRST},
        {"uuid": "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"},
        {"uuid": "GPU-5c89"},
        {"vendorid": "0x10de", "id": "1"},
        {"vendorid": "10DE", "productid": "2330", "count": "1"},
    ],
    ids=str,
)
def test_one_gpu_by_any_name(machine: Machine, keys: dict[str, str]) -> None:
    assert bare(machine("nvidia"), **keys) == ["/dev/nvidia0", "/dev/dri/renderD128", *NVIDIA]


def test_all_gpus_leave_out_what_has_no_render_node(machine: Machine) -> None:
    root = machine("nvidia")
    both = ["/dev/nvidia0", "/dev/dri/renderD128", *NVIDIA, "/dev/nvidia1", "/dev/dri/renderD129"]
    assert bare(root) == bare(root, count="all") == both
    assert bare(root, vendorid="10de", count="2") == both


def test_all_gpus_are_known_by_how_many_there_are(machine: Machine) -> None:
    root = machine("nvidia")
    (row,) = (row for row in planned(root, driver__capabilities="none") if row[2] == "/proc/driver/nvidia/gpus/")
    assert set(row[3].split()) == {FIRST, SECOND} and row[3] == sysfs.known(root + row[2])
    assert not [row for row in planned(root, driver__capabilities="none", pci=FIRST) if row[2].endswith("/")]


def test_the_card_only_on_demand(machine: Machine) -> None:
    root = machine("xe")
    assert bare(root, id="0") == ["/dev/dri/renderD128"]
    assert bare(root, id="0", kms="true") == ["/dev/dri/card0", "/dev/dri/renderD128"]


def test_cards_that_swap_numbers_stay_who_they_are(machine: Machine) -> None:
    change = trees.swap("renderD128", "renderD129")
    before, after = machine("xe"), machine("xe", change=change)
    assert bare(before, pci="0000:03:00.0") == ["/dev/dri/renderD129"]
    assert bare(after, pci="0000:03:00.0") == ["/dev/dri/renderD128"]
    identity = [row for row in planned(before, pci="0000:03:00.0") if row[0] == "identity"]
    assert any(not Path(after + row[2]).exists() for row in identity), "nothing says that the node is another's now"
    assert all(Path(before + row[2]).exists() or "boot_id" in row[2] for row in identity)


def test_gpu1_and_gpu10_are_not_confused(machine: Machine) -> None:
    root = machine("nvidia")
    for card in ("card1", "renderD128", "nvidia1"):
        with pytest.raises(NotFoundError):
            planned(root, id=card + "0")
    with pytest.raises(NotFoundError, match=r"mig\.gi=7"):
        planned(root, gputype="mig", mig__gi="7", mig__ci="0")  # that is gpu10's


def test_a_mig_slice(machine: Machine) -> None:
    root = machine("nvidia")
    caps = ["/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap157"]
    by_number = {"gputype": "mig", "mig__gi": "2", "mig__ci": "0"}
    assert bare(root, **by_number) == [*caps, "/dev/nvidia1", *NVIDIA]
    assert bare(root, id=f"{SECOND}/gi2/ci0") == bare(root, **by_number)
    uuid = "MIG-GPU-a1b2c3d4-0011-2233-4455-66778899aabb/2/0"
    assert bare(root, gputype="mig", mig__uuid=uuid) == bare(root, **by_number)
    found = planned(root, driver__capabilities="none", **by_number)
    assert ["lease", "g", f"pci:{SECOND}/gi2/ci0", "shared"] in found
    files = [row[2] for row in found if row[0] == "identity"]
    assert "/proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access" in files


def test_an_amd_partition_has_its_own_render_node(machine: Machine) -> None:
    root = machine("mi300x")
    assert bare(root, id="0000:05:00.0/xcp3") == ["/dev/dri/renderD131", "/dev/kfd"]
    whole = bare(root, pci="0000:05:00.0")
    assert whole == [*(f"/dev/dri/renderD{number}" for number in range(128, 136)), "/dev/kfd"]


def test_a_virtual_function(machine: Machine) -> None:
    root = machine("xe")
    assert bare(root, gputype="sriov") == bare(root, gputype="sriov", pci="0000:03:00.0") == ["/dev/dri/renderD130"]
    with pytest.raises(NotFoundError):
        planned(root, gputype="sriov", pci="0000:00:02.0")


@pytest.mark.parametrize(
    ("tree", "keys", "kind", "words"),
    [
        ("nvidia", {"vendorid": "10de"}, SpecError, (FIRST, SECOND, "H100")),
        ("nvidia", {"vendorid": "1002"}, NotFoundError, (FIRST, SECOND)),
        ("nvidia", {"vendorid": "10de", "count": "3"}, NotFoundError, ("2", FIRST)),
        ("nvidia", {"uuid": "GPU-"}, NotFoundError, (FIRST,)),
        ("nvidia", {"id": "0"}, HostError, ("no render node", "kms")),
        ("nvidia", {"gputype": "mig"}, SpecError, ("mig.uuid", "mig.gi")),
        ("nvidia", {"gputype": "mig", "mig__gi": "1"}, SpecError, ("mig.ci",)),
        ("nvidia", {"mig__gi": "1", "mig__ci": "0"}, SpecError, ("gputype: mig",)),
        ("nvidia", {"gputype": "mig", "mig__uuid": "MIG-8ab6-1"}, NotFoundError, ("gi1/ci0", "gi2/ci0")),
        ("nvidia", {}, NotFoundError, ("libraries", VERSION, "driver.capabilities=none")),
        ("xe", {"pci": "0000:03:00.2"}, HostError, ("vfio-pci",)),
        ("nothing", {}, NotFoundError, ("no gpu",)),
        ("nothing", {"gputype": "mdev"}, SpecError, ("virtual machines",)),
        ("nothing", {"gputype": "native-context"}, SpecError, ("virtual machines",)),
        ("nothing", {"pci": "18:00"}, SpecError, ("PCI address",)),
        ("nothing", {"driver__capabilities": "compute,teleport"}, SpecError, ("teleport",)),
        ("nothing", {"uid": "1", "user": "me"}, NotFoundError, ("no gpu",)),
        ("xe", {"id": "0", "uid": "1", "user": "me"}, SpecError, ("`uid`", "`user`")),
        ("xe", {"id": "nvidia.com/gpu=0", "kms": "true"}, SpecError, ("kms",)),
    ],
    ids=str,
)
def test_what_cannot_be_had(
    machine: Machine, tree: str, keys: dict[str, str], kind: type[CtrmgrError], words: tuple[str, ...]
) -> None:
    with pytest.raises(kind) as error:
        planned(machine(tree), **keys)
    said = f"{error.value.message} {error.value.hint}"
    assert all(word in said for word in words), said


def test_optional_is_looked_for_again(machine: Machine) -> None:
    assert planned(machine("nothing"), required="false") == [["identity", "g", rows.ALWAYS, ""]]


def test_owner_and_mode(machine: Machine) -> None:
    root = machine("nvidia")
    found = planned(root, pci=FIRST, driver__capabilities="none", gid="video")
    assert {(row[6], row[7]) for row in found if row[0] == "device"} == {("video", "0666"), ("video", "0660")}
    found = planned(root, pci=FIRST, driver__capabilities="none", mode="600")
    assert {row[7] for row in found if row[0] == "device"} == {"0600"}


def test_inherit_takes_the_groups_name(machine: Machine) -> None:
    root = machine("xe")
    gid = Path(root, "dev/dri/renderD128").stat().st_gid
    Path(root, "dev/dri/renderD128").chmod(0o664)
    for group, expected in (("render", "render"), ("wheel", "0")):
        Path(root, "etc").mkdir(exist_ok=True)
        Path(root, "etc/group").write_text(f"other:x:{gid + 1}:\n{group}:x:{gid}:\n")
        (row,) = (row for row in planned(root, id="0", ownership__inherit="true") if row[0] == "device")
        assert row[5:8] == ["0", expected, "0664"]


def test_leases_name_the_hardware_and_its_nodes(machine: Machine) -> None:
    found = planned(machine("nvidia"), pci=FIRST, driver__capabilities="none", lease="shared:2")
    leases = [row[2:] for row in found if row[0] == "lease"]
    assert leases == [
        [f"pci:{FIRST}", "shared:2"],
        ["node:/dev/nvidia0", "shared:2"],
        ["node:/dev/dri/renderD128", "shared:2"],
    ]


def test_two_gpus_share_what_belongs_to_none(machine: Machine) -> None:
    root = machine("nvidia")
    both = [
        row
        for name, pci in (("g0", FIRST), ("g1", SECOND))
        for row in rows.rows(name, {"type": "gpu", "pci": pci, "driver.capabilities": "none"}, root)
    ]
    found = rows.shared(both)
    assert ["shares", "g1", "/dev/nvidiactl"] in found
    paths = nodes(found)
    assert len(paths) == len(set(paths)) == 8
    twice = [*both, *rows.rows("g2", {"type": "gpu", "pci": FIRST, "driver.capabilities": "none"}, root)]
    with pytest.raises(SpecError, match="`g0` and `g2` have the same path"):
        rows.shared(twice)


# NVIDIA's files


def fill(root: str, *names: str, version: str = VERSION) -> str:
    for name in names:
        target = Path(root + (name if name.startswith("/") else f"{LIBS}/{name}.{version}"))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("")
    return root


def binds(found: list[list[str]]) -> dict[str, str]:
    return {row[3]: row[4] for row in found if row[0] == "bind"}


def test_driver_files_by_capability(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "folders", lambda machine="": (LIBS,))
    root = fill(
        machine("nvidia"),
        "libcuda.so",
        "libnvidia-ml.so",
        "libnvidia-encode.so",
        "libGLX_nvidia.so",
        "/usr/bin/nvidia-smi",
    )
    found = planned(root, pci=FIRST)
    ours = {f"{LIBS}/libcuda.so.{VERSION}", f"{LIBS}/libnvidia-ml.so.{VERSION}", "/usr/bin/nvidia-smi"}
    assert binds(found) == dict.fromkeys(ours, "ro,nosuid,nodev")
    assert [row[2:] for row in found if row[0] == "hook"] == [
        ["symlink", "libcuda.so.1", f"{LIBS}/libcuda.so"],
        ["ldcache", LIBS],
    ]
    assert "/dev/nvidia-modeset" not in nodes(found)
    assert any(row[2] == "/proc/driver/nvidia/version" for row in found if row[0] == "identity")
    graphics = planned(root, pci=FIRST, driver__capabilities="display,video")
    assert set(binds(graphics)) == {f"{LIBS}/libGLX_nvidia.so.{VERSION}", f"{LIBS}/libnvidia-encode.so.{VERSION}"}
    assert "/dev/nvidia-modeset" in nodes(graphics) and "/dev/nvidia-uvm" not in nodes(graphics)
    assert len(binds(planned(root, pci=FIRST, driver__capabilities="all"))) == 5


def test_a_driver_that_was_upgraded_under_its_libraries(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "folders", lambda machine="": (LIBS,))
    root = fill(machine("nvidia"), "libcuda.so", version="550.54.14")
    with pytest.raises(HostError, match=r"535\.129\.03.*550\.54\.14"):
        planned(root, pci=FIRST)


def test_nodes_that_the_driver_has_not_made(machine: Machine) -> None:
    root = machine("nvidia")
    Path(root, "dev/nvidia-uvm-tools").unlink()
    (row,) = (
        row
        for row in planned(root, pci=FIRST, driver__capabilities="none")
        if row[0] == "device" and "uvm-tools" in row[4]
    )
    assert row[-1] == "optional"
    Path(root, "dev/nvidia-uvm").unlink()
    with pytest.raises(HostError, match="/dev/nvidia-uvm` yet"):
        planned(root, pci=FIRST, driver__capabilities="none")


def ld_cache(entries: list[tuple[int, str, str]], *, before: bytes = b"") -> bytes:
    start = libraries.HEADER.size + len(entries) * libraries.ENTRY.size
    table, text = b"", b""
    for flags, name, path in entries:
        at = start + len(text)
        table += libraries.ENTRY.pack(flags, at, at + len(name) + 1, 0, 0)
        text += f"{name}\0{path}\0".encode()
    return before + struct.pack("=20sII20x", libraries.MAGIC, len(entries), len(text)) + table + text


@pytest.mark.parametrize("before", [b"", b"ld.so-1.7.0\0" + bytes(36)], ids=["new", "after an old table"])
def test_the_loaders_cache_leads_elsewhere(machine: Machine, before: bytes) -> None:
    root = machine("nvidia")
    entries = [
        (0x0003, "libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1"),
        (0x0303, "libcuda.so.1", "/opt/nv/libcuda.so.1"),
    ]
    fill(root, f"/srv/driver/libcuda.so.{VERSION}", "/etc/x")
    Path(root, "opt").mkdir()
    Path(root, "opt/nv").symlink_to("/srv/driver")  # absolute, below this root
    Path(root, "srv/driver/libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    Path(root, "etc/ld.so.cache").write_bytes(ld_cache(entries, before=before))
    assert libraries.cache(root, "x86_64") == {"libcuda.so.1": "/opt/nv/libcuda.so.1"}
    assert libraries.find({"libcuda.so"}, VERSION, root, "x86_64") == {
        "libcuda.so": f"/srv/driver/libcuda.so.{VERSION}"
    }
    for cut in range(0, len(ld_cache(entries)), 7):
        Path(root, "etc/ld.so.cache").write_bytes(ld_cache(entries)[:cut])
        libraries.cache(root, "x86_64")  # a damaged one is no library, never a crash


def test_this_machines_cache() -> None:
    found = libraries.cache()
    assert any(name.startswith("libc.so") for name in found)
    assert all(path.startswith("/") for path in found.values())


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("../../../../d")
    (tmp_path / "d").write_text("")
    assert libraries.real("/a", str(tmp_path)) == libraries.real("/none", str(tmp_path)) == ""
    assert libraries.real("/c", str(tmp_path)) == "/d"


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (set(), set(), "/dev/nvidia0"),
        (set(), {f"pci:{FIRST}"}, "/dev/nvidia1"),
        (set(), {f"pci:{FIRST}/gi1/ci0"}, "/dev/nvidia1"),
        (set(), {f"pci:{FIRST}", f"pci:{SECOND}"}, "/dev/nvidia0"),
        ({f"pci:{SECOND}"}, set(), "/dev/nvidia1"),
        ({f"pci:{FIRST}"}, {f"pci:{FIRST}"}, "/dev/nvidia0"),
    ],
)  # fmt: skip
def test_a_count_takes_what_nobody_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, own: set[str], others: set[str], expected: str
) -> None:
    """What an instance has already it keeps; where everything is held, whoever takes the lease decides."""
    monkeypatch.setattr(choose, "held", lambda: (own, others))
    assert bare(machine("nvidia"), vendorid="10de", count="1")[0] == expected
    both = ["/dev/nvidia0", "/dev/nvidia1"]
    assert [path for path in bare(machine("nvidia"), count="2") if path in both] == both, "all, in their order"
