# SPDX-License-Identifier: GPL-3.0-or-later
"""One class a system: how a user does each thing with it. Every verb returns the command that is timed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from timing import CommandFailedError, run, v1_only

IDS = 65536


class Peer:
    """What is compared. `None` instead of a command: this system cannot do that."""

    name = ""
    binary = ""
    namespace: int | None = None
    """The mount namespace to run in, if not the caller's."""

    def __init__(self, scratch: Path, rootfs: Path) -> None:
        self.scratch, self.rootfs = scratch / self.name, rootfs
        self.scratch.mkdir(parents=True)
        self.env = dict(os.environ)

    @classmethod
    def missing(cls) -> str | None:
        """Why this peer cannot be measured here, or None."""
        return None if shutil.which(cls.binary) else f"`{cls.binary}` is not installed"

    def set_up(self) -> None: ...

    def tear_down(self) -> None: ...

    def prepare(self, instance: str) -> None:
        """What a user has done before the launch that is timed."""

    def launch(self, instance: str) -> list[str]:
        raise NotImplementedError

    def start(self, instance: str) -> list[str] | None:
        return None

    def stop(self, instance: str) -> list[str] | None:
        return None

    def exec(self, instance: str) -> list[str]:
        raise NotImplementedError

    def attach(self, instance: str) -> list[str] | None:
        return None

    def detach(self, instance: str) -> list[str] | None:
        return None

    def delete(self, instance: str) -> list[str]:
        """Kill and remove in one go."""
        raise NotImplementedError

    def list(self) -> list[str] | None:
        return None


class Ctrmgr(Peer):
    name = binary = "ctrmgr"

    def set_up(self) -> None:
        for part in ("state", "run", "config"):
            self.env[f"CTRMGR_{part.upper()}_DIR"] = str(self.scratch / part)
        self.env["CTRMGR_CGROUP_PARENT"] = "ctrmgr-bench"
        profiles = self.scratch / "config" / "profiles"
        profiles.mkdir(parents=True)
        (profiles / "offline.yaml").write_text("name: offline\ndescription: no network\nconfig: {}\ndevices: {}\n")
        run(["ctrmgr", "launch", "builtin:busybox", "warm", "-p", "offline"], env=self.env)
        run(["ctrmgr", "delete", "--force", "warm"], env=self.env)

    def tear_down(self) -> None:
        for row in json.loads(run(["ctrmgr", "list", "--format", "json"], env=self.env)):
            run(["ctrmgr", "delete", "--force", row["name"]], env=self.env)

    def launch(self, instance: str) -> list[str]:
        return ["ctrmgr", "launch", "builtin:busybox", instance, "-p", "offline"]

    def start(self, instance: str) -> list[str]:
        return ["ctrmgr", "start", instance]

    def stop(self, instance: str) -> list[str]:
        return ["ctrmgr", "stop", instance]

    def exec(self, instance: str) -> list[str]:
        return ["ctrmgr", "exec", instance, "--", "/bin/true"]

    def attach(self, instance: str) -> list[str]:
        return ["ctrmgr", "attach-device", instance, "fuse", "type=unix-char", "source=/dev/fuse"]

    def detach(self, instance: str) -> list[str]:
        return ["ctrmgr", "detach-device", instance, "fuse"]

    def delete(self, instance: str) -> list[str]:
        return ["ctrmgr", "delete", "--force", instance]

    def list(self) -> list[str]:
        return ["ctrmgr", "list"]


def hybrid_refused() -> int | None:
    """crun before 1.9 refuses a host that has both cgroup versions mounted: such a host is given to it as pure v1."""
    return v1_only() if os.path.ismount("/sys/fs/cgroup/unified") else None


class Crun(Peer):
    """crun's own start of a bundle: no image store, no copy-on-write layer, one shared read-only tree."""

    name = binary = "crun"

    def set_up(self) -> None:
        self.namespace = hybrid_refused()
        self.root = ["crun", "--root", str(self.scratch / "root"), "--cgroup-manager", "cgroupfs"]
        self.bundle = self.scratch / "bundle"
        self.bundle.mkdir()
        shutil.copytree(self.rootfs, self.bundle / "rootfs", symlinks=True)
        run(["chown", "-R", "-h", "300000:300000", str(self.bundle / "rootfs")])
        subprocess.run(["crun", "spec"], cwd=self.bundle, check=True)
        config = json.loads((self.bundle / "config.json").read_text())
        config["process"].update(terminal=False, args=["/bin/sleep", "86400"])
        config["linux"]["namespaces"].append({"type": "user"})
        mapping = [{"containerID": 0, "hostID": 300000, "size": IDS}]
        config["linux"].update(uidMappings=mapping, gidMappings=mapping)
        (self.bundle / "config.json").write_text(json.dumps(config))

    def launch(self, instance: str) -> list[str]:
        return [*self.root, "run", "-d", "-b", str(self.bundle), instance]

    def exec(self, instance: str) -> list[str]:
        return [*self.root, "exec", instance, "/bin/true"]

    def delete(self, instance: str) -> list[str]:
        return [*self.root, "delete", "-f", instance]

    def list(self) -> list[str]:
        return [*self.root, "list"]


class Podman(Peer):
    name = binary = "podman"

    def set_up(self) -> None:
        self.namespace = hybrid_refused()
        places = ["--root", str(self.scratch / "root"), "--runroot", str(self.scratch / "run")]
        self.base = ["podman", *places, "--cgroup-manager=cgroupfs", "--runtime=crun", "--log-level=error"]
        archive = self.scratch / "image.tar"
        run(["tar", "-C", str(self.rootfs), "-cf", str(archive), "."])
        run([*self.base, "import", str(archive), "bench:tiny"], namespace=self.namespace)

    def tear_down(self) -> None:
        run([*self.base, "rm", "-af", "-t", "0"], namespace=self.namespace, check=False)

    def launch(self, instance: str) -> list[str]:
        mapping = ["--uidmap", f"0:300000:{IDS}", "--gidmap", f"0:300000:{IDS}", "--network=none"]
        limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]  # for a root without CAP_SYS_RESOURCE
        return [*self.base, "run", "-d", "--name", instance, *mapping, *limits, "bench:tiny", "/bin/sleep", "86400"]

    def start(self, instance: str) -> list[str]:
        return [*self.base, "start", instance]

    def stop(self, instance: str) -> list[str]:
        return [*self.base, "stop", "-t", "0", instance]

    def exec(self, instance: str) -> list[str]:
        return [*self.base, "exec", instance, "/bin/true"]

    def delete(self, instance: str) -> list[str]:
        return [*self.base, "rm", "-f", "-t", "0", instance]

    def list(self) -> list[str]:
        return [*self.base, "ps", "-a"]


class Lxc(Peer):
    """LXC's tools on a prepared root; `prepare` makes the container's directory, as lxc-create would."""

    name = "lxc"
    binary = "lxc-start"

    def prepare(self, instance: str) -> None:
        home = self.scratch / instance
        home.mkdir()
        shutil.copytree(self.rootfs, home / "rootfs", symlinks=True)
        run(["chown", "-R", "-h", "300000:300000", str(home / "rootfs")])
        (home / "config").write_text(
            f"lxc.uts.name = {instance}\nlxc.rootfs.path = dir:{home}/rootfs\n"
            f"lxc.idmap = u 0 300000 {IDS}\nlxc.idmap = g 0 300000 {IDS}\nlxc.net.0.type = empty\n"
            "lxc.init.cmd = /bin/sleep 86400\nlxc.mount.auto = proc:mixed sys:mixed\nlxc.autodev = 1\n"
        )

    def launch(self, instance: str) -> list[str]:
        return ["lxc-start", "-P", str(self.scratch), "-n", instance]

    start = launch

    def stop(self, instance: str) -> list[str]:
        return ["lxc-stop", "-k", "-P", str(self.scratch), "-n", instance]

    def exec(self, instance: str) -> list[str]:
        return ["lxc-attach", "-P", str(self.scratch), "-n", instance, "--", "/bin/true"]

    def delete(self, instance: str) -> list[str]:
        return ["lxc-destroy", "-f", "-P", str(self.scratch), "-n", instance]

    def list(self) -> list[str]:
        return ["lxc-ls", "-P", str(self.scratch)]


class Lxd(Peer):
    """LXD with a btrfs pool (its fastest for launches), the daemon started and stopped by us."""

    name = "lxd"
    binary = "lxd"
    client = "lxc"
    preseed_pool = "btrfs"

    def set_up(self) -> None:
        self.env["LXD_DIR"] = str(self.scratch / "daemon")
        Path(self.env["LXD_DIR"]).mkdir()
        self.env["LXD_CONF"] = self.env["HOME"] = str(self.scratch)
        log = (self.scratch / "log").open("w")
        self.daemon = subprocess.Popen(["lxd", "--group", "root"], env=self.env, stdout=log, stderr=log)
        run(["lxd", "waitready", "--timeout=60"], env=self.env)
        preseed = {
            "storage_pools": [{"name": "pool", "driver": self.preseed_pool, "config": {"size": "4GiB"}}],
            "profiles": [{"name": "default", "devices": {"root": {"type": "disk", "path": "/", "pool": "pool"}}}],
        }
        subprocess.run(["lxd", "init", "--preseed"], input=json.dumps(preseed), text=True, env=self.env, check=True)
        self.import_image(self.rootfs, "tiny")

    def import_image(self, rootfs: Path, alias: str) -> None:
        archive = self.scratch / f"{alias}.tar"
        metadata = self.scratch / "metadata.yaml"
        metadata.write_text(f"architecture: {os.uname().machine}\ncreation_date: {int(time.time())}\n")
        rename = ["--transform", r"s,^\./\?,rootfs/,"]
        run(["tar", "-cf", str(archive), *rename, "-C", str(rootfs), "."])
        run(["tar", "-rf", str(archive), "-C", str(self.scratch), "metadata.yaml"])
        run([self.client, "image", "import", str(archive), "--alias", alias], env=self.env)

    def tear_down(self) -> None:
        run(["lxd", "shutdown", "--force", "--timeout=60"], env=self.env, check=False)
        self.daemon.wait(90)

    def launch(self, instance: str) -> list[str]:
        return [self.client, "launch", "tiny", instance]

    def start(self, instance: str) -> list[str]:
        return [self.client, "start", instance]

    def stop(self, instance: str) -> list[str]:
        return [self.client, "stop", "--force", instance]

    def exec(self, instance: str) -> list[str]:
        return [self.client, "exec", instance, "--", "/bin/true"]

    def attach(self, instance: str) -> list[str]:
        device = ["fuse", "unix-char", "source=/dev/fuse", "path=/dev/fuse"]
        return [self.client, "config", "device", "add", instance, *device]

    def detach(self, instance: str) -> list[str]:
        return [self.client, "config", "device", "remove", instance, "fuse"]

    def delete(self, instance: str) -> list[str]:
        return [self.client, "delete", "--force", instance]

    def list(self) -> list[str]:
        return [self.client, "list"]


ALL: tuple[type[Peer], ...] = (Ctrmgr, Crun, Lxc, Podman, Lxd)


def available(scratch: Path, rootfs: Path, wanted: list[str]) -> tuple[list[Peer], list[str]]:
    """The peers that can be measured, set up, and the reasons why the others cannot."""
    peers, reasons = [], []
    for kind in ALL:
        if wanted and kind.name not in wanted and kind is not Ctrmgr:
            continue
        reason = kind.missing()
        if reason is None:
            peer = kind(scratch, rootfs)
            try:
                peer.set_up()
                peers.append(peer)
                continue
            except (CommandFailedError, subprocess.CalledProcessError) as failure:
                reason = f"did not start: {failure}"
        reasons.append(f"{kind.name} was not measured: {reason}")
        print(reasons[-1], file=sys.stderr)
    return peers, reasons
