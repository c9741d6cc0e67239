#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes docs/reference/{config,devices}.md from the tables that the program itself uses. `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ctrmgr.devices import driver
from ctrmgr.spec import capabilities, keys

HEAD = "<!-- made by scripts/reference.py: change the tables in the code instead -->\n\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def config() -> str:
    done = [
        (
            f"`{key.name}`",
            key.type,
            f"`{key.default}`" if key.default else "",
            "yes" if key.live else "",
            key.description,
        )
        for key in keys.DONE
        if not key.refused
    ]
    refused = [(f"`{key.name}`", key.refused) for key in (*keys.DONE, *keys.REFUSED) if key.refused]
    inert = [(f"`{key.name}`", key.description) for key in keys.INERT]
    dropped = [(f"`{name}`", reason) for name, reason in capabilities.DROPPED.items()]
    return (
        HEAD
        + "# Keys of `config:`\n\nEvery key that LXD or Incus documents is known: it is done, or a launch with it is refused by name\n"
        "(`--ignore-unsupported` goes on without it), or it is kept for other programs. Any other key is an error.\n\n"
        "## Done\n\n*Live*: a change reaches a running instance at once; the others apply at its next start.\n\n"
        + table(("key", "value", "default", "live", "meaning"), done)
        + "\nSizes are whole numbers with LXD's units: B, kB, MB … EB are powers of 1000, KiB, MiB … EiB of 1024.\n"
        "\n## Capabilities\n\nNot in the bounding set unless `security.capabilities.keep` names them:\n\n"
        + table(("capability", "why"), dropped)
        + "\n## Refused\n\n"
        + table(("key", "why"), refused)
        + "\n## Kept for others\n\n"
        + table(("key", "meaning"), inert)
    )


def devices() -> str:
    text = HEAD + "# Devices\n"
    for kind in sorted(driver.DRIVERS):
        module = driver.load(kind)
        text += f"\n## `{kind}`\n\n{(module.__doc__ or '').partition(': ')[2].strip()}\n"
        done = [
            (f"`{name}`", f"`{field.default}`" if field.default else "", field.description)
            for name, field in module.FIELDS.items()
            if not field.refused
        ]
        if done:
            text += "\n" + table(("key", "default", "meaning"), done)
        later = [f"`{name}`" for name, field in module.FIELDS.items() if field.refused]
        if later:
            text += f"\nKnown and refused at launch: {', '.join(later)}.\n"
    return (
        text
        + "\n## Known and refused at launch\n\n"
        + table(("type", "why"), ((f"`{kind}`", why) for kind, why in driver.NOT_DONE.items()))
    )


PAGES = {"docs/reference/config.md": config, "docs/reference/devices.md": devices}


def main() -> int:
    stale = [path for path, make in PAGES.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != make()]
    if "--check" in sys.argv:
        for path in stale:
            print(f"`{path}` is not current: run scripts/reference.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(PAGES[path]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
