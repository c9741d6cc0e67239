# SPDX-License-Identifier: GPL-3.0-or-later
"""LXC's tools, and the two daemons that were made of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from bench.peer import FIRST_ID, IDS, Peer
from bench.timing import enter


class Lxc(Peer):
    """LXC's tools on a prepared root; `prepare` makes the container's directory, as lxc-create would."""

    name = "lxc"
    binary = "lxc-start"
    in_trixie = True

    def prepare(self, instance: str) -> None:
        home = self.scratch / instance
        home.mkdir()
        shutil.copytree(self.place.rootfs, home / "rootfs", symlinks=True)
        self.run("chown", "-R", "-h", f"{FIRST_ID}:{FIRST_ID}", str(home / "rootfs"))
        (home / "config").write_text(
            f"lxc.uts.name = {instance}\nlxc.rootfs.path = dir:{home}/rootfs\n"
            f"lxc.idmap = u 0 {FIRST_ID} {IDS}\nlxc.idmap = g 0 {FIRST_ID} {IDS}\nlxc.net.0.type = empty\n"
            "lxc.init.cmd = /bin/sleep 86400\nlxc.mount.auto = proc:mixed sys:mixed\nlxc.autodev = 1\n"
        )

    def version(self) -> str:
        return f"lxc {super().version()}"

    def launch(self, instance: str, image: str = "") -> list[str]:
        return ["lxc-start", "-P", str(self.scratch), "-n", instance]

    start = launch

    def stop(self, instance: str) -> list[str]:
        return ["lxc-stop", "-k", "-P", str(self.scratch), "-n", instance]

    def exec(self, instance: str) -> list[str]:
        return ["lxc-attach", "-P", str(self.scratch), "-n", instance, "--", "/bin/true"]

    def delete(self, instance: str) -> list[str]:
        return ["lxc-destroy", "-f", "-P", str(self.scratch), "-n", instance]

    def listing(self) -> list[str]:
        return ["lxc-ls", "-P", str(self.scratch)]


class Daemon(Peer):
    """A daemon that is started and stopped by us, without a network, with a btrfs pool (its fastest for launches)."""

    daemon: list[str]
    admin: list[str]
    variable = ""

    def set_up(self) -> None:
        home = self.scratch / "daemon"
        home.mkdir()
        self.env[f"{self.variable}_DIR"] = str(home)
        self.env[f"{self.variable}_CONF"] = self.env["HOME"] = str(self.scratch)
        with (self.scratch / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*self.daemon, "--group", "root"],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=enter(self.namespace),
            )
        self.run(*self.admin, "waitready", "--timeout=60")
        preseed = {
            "storage_pools": [{"name": "pool", "driver": "btrfs", "config": {"size": "8GiB"}}],
            "profiles": [{"name": "default", "devices": {"root": {"type": "disk", "path": "/", "pool": "pool"}}}],
        }
        subprocess.run(
            [*self.admin, "init", "--preseed"],
            input=json.dumps(preseed),
            text=True,
            env=self.env,
            check=True,
            preexec_fn=enter(self.namespace),
        )
        self.run(*self.importing(self.archive(self.place.rootfs), "tiny"))

    def tear_down(self) -> None:
        for row in json.loads(self.run(self.binary, "list", "--format", "json")):
            self.run(*self.delete(row["name"]), check=False)
        self.run(*self.admin, "shutdown", "--force", "--timeout=60", check=False)
        self.process.wait(90)

    def archive(self, tree: Path) -> Path:
        return self.place.unified(tree)

    def importing(self, archive: Path, alias: str) -> list[str]:
        return [self.binary, "image", "import", str(archive), "--alias", alias]

    def launch(self, instance: str, image: str = "tiny") -> list[str]:
        return [self.binary, "launch", image, instance]

    def start(self, instance: str) -> list[str]:
        return [self.binary, "start", instance]

    def stop(self, instance: str) -> list[str]:
        return [self.binary, "stop", "--force", instance]

    def exec(self, instance: str) -> list[str]:
        return [self.binary, "exec", instance, "--", "/bin/true"]

    def attach(self, instance: str) -> list[str]:
        device = ["fuse", "unix-char", "source=/dev/fuse", "path=/dev/fuse"]
        return [self.binary, "config", "device", "add", instance, *device]

    def detach(self, instance: str) -> list[str]:
        return [self.binary, "config", "device", "remove", instance, "fuse"]

    def delete(self, instance: str) -> list[str]:
        return [self.binary, "delete", "--force", instance]

    def listing(self) -> list[str]:
        return [self.binary, "list"]


class Lxd(Daemon):
    name = "lxd"
    binary = "lxc"  # of the package `lxd`
    daemon = admin = ["lxd"]
    variable = "LXD"

    def version(self) -> str:
        return f"lxd {self.run('lxd', '--version').strip()}"


class Incus(Daemon):
    name = binary = "incus"
    in_trixie = True
    daemon = ["/usr/libexec/incus/incusd"]
    admin = ["incus", "admin"]
    variable = "INCUS"

    def version(self) -> str:
        return f"incus {super().version()}"
