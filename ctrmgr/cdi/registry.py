# SPDX-License-Identifier: GPL-3.0-or-later
"""The specs of a machine: which devices there are, and what asking for them does."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from ctrmgr.cdi import model, names
from ctrmgr.cdi.model import CdiDeviceSpec, CdiSpec
from ctrmgr.edits import ContainerEdits
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError, SpecError

SUFFIXES = (".json", ".yaml")


def folders(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Where specs are, from the least to the most important: the administrator's, those made at run time, the user's own."""
    own = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return ("/etc/cdi", "/run/cdi", f"{own}/cdi")


class File:
    """A spec and where it was read."""

    def __init__(self, path: str, priority: int, spec: CdiSpec) -> None:
        self.path, self.priority, self.spec = path, priority, spec


class Device:
    """A device that can be asked for by its fully qualified name."""

    def __init__(self, name: str, file: File, spec: CdiDeviceSpec) -> None:
        self.name, self.file, self.spec = name, file, spec

    @property
    def edits(self) -> ContainerEdits:
        """What this device alone does: those of its whole file, and its own."""
        return self.file.spec.container_edits.value().add(self.spec.container_edits.value()).merged()


class Registry:
    """What the spec directories hold. A file that is wrong hides no other: it is in `errors`."""

    def __init__(self, root: str = "/", directories: Iterable[str] | None = None) -> None:
        self.files: list[File] = []
        self.errors: dict[str, CtrmgrError] = {}
        """Path to what is wrong there."""
        self.devices: dict[str, Device] = {}
        self.conflicts: dict[str, tuple[str, ...]] = {}
        """Device to the files of one directory that all define it."""
        top = root.rstrip("/")
        self.directories = tuple(top + folder for folder in (folders() if directories is None else directories))
        for priority, folder in enumerate(self.directories):
            self._read(folder, priority)
        self._resolve()

    def _read(self, folder: str, priority: int) -> None:
        try:
            entries = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self.errors[folder] = SpecError(f"`{folder}` cannot be read: {error.strerror}")
            return
        try:
            check_trust(folder)
        except SpecError as error:
            self.errors[folder] = error
            return
        for entry in entries:
            path = f"{folder}/{entry}"
            if entry.endswith(SUFFIXES) and not entry.startswith(".") and not os.path.isdir(path):
                try:
                    check_trust(path)
                    self.files.append(File(path, priority, model.load(path)))
                except CtrmgrError as error:
                    self.errors[path] = error

    def _resolve(self) -> None:
        """A later directory wins; two files of one directory that define the same device make it unusable."""
        found: dict[str, list[Device]] = {}
        for file in self.files:
            for spec in file.spec.devices:
                device = Device(f"{file.spec.kind}={spec.name}", file, spec)
                found.setdefault(device.name, []).append(device)
        for name, devices in sorted(found.items()):
            top = max(device.file.priority for device in devices)
            best = [device for device in devices if device.file.priority == top]
            if len(best) > 1:
                self.conflicts[name] = tuple(device.file.path for device in best)
            else:
                self.devices[name] = best[0]

    def find(self, name: str) -> Device:
        """A device by its fully qualified name. Raises SpecError, ConflictError and NotFoundError."""
        kind, own = names.split(name)
        device = self.devices.get(name)
        if device is not None:
            return device
        if name in self.conflicts:
            files = " and ".join(f"`{path}`" for path in self.conflicts[name])
            raise ConflictError(f"`{name}` is defined by {files}", hint="remove one, or put it into a later directory")
        raise NotFoundError(f"there is no CDI device `{name}`", hint=self._instead(kind, own))

    def _instead(self, kind: str, device: str) -> str:
        """What there is, for an error."""
        first, *others = self.errors or [""]
        broken = f"; not used: {self.errors[first].message}" if first else ""
        broken += f"; nor are {', '.join(others)}: `ctrmgr cdi validate` says why" if others else ""
        same = [name.partition("=")[2] for name in self.devices if name.startswith(f"{kind}=")]
        near = get_close_matches(device, same, 3)
        if near:
            return f"did you mean {' or '.join(f'`{kind}={other}`' for other in near)}?{broken}"
        if same:
            return f"there are {', '.join(f'{kind}={other}' for other in same)}{broken}"
        kinds = sorted({name.partition("=")[0] for name in self.devices})
        if kinds:
            return f"there are devices of {', '.join(kinds)}{broken}"
        return broken.removeprefix("; ") or f"no spec is in {', '.join(self.directories)}"

    def edits(self, asked: Iterable[str]) -> ContainerEdits:
        """What asking for these devices does: of each file once what it says for all its devices, and before its devices.

        Raises like `find`, and ConflictError when two bring an interface of the same name.
        """
        total = ContainerEdits()
        seen: set[str] = set()
        for device in dict.fromkeys(self.find(name) for name in asked):
            if device.file.path not in seen:
                seen.add(device.file.path)
                total = total.add(device.file.spec.container_edits.value())
            total = total.add(device.spec.container_edits.value())
        total = total.merged()
        inside: dict[str, str] = {}
        for interface in total.net_devices:
            other = inside.setdefault(interface.name, interface.host_interface_name)
            if other != interface.host_interface_name:
                raise ConflictError(
                    f"the interfaces `{other}` and `{interface.host_interface_name}` would both be `{interface.name}` inside"
                )
        return total


def check_trust(path: str) -> None:
    """Raises SpecError for what somebody else than root and us could have written: specs say what root is to do."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise SpecError(f"`{path}` cannot be read: {error.strerror}") from error
    if found.st_uid not in (0, os.geteuid()):
        raise SpecError(f"`{path}` belongs to user {found.st_uid} and is not trusted", hint=f"chown root {path}")
    if found.st_mode & stat.S_IWOTH:
        raise SpecError(f"`{path}` can be written by everybody and is not trusted", hint=f"chmod o-w {path}")
