# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the machine's devices are meant, and the errors that say what there is instead. Hot."""

from __future__ import annotations

from ctrmgr.errors import NotFoundError, SpecError
from ctrmgr.host import sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Protocol, TypeVar

    from ctrmgr.host import pci

    class Known(Protocol):
        """What has a name that stays with the hardware."""

        id: str

    class Found(Known, Protocol):
        """A device of a reader of `host`."""

        function: pci.Function | None

    T = TypeVar("T", bound=Known)
    F = TypeVar("F", bound=Found)


def _nobody() -> tuple[Collection[str], Collection[str]]:
    return (), ()


held: Callable[[], tuple[Collection[str], Collection[str]]] = _nobody
"""The ids that the instance in question holds leases on, and those of others, each as often as it is held: who knows them says so
(`backend/leases.py`)."""

BOOT = "/proc/sys/kernel/random/boot_id"


def fitting(
    candidates: Sequence[T], wanted: Mapping[str, str], fits: Mapping[str, Callable[[T, str], bool]]
) -> list[T]:
    """Those that every key in `wanted` fits."""
    keys = [key for key in fits if wanted.get(key)]
    return [each for each in candidates if all(fits[key](each, wanted[key]) for key in keys)]


def only(what: str, found: list[T], wanted: Mapping[str, str], among: Sequence[T]) -> T:
    """The one device that was meant. Raises NotFoundError naming what there is, SpecError naming the candidates."""
    if not found:
        raise missing(what, wanted, among)
    if len(found) > 1:
        fits = f"{said(wanted)} fits" if wanted else "this host has"
        raise SpecError(f"{fits} {len(found)} {what} devices", hint=f"say which by `id`: {listed(found)}")
    return found[0]


def some(what: str, found: list[T], wanted: Mapping[str, str], among: Sequence[T]) -> list[T]:
    """As many as `count` says: a number, or `all`; without it one. Raises what `only` does, NotFoundError for too few."""
    count = wanted.get("count", "")
    if not count:
        return [only(what, found, {key: value for key, value in wanted.items() if key != "count"}, among)]
    if not found:
        raise missing(what, wanted, among)
    if count == "all":
        return found
    if len(found) < int(count):
        raise NotFoundError(
            f"there are {len(found)} such {what} devices and not {count}", hint=f"there are {listed(found)}"
        )
    wished = sorted(found, key=wishes())[: int(count)] if len(found) > int(count) else found
    return [each for each in found if each in wished]


def _wish(leases: tuple[Collection[str], Collection[str]]) -> Callable[[Known], int]:
    """First what is ours already, then what nobody has, even a part of, and last what others have, what more of them have at the end."""
    own, others = leases

    def wish(each: Known) -> int:
        names = [f"{kind}:{each.id}" for kind in ("pci", "gpu", "rdma")]
        if any(name in own for name in names):
            return 0
        return 1 + sum(any(_meet(id, name) for name in names) for id in others)

    return wish


def _meet(one: str, other: str) -> bool:
    """The same hardware, or one is a part of the other."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def wishes() -> Callable[[Known], int]:
    """How much each is to be wished for, the less the more."""
    return _wish(held())


def missing(what: str, wanted: Mapping[str, str], among: Sequence[Known]) -> NotFoundError:
    """The error for a selector that fits nothing."""
    words = f" with {said(wanted)}" if wanted and wanted != {"count": "all"} else ""
    hint = f"there are {listed(among)}" if among else f"`ctrmgr device list {what}` has none"
    return NotFoundError(f"this host has no {what} device{words}", hint=hint)


def said(wanted: Mapping[str, str]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in wanted.items())


def listed(found: Sequence[Known]) -> str:
    return ", ".join(f"`{each.id}`{_about(each)}" for each in found)


def _about(each: Known) -> str:
    words = (getattr(each, "model", ""), getattr(each, "name", ""), getattr(each, "uuid", ""))
    about = ", ".join(word for word in words if word and word != each.id)
    return f" ({about})" if about else ""


def count(value: str) -> str:
    """The key `count`: how many of those that fit."""
    if value == "all":
        return value
    if not (value.isascii() and value.isdecimal() and 0 < int(value) < 1000):
        raise ValueError("is neither a number of devices nor `all`")
    return str(int(value))


def by_pci(each: Found, value: str) -> bool:
    return each.function is not None and each.function.address == value


def by_vendor(each: Found, value: str) -> bool:
    return each.function is not None and each.function.vendor == value


def by_product(each: Found, value: str) -> bool:
    return each.function is not None and each.function.device == value


def identity(root: str, *files: str) -> list[tuple[str, str]]:
    """Files with the text that they have now, folders (`…/`) with their names; that of the boot is always among them."""
    return [(file, sysfs.known(root.rstrip("/") + file)) for file in (BOOT, *files)]


def of_class(root: str, name: str) -> str:
    """The file with the number of a device in `/sys/class/<name>`, through the hardware that it is below."""
    top = root.rstrip("/")
    return sysfs.real(f"{top}/sys/class/{name}")[len(sysfs.real(top) if top else "") :] + "/dev"
