# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys and devices as a server would get them, without one."""

from __future__ import annotations

from typing import Any

from ctrmgr.devices import driver, lxd
from ctrmgr.devices.lxd import There
from ctrmgr.remote import translate

EXTENSIONS = frozenset(
    {each.extension for each in translate.CONFIG.values()}
    | {way.extension for kind in driver.DRIVERS for way in lxd.ways_of(kind).values()}
    | set(translate.TYPES.values())
    | {"instance_memory_swap_bytes", "numa_cpu_balanced"}
) - {""}
ALL = EXTENSIONS - {"unix_block_limits"}
NVIDIA = {
    "pci_address": "0000:65:00.0", "vendor_id": "10de", "product_id": "20b0", "drm": {"id": 1, "card_name": "card1", "render_name": "renderD129"},
    "nvidia": {"uuid": "GPU-5f1c2f4a-0000-1111-2222-333344445555", "card_name": "nvidia0"},
}  # fmt: skip
INTEL = {
    "pci_address": "0000:00:02.0",
    "vendor_id": "8086",
    "product_id": "56a0",
    "drm": {"id": 0, "card_name": "card0"},
}
MLX = {
    "pci_address": "0000:41:00.0", "vendor_id": "15b3", "product_id": "1017",
    "ports": [{"id": "ib0", "infiniband": {"verb_name": "uverbs0", "mad_name": "umad0", "issm_name": "issm0"}}],
}  # fmt: skip
DISK = {"id": "nvme0n1", "device_id": "nvme-eui.0025", "wwn": "eui.0025", "partitions": [{"id": "nvme0n1p1"}]}
HARDWARE = {
    "gpu": {"cards": [INTEL, NVIDIA]}, "network": {"cards": [MLX, {"vendor_id": "1af4", "ports": []}]}, "storage": {"disks": [DISK]},
}  # fmt: skip


def golden(
    config: dict[str, str],
    devices: dict[str, dict[str, str]],
    kind: str = "lxd",
    extensions: Any = ALL,
    **there: Any,
) -> translate.Translated:
    return translate.translate(config, devices, There(kind, extensions, **there))


def one(device: dict[str, str], **there: Any) -> translate.Translated:
    return golden({}, {"d": device}, **there)
