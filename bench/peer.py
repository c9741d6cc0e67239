# SPDX-License-Identifier: GPL-3.0-or-later
"""What is compared: how a user does each thing with a system. Every verb returns the command that is timed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from bench import timing

IDS = 65536
FIRST_ID = 2000000
"""In the range that root.py gives to root."""


class Place:
    """Where a run works: its scratch directory, the common root filesystem, and the mount namespaces of root.py."""

    def __init__(self, scratch: Path, rootfs: Path, host: int, trixie: int | None) -> None:
        self.scratch, self.rootfs, self.host, self.trixie = scratch, rootfs, host, trixie

    def plain(self, tree: Path) -> Path:
        """`tree` as a tarball; made once."""
        archive = self.scratch / f"{tree.name}.tar"
        if not archive.exists():
            timing.run(["tar", "-C", str(tree), "--exclude=./dev/*", "--numeric-owner", "-cf", str(archive), "."])
        return archive

    def unified(self, tree: Path) -> Path:
        """`tree` as a tarball of LXD's form; made once."""
        archive = self.scratch / f"{tree.name}.lxd.tar"
        if not archive.exists():
            metadata = self.scratch / "metadata.yaml"
            metadata.write_text(f"architecture: {os.uname().machine}\ncreation_date: {int(time.time())}\n")
            # `S`: the targets of symlinks stay as they are
            rename = ["--transform", r"s,^\./\?,rootfs/,S", "--exclude=./dev/*", "--numeric-owner"]
            timing.run(["tar", "-cf", str(archive), *rename, "-C", str(tree), "."])
            timing.run(["tar", "-rf", str(archive), "-C", str(self.scratch), "metadata.yaml"])
        return archive


class Peer:
    """`None` instead of a command: this system cannot do that."""

    name = ""
    binary = ""
    in_trixie = False
    """Run in the newer release's root instead of on the host."""

    def __init__(self, place: Place) -> None:
        self.place, self.scratch = place, place.scratch / self.name
        self.scratch.mkdir(parents=True)
        self.env = dict(os.environ)
        self.namespace = place.trixie if self.in_trixie else place.host

    @classmethod
    def missing(cls, trixie_missing: str | None) -> str | None:
        """Why this peer cannot be measured here, or None."""
        if cls.in_trixie:
            return trixie_missing
        return None if shutil.which(cls.binary) else f"`{cls.binary}` is not installed"

    def run(self, *argv: str, check: bool = True) -> str:
        """A command of this peer that is not timed."""
        return timing.run(argv, env=self.env, namespace=self.namespace, check=check)

    def milliseconds(self, argv: list[str]) -> float:
        """Carry a verb out and time it. Raises CommandFailedError."""
        return timing.milliseconds(argv, env=self.env, namespace=self.namespace)

    def version(self) -> str:
        """In the tool's own words."""
        return self.run(self.binary, "--version").splitlines()[0]

    def set_up(self) -> None: ...

    def tear_down(self) -> None: ...

    def settle(self) -> None:
        """Wait for what the last command left to be done behind its back, so that the next is not charged for it."""

    def prepare(self, instance: str) -> None:
        """What a user has done before the launch that is timed."""

    def archive(self, tree: Path) -> Path | None:
        """A root directory in the form that this peer imports; None if it has no image store."""
        return None

    def importing(self, archive: Path, alias: str) -> list[str]:
        raise NotImplementedError

    def launch(self, instance: str, image: str = "tiny") -> list[str]:
        raise NotImplementedError

    def launch_idle(self, instance: str) -> list[str]:
        """One of many, with its memory counted."""
        return self.launch(instance)

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

    def listing(self) -> list[str]:
        raise NotImplementedError
