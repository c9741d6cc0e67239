# SPDX-License-Identifier: GPL-3.0-or-later
"""The profiles that ship, for the hardware that the guest has."""

from __future__ import annotations

import os

from tests.lab.commands import ctr, sh

GPU, UVERBS, NVME = "/dev/dri/renderD128", "/dev/infiniband/uverbs0", "/dev/nvme0n1"


def profiles_give_what_they_say() -> None:
    """Those for the hardware that is here, all at once, and what they open."""
    os.makedirs("/dev/disk/by-partlabel", exist_ok=True)
    os.symlink(f"../..{NVME.removeprefix('/dev')}", "/dev/disk/by-partlabel/scratch")
    names = ("no-network", "gpu-render", "hpc-mpi", "infiniband", "block-scratch")
    ctr("launch", "builtin:busybox", "c2", *(word for name in names for word in ("-p", name)))
    try:
        said = sh(f"ulimit -l; ulimit -s; ulimit -n; exec 3<>{GPU}; exec 4<>{UVERBS}; head -n 1 /dev/scratch",
                  name="c2", user="1000", group="1000", code=None)  # fmt: skip
        assert said.split("\n")[:3] == ["unlimited", "unlimited", "65536"], said
        assert "denied" in said, "the disk is root's"
        assert sh("head -n 1 /dev/scratch", name="c2").startswith("the first line")
        ctr("launch", "builtin:busybox", "c3", "-p", "no-network", "-p", "block-scratch", code=4)
    finally:
        ctr("delete", "--force", "c2")
        os.unlink("/dev/disk/by-partlabel/scratch")
