# SPDX-License-Identifier: GPL-3.0-or-later
"""crun and Podman."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

from bench.peer import FIRST_ID, IDS, Peer


class Crun(Peer):
    """crun's own start of a bundle: no image store, no copy-on-write layer, one shared tree, no record of options."""

    name = binary = "crun"
    in_trixie = True

    def set_up(self) -> None:
        self.root = ["crun", "--root", str(self.scratch / "root"), "--cgroup-manager", "cgroupfs"]
        self.bundle = self.scratch / "bundle"
        self.bundle.mkdir()
        shutil.copytree(self.place.rootfs, self.bundle / "rootfs", symlinks=True)
        self.run("chown", "-R", "-h", f"{FIRST_ID}:{FIRST_ID}", str(self.bundle / "rootfs"))
        self.run("crun", "spec", "--bundle", str(self.bundle))
        config = json.loads((self.bundle / "config.json").read_text())
        config["process"].update(terminal=False, args=["/bin/sleep", "86400"])
        config["linux"]["namespaces"].append({"type": "user"})
        mapping = [{"containerID": 0, "hostID": FIRST_ID, "size": IDS}]
        config["linux"].update(uidMappings=mapping, gidMappings=mapping)
        (self.bundle / "config.json").write_text(json.dumps(config))

    def launch(self, instance: str, image: str = "") -> list[str]:
        return [*self.root, "run", "-d", "-b", str(self.bundle), instance]

    def exec(self, instance: str) -> list[str]:
        return [*self.root, "exec", instance, "/bin/true"]

    def delete(self, instance: str) -> list[str]:
        return [*self.root, "delete", "-f", instance]

    def listing(self) -> list[str]:
        return [*self.root, "list"]


class Podman(Peer):
    name = binary = "podman"
    in_trixie = True

    def set_up(self) -> None:
        places = ["--root", str(self.scratch / "root"), "--runroot", str(self.scratch / "run")]
        self.base = ["podman", *places, "--cgroup-manager=cgroupfs", "--runtime=crun", "--log-level=error"]
        self.env["PODMAN_IGNORE_CGROUPSV1_WARNING"] = "1"
        self.run(*self.importing(self.archive(self.place.rootfs), "tiny"))

    def tear_down(self) -> None:
        self.settle()
        self.run(*self.base, "rm", "-af", "-t", "0", check=False)

    def settle(self) -> None:
        """Its conmon runs `podman container cleanup` when a container has ended, at the same time as `podman stop`.

        Podman 4.3 fails when the two meet: one leaves /dev/shm mounted, and `rm` says "device or resource busy".
        """
        while (
            subprocess.run(
                ["pgrep", "-f", f"{self.scratch}/.* container cleanup"], stdout=subprocess.DEVNULL
            ).returncode
            == 0
        ):
            time.sleep(0.005)

    def archive(self, tree: Path) -> Path:
        return self.place.plain(tree)

    def importing(self, archive: Path, alias: str) -> list[str]:
        return [*self.base, "import", "--quiet", str(archive), f"bench:{alias}"]

    def launch(self, instance: str, image: str = "tiny") -> list[str]:
        mapping = ["--uidmap", f"0:{FIRST_ID}:{IDS}", "--gidmap", f"0:{FIRST_ID}:{IDS}", "--network=none"]
        limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]  # for a root without CAP_SYS_RESOURCE
        return [*self.base, "run", "-d", "--name", instance, *mapping, *limits, f"bench:{image}", "/sbin/init"]

    def start(self, instance: str) -> list[str]:
        return [*self.base, "start", instance]

    def stop(self, instance: str) -> list[str]:
        return [*self.base, "stop", "-t", "0", instance]

    def exec(self, instance: str) -> list[str]:
        return [*self.base, "exec", instance, "/bin/true"]

    def delete(self, instance: str) -> list[str]:
        return [*self.base, "rm", "-f", "-t", "0", instance]

    def listing(self) -> list[str]:
        return [*self.base, "ps", "-a"]
