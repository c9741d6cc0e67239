# SPDX-License-Identifier: GPL-3.0-or-later
"""A vendor's device of several parts, as a CDI specification describes it: given at launch, attached, detached, started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Ctr


@pytest.fixture
def vendor(ctr: Ctr) -> Ctr:
    """Two devices with a node each, and what both need: a control node, a library, a variable, links."""
    folder, files = ctr.folder / "xdg/cdi", ctr.folder / "driver"
    folder.mkdir(parents=True)
    files.mkdir()
    files.chmod(0o755)
    (files / "libvendor.so.1.2").write_text("the library\n")
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
    common = {
        "deviceNodes": [{"path": "/dev/vendor/ctl", "hostPath": "/dev/null", "fileMode": 0o666}],
        "mounts": [{"hostPath": str(files / "libvendor.so.1.2"), "containerPath": "/usr/lib/libvendor.so.1.2", "options": ["ro", "bind"]}],
        "env": ["VENDOR=yes"],
        "hooks": [{**hook, "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "libvendor.so.1.2::/usr/lib/libvendor.so"]}],
    }  # fmt: skip
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/vendor/{name}", "hostPath": node}]}}
        for name, node in (("d0", "/dev/fuse"), ("d1", "/dev/net/tun"))
    ]
    spec = {"cdiVersion": "0.6.0", "kind": "vendor.com/net", "containerEdits": common, "devices": devices}
    (folder / "v.json").write_text(json.dumps(spec))
    ctr.env["XDG_CONFIG_HOME"] = str(ctr.folder / "xdg")
    return ctr


LOOK = 'ls /dev/vendor; cat /usr/lib/libvendor.so; echo "$VENDOR"; head -c0 /dev/vendor/ctl && echo ctl'


def look(ctr: Ctr) -> list[str]:
    return ctr("exec", "c1", "--", "sh", "-c", LOOK, code=None).stdout.split("\n")[:-1]


WHOLE = ["ctl", "d0", "the library", "yes", "ctl"]


def test_at_launch_and_at_each_start(vendor: Ctr) -> None:
    vendor("launch", "builtin:busybox", "c1", "-p", "no-network", "-d", "v,type=cdi,id=vendor.com/net=d0")
    assert look(vendor) == WHOLE
    vendor("restart", "--force", "c1")
    assert look(vendor) == WHOLE
    assert "Read-only" in vendor("exec", "c1", "--", "sh", "-c", "echo x >/usr/lib/libvendor.so.1.2", code=None).stderr
    vendor("detach-device", "c1", "v")
    assert look(vendor) == [""]


def test_a_mode_is_given_back(vendor: Ctr) -> None:
    """What a chmod hook has set, it had before; what the instance has chosen since is its own."""
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "chmod", "--mode", "755", "--path", "/etc/passwd,/etc/group"]}  # fmt: skip
    spec = {"cdiVersion": "0.6.0", "kind": "vendor.com/mode", "devices": [{"name": "m", "containerEdits": {"hooks": [hook]}}]}  # fmt: skip
    (vendor.folder / "xdg/cdi/mode.json").write_text(json.dumps(spec))
    vendor("launch", "builtin:busybox", "c1", "-p", "no-network")

    def modes() -> list[str]:
        return vendor("exec", "c1", "stat", "-c", "%a", "/etc/passwd", "/etc/group").stdout.split()

    before = modes()
    assert before != ["755", "755"]
    vendor("attach-device", "c1", "vendor.com/mode=m")
    assert modes() == ["755", "755"]
    vendor("restart", "--force", "c1")
    assert modes() == ["755", "755"]
    vendor("exec", "c1", "chmod", "700", "/etc/group")
    vendor("detach-device", "c1", "vendor.com/mode=m")
    assert modes() == [before[0], "700"]


def test_groups_that_come_with_it(vendor: Ctr) -> None:
    """Every command has them besides its own, whoever runs it; so has init, from the next start."""
    edits = {"deviceNodes": [{"path": "/dev/vendor/g", "hostPath": "/dev/fuse", "gid": 4711, "fileMode": 0o660}], "additionalGids": [4711]}  # fmt: skip
    wrong = {**edits, "additionalGids": [4_000_000_000]}
    devices = [{"name": name, "containerEdits": given} for name, given in (("g", edits), ("wrong", wrong))]
    spec = {"cdiVersion": "0.7.0", "kind": "vendor.com/groups", "devices": devices}
    (vendor.folder / "xdg/cdi/groups.json").write_text(json.dumps(spec))
    vendor("launch", "builtin:busybox", "c1", "-p", "no-network")

    def groups(user: str) -> list[str]:
        said = vendor("exec", "--user", user, "c1", "--", "sh", "-c", "grep ^Groups /proc/self/status /proc/1/status")
        return [line.partition(":Groups:")[2].strip() for line in said.stdout.splitlines()]

    assert "4000000000 is not mapped" in vendor("attach-device", "c1", "vendor.com/groups=wrong", code=2).stderr
    assert "4711" not in groups("1234")[0]
    vendor("attach-device", "c1", "vendor.com/groups=g")
    assert groups("1234") == ["4711", ""]
    assert "4711" in groups("0")[0].split()
    vendor("exec", "--user", "1234", "c1", "--", "sh", "-c", "exec 3<>/dev/vendor/g")
    vendor("restart", "--force", "c1")
    assert groups("1234") == ["4711", "4711"]
    vendor("detach-device", "c1", "vendor.com/groups=g")
    assert groups("1234")[0] == ""


def test_memory_that_comes_with_it(vendor: Ctr) -> None:
    """A tmpfs of the specification's: the instance's root's own, at the attach and at a start, and gone with the device."""
    edits = {"mounts": [{"hostPath": "tmpfs", "containerPath": "/var/vendor", "type": "tmpfs", "options": ["nosuid", "noexec", "size=64k", "mode=0750"]}]}  # fmt: skip
    spec = {"cdiVersion": "0.6.0", "kind": "vendor.com/mem", "devices": [{"name": "m", "containerEdits": edits}]}
    (vendor.folder / "xdg/cdi/mem.json").write_text(json.dumps(spec))
    vendor("launch", "builtin:busybox", "c1", "-p", "no-network")
    vendor("attach-device", "c1", "vendor.com/mem=m")
    script = "stat -c '%u %g %a' /var/vendor; echo x > /var/vendor/x && grep vendor /proc/mounts"
    for restart in (False, True):
        if restart:
            vendor("restart", "--force", "c1")
        owner, mount = vendor("exec", "c1", "--", "sh", "-c", script).stdout.splitlines()
        assert owner == "0 0 750"
        assert mount.startswith("tmpfs /var/vendor tmpfs rw,nosuid,nodev,noexec") and "size=64k" in mount
    vendor("detach-device", "c1", "vendor.com/mem=m")
    assert "No such file" in vendor("exec", "c1", "--", "ls", "/var/vendor", code=None).stderr


def test_attached_while_it_runs(vendor: Ctr) -> None:
    vendor("launch", "builtin:busybox", "c1", "-p", "no-network")
    vendor("attach-device", "c1", "vendor.com/net=d0")
    assert look(vendor) == WHOLE
    vendor("attach-device", "c1", "vendor.com/net=d1")
    assert look(vendor) == ["ctl", "d0", "d1", *WHOLE[2:]]
    vendor("detach-device", "c1", "vendor.com/net=d0")
    assert look(vendor) == ["ctl", "d1", *WHOLE[2:]], "what the other needs, too, stays"
    vendor("restart", "--force", "c1")
    assert look(vendor) == ["ctl", "d1", *WHOLE[2:]]
    vendor("detach-device", "c1", "vendor.com/net=d1")
    assert look(vendor) == [""]


def test_leases_are_of_what_is_its_own(vendor: Ctr) -> None:
    for name in ("c1", "c2"):
        vendor("launch", "builtin:busybox", name, "-p", "no-network")
    vendor("attach-device", "c1", "vendor.com/net=d0", "lease=exclusive")
    assert "`c1` (exclusive" in vendor("attach-device", "c2", "vendor.com/net=d0", code=4).stderr
    assert "`c1` (exclusive" in vendor("attach-device", "c2", "/dev/fuse", code=4).stderr
    vendor("attach-device", "c2", "vendor.com/net=d1", "lease=exclusive")


def test_a_part_that_is_missing_leaves_nothing(vendor: Ctr) -> None:
    vendor("launch", "builtin:busybox", "c1", "-p", "no-network")
    (vendor.folder / "driver/libvendor.so.1.2").unlink()
    before = vendor.traces()
    assert "libvendor.so.1.2" in vendor("attach-device", "c1", "vendor.com/net=d0", code=3).stderr
    assert vendor.traces() == before
    assert look(vendor) == [""]
    assert not Path(vendor.folder / "run/.leases").exists()


def test_a_detach_that_was_killed_keeps_what_the_other_needs(vendor: Ctr) -> None:
    vendor("launch", "builtin:busybox", "c1", "-p", "no-network")
    for device in ("d0", "d1"):
        vendor("attach-device", "c1", f"vendor.com/net={device}")
    vendor("detach-device", "c1", "vendor.com/net=d0", code=None, env={"CTRMGR_CRASH_AT": "detach-done"})
    vendor("attach-device", "c1", "/dev/loop-control")  # any change finds and mends it
    assert look(vendor) == ["ctl", "d1", *WHOLE[2:]]
