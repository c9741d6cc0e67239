# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: LXD's YAML, validated once when it is written or changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctrmgr import source
from ctrmgr.devices import partition
from ctrmgr.errors import SpecError
from ctrmgr.spec import device, keys

NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


class ProfileSpec(BaseModel):
    """A profile as LXD and Incus write it. `used_by` and `project` are theirs and say nothing here."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field("", description="its name; the file's counts")
    description: str = Field("", description="a line for people")
    config: dict[str, str] = Field(default_factory=dict, description="keys of `docs/reference/config.md`")
    devices: dict[str, dict[str, str]] = Field(default_factory=dict, description="devices by name")
    used_by: list[str] = Field(default_factory=list, description="what LXD notes down; passed over")
    project: str = Field("", description="the same")


def check_name(name: str) -> str:
    """The name. Raises SpecError for what cannot be a profile's: it becomes a file's."""
    if not 0 < len(name) <= 64 or name[0] in ".-" or not set(name) <= NAME_LETTERS:
        raise SpecError(
            f"`{name}` cannot be the name of a profile", hint="letters, digits, `-`, `_` and `.`; at most 64"
        )
    return name


def load(path: str) -> ProfileSpec:
    """Read and validate a profile's file. Raises SpecError with file, line, key path and reason."""
    return validate(source.load(path))


def load_all(paths: Iterable[str]) -> list[ProfileSpec]:
    """The same of several. Raises SpecError with what is wrong in any of them."""
    found, errors = [], []
    for path in paths:
        try:
            found.append(load(path))
        except SpecError as error:
            errors.append(error)
    if errors:
        raise source.together(errors)
    return found


def validate(document: source.Document) -> ProfileSpec:
    """The profile of a parsed document; keys, of devices too, keep the text that was written.

    Raises SpecError with file, line, key path and reason of every mistake.
    """
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise document.error((), "is not a profile: it has no keys", "see `ctrmgr profile show default`")
    # An empty `config:` is text to the loader and an empty map to everybody who writes it.
    for part in ("config", "devices"):
        if data.get(part) == "":
            data[part] = {}
    if data.get("used_by") == "":
        data["used_by"] = []
    wrong = Mistakes()
    if isinstance(data.get("devices"), dict):
        data["devices"] = {name: _flat(wrong, name, values) for name, values in data["devices"].items()}
    spec = _shaped(wrong, data)
    for name, value in spec.config.items():
        _key(wrong, name, value)
    devices = {name: _device(wrong, name, values) for name, values in spec.devices.items()}
    if wrong:
        raise document.errors((path, *why) for path, why in wrong.items())
    return spec.model_copy(update={"devices": devices})


class Mistakes(dict[source.Path, tuple[str, str | None]]):
    """Reason and hint of what is wrong, by its path: the first that is found there counts."""

    def add(self, path: source.Path, reason: str, hint: str | None = None) -> None:
        self.setdefault(path, (reason, hint))


def _flat(wrong: Mistakes, name: str, values: object) -> object:
    """A device whose partition is a map has it as a word, as all other keys are."""
    if not isinstance(values, dict) or not isinstance(values.get(partition.KEY), dict):
        return values
    try:
        return {**values, partition.KEY: partition.joined(values[partition.KEY])}
    except ValueError as error:
        wrong.add(("devices", name, partition.KEY), str(error), partition.UNITS)
        return {key: value for key, value in values.items() if key != partition.KEY}


def _shaped(wrong: Mistakes, data: dict[str, Any]) -> ProfileSpec:
    """The profile without what cannot be part of one."""
    try:
        return ProfileSpec.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
    for each in found:
        path = tuple(str(part) for part in each["loc"])
        wrong.add(path, *_converted(path, each["type"], each["msg"]))
        _without(data, path)
    return ProfileSpec.model_validate(data)


def _without(data: dict[str, Any], path: source.Path) -> None:
    for part in path[:-1]:
        if not isinstance(data.get(part), dict):
            break
        data = data[part]
    else:
        part = path[-1]
    data.pop(part, None)


def _key(wrong: Mistakes, name: str, value: str) -> None:
    try:
        key = keys.lookup(name)
    except SpecError as error:
        wrong.add(("config", name), "is not a key", error.hint)
        return
    try:
        if value != "":
            key.parse(value)
    except ValueError as error:
        wrong.add(("config", name), f"(`{value}`) {error}", f"{key.type}: {key.description}")


def _device(wrong: Mistakes, name: str, values: dict[str, str]) -> dict[str, str]:
    path: source.Path = ("devices", name)
    try:
        check_device_name(name)
        return device.written(name, values)
    except device.DeviceError as error:
        for each in (error, *error.others):
            wrong.add((*path, each.key) if each.key else path, each.reason, each.hint)
    except SpecError as error:
        wrong.add(path, "cannot be the name of a device", error.hint)
    return values


def check_device_name(name: str) -> str:
    """The name. Raises SpecError for what cannot be a device's: the control protocol has 63 bytes for it."""
    if not name or not name.isprintable() or "/" in name or " " in name or len(name.encode()) > 63:
        raise SpecError(f"`{name}` cannot be the name of a device", hint="1 to 63 bytes without blanks and slashes")
    return name


def _converted(path: source.Path, what: str, message: str) -> tuple[str, str | None]:
    if what == "extra_forbidden":
        near = get_close_matches(path[-1], ProfileSpec.model_fields, 1)
        known = "a profile has name, description, config and devices"
        return "is not a key of a profile", f"did you mean `{near[0]}`?" if near else known
    shapes = {"dict_type": "is not a map", "string_type": "is not text", "list_type": "is not a list"}
    return shapes.get(what) or message, None


def merge(
    profiles: Iterable[ProfileSpec],
    config: Mapping[str, str],
    devices: Mapping[str, Mapping[str, str]],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Profiles in order, then the instance's own: a later key wins, and a later device replaces one of its name whole.

    Keys are in canonical form, and so are devices. A key set to "" and a device of type `none` take away what came before.
    """
    specs = list(profiles)
    found: dict[str, dict[str, str]] = {}
    for given in (*(profile.devices for profile in specs), devices):
        found.update({name: dict(values) for name, values in given.items()})
    return (
        {name: keys.check(name, value) for name, value in written(specs, config).items()},
        {name: device.check(name, values) for name, values in found.items() if values["type"] != "none"},
    )


def written(profiles: Iterable[ProfileSpec], config: Mapping[str, str]) -> dict[str, str]:
    """The keys that count, each with the text that was written."""
    merged: dict[str, str] = {}
    for given in (*(profile.config for profile in profiles), config):
        merged.update(keys_of(given))
    return {name: value for name, value in merged.items() if value != ""}


def keys_of(config: Mapping[str, str]) -> dict[str, str]:
    """The keys by today's names; "" stays, because it unsets."""
    return {keys.OLD_NAMES.get(name, name): value for name, value in config.items()}
