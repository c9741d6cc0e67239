# SPDX-License-Identifier: GPL-3.0-or-later
"""The images of this machine as `image list` shows them."""

from __future__ import annotations

from ctrmgr.images import store

COLUMNS = ("alias", "fingerprint", "description", "architecture", "size", "created")
SPARE = ("architecture", "created")


def created(image: store.Image) -> str:
    from ctrmgr.cli import table

    return table.moment(int(image.metadata.get("created", "0")))


def rows(people: bool) -> list[dict[str, object]]:
    """The images of the store."""
    from ctrmgr.cli import table
    from ctrmgr.errors import CtrmgrError

    names: dict[str, list[str]] = {}
    for alias, fingerprint in store.aliases():
        names.setdefault(fingerprint, []).append(alias)
    found: list[dict[str, object]] = []
    for fingerprint in store.fingerprints():
        row: dict[str, object] = {"alias": names.get(fingerprint, [])}
        row["fingerprint"] = fingerprint[:12] if people else fingerprint
        try:
            image = store.load(fingerprint)
        except CtrmgrError as error:
            row["description"] = f"(broken: {error.message})"
        else:
            bytes_ = int(image.metadata.get("size", "0"))
            row["description"] = image.metadata.get("description", "")
            row["architecture"] = image.metadata.get("architecture", "")
            row["size"] = table.size(bytes_) if people else bytes_
            row["created"] = created(image)[: 10 if people else None]
        found.append(row)
    return found
