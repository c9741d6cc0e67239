# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks: directories of the host's, and file systems on block devices, at a start and while the instance runs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr, same

Snapshot = Callable[[], dict[str, object]]
OTHERS = ("cgroups", "processes", "programs")
"""Those of instances are looked at by other tests."""
LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")


def sh(ctr: Ctr, script: str, code: int | None = 0) -> str:
    result = ctr("exec", "c1", "--", "sh", "-c", script, code=code)
    return result.stdout + result.stderr


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that the ids of an instance can reach, with root's file and a user's."""
    # pytest's own folder is closed to them
    with tempfile.TemporaryDirectory(prefix="ctrmgr-disk-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "roots").write_text("of root\n")
        (folder / "users").write_text("of a user\n")
        os.chown(folder / "users", 1000, 1000)
        yield folder


class Loop:
    """A loop device with a file system on it."""

    def __init__(self, folder: Path, kind: str, content: dict[str, str]) -> None:
        image, tree = folder / f"{kind}.img", folder / kind
        tree.mkdir()
        for name, text in content.items():
            (tree / name).write_text(text)
        os.chown(tree / "users", 1000, 1000)
        if kind == "squashfs":
            subprocess.run(["mksquashfs", tree, image, "-quiet"], check=True, capture_output=True)
        else:
            image.write_bytes(b"")
            os.truncate(image, 16 << 20)
            subprocess.run(["mkfs.ext4", "-q", "-d", tree, image], check=True)
        self.node = subprocess.check_output(["losetup", "--find", "--show", image], text=True).strip()

    def close(self) -> None:
        subprocess.run(["losetup", "-d", self.node], check=True)

    def is_free(self) -> bool:
        """Whether no file system on it is mounted anywhere, in whatever namespace."""
        try:
            os.close(os.open(self.node, os.O_RDONLY | os.O_EXCL))
        except OSError:
            return False
        return True


CONTENT = {"roots": "of root\n", "users": "of a user\n"}


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    found = Loop(tmp_path, "ext4", CONTENT)
    yield found
    found.close()


def test_a_directory_comes_and_goes(ctr: Ctr, shared: Path, host_snapshot: Snapshot) -> None:
    before = host_snapshot()
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "data", "type=disk", f"source={shared}/", "path=/srv/data", "shift=true")
    assert sh(ctr, "stat -c '%u %n' /srv/data/*").splitlines() == ["0 /srv/data/roots", "1000 /srv/data/users"]
    (said,) = json.loads(ctr("info", "c1", "--format", "json").stdout)["devices"]
    assert (said["name"], said["type"], said["path"]) == ("data", "bind", "/srv/data")
    sh(ctr, "echo new > /srv/data/new; chown 1000:1000 /srv/data/new")
    assert (shared / "new").read_text() == "new\n"
    assert (shared / "new").stat().st_uid == 1000
    ctr("restart", "c1", "--force")
    assert sh(ctr, "cat /srv/data/new") == "new\n", "it is configured, and comes with each start"
    ctr("detach-device", "c1", "data")
    assert "No such file" in sh(ctr, "ls /srv/data", code=None)
    (shared / "new").unlink()
    ctr("delete", "c1", "--force")
    same(before, host_snapshot(), besides=OTHERS)


def test_without_shift_owners_are_the_hosts(ctr: Ctr, shared: Path) -> None:
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "data", "type=disk", f"source={shared}", "path=/srv/data")
    assert sh(ctr, "stat -c '%u %n' /srv/data/*").splitlines() == ["65534 /srv/data/roots", "65534 /srv/data/users"]
    assert "denied" in sh(ctr, "echo x > /srv/data/roots", code=None)
    assert (shared / "roots").read_text() == "of root\n"


def test_a_mount_that_the_instance_covers_is_told(ctr: Ctr, shared: Path) -> None:
    ctr(*LAUNCH)
    attach = ("attach-device", "c1", "d", "type=disk", f"source={shared}")
    for place in ("/a b/c", "/own/c"):
        ctr("exec", "c1", "mkdir", "-p", place)
    ctr("exec", "c1", "mount", "-t", "tmpfs", "own", "/own")
    assert ctr(*attach, "path=/a b/c").stderr == ""
    ctr("detach-device", "c1", "d")
    said = "warning: `/own/c` cannot be seen inside: `c1` has mounted something of its own on `/own`\n"
    assert ctr(*attach, "path=/own/c").stderr == said
    assert ctr("exec", "c1", "ls", "/own").stdout == ""
    ctr("detach-device", "c1", "d")
    ctr("exec", "c1", "umount", "/own")
    assert ctr(*attach, "path=/own/c").stderr == ""


def test_readonly_holds_against_the_instances_root(ctr: Ctr, shared: Path) -> None:
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "data", "type=disk", f"source={shared}", "path=/srv/data", "shift=true", "readonly=true")
    assert "Read-only" in sh(ctr, "echo x > /srv/data/roots", code=None)
    assert sh(ctr, "mount -o remount,rw,bind /srv/data", code=None) != ""
    assert "Read-only" in sh(ctr, "echo x > /srv/data/roots", code=None)


def test_a_profile_as_lxd_writes_it(ctr: Ctr, shared: Path) -> None:
    folder = ctr.folder / "etc/profiles"
    folder.mkdir(parents=True)
    (folder / "data.yaml").write_text(
        f"devices:\n  home:\n    path: /home/me\n    source: {shared}\n    type: disk\n    shift: 'true'\n"
        f"  gone:\n    path: /gone\n    source: {shared}/nothing\n    type: disk\n    required: 'false'\n"
        "  root:\n    path: /\n    pool: default\n    type: disk\n"
    )
    ctr(*LAUNCH, "-p", "data")
    assert sh(ctr, "cat /home/me/roots") == "of root\n"
    assert sh(ctr, "ls -d /gone", code=None).endswith("No such file or directory\n")
    ctr("stop", "c1", "--force")
    (shared / "later").mkdir()
    said = ctr("attach-device", "c1", "later", "type=disk", f"source={shared}/later", "path=/later")
    assert "next start" in said.stderr
    (shared / "later").rmdir()
    assert f"`{shared}/later`" in ctr("start", "c1", code=5).stderr


def test_recursive_brings_what_is_mounted_below(ctr: Ctr, shared: Path) -> None:
    below = shared / "below"
    below.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "below", below], check=True)
    try:
        (below / "deep").write_text("deep\n")
        ctr(*LAUNCH)
        ctr("attach-device", "c1", "flat", "type=disk", f"source={shared}", "path=/flat")
        ctr("attach-device", "c1", "deep", "type=disk", f"source={shared}", "path=/deep", "recursive=true", "shift=true", "readonly=true")  # fmt: skip
        assert sh(ctr, "ls /flat/below") == ""
        assert sh(ctr, "stat -c %u /deep/below/deep; cat /deep/below/deep") == "0\ndeep\n"
        assert "Read-only" in sh(ctr, "echo x > /deep/below/deep", code=None)
        ctr("detach-device", "c1", "deep")
        assert "No such file" in sh(ctr, "ls /deep", code=None)
    finally:
        ctr("delete", "c1", "--force", code=None)
        subprocess.run(["umount", below], check=True)


def test_a_file_system_on_a_disk(ctr: Ctr, loop: Loop, host_snapshot: Snapshot) -> None:
    before = host_snapshot()
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "data", "type=disk", f"source={loop.node}", "path=/srv/data")
    assert not loop.is_free()
    line = next(line for line in sh(ctr, "cat /proc/mounts").splitlines() if " /srv/data " in line)
    assert line.startswith(f"{Path(loop.node).name} /srv/data ext4 rw,nosuid,nodev"), line
    assert sh(ctr, "stat -c '%u %n' /srv/data/*s").splitlines() == ["0 /srv/data/roots", "1000 /srv/data/users"]
    sh(ctr, "echo new > /srv/data/new")
    ctr("restart", "c1", "--force")
    sh(ctr, "cat /srv/data/new; echo newer > /srv/data/newer")
    ctr("detach-device", "c1", "data")
    assert loop.is_free()
    ctr("attach-device", "c1", "data", "type=disk", f"source={loop.node}", "path=/srv/data", "readonly=true")
    assert sh(ctr, "cat /srv/data/new") == "new\n", "it is on the disk"
    assert "Read-only" in sh(ctr, "echo x > /srv/data/new", code=None)
    ctr("restart", "c1", "--force")
    assert sh(ctr, "cat /srv/data/new") == "new\n"
    ctr("delete", "c1", "--force")
    assert loop.is_free()
    same(before, host_snapshot(), besides=OTHERS)


def test_a_disk_that_is_busy_says_who(ctr: Ctr, loop: Loop) -> None:
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "data", "type=disk", f"source={loop.node}", "path=/srv/data")
    sh(ctr, "cd /srv/data; sleep 1000 < roots > /dev/null 2>&1 & echo")
    said = ctr("detach-device", "c1", "data", "--holders", "refuse", code=4)
    assert "sleep (pid " in said.stderr
    assert sh(ctr, "cat /srv/data/roots") == "of root\n", "it is as it was"
    said = ctr("detach-device", "c1", "data", "--holders", "kill")
    assert "killed: sleep" in said.stderr
    for _ in range(100):
        if loop.is_free():
            break
        subprocess.run(["sleep", "0.05"], check=True)
    assert loop.is_free()


def test_a_disk_that_the_host_uses(ctr: Ctr, loop: Loop, tmp_path: Path) -> None:
    ctr(*LAUNCH)
    place = tmp_path / "place"
    place.mkdir()
    subprocess.run(["mount", loop.node, place], check=True)
    words = ("attach-device", "c1", "data", "type=disk", f"source={loop.node}", "path=/srv/data")
    try:
        ctr.folder.joinpath("run/.leases").mkdir(mode=0o700)
        before = ctr.traces()
        assert f"in use on the host: {place}" in ctr(*words, code=4).stderr
        same(before, ctr.traces())
    finally:
        subprocess.run(["umount", place], check=True)
    # in a mount namespace that nobody here looks into, only the kernel knows
    hidden = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"mount {loop.node} {place} && echo && exec sleep 1000"],
        stdout=subprocess.PIPE,
    )
    try:
        assert hidden.stdout and hidden.stdout.readline() == b"\n"
        before = ctr.traces()
        assert "something else has it" in ctr(*words, code=4).stderr
        same(before, ctr.traces())
    finally:
        hidden.kill()
        hidden.wait()
    ctr(*words)


def test_two_instances_write_to_one_disk_never(ctr: Ctr, loop: Loop) -> None:
    ctr(*LAUNCH)
    ctr("launch", "builtin:busybox", "c2", "-p", "no-network")
    ctr("attach-device", "c1", "data", "type=disk", f"source={loop.node}", "path=/srv/data")
    said = ctr("attach-device", "c2", "data", "type=disk", f"source={loop.node}", "path=/srv/data", code=4)
    assert "held by `c1`" in said.stderr
    ctr("detach-device", "c1", "data")
    for name in ("c1", "c2"):
        ctr("attach-device", name, "data", "type=disk", f"source={loop.node}", "path=/srv/data", "readonly=true")
    assert sh(ctr, "cat /srv/data/roots") == "of root\n"


def test_squashfs_is_readonly(ctr: Ctr, tmp_path: Path) -> None:
    disk = Loop(tmp_path, "squashfs", CONTENT)
    try:
        ctr(*LAUNCH)
        ctr("attach-device", "c1", "data", "type=disk", f"source={disk.node}", "path=/srv/data")
        assert sh(ctr, "stat -c '%u %n' /srv/data/*").splitlines() == ["0 /srv/data/roots", "1000 /srv/data/users"]
        assert "Read-only" in sh(ctr, "echo x > /srv/data/roots", code=None)
        ctr("delete", "c1", "--force")
    finally:
        disk.close()


REFUSED = (
    (("source=/var/tmp", "path=/proc/x"), 5, "nothing is mounted there"),
    (("source=/var/tmp", "path=/dev/x"), 5, "nothing is mounted there"),
    (("path=/srv",), 2, "no `source`"),
    (("source=/var/tmp", "path=/"), 2, "comes from the image"),
    (("source=volume", "path=/srv"), 2, "no storage volumes"),
    (("source=/dev/null", "path=/srv"), 2, "a character device"),
    (("source=/var/tmp", "path=/srv", "propagation=shared"), 2, "private"),
    (("source=/var/tmp", "path=/srv", "raw.mount.options=suid"), 5, "`suid` is not given"),
    (("source=/dev/disk/by-id/nothing", "path=/srv"), 3, "does not exist"),
    (("source=/nothing", "path=/srv"), 3, "`/nothing` does not exist"),
    (("source=/var/tmp/../tmp", "path=/srv"), 2, "plain absolute path"),
)


def test_what_is_refused(ctr: Ctr) -> None:
    ctr(*LAUNCH)
    before = ctr.traces()
    for words, code, said in REFUSED:
        assert said in ctr("attach-device", "c1", "data", "type=disk", *words, code=code).stderr, words
        same(before, ctr.traces())


def test_options_that_are_refused(ctr: Ctr, loop: Loop, tmp_path: Path) -> None:
    ctr(*LAUNCH)
    words = ("attach-device", "c1", "data", "type=disk", f"source={loop.node}", "path=/srv")
    for option in ("journal_path=/dev/sda", "uid=0", "usrjquota=x", "errors=remount-ro/", "nonsense"):
        assert "is not given to a ext4" in ctr(*words, f"raw.mount.options={option}", code=5).stderr
    ctr(*words, "raw.mount.options=errors=remount-ro,noexec,commit=30")
    line = next(line for line in sh(ctr, "cat /proc/mounts").splitlines() if " /srv " in line)
    assert "noexec" in line and "errors=remount-ro" in line and "commit=30" in line
    ctr("detach-device", "c1", "data")
    with open(loop.node, "wb") as disk:
        disk.write(bytes(65536))
    assert "no file system that is known" in ctr(*words, code=5).stderr
