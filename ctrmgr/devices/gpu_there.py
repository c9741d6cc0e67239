# SPDX-License-Identifier: GPL-3.0-or-later
"""A `gpu` on an LXD or Incus server: which of the cards that it tells of are meant. Cold."""

from __future__ import annotations

from ctrmgr.devices import lxd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ctrmgr.devices.lxd import Made, There, Ways

    Card = Mapping[str, Any]

NVIDIA, AMD = "10de", "1002"
PLACED = ("id", "uuid", "count", "lease")
"""Keys that whoever chooses a member of a cluster reads, and takes out."""


def device(name: str, values: Mapping[str, str], there: There, ways: Ways) -> Made:
    """Keys that a server has not are said by those that it has."""
    if there.placing:
        made = lxd.plain("gpu", name, {key: value for key, value in values.items() if key != "lease"}, there, ways)
        made.devices[name] |= {key: values[key] for key in PLACED if values.get(key)}
        if lxd.is_false(values.get("required", "true")):
            made.problems.append((f"{name}.required", "a member is chosen that has one"))
        _runtime(made, name, values, there, None)
        return made
    made = lxd.plain("gpu", name, values, there, ways)
    cards = fitting(values, there)
    if lxd.is_false(values.get("required", "true")):
        if cards is None:
            made.problems.append(
                (f"{name}.required", "a server always requires it, and whether it has one is not known")
            )
        elif not cards:
            return lxd.spared(name, "its machine has no such GPU")
    elif cards is not None and not cards:
        made.absent.append((name, "its machine has no such GPU"))
    _which(made, name, values, cards)
    _count(made, name, values, cards)
    _runtime(made, name, values, there, cards)
    if values.get("gputype") == "mig":
        made.problems += [
            (f"{name}.{key}", "the nodes of a slice are as the server makes them")
            for key in ("uid", "gid", "user", "group", "mode")
            if values.get(key)
        ]
    elif values.get("vendorid", "").lower().removeprefix("0x") == AMD and "/dev/kfd" not in there.nodes:
        made.notes.append(
            f"device `{name}`: a server gives no /dev/kfd of AMD's GPUs: -d kfd,type=unix-char,source=/dev/kfd"
        )
    return made


def fitting(values: Mapping[str, str], there: There) -> list[Card] | None:
    """The cards of the server's machine that are meant; None when it does not tell."""
    if there.resources is None:
        return None
    found: list[Card] = list((there.resources.get("gpu") or {}).get("cards") or ())
    return [each for each in found if _fits(each, values)]


def _fits(card: Card, values: Mapping[str, str]) -> bool:
    address = str(card.get("pci_address", "")).lower()  # what is no PCI device has none
    for key, has in (("vendorid", card.get("vendor_id")), ("productid", card.get("product_id"))):
        wanted = values.get(key, "").lower().removeprefix("0x")
        if wanted and wanted != str(has).lower():
            return False
    pci = values.get("pci", "").lower()
    if pci and (not address or pci not in (address, address.removeprefix("0000:"))):
        return False
    drm, nvidia = card.get("drm") or {}, card.get("nvidia") or {}
    names = {address, str(drm.get("id", "")), drm.get("card_name"), drm.get("render_name"), nvidia.get("card_name")}
    if values.get("id") and values["id"] not in names:
        return False
    uuid = values.get("uuid", "").lower()
    return not uuid or str(nvidia.get("uuid", "")).lower() == uuid


def _which(made: Made, name: str, values: Mapping[str, str], cards: list[Card] | None) -> None:
    """`id` and `uuid`. A server takes `pci` with no other of these keys."""
    key = "uuid" if values.get("uuid") else "id"
    wanted = values.get(key, "")
    keys = made.devices[name]
    if key == "id" and wanted.isdecimal():
        keys["id"] = wanted
    elif wanted and cards is None:
        made.problems.append((f"{name}.{key}", f"which of its cards is `{wanted}` is not known: say `pci`"))
    elif wanted and cards is not None and len(cards) != 1:
        made.problems.append((f"{name}.{key}", f"its machine has no GPU `{wanted}`"))
    elif wanted and cards and not cards[0].get("pci_address"):
        made.problems.append((f"{name}.{key}", f"`{wanted}` has no PCI address there: say its number, `id`"))
    elif wanted and cards:
        for other in ("vendorid", "productid"):
            keys.pop(other, None)
        keys["pci"] = str(cards[0]["pci_address"])


def _count(made: Made, name: str, values: Mapping[str, str], cards: list[Card] | None) -> None:
    count = values.get("count", "")
    if not count or count == "all":
        return
    if cards is None:
        reason = "a server gives all that fit, and how many these are is not known"
    elif str(len(cards)) != count:
        reason = f"a server gives all that fit, which are {len(cards)}: say one by `pci`, or --target auto on a cluster"
    else:
        return
    made.problems.append((f"{name}.count", reason))


def _runtime(made: Made, name: str, values: Mapping[str, str], there: There, cards: list[Card] | None) -> None:
    """NVIDIA's driver files, which a server adds by a key of the instance's."""
    asked = values.get("driver.capabilities", "")
    mig = values.get("gputype") == "mig"
    if asked in ("", "none") and not (mig and there.has("nvidia_runtime") and not there.has("gpu_mig_cdi")):
        return
    vendor = values.get("vendorid", "").lower().removeprefix("0x")
    if not mig and vendor != NVIDIA:
        if vendor or (cards is not None and not any(card.get("vendor_id") == NVIDIA for card in cards)):
            return  # nothing that the key would say
        if cards is None:
            made.problems.append(
                (
                    f"{name}.driver.capabilities",
                    "whether its GPUs are NVIDIA's is not known: say `vendorid`, or `nvidia.runtime` of the instance",
                )
            )
            return
    if not there.has("nvidia_runtime"):
        made.problems.append((f"{name}.driver.capabilities", lxd.lacks("nvidia_runtime")))
        return
    made.config["nvidia.runtime"] = "true"
    if asked not in ("", "none"):
        made.config["nvidia.driver.capabilities"] = asked
