# SPDX-License-Identifier: GPL-3.0-or-later
"""ctrmgr, as a user of its command line has it; no state of an installed one is touched."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from bench.peer import Peer


class Ctrmgr(Peer):
    name = binary = "ctrmgr"

    def set_up(self) -> None:
        for part in ("state", "run", "config"):
            self.env[f"CTRMGR_{part.upper()}_DIR"] = str(self.scratch / part)
        self.env["CTRMGR_CGROUP_PARENT"] = "ctrmgr-bench"
        profiles = self.scratch / "config" / "profiles"
        profiles.mkdir(parents=True)
        (profiles / "offline.yaml").write_text("name: offline\ndescription: no network\nconfig: {}\ndevices: {}\n")
        # cgroup v1 counts memory only where a limit is set
        counted = "name: counted\ndescription: and its memory counted\nconfig: {limits.memory: 1GiB}\ndevices: {}\n"
        (profiles / "counted.yaml").write_text(counted)

    def tear_down(self) -> None:
        for row in json.loads(self.run("ctrmgr", "list", "--format", "json")):
            self.run("ctrmgr", "delete", "--force", row["name"])

    def interpreter(self) -> str:
        """The Python that runs it."""
        return str(Path(os.path.realpath(shutil.which("ctrmgr") or "ctrmgr")).parents[5] / "bin/python3")

    def archive(self, tree: Path) -> Path:
        return self.place.unified(tree)

    def importing(self, archive: Path, alias: str) -> list[str]:
        return ["ctrmgr", "image", "import", str(archive), "--alias", alias]

    def launch(self, instance: str, image: str = "builtin:busybox") -> list[str]:
        return ["ctrmgr", "launch", image, instance, "-p", "offline"]

    def launch_idle(self, instance: str) -> list[str]:
        return [*self.launch(instance), "-p", "counted"]

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

    def listing(self) -> list[str]:
        return ["ctrmgr", "list"]
