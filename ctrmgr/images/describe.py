# SPDX-License-Identifier: GPL-3.0-or-later
"""An image's metadata: what was found in it, and what its metadata.yaml (LXD's and Incus's) says about it."""

from __future__ import annotations

import os
import time

from ctrmgr.errors import SpecError, UnsupportedError
from ctrmgr.images import elf

ASKS = "ctrmgr.function."
"""What stands before the name of a device that an image asks for, by what the device can do."""


def describe(staging: str, result: dict[str, str], source: str, description: str) -> dict[str, str]:
    """The metadata, of what was found and what metadata.yaml says. Raises UnsupportedError, SpecError."""
    properties = lxd_metadata(staging + "/metadata.yaml")
    machine = elf.canonical(result.get("architecture") or properties.get("architecture", "") or os.uname().machine)
    if not elf.runs_here(machine):
        raise UnsupportedError(f"`{source}` is an image for {machine}, this host is {os.uname().machine}")
    metadata = {
        "init": properties.get("ctrmgr.init") or result["init"],
        "halt-signal": properties.get("ctrmgr.halt-signal") or result["halt-signal"],
        "os": properties.get("os") or result["os"],
        "release": properties.get("release") or result["release"],
        "architecture": machine,
        "description": description or properties.get("description") or result["description"],
        "size": result["size"],
        "created": str(int(time.time())),
        "source": source,
    }
    metadata |= {
        key.removeprefix("ctrmgr."): value for key, value in properties.items() if key.startswith(ASKS) and key != ASKS
    }
    # A stranger's words and a path of any bytes: in a file of lines, and on terminals.
    metadata = {key: "".join(c if c.isprintable() else "?" for c in value) for key, value in metadata.items()}
    init, halt = metadata["init"], metadata["halt-signal"]
    if not (init == "builtin" or init.startswith("/")) or not (halt.isdigit() and 0 < int(halt) < 65):
        raise SpecError(f"`{source}`: metadata.yaml has the wrong init `{init}` or halt signal `{halt}`")
    return metadata


def lxd_metadata(path: str) -> dict[str, str]:
    """`properties` and `architecture` of a metadata.yaml, as strings; nothing when there is none. Raises SpecError."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            loaded = yaml.safe_load(file)
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(f"the archive's metadata.yaml is no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(loaded, dict):
        raise SpecError("the archive's metadata.yaml is no map")
    properties = loaded.get("properties") or {}
    found = (
        {str(key): str(value) for key, value in properties.items() if isinstance(value, (str, int))}
        if isinstance(properties, dict)
        else {}
    )
    if isinstance(loaded.get("architecture"), str):
        found["architecture"] = loaded["architecture"]
    return {key: value[:1000] for key, value in found.items()}
