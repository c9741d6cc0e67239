#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes docs/reference/*.md and the man page from the tables that the program itself uses. `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ctrmgr.cli import command as cli
from ctrmgr.cli import main as verbs
from ctrmgr.cli.help import option_words
from ctrmgr.devices import driver, lxd
from ctrmgr.remote import translate
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


def remotes() -> str:
    text = (
        HEAD
        + "# What goes to a server, and how\n\nEvery key is *native* (it goes as it is), *mapped* (other keys of the server's say it), *left out* (it is so "
        "there anyway) or *refused*. What is refused is told, all at once and with the reason, before anything is made; "
        "so is a key whose API extension, here under *needs*, the server does not have. A key that is in no table is newer than this program: "
        "it goes as it is, and the server judges it.\n\n"
        "A server tells of its hardware (`ctrmgr cluster resources` shows it), and one whose unix socket is on this machine has the devices and "
        "specifications of this machine. Of a cluster neither is known, because the member is not.\n\n## Keys of `config:`\n\n"
        + ways(translate.CONFIG)
        + "\n## Devices\n"
    )
    for kind in sorted({*driver.DRIVERS, *translate.TYPES}):
        extension = translate.TYPES.get(kind)
        needs = f" It needs `{extension}`." if extension else ""
        text += f"\n### `{kind}`\n\n{'A type of the servers.' if extension is not None else 'No type of the servers.'}{needs}"
        if kind not in driver.DRIVERS:
            text += " Not one of this machine's: its keys go as they are.\n"
            continue
        own = lxd.ways_of(kind)
        if len({way.sentence() for way in own.values()}) == 1 and len(own) > 1:
            text += f" Of all keys: {next(iter(own.values())).sentence()}.\n"
        else:
            text += "\n" + ("\n" + ways(own) if own else "")
    return text


def ways(every: Mapping[str, lxd.Way]) -> str:
    """The keys that go the same way are one row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, way in every.items():
        needs = f"`{way.extension}`" if way.extension else f"not `{way.until}`" if way.until else ""
        rows.setdefault((way.sentence(), needs), []).append(f"`{name}`")
    return table(("key", "there", "needs"), ((", ".join(names), how, needs) for (how, needs), names in rows.items()))


def synopsis(command: cli.Command) -> str:
    return cli.usage(command).removesuffix(" [options]")


def own_options(command: cli.Command) -> list[cli.Option]:
    return [option for option in command.options if option not in cli.GLOBAL]


def commands() -> str:
    text = HEAD + "# Commands\n\nOptions that every command takes:\n\n"
    text += table(("option", "meaning"), ((f"`{words(option)}`", option.meaning) for option in cli.GLOBAL))
    for command in verbs.every_command():
        text += f"\n## {command.name}\n\n`{synopsis(command)}`: {command.summary}.\n"
        if command.help:
            text += f"\n{command.help}\n"
        rows = [(f"`{argument.name}`", argument.help) for argument in command.arguments]
        rows += [(f"`{words(option)}`", option.meaning) for option in own_options(command)]
        if rows:
            text += "\n" + table(("", ""), rows)
    return text


def words(option: cli.Option) -> str:
    return option_words(option.name, option.short, option.value).strip()


def roff(text: str) -> str:
    """Text as roff: nothing in it is a request, and hyphens are hyphens."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "").replace("…", "...").replace("–", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def bold(text: str) -> str:
    return f"\\fB{roff(text)}\\fR"


def manual() -> str:
    lines = [
        '.\\" SPDX-License-Identifier: GPL-3.0-or-later',
        '.\\" made by scripts/reference.py: change the tables in the code instead',
        '.TH CTRMGR 1 "" "ctrmgr" "User commands"',
        ".SH NAME",
        "ctrmgr \\- unprivileged system containers, and devices that come and go while they run",
        ".SH SYNOPSIS",
        ".B ctrmgr",
        "\\fICOMMAND\\fR ...",
        ".SH DESCRIPTION",
        roff(
            "ctrmgr runs system containers in user namespaces, without a daemon. It passes device nodes of the host into them, "
            "owned as the profile says, and takes them away again, while they run. Profiles, keys and device types are LXD's."
        ),
        ".PP",
        roff("What was asked for goes to stdout, talk goes to stderr."),
        ".SH COMMANDS",
    ]
    for command in verbs.every_command():
        lines += [".SS " + roff(synopsis(command)), roff(command.summary[0].upper() + command.summary[1:] + ".")]
        if command.help:
            lines += [".PP", roff(command.help)]
        for argument in command.arguments:
            lines += [".TP", f"\\fI{roff(argument.name)}\\fR", roff(argument.help)]
        for option in own_options(command):
            lines += [".TP", bold(words(option)), roff(option.meaning)]
    lines.append(".SH OPTIONS OF EVERY COMMAND")
    for option in cli.GLOBAL:
        lines += [".TP", bold(words(option)), roff(option.meaning)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES:
        lines += [".TP", bold(code), roff(meaning)]
    lines.append(".SH FILES")
    for path, meaning in PATHS:
        lines += [".TP", f"\\fI{roff(path)}\\fR", roff(meaning)]
    lines += [".SH SEE ALSO", ".BR lxc (1),", ".BR subuid (5),", ".BR user_namespaces (7),", ".BR cgroups (7)"]
    return "\n".join(lines) + "\n"


EXIT_CODES = (
    ("0", "Done."),
    ("1", "A file of ctrmgr's own is corrupt, or another failure."),
    ("2", "The command or the profile is wrong."),
    ("3", "There is no such instance, image, profile or device."),
    ("4", "Its state does not allow it, or somebody else has it."),
    ("5", "This host, or this user, cannot."),
    ("6", "A remote refused."),
    ("7", "A step of the kernel failed."),
)
PATHS = (
    ("/etc/ctrmgr/profiles", "The administrator's profiles."),
    ("/var/lib/ctrmgr", "Instances and images (CTRMGR_STATE_DIR names another place)."),
    ("/run/ctrmgr", "What runs now (CTRMGR_RUN_DIR)."),
    ("/etc/subuid, /etc/subgid", "Which host ids instances may have."),
)
PAGES = {
    "docs/reference/commands.md": commands,
    "docs/reference/config.md": config,
    "docs/reference/devices.md": devices,
    "docs/reference/remotes.md": remotes,
    "docs/man/ctrmgr.1": manual,
}


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
