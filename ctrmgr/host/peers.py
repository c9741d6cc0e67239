# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an RDMA device can reach a GPU's memory without the CPU's: a peer-memory module, or DMA-BUF from end to end.

The same signs that NCCL and RCCL go by.
"""

from __future__ import annotations

from ctrmgr.host import features, sysfs

MODULES = {
    "nvidia": (
        "/sys/module/nvidia_peermem/initstate",
        "/sys/module/nv_peer_mem/initstate",
        "/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    ),
    "amd": ("/sys/kernel/mm/memory_peers/amdkfd/version",),
    "intel": ("/sys/module/dmabuf_peer_mem/initstate",),
}
"""GPU's vendor → files that are there when a module makes its memory known to the RDMA drivers."""
DMABUF = {"mlx5_core": (5, 12), "efa": (5, 16), "ice": (6, 4), "i40e": (6, 4), "bnxt_en": (6, 6)}
"""Driver of an RDMA device's function → the kernel since which it registers DMA-BUFs."""
CONFIGS = ("/boot/config-{}", "/lib/modules/{}/config")
NVIDIA = "/proc/driver/nvidia/version"
RELEASE = "/proc/sys/kernel/osrelease"


def memory(vendor: str, driver: str, root: str = "/") -> tuple[str, str]:
    """The kernel's file that says that a vendor's GPU memory can be registered with an RDMA device of this driver; or "" and why not."""
    top = root.rstrip("/")
    modules = MODULES.get(vendor, ())
    for file in modules:
        if sysfs.text(top + file):
            return file, ""
    lacks = _dmabuf(vendor, driver, root)
    if not lacks:
        return NVIDIA if vendor == "nvidia" else RELEASE, ""
    names = [file.split("/")[3] for file in modules if file.startswith("/sys/module/")]
    module = f"neither `{names[0]}` is loaded nor can DMA-BUF be used" if names else "DMA-BUF cannot be used"
    return "", f"{module}: {lacks}"


def _dmabuf(vendor: str, driver: str, root: str) -> str:
    """What DMA-BUF lacks; "" when it can be used."""
    since = DMABUF.get(driver)
    if since is None:
        return f"the driver `{driver}` is not known to register any"
    if features.kernel_version(root) < since:
        return f"`{driver}` registers them since Linux {since[0]}.{since[1]}"
    if vendor == "nvidia":
        # The closed modules export none.
        is_open = "Open Kernel Module" in sysfs.text(root.rstrip("/") + NVIDIA)
        return "" if is_open else "NVIDIA's modules here are not the open ones"
    config = _config(root)
    if not config:
        return "this kernel does not say how it was configured"
    if "CONFIG_PCI_P2PDMA=y" not in config:
        return "this kernel is without CONFIG_PCI_P2PDMA"
    # Later kernels have it always, and no option.
    return "this kernel is without CONFIG_DMABUF_MOVE_NOTIFY" if OFF in config else ""


OFF = "# CONFIG_DMABUF_MOVE_NOTIFY is not set"


def _config(root: str) -> frozenset[str]:
    """The lines of the kernel's configuration; none where it is not told."""
    top = root.rstrip("/")
    release = sysfs.text(top + RELEASE)
    for place in CONFIGS:
        rows = sysfs.rows(top + place.format(release))
        if rows:
            return frozenset(rows)
    import gzip  # seldom needed

    try:
        with gzip.open(f"{top}/proc/config.gz", "rt", encoding="ascii", errors="replace") as file:
            return frozenset(line.strip() for line in file)
    except (OSError, EOFError):
        return frozenset()
