# SPDX-License-Identifier: GPL-3.0-or-later
"""A real image: its import, the first and the tenth instance, their end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.peer import Peer
from bench.timing import Results

INSTANCES = 10
IMPORT = "import of the tarball"


def real(peer: Peer, results: Results, tree: Path) -> None:
    archive = peer.archive(tree)
    if archive is None:
        return
    archive.read_bytes()  # into the page cache, for each alike
    results.add(IMPORT, peer.name, peer.milliseconds(peer.importing(archive, "real")))
    names = [f"real{index}" for index in range(1, INSTANCES + 1)]
    for number, name in enumerate(names, 1):
        took = peer.milliseconds(peer.launch(name, "real"))
        if number in (1, INSTANCES):
            results.add(f"launch no. {number} of it", peer.name, took)
    time.sleep(1)
    for name in names:
        results.add("kill and remove one of them", peer.name, peer.milliseconds(peer.delete(name)))
        peer.settle()


def described(tree: Path) -> str:
    """Its size in words."""
    size = files = 0
    for folder, _, names in os.walk(tree):
        for name in names:
            size += Path(folder, name).lstat().st_size
            files += 1
    return f"{size / 1e6:.0f} MB, {files} files"
