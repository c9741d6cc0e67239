# SPDX-License-Identifier: GPL-3.0-or-later
"""AMD's memory modes: asked for, and had when the driver is loaded anew; and a partition that somebody has by other keys."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from ctrmgr.backend import held, leases, named_partitions, partition_modes
from ctrmgr.cli import main
from ctrmgr.errors import ConflictError, SpecError
from tests.gpu_machines import Amd, Xe, on
from tests.unit.test_partition_gpus import parts_now, start, stop


def test_amd_memory_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request, which counts with the driver's next load; what needs the other mode says so before, and fits after it."""
    other = "0000:27:00.0"
    with on(Amd(tmp_path / "root"), tmp_path) as tree:
        assert isinstance(tree, Amd)
        assert partition_modes.mode(Amd.ID) == "NPS1"
        with pytest.raises(SpecError, match="has no mode `on`") as wrong:
            partition_modes.switch(Amd.ID, "on")
        assert wrong.value.hint == "it has NPS1, NPS4"
        with pytest.raises(
            ConflictError, match=r"`CPX/NPS4` needs memory mode NPS4, and `0000:05:00\.0` is in NPS1"
        ) as error:
            start("x", "profile=CPX/NPS4", pci=Amd.ID)
        assert "`ctrmgr partition mode 0000:05:00.0 MODE` asks for another" in str(error.value.hint)
        start("x", "profile=CPX/NPS1", pci=Amd.ID)
        assert parts_now() == {"x/g": f"{Amd.ID}/xcp0"}
        for linked in (Amd.ID, other):
            with pytest.raises(ConflictError, match=f"`{Amd.ID}` is in use, and only one that nobody has") as used:
                partition_modes.switch(linked, "NPS4")
            assert used.value.hint == "x/g"
        stop("x")
        before = tree.everything()
        main.run(["partition", "mode", Amd.ID, "nps4", "--dry-run"])
        assert tree.requested == "" and capsys.readouterr().out == f"switch {Amd.ID} nps4\n"
        assert main.run(["partition", "mode", Amd.ID, "nps4"]) == 0
        said = capsys.readouterr()
        assert f"NPS4 is asked for `{Amd.ID}` and `{other}`, and nothing has changed yet" in said.err and said.out == ""
        assert "NPS1 until then. A restart of the machine drops the request" in said.err
        assert tree.requested == "NPS4" and partition_modes.mode(Amd.ID) == "NPS1" and tree.everything() == before
        assert main.run(["partition", "mode", Amd.ID, "NPS1"]) == 0  # which the driver would skip
        assert "is NPS1 already; a request for another mode" in capsys.readouterr().err and tree.requested == "NPS4"
        tree.loaded_anew()
        assert main.run(["partition", "mode", other]) == 0 and capsys.readouterr().out == "NPS4\n"
        assert partition_modes.switch(Amd.ID, "NPS4") is None
        with pytest.raises(ConflictError, match="has no DPX in memory mode NPS4"):
            start("x", "profile=DPX", pci=Amd.ID)
        with pytest.raises(ConflictError, match="has no parts so large in memory mode NPS4: DPX is") as large:
            start("x", "memory=60GiB", pci=Amd.ID)
        assert str(large.value.hint).endswith("it has NPS1, NPS4")
        start("x", "profile=CPX/NPS4", pci=Amd.ID)
        assert held.everything()[0].takes["memory"] == 206141652992 // 8
        (tree.device / "available_memory_partition").unlink()  # as before Linux 6.13
        with pytest.raises(SpecError, match="has no mode `NPS1`") as old:
            partition_modes.switch(Amd.ID, "NPS1")
        assert old.value.hint == "it has NPS4"


def test_what_somebody_has_by_other_keys_is_not_ended(tmp_path: Path) -> None:
    with on(Xe(tmp_path / "root"), tmp_path) as tree:
        assert isinstance(tree, Xe)
        before = tree.everything()
        named_partitions.create("big", Xe.ID, "memory=8589934592")
        os.makedirs(leases.folder())
        file = Path(leases.folder(), f"pci:{Xe.VFS[0]} shared other g")
        file.touch()
        with (
            patch.object(leases, "is_stale", lambda lease, instance: False),
            pytest.raises(ConflictError, match="partition `big` is in use") as error,
        ):
            named_partitions.delete("big")
        assert error.value.hint == "other/g has it"
        named_partitions.delete("big")  # there is no such instance any more
        assert tree.everything() == before
