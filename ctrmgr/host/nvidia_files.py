# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that programs need to use NVIDIA's driver, as its own container tools sort them. They must be of the very version of
the driver in the kernel. Hot."""

from __future__ import annotations

import os

from ctrmgr.host import libraries

LIBRARIES = {
    "utility": ("ml", "cfg", "nscq"),
    "compute": ("cuda", "cudadebugger", "opencl", "gpucomp", "ptxjitcompiler", "fatbinaryloader", "allocator", "compiler",
                "pkcs11", "pkcs11-openssl3", "nvvm"),
    "video": ("vdpau_nvidia", "encode", "opticalflow", "nvcuvid"),
    "graphics": ("eglcore", "glcore", "tls", "glsi", "fbc", "ifr", "rtcore", "nvoptix", "glvkspirv", "cbl", "gpucomp",
                 "GLX_nvidia", "EGL_nvidia", "GLESv2_nvidia", "GLESv1_CM_nvidia"),
    "ngx": ("ngx",),
}  # fmt: skip
"""Capability → libraries; `libnvidia-` is left out where it is part of the name."""
WHOLE = frozenset(("cuda", "cudadebugger", "vdpau_nvidia", "nvcuvid", "nvoptix", "GLX_nvidia", "EGL_nvidia",
                   "GLESv2_nvidia", "GLESv1_CM_nvidia"))  # fmt: skip
PROGRAMS = {
    "utility": ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
}
DATA = {
    "graphics": ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/vulkan/icd.d/nvidia_icd.json",
                 "/etc/vulkan/icd.d/nvidia_icd.json", "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
                 "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"),
}  # fmt: skip
LINKS = {
    # a name that programs look for → the capability and library that bring it
    "libcuda.so": ("compute", "libcuda.so", "libcuda.so.1"),
    "libnvidia-opticalflow.so": ("video", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libGLX_indirect.so.0": ("graphics", "libGLX_nvidia.so", "libGLX_nvidia.so.0"),
}
BIN = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")


class Files:
    """Host path → path inside of everything, the folders of the libraries, and (target, link) of names beside them."""

    __slots__ = ("folders", "links", "mounts")

    def __init__(self) -> None:
        self.mounts: dict[str, str] = {}
        self.folders: list[str] = []
        self.links: list[tuple[str, str]] = []


def library(word: str) -> str:
    """The name of a library, without its version."""
    return f"lib{word}.so" if word in WHOLE else f"libnvidia-{word}.so"


def find(capabilities: set[str], version: str, root: str = "/", machine: str = "") -> Files:
    """What this driver's programs need for these capabilities; what a release does not have is left out."""
    wanted = {library(word) for each in capabilities for word in LIBRARIES.get(each, ())}
    found = libraries.find(wanted, version, root, machine)
    files = Files()
    for name in sorted(found):
        files.mounts[found[name]] = found[name]
    files.folders = sorted({path.rpartition("/")[0] for path in found.values()})
    for link, (capability, name, target) in LINKS.items():
        if capability in capabilities and name in found:
            files.links.append((target, f"{found[name].rpartition('/')[0]}/{link}"))
    for each in sorted(capabilities):
        for program in PROGRAMS.get(each, ()):
            place = next((f"{folder}/{program}" for folder in BIN if libraries.real(f"{folder}/{program}", root)), "")
            if place:
                files.mounts[libraries.real(place, root)] = f"/usr/bin/{program}"
        for path in DATA.get(each, ()):
            if os.path.isfile(root.rstrip("/") + libraries.real(path, root)):
                files.mounts[libraries.real(path, root)] = path
    return files
