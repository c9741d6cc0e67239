# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices: pydantic models made from the drivers' own fields, so that YAML and command line have one validation."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from ctrmgr.devices import driver, partition
from ctrmgr.errors import SpecError
from ctrmgr.plugins import adopt


class DeviceSpec(BaseModel):
    """What all devices have."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    type: str


@cache
def model(kind: str) -> type[DeviceSpec]:
    """The model of a device type. Raises KeyError for one without a driver."""
    fields: dict[str, Any] = {}
    for name, field in driver.load(kind).FIELDS.items():
        annotation: Any = Annotated[str, AfterValidator(field.parse)]
        default = ... if field.required else None
        if not field.required:
            annotation = annotation | None
        fields[name.replace(".", "__")] = (annotation, Field(default, alias=name, description=field.description))
    return create_model(f"{kind.title().replace('-', '')}Device", __base__=DeviceSpec, **fields)


def check(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The device in canonical form, `type` included. Raises DeviceError, whose `key` is what is wrong; `others` are more of them."""
    kind = str(values.get("type", ""))
    if not kind:
        raise DeviceError(name, "", "has no `type`", hint=f"one of {', '.join(sorted(driver.DRIVERS))}")
    if kind in driver.NOT_DONE:
        # Known: kept as it is and refused at launch.
        return {key: str(value) for key, value in values.items()}
    if kind not in driver.DRIVERS and not adopt.adopt(kind):
        known = [*driver.DRIVERS, *driver.NOT_DONE, *adopt.types()]
        near = get_close_matches(kind, known, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(sorted(known))}"
        raise DeviceError(name, "type", f"`{kind}` is not a type of device", hint=hint)
    given = _given(name, values)
    try:
        found = model(kind).model_validate(given)
    except ValidationError as error:
        first, *others = [
            _converted(name, kind, given, str(each["loc"][0]) if each["loc"] else "", each["type"], each["msg"])
            for each in error.errors(include_url=False)
        ]
        first.others = tuple(others)
        raise first from None
    return {key: value for key, value in found.model_dump(by_alias=True).items() if value is not None}


def written(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The device with the text of each key as it was written, which is what is kept and shown. Raises what `check` does."""
    check(name, values)
    return {key: str(value) for key, value in _given(name, values).items()}


def _given(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Without keys that say nothing, and with a partition's map as the word that it stands for. Raises DeviceError."""
    given = {key: value for key, value in values.items() if value != ""}
    if isinstance(given.get(partition.KEY), Mapping):
        try:
            given[partition.KEY] = partition.joined(given[partition.KEY])
        except ValueError as error:
            raise DeviceError(name, partition.KEY, str(error), hint=partition.UNITS) from None
    return given


class DeviceError(SpecError):
    """A device is wrong: `key` says which of its keys ("" for the device as a whole)."""

    def __init__(self, name: str, key: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"device `{name}`: {f'`{key}` ' if key else ''}{reason}", hint=hint)
        self.key, self.reason = key, reason
        self.others: tuple[DeviceError, ...] = ()
        """What else is wrong with it."""


def _converted(name: str, kind: str, values: Mapping[str, Any], key: str, what: str, message: str) -> DeviceError:
    fields = driver.load(kind).FIELDS
    if what == "extra_forbidden":
        near = get_close_matches(key, fields, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"a {kind} has {', '.join(sorted(fields)[:12])}"
        return DeviceError(name, key, f"is not a key of a {kind} device", hint=hint)
    if what == "missing":
        return DeviceError(name, key, "is missing", hint=fields[key].description)
    reason = message.removeprefix("Value error, ")
    about = fields[key].description if key in fields else None
    return DeviceError(
        name, key, f"(`{values.get(key)}`) {reason}", hint=partition.UNITS if key == partition.KEY else about
    )


def refused(devices: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """(device or `device.key`, reason) of what a launch with these devices would have to pretend."""
    found = []
    for name, values in devices.items():
        kind = values["type"]
        if kind in driver.NOT_DONE:
            found.append((name, driver.NOT_DONE[kind]))
            continue
        fields = driver.load(kind).FIELDS
        for key, value in values.items():
            field = fields.get(key)
            if field is not None and field.refused and value != field.default:
                found.append((f"{name}.{key}", field.refused))
    return found
