# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded machines whose GPUs can be divided: they answer as their drivers do, and can kill whoever writes to them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from ctrmgr import partition as back_ends
from ctrmgr.backend import functions, machine_lock
from ctrmgr.errors import ConflictError, UnsupportedError
from ctrmgr.kernel import attribute
from tests import trees

GIB = 1 << 30


class Tree:
    """A recorded machine whose attributes do something when they are written; it can kill whoever writes."""

    def __init__(self, root: Path) -> None:
        self.root, self.writes, self.kill_at, self.busy = root, 0, (0, ""), False

    def write(self, path: str, text: str) -> None:
        self.writes += 1
        if (self.writes, "before") == self.kill_at:
            os._exit(9)
        if not os.path.exists(path) and not path.endswith("bind"):
            raise UnsupportedError(f"no {path}")
        if self.busy:
            raise ConflictError(f"{path} is busy")
        self.react(path, text)
        if (self.writes, "after") == self.kill_at:
            os._exit(9)

    def react(self, path: str, text: str) -> None:
        Path(path).write_text(text + "\n")

    def everything(self) -> dict[str, str]:
        """All files and links."""
        found = {}
        for folder, names, files in os.walk(self.root):
            for name in [*names, *files]:
                path = Path(folder, name)
                if path.is_symlink():
                    found[str(path)] = "-> " + os.readlink(path)
                elif path.is_file():
                    found[str(path)] = path.read_text()
        return found


class Amd(Tree):
    """Two MI300X. Which mode one is in decides what the topology has."""

    ID = "0000:05:00.0"
    COUNTS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        trees.unpack(root, "mi300x")
        self.nodes = root / "sys/class/kfd/kfd/topology/nodes"
        self.recorded = {
            node: (node / "properties").read_text()
            for node in sorted(self.nodes.iterdir(), key=lambda each: int(each.name))
        }
        self.device = root / "sys/bus/pci/devices" / self.ID
        self.requested = ""
        self.react(f"{self.device}/current_compute_partition", "SPX")

    def loaded_anew(self) -> None:
        """The driver is unloaded and loaded: it does what it was asked for, for all GPUs that are linked."""
        modes = {"NPS1": ("SPX, DPX, QPX, CPX", "SPX"), "NPS4": ("QPX, CPX", "QPX")}
        if self.requested:
            for path in (self.root / "sys/bus/pci/devices").glob("*/current_memory_partition"):
                path.write_text(self.requested + "\n")
                (path.parent / "available_compute_partition").write_text(modes[self.requested][0] + "\n")
            self.react(f"{self.device}/current_compute_partition", modes[self.requested][1])
        self.requested = ""

    def react(self, path: str, text: str) -> None:
        if path.endswith(
            "/current_memory_partition"
        ):  # a request: the file says what is, and one for that takes none back
            self.requested = text if text not in Path(path).read_text() else self.requested
            return
        super().react(path, text)
        if not path.endswith(f"{self.ID}/current_compute_partition"):
            return
        count = self.COUNTS[text]
        mine = [node for node, words in self.recorded.items() if self.slot(words) == 5]
        for index, node in enumerate(mine):
            dies = 8 // count if index < count else 0
            words = self.recorded[node] if dies else "drm_render_minor 0\n"
            words = words.replace("simd_count 152", f"simd_count {152 * dies}\nsimd_per_cu 4").replace(
                "num_xcc 1", f"num_xcc {dies}"
            )
            (node / "properties").write_text(words)

    @staticmethod
    def slot(words: str) -> int:
        found = re.search(r"^location_id (\d+)", words, re.MULTILINE)
        return int(found[1]) >> 8 & 0xFF if found else -1


class Xe(Tree):
    """An Arc Pro B60 whose two virtual functions are disabled; `layout` is where its debugfs has the quotas."""

    ID = "0000:03:00.0"
    VFS = ("0000:03:00.1", "0000:03:00.2")

    def __init__(self, root: Path, layout: str = "sriov") -> None:
        super().__init__(root)
        trees.unpack(root, "xe")
        self.bus = root / "sys/bus/pci/devices"
        self.device = Path(os.path.realpath(self.bus / self.ID))
        (self.device / "sriov_totalvfs").write_text("2\n")
        (self.device / "sriov_drivers_autoprobe").write_text("1\n")
        (self.device / "tile0/physical_vram_size_bytes").write_text(f"{24 * GIB}\n")
        shutil.copytree(self.folder(0) / "drm", self.folder(1) / "drm", symlinks=True)
        for old, new in (("card2", "card3"), ("renderD130", "renderD131")):
            os.rename(self.folder(1) / "drm" / old, self.folder(1) / "drm" / new)
        (self.folder(1) / "drm/renderD131/dev").write_text("226:131\n")
        (self.folder(1) / "drm/renderD131/uevent").write_text("MAJOR=226\nMINOR=131\nDEVNAME=dri/renderD131\n")
        (root / "dev/dri/renderD131").write_text("226:131\n")
        debug = root / "sys/kernel/debug/dri" / self.ID
        for number in (1, 2):
            top = debug / f"sriov/vf{number}/tile0" if layout == "sriov" else debug / f"gt0/vf{number}"
            inner = top / "gt0" if layout == "sriov" else top
            for folder, names in ((top, ("ggtt_quota", "lmem_quota")), (inner, ("contexts_quota", "doorbells_quota"))):
                folder.mkdir(parents=True, exist_ok=True)
                for name in names:
                    (folder / name).write_text("0\n")
        if layout == "none":
            shutil.rmtree(root / "sys/kernel")
        self.enable(2)
        for address in self.VFS:
            self.unbind(address)
        self.enable(0)
        self.react(f"{self.device}/sriov_numvfs", "0")
        self.react(f"{self.device}/sriov_drivers_autoprobe", "1")

    def folder(self, index: int) -> Path:
        return self.device.parent / self.VFS[index]

    def enable(self, count: int) -> None:
        for index, address in enumerate(self.VFS):
            for link, target in (
                (self.device / f"virtfn{index}", f"../{address}"),
                (self.bus / address, os.path.relpath(self.folder(index), self.bus)),
            ):
                if link.is_symlink():
                    link.unlink()
                if index < count:
                    link.symlink_to(target)
        if not count:
            for quota in self.root.rglob("*_quota"):
                quota.write_text("0\n")

    def unbind(self, address: str) -> None:
        driver = self.folder(self.VFS.index(address)) / "driver"
        if driver.is_symlink():
            driver.unlink()
        for link in (self.root / "sys/class/drm").iterdir():
            if f"/{address}/" in os.readlink(link):
                link.unlink()

    def bind(self, address: str) -> None:
        folder = self.folder(self.VFS.index(address))
        (folder / "driver").symlink_to(os.path.relpath(self.root / "sys/bus/pci/drivers/xe", folder))
        names = ("card2", "renderD130") if address == self.VFS[0] else ("card3", "renderD131")
        for name in names:
            link = self.root / "sys/class/drm" / name
            link.symlink_to(os.path.relpath(folder / "drm" / name, link.parent))

    def react(self, path: str, text: str) -> None:
        if path.endswith("/unbind"):
            self.unbind(text)
        elif path.endswith("/bind"):
            self.bind(text)
        else:
            super().react(path, text)
        if path.endswith("/sriov_numvfs"):
            self.enable(int(text))


class Nvidia(Tree):
    """Two H100, the first of them known to the library."""

    ID = "0000:18:00.0"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        trees.unpack(root, "nvidia")


@contextmanager
def on(tree: Tree, folder: Path) -> Iterator[Tree]:
    """ctrmgr with books of its own on this machine."""
    named = back_ends.named
    reasons = back_ends.reasons
    with (
        patch.dict(os.environ, {"CTRMGR_STATE_DIR": f"{folder}/state", "CTRMGR_RUN_DIR": f"{folder}/run"}),
        patch.dict(os.environ, {"FAKE_NVML": str(folder), "CTRMGR_CONFIG_DIR": f"{folder}/etc"}),
        patch.object(back_ends, "named", lambda name, root="": named(name, str(tree.root))),
        patch.object(back_ends, "reasons", lambda kind: reasons(kind, str(tree.root))),
        patch.object(attribute, "write", tree.write),
        patch.object(functions.registry, "sources", dict),
        patch.object(machine_lock, "LOCK", str(folder)),  # other tests have the machine's
    ):
        yield tree
