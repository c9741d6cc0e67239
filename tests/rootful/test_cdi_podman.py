# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman starts a container with the specs that we write: the other side of the interface, and not our own code."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrmgr.cdi import transform, write
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, Mount
from tests.conftest import Ctr, cgroups, same

KIND = "ctrmgr.test/thing"

# Mounts of its own: its /run and its locks are not the host's, the spec is where Podman looks, and what it leaves mounted goes with
# it. crun refuses a host that has both versions of cgroups: it gets those that have the controllers.
INSIDE = """
set -eu
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir /run/cdi
cp "$1"/* /run/cdi/
shift
exec "$@"
"""


class Podman:
    """Containers from a directory tree, with the specs of a folder."""

    def __init__(self, folder: Path, cgroup: str) -> None:
        self.folder, self.cgroup, self.specs = folder, cgroup, folder / "specs"
        tree = folder / "rootfs"
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            (tree / name).mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox
        shutil.copy(busybox, tree / "bin/busybox")
        for name in ("sh", "stat", "cat", "ls"):
            (tree / "bin" / name).symlink_to("busybox")

    def __call__(self, script: str, *devices: str) -> str:
        places = ["--root", str(self.folder / "root"), "--runroot", "/run/podman"]
        command = ["podman", *places, "--cgroup-manager=cgroupfs", "--runtime=crun", "--log-level=error", "run", "--rm"]
        command += ["--network=none", f"--cgroup-parent=/{self.cgroup}"]
        command += ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]  # for a root without CAP_SYS_RESOURCE
        command += [word for device in devices for word in ("--device", device)]
        command += ["--rootfs", str(self.folder / "rootfs"), "/bin/sh", "-euc", script]
        done = subprocess.run(
            ["unshare", "--mount", "--propagation=private", "sh", "-c", INSIDE, "sh", str(self.specs), *command],
            env={**os.environ, "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def podman(tmp_path: Path, host_snapshot: Callable[[], dict[str, object]]) -> Iterator[Podman]:
    if not shutil.which("podman"):
        pytest.skip("podman is not installed")
    cgroup = f"ctrmgr-test-podman-{os.getpid()}"
    before = host_snapshot()
    yield Podman(tmp_path, cgroup)
    for path in reversed(cgroups(cgroup)):
        deadline = time.monotonic() + 10
        while True:  # conmon ends a moment after its container
            try:
                os.rmdir(path)
                break
            except OSError:
                assert time.monotonic() < deadline, path
                time.sleep(0.05)
    same(before, host_snapshot(), besides=("cgroups", "links", "loops", "processes", "programs"))


def edits(folder: Path) -> tuple[ContainerEdits, ContainerEdits, ContainerEdits]:
    """What two devices do, and what both do."""
    # A hook is given the container's state on its standard input, and crun wants it to be read.
    note = f'cat >/dev/null; echo "$WORD" >>{folder / "ran"}'
    own = ContainerEdits(
        ["OWN=a b"],
        [DeviceNode("/dev/thing/0", "/dev/zero", "c", 1, 5, 0o640, "r", 7, 9)],
        hooks=[Hook("createRuntime", "/bin/sh", ["sh", "-c", note], ["WORD=own"], 10)],
    )
    other = ContainerEdits(["OTHER=1"], [DeviceNode("/dev/thing/1", "/dev/full")])
    (folder / "given").write_text("a file of the host\n")
    wide = ContainerEdits(
        ["WIDE=1"],
        [DeviceNode("/dev/thing/ctl", "/dev/null", permissions="rw")],
        mounts=[Mount(str(folder / "given"), "/etc/given", ["ro", "bind", "nosuid"], "none")],
        hooks=[Hook("createRuntime", "/bin/sh", ["sh", "-c", note], ["WORD=wide"])],
    )
    return own, other, wide


LOOK = """
stat -c '%n %F %t:%T %a %u:%g' /dev/thing/0 /dev/thing/ctl
cat /etc/given
! echo x 2>/dev/null >/etc/given
echo "$OWN, $WIDE, ${OTHER:-none}"
echo gone >/dev/thing/ctl
"""


@pytest.mark.parametrize("form", ["yaml", "json"])
@pytest.mark.parametrize("change", ["as built", "simplified"])
def test_a_spec_of_ours_starts_a_container(podman: Podman, tmp_path: Path, form: str, change: str) -> None:
    own, other, wide = edits(tmp_path)
    if change == "as built":
        spec = write.build(KIND, {"0": own, "other": other}, wide)
    else:
        spec = transform.simplify(write.build(KIND, {"0": wide.add(own), "other": wide.add(other)}))
        assert spec.container_edits.value() == wide
    assert spec.cdi_version == "0.5.0"  # what Podman 4.3 knows
    write.write(str(podman.specs), spec, form)
    assert podman(LOOK, f"{KIND}=0").splitlines() == [
        "/dev/thing/0 character special file 1:5 640 7:9",
        "/dev/thing/ctl character special file 1:3 666 0:0",
        "a file of the host",
        "a b, 1, none",
    ]
    assert (tmp_path / "ran").read_text() == "wide\nown\n"
    assert podman('echo "$OWN, $OTHER, $WIDE"; ls /dev/thing', f"{KIND}=0", f"{KIND}=other").splitlines() == [
        "a b, 1, 1", "0", "1", "ctl",
    ]  # fmt: skip


def test_the_access_that_a_spec_gives_is_what_podman_gives(podman: Podman, tmp_path: Path) -> None:
    nodes = [DeviceNode("/dev/r", "/dev/fuse", permissions="r"), DeviceNode("/dev/rw", "/dev/fuse", permissions="rw")]
    spec = write.build(
        KIND, {name: ContainerEdits(device_nodes=[node]) for name, node in zip("ab", nodes, strict=True)}
    )
    write.write(str(podman.specs), spec)
    look = "if true <{0}; then echo read; fi; if true 2>/dev/null >{0}; then echo written; else echo refused; fi"
    assert podman(look.format("/dev/r"), f"{KIND}=a").split() == ["read", "refused"]
    assert podman(look.format("/dev/rw"), f"{KIND}=b").split() == ["read", "written"]


def test_another_root(podman: Podman, tmp_path: Path) -> None:
    """A spec of a system whose files lie below a directory of this one."""
    (tmp_path / "driver/lib").mkdir(parents=True)
    (tmp_path / "driver/lib/libx.so").write_text("a library\n")
    edits = ContainerEdits(mounts=[Mount("/lib/libx.so", "/tmp/libx.so", ["ro", "bind"])])
    spec = transform.root(write.build(KIND, {"a": edits}), "/", str(tmp_path / "driver"))
    write.write(str(podman.specs), spec)
    assert podman("cat /tmp/libx.so", f"{KIND}=a") == "a library\n"


def test_what_is_generated_of_an_instance(podman: Podman, ctr: Ctr) -> None:
    """A device that came by a spec, another by its node, and one for this run only: the same in a container of Podman's."""
    (ctr.folder / "given").write_text("a file of the host\n")
    ctr.env["XDG_CONFIG_HOME"] = str(ctr.folder / "xdg")
    wide = ContainerEdits(
        ["WIDE=a b"],
        [DeviceNode("/dev/thing/ctl", "/dev/null", permissions="rw", uid=7, gid=9, file_mode=0o640)],
        mounts=[Mount(str(ctr.folder / "given"), "/etc/given", ["ro", "bind"])],
    )
    write.write(str(ctr.folder / "xdg/cdi"), write.build(KIND, {"one": wide}))
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-d", f"a,type=cdi,id={KIND}=one")
    ctr("attach-device", "c1", "b", "type=unix-char", "source=/dev/fuse", "path=/dev/mine", "mode=0604")
    ctr("attach-device", "c1", "/dev/net/tun", "--volatile")
    podman.specs.mkdir()
    path = str(podman.specs / "c1.yaml")
    assert "no device `z` now" in ctr("cdi", "generate", "z", "--instance", "c1", code=3).stderr
    assert ctr("cdi", "generate", "--instance", "c1", "--output", path).stderr == ""
    ctr("cdi", "validate", path)
    nodes = "stat -c '%n %a %u:%g %t:%T' /dev/thing/ctl /dev/mine /dev/net/tun; cat /etc/given"
    inside = ctr("exec", "c1", "--", "sh", "-c", f'{nodes}; echo "$WIDE"').stdout
    assert inside.startswith("/dev/thing/ctl 640 7:9 1:3\n/dev/mine 604 0:0 a:e5\n/dev/net/tun ")
    kind = "ctrmgr.local/c1"
    outside = podman(f'{nodes}; echo "$WIDE"', f"{kind}=a", f"{kind}=b", f"{kind}=net-tun")
    assert outside == inside
    ctr("stop", "--force", "c1")
    assert "is not running" in ctr("cdi", "generate", "--instance", "c1", code=4).stderr


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_is_generated_of_this_machine(podman: Podman, ctr: Ctr, form: str) -> None:
    podman.specs.mkdir()
    path = podman.specs / f"ctrmgr.{form}"
    ctr("cdi", "generate", "/dev/fuse", "/dev/net/tun", "--kind", KIND, "--output", str(path))
    ctr("cdi", "validate", str(path))
    look = "stat -c '%n %F %t:%T' /dev/fuse /dev/net/tun"
    names = [f"{KIND}=unix-char-dev-fuse", f"{KIND}=unix-char-dev-net-tun"]
    assert podman(look, *names).splitlines() == [
        "/dev/fuse character special file a:e5",
        "/dev/net/tun character special file a:c8",
    ]
