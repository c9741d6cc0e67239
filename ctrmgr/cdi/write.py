# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs of our own: made from plain data, with the lowest version that carries it, and written in one go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import yaml

from ctrmgr import state
from ctrmgr.cdi import model, versions
from ctrmgr.cdi.model import CdiSpec
from ctrmgr.edits import ContainerEdits, Value
from ctrmgr.errors import SpecError
from ctrmgr.source import Document

MODE = 0o644
"""Rootless runtimes read specs as well."""


def build(
    kind: str,
    devices: Mapping[str, ContainerEdits],
    common: ContainerEdits | None = None,
    annotations: Mapping[str, str] | None = None,
) -> CdiSpec:
    """A spec with these devices, `common` for all of them. Raises SpecError for what no spec can say."""
    listed = [{"name": name, "containerEdits": data(edits)} for name, edits in devices.items()]
    return at_lowest(
        kind,
        {
            "kind": kind,
            "annotations": dict(annotations or {}),
            "devices": listed,
            "containerEdits": data(common or ContainerEdits()),
        },
    )


def at_lowest(name: str, content: dict[str, Any]) -> CdiSpec:
    """A spec's data, checked, with the lowest version that has all it uses."""
    # What 1.1.0 dropped asks for an older version, and nothing else does.
    for version in ("1.0.0", versions.NEWEST):
        try:
            spec = model.validate(Document(name, {**content, "cdiVersion": version}, {}))
            break
        except SpecError as error:
            wrong = error
    else:
        raise wrong
    return model.validate(Document(name, {**content, "cdiVersion": versions.lowest(spec)}, {}))


def data(edits: ContainerEdits) -> dict[str, Any]:
    """Edits as they stand in a file, by the specification's names."""
    return _aliased(model.EditsSpec, edits)


def _aliased(part: type[model.Part], value: Value) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in part.model_fields.items():
        item = getattr(value, name)
        if item != field.get_default():
            found[field.alias or name] = _plain(name, item)
    return found


PARTS: dict[str, type[model.Part]] = {
    "device_nodes": model.DeviceNodeSpec,
    "net_devices": model.NetDeviceSpec,
    "mounts": model.MountSpec,
    "hooks": model.HookSpec,
    "intel_rdt": model.IntelRdtSpec,
}


def _plain(name: str, item: Any) -> Any:
    if isinstance(item, Value):
        return _aliased(PARTS[name], item)
    return [_plain(name, one) for one in item] if isinstance(item, tuple) else item


def text(spec: CdiSpec, form: str = "yaml") -> str:
    """A spec as `yaml` or `json`."""
    if form == "json":
        return json.dumps(spec.data(), indent=2, ensure_ascii=False) + "\n"
    # Other letters than ASCII's are escaped: of what Unicode calls a line's end the dumper forgets some.
    return "---\n" + yaml.safe_dump(spec.data(), sort_keys=False, width=1000)


def file_name(kind: str, form: str = "yaml", transient: str = "") -> str:
    """The name that the specification recommends; `transient` is the id of what a short-lived spec belongs to."""
    vendor, _, device_class = kind.partition("/")
    name = f"{vendor}-{device_class}"
    if transient:
        name += "_" + transient.replace("/", "_")
    return f"{name}.{form}"


def write(folder: str, spec: CdiSpec, form: str = "yaml", transient: str = "") -> str:
    """Write a spec into a directory and return its path: a reader sees the old file or the new one. Raises HostError."""
    path = os.path.join(folder, file_name(spec.kind, form, transient))
    state.make_dir(folder, 0o755)
    state.write_file(path, text(spec, form).encode(), MODE)
    return path
