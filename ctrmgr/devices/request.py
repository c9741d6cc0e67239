# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking for a device by what it can do: the keys of such a request, and what fits it. Hot."""

from __future__ import annotations

from ctrmgr import units
from ctrmgr.devices import fields, partition
from ctrmgr.devices.driver import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Functions = Mapping[str, Mapping[str, int | str]]

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")
POLICIES = ("ignore", "detach", "stop", "restart")
"""What can be done about something that happened to a device."""
KINDS = {
    "lost": "it is gone",
    "reset": "it was reset, and what was in it is lost",
    "ecc": "its memory had errors",
}
"""What happens to devices and has a policy; anything else that a plugin tells is told on."""
SIGNS = (">=", "<=", "!=", "=", ">", "<")


def function(value: str) -> str:
    """`crypto.sha256`: a field, and what is done there."""
    parts = value.split(".")
    if len(parts) < 2 or not all(parts) or not LETTERS.issuperset(value) or len(value) > 63:
        raise ValueError("is not a function, such as crypto.sha256 or gpu.compute")
    return value


def amount(value: str) -> str:
    """`16GiB` as a whole number; without a unit it is one already."""
    return str(units.size_bytes(value))


def conditions(value: str) -> str:
    """`precision=fp16,queues>=4`."""
    for condition in value.split(","):
        name, sign, wanted = _split(condition)
        if sign not in ("=", "!="):
            try:
                amount(wanted)
            except ValueError as error:
                raise ValueError(f"is wrong in `{name}{sign}{wanted}`: that {error}") from None
    return value


def _split(condition: str) -> tuple[str, str, str]:
    for at, letter in enumerate(condition):
        if letter in "<>=!":
            sign = next((each for each in SIGNS if condition.startswith(each, at)), "")
            name, wanted = condition[:at].strip(), condition[at + len(sign) :].strip()
            if not sign or not name or not wanted or wanted[0] in "<>=!" or not LETTERS.issuperset(name):
                break
            return name, sign, wanted
    raise ValueError(f"has `{condition}`, which is not NAME=VALUE, NAME>=AMOUNT or the like")


FIELDS = {
    "function": Field(function, "what it must be able to do: `gpu.compute`, `crypto.sha256`, …"),
    "with": Field(conditions, "what that function must have: `precision=fp16,queues>=4`"),
    "min-memory": Field(amount, "the memory that the function must have at least, such as 16GiB"),
    "min-cores": Field(amount, "how many cores it must have at least"),
    "vendor": Field(fields.word, "its maker, or a part of the name"),
    "model": Field(fields.word, "its model, or a part of the name"),
    "id": Field(fields.word, "this one and no other, as `ctrmgr device find` has it"),
    "partition": partition.FIELD,
    "path": Field(fields.inside, "where it is inside, for what has one node; without it as on the host"),
    **fields.OWNERSHIP,
    **{
        f"on-{kind}": Field(fields.choice(*POLICIES), f"what `ctrmgr device events` does when {what}", default="ignore")
        for kind, what in KINDS.items()
    },
}
"""The keys of `type: any`, and of the device types of plugins beside their own."""


def why_not(values: Mapping[str, str], *, id: str, vendor: str, model: str, functions: Functions) -> str:
    """Why a device does not fit the request; "" when it does."""
    wanted = values.get("id", "")
    if wanted and wanted != id:
        return f"is not `{wanted}`"
    for key, has in (("vendor", vendor), ("model", model)):
        wanted = values.get(key, "")
        if wanted.lower() not in has.lower():
            return f"its {key} is `{has}`" if has else f"it does not say its {key}"
    name = values.get("function", "")
    asked = [*([("memory", ">=", values["min-memory"])] if "min-memory" in values else []),
             *([("cores", ">=", values["min-cores"])] if "min-cores" in values else []),
             *([_split(each) for each in values["with"].split(",")] if "with" in values else [])]  # fmt: skip
    if not name:
        if not asked:
            return ""
        reasons = [_lacks(properties, asked) for properties in functions.values()]
        return "" if "" in reasons else next(iter(reasons), "it has no function")
    if name not in functions:
        return f"it has {', '.join(functions)}" if functions else "it has no function"
    return _lacks(functions[name], asked)


def _lacks(properties: Mapping[str, int | str], asked: list[tuple[str, str, str]]) -> str:
    for name, sign, wanted in asked:
        if name not in properties:
            return f"it does not say its {name}"
        has = properties[name]
        if isinstance(has, int):
            fits = _fits(has, sign, wanted)
        else:
            fits = (has == wanted) == (sign == "=") if sign in ("=", "!=") else False
        if not fits:
            return f"its {name} is {has}"
    return ""


def _fits(has: int, sign: str, wanted: str) -> bool:
    try:
        number = int(amount(wanted))
    except ValueError:
        return sign == "!="
    return {
        ">=": has >= number,
        "<=": has <= number,
        "=": has == number,
        "!=": has != number,
        ">": has > number,
        "<": has < number,
    }[sign]


def rows(name: str, kind: str, life: str, values: Mapping[str, str]) -> list[list[str]]:
    """The plan's rows for what is chosen when the instance is made (`life` is `instance`) or started (`run`)."""
    asked = {"type": kind, **values}
    return [["request", name, kind, life, key, value] for key, value in asked.items()]
