# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: LXD's YAML, validated once when it is written or changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

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


def validate(document: source.Document) -> ProfileSpec:
    """The profile of a parsed document. Raises SpecError with file, line, key path and reason."""
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise document.error((), "is not a profile: it has no keys", "see `ctrmgr profile show default`")
    # An empty `config:` is text to the loader and an empty map to everybody who writes it.
    for part in ("config", "devices"):
        if data.get(part) == "":
            data[part] = {}
    if data.get("used_by") == "":
        data["used_by"] = []
    if isinstance(data.get("devices"), dict):
        data["devices"] = {name: _flat(document, name, values) for name, values in data["devices"].items()}
    try:
        spec = ProfileSpec.model_validate(data)
    except ValidationError as error:
        raise _converted(document, error) from None
    config = {name: _key(document, name, value) for name, value in spec.config.items()}
    devices = {name: _device(document, name, values) for name, values in spec.devices.items()}
    return spec.model_copy(update={"config": config, "devices": devices})


def _flat(document: source.Document, name: str, values: object) -> object:
    """A device whose partition is a map has it as a word, as all other keys are."""
    if not isinstance(values, dict) or not isinstance(values.get(partition.KEY), dict):
        return values
    try:
        return {**values, partition.KEY: partition.joined(values[partition.KEY])}
    except ValueError as error:
        raise document.error(("devices", name, partition.KEY), str(error), partition.UNITS) from None


def _key(document: source.Document, name: str, value: str) -> str:
    try:
        key = keys.lookup(name)
    except SpecError as error:
        raise document.error(("config", name), "is not a key", error.hint) from None
    try:
        return key.parse(value) if value != "" else ""
    except ValueError as error:
        raise document.error(("config", name), f"(`{value}`) {error}", f"{key.type}: {key.description}") from None


def _device(document: source.Document, name: str, values: Mapping[str, str]) -> dict[str, str]:
    try:
        check_device_name(name)
        return device.check(name, values)
    except device.DeviceError as error:
        path = ("devices", name, error.key) if error.key else ("devices", name)
        raise document.error(path, error.reason, error.hint) from None
    except SpecError as error:
        raise document.error(("devices", name), error.message, error.hint) from None


def check_device_name(name: str) -> str:
    """The name. Raises SpecError for what cannot be a device's: the control protocol has 63 bytes for it."""
    if not 0 < len(name.encode()) < 64 or not name.isprintable() or "/" in name or " " in name:
        raise SpecError(f"`{name}` cannot be the name of a device", hint="1 to 63 bytes without blanks and slashes")
    return name


def _converted(document: source.Document, error: ValidationError) -> SpecError:
    first = error.errors(include_url=False)[0]
    path = tuple(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = get_close_matches(path[-1], ProfileSpec.model_fields, 1)
        known = "a profile has name, description, config and devices"
        return document.error(path, "is not a key of a profile", f"did you mean `{near[0]}`?" if near else known)
    reason = {"dict_type": "is not a map", "string_type": "is not text", "list_type": "is not a list"}.get(
        first["type"]
    )
    return document.error(path, reason or first["msg"])


def merge(
    profiles: Iterable[ProfileSpec],
    config: Mapping[str, str],
    devices: Mapping[str, Mapping[str, str]],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Profiles in order, then the instance's own: a later key wins, and a later device replaces one of its name whole.

    A key set to "" and a device of type `none` take away what came before.
    """
    merged: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    for profile in profiles:
        merged.update(keys_of(profile.config))
        found.update({name: dict(values) for name, values in profile.devices.items()})
    merged.update(keys_of(config))
    found.update({name: dict(values) for name, values in devices.items()})
    return (
        {name: value for name, value in merged.items() if value != ""},
        {name: values for name, values in found.items() if values["type"] != "none"},
    )


def keys_of(config: Mapping[str, str]) -> dict[str, str]:
    """The keys by today's names; "" stays, because it unsets."""
    return {keys.OLD_NAMES.get(name, name): value for name, value in config.items()}
