# SPDX-License-Identifier: GPL-3.0-or-later
"""What the monitor writes to the cgroup of all instances, so that the kernel keeps what one of them is guaranteed: with sanitizers, on
folders that look like cgroups."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

PLAIN, REGION = "memory.min", "drm/0000:03:00.0/vram0"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("guarantee") / "driver"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]  # fmt: skip
    folder = ROOT / "native_helpers"
    sources = [ROOT / "tests/unit/guarantee_driver.c", folder / "guarantee.c"]
    subprocess.run(["cc", *flags, f"-I{folder}", *sources, "-o", program], check=True)
    return program


def written(driver: Path, top: Path, *words: str) -> list[str]:
    done = subprocess.run([driver, top, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def fill(top: Path, file: str, above: str, **below: str) -> None:
    (top / file).write_text(above)
    for name, text in below.items():
        (top / name).mkdir(exist_ok=True)
        (top / name / file).write_text(text)


@pytest.mark.parametrize(
    ("above", "below", "said"),
    [
        ("0\n", {"a": "4096\n", "b": "8192\n"}, ["memory.min = 12288"]),
        ("12288\n", {"a": "4096\n", "b": "8192\n"}, []),  # it is so already
        ("0\n", {"a": "max\n", "b": "8192\n"}, ["memory.min = max"]),
        ("max\n", {"a": "max\n"}, []),
        ("max\n", {"a": "0\n"}, ["memory.min = 0"]),
        ("1\n", {"a": "18446744073709551615\n", "b": "18446744073709551614\n"}, ["memory.min = max"]),
        ("", {"a": "4096\n"}, []),  # no such file, as on v1
        ("0\n", {"a": ""}, []),
    ],
)
def test_the_sum(driver: Path, tmp_path: Path, above: str, below: dict[str, str], said: list[str]) -> None:
    fill(tmp_path, PLAIN, above, **below)
    assert written(driver, tmp_path, "changed", PLAIN) == said
    assert written(driver, tmp_path, "changed", "memory.max") == []


def test_each_region_has_its_own(driver: Path, tmp_path: Path) -> None:
    other = "drm/0000:03:00.0/vram01"
    below = {"a": f"{REGION} 4096\n{other} 1\n", "b": f"{REGION} 4096\n{other} max\n", "c": f"{other}\n"}
    fill(tmp_path, "dmem.min", f"{REGION} 1\n{other} 0\n", **below)
    assert written(driver, tmp_path, "changed", "dmem.min") == [
        f"dmem.min = {REGION} 8192",
        f"dmem.min = {other} max",
    ]


def test_what_has_gone_is_taken_off(driver: Path, tmp_path: Path) -> None:
    """Where there is something to take off; nobody looks through all instances for nothing."""
    fill(tmp_path, PLAIN, "8192\n", a="4096\n")
    fill(tmp_path, "memory.low", "0\n", a="4096\n")
    fill(tmp_path, "dmem.min", f"drm/1/2 0\n{REGION} 4096\n", a=f"drm/1/2 0\n{REGION} 0\n")
    fill(tmp_path, "dmem.low", f"drm/1/2 0\n{REGION} 0\n", a=f"{REGION} 5\n")
    assert written(driver, tmp_path, "gone") == ["memory.min = 4096", f"dmem.min = {REGION} 0"]


def test_a_file_longer_than_what_is_read(driver: Path, tmp_path: Path) -> None:
    """Whatever is cut off, nothing is written that no line says."""
    text = "".join(f"drm/{'x' * 200}{number} {number}\n" for number in range(1, 40))
    fill(tmp_path, "dmem.min", text, a=text, b=text)
    said = written(driver, tmp_path, "changed", "dmem.min")
    assert len(said) >= 8
    assert all(line.startswith("dmem.min = drm/xxx") for line in said)
