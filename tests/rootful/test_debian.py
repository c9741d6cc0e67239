# SPDX-License-Identifier: GPL-3.0-or-later
"""A real distribution with systemd as its init, from its packages to its end."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from ctrmgr.images import exporting, importing, store
from tests.conftest import Ctr
from tests.rootful.test_images import snapshot

OFFLINE = ("-p", "no-network")


def booted(ctr: Ctr, name: str, *, before: str = "") -> str:
    """The pid of init once systemd says that it is up; another one than `before`."""
    said = ""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        said = ctr("exec", name, "systemctl", "is-system-running", code=None).stdout.strip()
        machine = json.loads(ctr("info", name, "-fjson", code=None).stdout or "{}")
        if said == "running" and str(machine.get("pid")) != before:
            return str(machine["pid"])
        time.sleep(0.2)
    failed = ctr("exec", name, "systemctl", "--failed", "--no-pager", code=None)
    pytest.fail(f"systemd says {said!r}: {failed}")


def whole(debian: store.Image, folder: Path) -> None:
    """It is what was asked for, and the same after it was away."""
    assert debian.metadata["init"] == "/sbin/init"
    assert debian.metadata["halt-signal"] == "37"
    assert (debian.metadata["os"], debian.metadata["release"]) == ("Debian", "trixie")
    assert os.path.exists(debian.rootfs + "/usr/lib/systemd/systemd")
    assert os.stat(debian.rootfs + "/etc/shadow").st_gid == 42
    for part in ("apt/apt.conf.d", "dpkg/dpkg.cfg.d"):
        assert not os.path.exists(f"{debian.rootfs}/etc/{part}/99mmdebstrap")
    exporting.export(debian, str(folder / "debian.tar"))
    back, _ = importing.import_image([str(folder / "debian.tar")])
    assert snapshot(back.rootfs) == snapshot(debian.rootfs)


@pytest.mark.timeout(600)
def test_debian_is_built_boots_serves_and_ends(ctr: Ctr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*ctr.argv, "image", "build", "debian:trixie"]
    built = subprocess.run(command, env=ctr.env, capture_output=True, text=True, timeout=500)
    assert built.returncode == 0, built.stderr
    with monkeypatch.context() as here:
        here.setenv("CTRMGR_STATE_DIR", ctr.env["CTRMGR_STATE_DIR"])
        image = store.find("debian:trixie")
        here.setenv("CTRMGR_STATE_DIR", str(tmp_path / "state"))
        whole(image, tmp_path)
    ctr("launch", "debian:trixie", "c1", *OFFLINE, "-d", "fuse,type=unix-char,source=/dev/fuse,gid=video")
    pid = booted(ctr, "c1")  # nothing has failed, or it would say `degraded`
    assert ctr("exec", "c1", "stat", "-c", "%U:%G %a", "/dev/fuse").stdout == "root:video 660\n"
    assert ctr("exec", "c1", "systemd-run", "--wait", "--pipe", "--quiet", "echo", "hi").stdout == "hi\n"
    assert ctr("exec", "c1", "--user", "daemon", "id", "-un").stdout == "daemon\n"
    assert ctr("exec", "c1", "cat", "/etc/hostname").stdout == "c1\n"
    assert json.loads(ctr("info", "c1", "-fjson").stdout)["processes"] > 3
    ctr("attach-device", "c1", "/dev/net/tun")
    ctr("detach-device", "c1", "fuse")
    ctr("exec", "c1", "systemctl", "reboot", code=None)
    booted(ctr, "c1", before=pid)
    assert ctr("exec", "c1", "sh", "-c", "ls /dev/fuse /dev/net/tun 2>/dev/null", code=None).stdout == "/dev/net/tun\n"
    begin = time.monotonic()
    ctr("stop", "c1", "--timeout", "60")
    assert time.monotonic() - begin < 30  # it listens to the signal that its init is asked by
    assert json.loads(ctr("info", "c1", "-fjson").stdout)["last-exit"].startswith("powered off at 20")
