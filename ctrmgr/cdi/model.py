# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs as pydantic models, every field of versions 0.3.0 to 1.1.0, with the rules of the specification.

Beyond those: paths are absolute and without `..`, no text holds a NUL, and numbers are ones that the kernel has.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from ctrmgr import edits as words
from ctrmgr import source
from ctrmgr.cdi import names, versions
from ctrmgr.errors import SpecError
from ctrmgr.source import Document, Plain

HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES = ("", "b", "c", "u", "p")
ANNOTATIONS_MAX = 256 << 10
PATH_MAX, INTERFACE_MAX = 4095, 15
MAJOR_MAX, MINOR_MAX = (1 << 12) - 1, (1 << 20) - 1
UINT32_MAX, INT32_MAX = (1 << 32) - 1, (1 << 31) - 1
SIZE_MAX = 4 << 20
"""Bytes of a file. Those of vendors have tens of kilobytes; this many take seconds."""


class HereError(ValueError):
    """What is wrong below the model that a validator looks at."""

    def __init__(self, path: tuple[str, ...], reason: str) -> None:
        super().__init__(reason)
        self.path = path


# Types of single values


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL")
    return value


def _number(low: int, high: int) -> BeforeValidator:
    def parse(value: object) -> int:
        if isinstance(value, Plain):
            value = _written(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("is not a whole number")
        if not low <= value <= high:
            raise ValueError(f"({value}) is not between {low} and {high}")
        return value

    return BeforeValidator(parse)


def _written(text: str) -> int | str:
    """A number as YAML writes them: `438`, `0o666`, `0666`, `0x1b6`."""
    digits = text.replace("_", "")
    if digits.isdigit() and digits.startswith("0"):
        digits = f"0o{digits}"
    try:
        return int(digits, 0) if text.isascii() else text
    except ValueError:
        return text


def _truth(value: object) -> bool:
    if isinstance(value, Plain):
        value = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}.get(value.lower())
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"(`{value}`) is not an absolute path")
    if ".." in value.split("/"):
        raise ValueError(f"(`{value}`) has `..` in it")
    if len(value.encode()) > PATH_MAX:
        raise ValueError(f"is longer than {PATH_MAX} bytes")
    return value


def _inner(value: str) -> str:
    if not value.strip("/."):
        raise ValueError(f"(`{value}`) is the container's root")
    return _path(value)


def _assignment(value: str) -> str:
    if value.find("=") < 1:
        raise ValueError(f"(`{value}`) is not NAME=value")
    return value


def _one_of(what: str, *known: str) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"(`{value}`) is not {what}: {', '.join(word for word in known if word)}")
        return value

    return AfterValidator(check)


def _permissions(value: str) -> str:
    if value != "none" and value.strip("rwm"):
        raise ValueError(f"(`{value}`) is not letters of `rwm`, or `none`")
    return value


def _interface(value: str) -> str:
    if (
        not 0 < len(value.encode()) <= INTERFACE_MAX
        or value in (".", "..")
        or "/" in value
        or ":" in value
        or not value.isprintable()
    ):
        raise ValueError(f"(`{value}`) cannot be an interface: 1 to {INTERFACE_MAX} bytes without `/` and `:`")
    if any(letter.isspace() for letter in value):
        raise ValueError(f"(`{value}`) cannot be an interface: it has blanks")
    return value


def _clos(value: str) -> str:
    if value != "/" and (value in (".", "..") or "/" in value or "\n" in value or len(value) > PATH_MAX):
        raise ValueError(f"(`{value}`) cannot be a class of service: it becomes a directory's name")
    return value


def _annotations(value: dict[str, str]) -> dict[str, str]:
    for key in value:
        try:
            names.check_annotation(key)
        except ValueError as error:
            raise HereError((key,), str(error)) from None
    if sum(len(key) + len(text) for key, text in value.items()) > ANNOTATIONS_MAX:
        raise ValueError(f"are larger than {ANNOTATIONS_MAX} bytes")
    return value


Text = Annotated[str, AfterValidator(_text)]
AbsolutePath = Annotated[Text, AfterValidator(_path)]
InnerPath = Annotated[Text, AfterValidator(_inner)]
OptionalPath = Annotated[Text, AfterValidator(lambda value: value and _path(value))]
Assignment = Annotated[Text, AfterValidator(_assignment)]
Uint32 = Annotated[int, _number(0, UINT32_MAX)]
Truth = Annotated[bool, BeforeValidator(_truth)]
Interface = Annotated[Text, AfterValidator(_interface)]
Annotations = Annotated[dict[Text, Text], AfterValidator(_annotations)]


# The models


class Part(BaseModel):
    """A map of a spec. Nothing else may be in it, as the specification says."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    def fields(self) -> dict[str, Any]:
        """The values by our own names."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class DeviceNodeSpec(Part):
    path: InnerPath
    host_path: OptionalPath = ""
    type: Annotated[Text, _one_of("a type of node", *NODE_TYPES)] = ""
    major: Annotated[int, _number(0, MAJOR_MAX)] = 0
    minor: Annotated[int, _number(0, MINOR_MAX)] = 0
    file_mode: Uint32 | None = None
    permissions: Annotated[Text, AfterValidator(_permissions)] = ""
    uid: Uint32 | None = None
    gid: Uint32 | None = None

    def value(self) -> words.DeviceNode:
        """Without the bits for the type that some generators write into `fileMode`."""
        mode = None if self.file_mode is None else self.file_mode & 0o7777
        return words.DeviceNode(**{**self.fields(), "file_mode": mode})


class MountSpec(Part):
    host_path: Text
    container_path: InnerPath
    options: tuple[Text, ...] = ()
    type: Text = ""

    @model_validator(mode="after")
    def _source(self) -> Self:
        """What is bound is a path; another file system's source may be a word (`tmpfs`)."""
        bound = self.value().is_bind
        try:
            if not self.host_path:
                raise ValueError("is empty")
            if bound or "/" in self.host_path:
                _path(self.host_path)
        except ValueError as error:
            raise HereError(("hostPath",), str(error)) from None
        return self

    def value(self) -> words.Mount:
        return words.Mount(**self.fields())


class NetDeviceSpec(Part):
    host_interface_name: Interface
    name: Interface

    def value(self) -> words.NetDevice:
        return words.NetDevice(**self.fields())


class HookSpec(Part):
    hook_name: Annotated[Text, _one_of("a hook", *HOOKS)]
    path: AbsolutePath
    args: tuple[Text, ...] = ()
    env: tuple[Assignment, ...] = ()
    timeout: Annotated[int, _number(1, INT32_MAX)] | None = None

    def value(self) -> words.Hook:
        return words.Hook(**self.fields())


class IntelRdtSpec(Part):
    clos_id: Annotated[Text, AfterValidator(_clos)] = Field("", alias="closID")
    l3_cache_schema: Text = Field("", alias="l3CacheSchema")
    mem_bw_schema: Text = ""
    schemata: tuple[Text, ...] = ()
    enable_monitoring: Truth = False
    enable_cmt: Truth = Field(False, alias="enableCMT")
    enable_mbm: Truth = Field(False, alias="enableMBM")

    def value(self) -> words.IntelRdt:
        return words.IntelRdt(**self.fields())


class EditsSpec(Part):
    env: tuple[Assignment, ...] = ()
    device_nodes: tuple[DeviceNodeSpec, ...] = ()
    net_devices: tuple[NetDeviceSpec, ...] = ()
    mounts: tuple[MountSpec, ...] = ()
    hooks: tuple[HookSpec, ...] = ()
    intel_rdt: IntelRdtSpec | None = None
    additional_gids: tuple[Uint32, ...] = ()

    @model_validator(mode="after")
    def _interfaces_are_unique(self) -> Self:
        for field in ("host_interface_name", "name"):
            seen: set[str] = set()
            for index, device in enumerate(self.net_devices):
                name = getattr(device, field)
                if name in seen:
                    raise HereError(("netDevices", str(index), to_camel(field)), f"(`{name}`) is there twice")
                seen.add(name)
        return self

    def value(self) -> words.ContainerEdits:
        """As plain data."""
        return words.ContainerEdits(
            self.env,
            (node.value() for node in self.device_nodes),
            (device.value() for device in self.net_devices),
            (mount.value() for mount in self.mounts),
            (hook.value() for hook in self.hooks),
            self.intel_rdt.value() if self.intel_rdt else None,
            self.additional_gids,
        )


class CdiDeviceSpec(Part):
    name: Annotated[Text, AfterValidator(names.check_device)]
    annotations: Annotations = {}
    container_edits: EditsSpec

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.container_edits.value():
            raise HereError(("containerEdits",), "are empty: a device has to do something")
        return self


class CdiSpec(Part):
    """A whole file."""

    cdi_version: Annotated[Text, AfterValidator(versions.check)]
    kind: Annotated[Text, AfterValidator(names.check_kind)]
    annotations: Annotations = {}
    devices: tuple[CdiDeviceSpec, ...]
    container_edits: EditsSpec = EditsSpec()

    @model_validator(mode="after")
    def _devices_are_unique(self) -> Self:
        if not self.devices:
            raise HereError(("devices",), "are empty: a spec has at least one")
        seen: set[str] = set()
        for index, device in enumerate(self.devices):
            if device.name in seen:
                raise HereError(("devices", str(index), "name"), f"(`{device.name}`) is there twice")
            seen.add(device.name)
        return self

    @model_validator(mode="after")
    def _version_has_it(self) -> Self:
        own = versions.number(self.cdi_version)
        for version, path, what in versions.needs(self):
            if own < versions.number(version):
                raise HereError(path, f"{what} needs cdiVersion {version}, and the spec says {self.cdi_version}")
        if own >= versions.number(versions.WITHOUT_CMT):
            for path in versions.dropped(self):
                raise HereError(path, f"is not there any more since cdiVersion {versions.WITHOUT_CMT}")
        return self

    def data(self) -> dict[str, Any]:
        """What stands in the file: only what is not the specification's own zero."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


# From text


def load(path: str) -> CdiSpec:
    """Read and check a file; its suffix says what it is. Raises SpecError with file, line (of YAML), key path and reason."""
    return parse(path, source.read(path, SIZE_MAX))


def parse(name: str, text: str) -> CdiSpec:
    """Check a spec's text: JSON when `name` ends so, else YAML. Raises SpecError like `load`."""
    read: Callable[[str, str, int], Document] = source.parse_json if name.endswith(".json") else source.parse
    return validate(read(name, text, SIZE_MAX))


def validate(document: Document) -> CdiSpec:
    """The spec of a parsed document. Raises SpecError with file, line, key path and reason."""
    data = _given(document.data)
    if not isinstance(data, dict):
        raise document.error((), "is not a CDI spec: it has no keys")
    # First of all: what a newer version has is no mistake.
    if isinstance(data.get("cdiVersion"), str):
        try:
            versions.check(data["cdiVersion"])
        except ValueError as error:
            raise document.error(("cdiVersion",), str(error)) from None
    try:
        return CdiSpec.model_validate(data)
    except ValidationError as error:
        raise _converted(document, error) from None


def _given(value: Any) -> Any:
    """Data without the keys whose value is null: they are as good as not there."""
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if not _is_null(item)}
    return [_given(item) for item in value] if isinstance(value, list) else value


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, Plain) and value == "")


REASONS = {
    "missing": "is missing",
    "string_type": "is not text",
    "string_unicode": "is not text",
    "dict_type": "is not a map",
    "model_type": "is not a map",
    "model_attributes_type": "is not a map",
    "tuple_type": "is not a list",
}


def _converted(document: Document, error: ValidationError) -> SpecError:
    errors = error.errors(include_url=False)
    # A key that is written wrong is also one that is missing.
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    path = tuple(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        known = known_keys(path[:-1])
        near = get_close_matches(path[-1], known, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
        return document.error(path, "is not a key of a CDI spec here", hint)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, HereError):
        path += cause.path
    return document.error(path, str(cause) if cause else REASONS.get(first["type"], first["msg"]))


def known_keys(path: tuple[str, ...]) -> list[str]:
    """The keys of the map at a key path."""
    inside = next((part for part in reversed(path) if not part.isdigit()), "")
    models: dict[str, type[Part]] = {
        "devices": CdiDeviceSpec,
        "containerEdits": EditsSpec,
        "deviceNodes": DeviceNodeSpec,
        "netDevices": NetDeviceSpec,
        "mounts": MountSpec,
        "hooks": HookSpec,
        "intelRdt": IntelRdtSpec,
    }
    return [field.alias or name for name, field in models.get(inside, CdiSpec).model_fields.items()]
