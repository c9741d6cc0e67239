# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr completion SHELL`: a script for the shell, and the words it asks for."""

from __future__ import annotations

from ctrmgr.cli.command import Argument, Command
from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args

SCRIPTS = {
    "bash": """\
_ctrmgr() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(ctrmgr completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "$2"))
    [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$2"))
    if [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o filenames -F _ctrmgr ctrmgr
""",
    "zsh": """\
#compdef ctrmgr
_ctrmgr() {
    local -a found
    found=("${(@f)$(ctrmgr completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        compadd -S '' -- "${(@M)found:#*=}"
        compadd -- "${(@)found:#*=}"
    else
        _files
    fi
}
compdef _ctrmgr ctrmgr
""",
    "fish": """\
complete -c ctrmgr -f -a '(ctrmgr completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def run_completion(args: Args) -> None:
    shell = args.positional[0]
    if shell == "words":
        print("\n".join(words(args.positional[1:])))
        return
    if shell not in SCRIPTS:
        raise SpecError(f"`{shell}`: no completion for it", hint=f"there is one for {', '.join(SCRIPTS)}")
    print(SCRIPTS[shell], end="")


def words(line: list[str]) -> list[str]:
    """What may stand in the last place of a command line (without its first word)."""
    from ctrmgr.cli import main

    *before, last = line or [""]
    commands = list(main.every_command())
    best: Command | None = None
    for command in commands:
        parts = command.name.split(" ")
        if before[: len(parts)] == parts and (best is None or len(parts) > len(best.name.split(" "))):
            best = command
    if best is None:
        prefix = [command.name.split(" ") for command in commands]
        return sorted(
            {parts[len(before)] for parts in prefix if len(parts) > len(before) and parts[: len(before)] == before}
        )
    if last.startswith("-"):
        return [f"--{option.name}" for option in best.options]
    for option in best.options:
        if before[-1] in (f"--{option.name}", f"-{option.short}") and option.metavar and not option.bare:
            return list(option.choices) or things(METAVARS.get(option.metavar, option.metavar.lower()))
    given = [word for word in before[len(best.name.split(" ")) :] if not word.startswith("-")]
    if not best.arguments:
        return []
    kind = best.arguments[min(len(given), len(best.arguments) - 1)].complete
    return of_instance(kind, given) or things(kind)


METAVARS = {"KEY=VALUE": "setting"}
"""What completes the value of an option, where its word is not that itself."""


def of_instance(kind: str, given: list[str]) -> list[str]:
    """What belongs to the instance that is named first, and to its device that is named then."""
    from ctrmgr.errors import CtrmgrError

    try:
        if kind == "attached":
            return attached(given[0])
        if kind == "snapshot":
            from ctrmgr.backend import snapshots

            return [str(row["name"]) for row in snapshots.listing(given[0])]
        if kind in ("configured", "device-key", "device-setting"):
            from ctrmgr.backend import device_keys, record

            known = device_keys.known(record.Record(given[0]))
            if kind == "configured":
                return sorted(known)
            return of_type(known[given[1]].keys["type"], "=" if kind == "device-setting" else "")
        if kind == "new-device":
            return of_new(given[2:])
        if kind == "typed-setting":
            return of_type(given[2], "=")
    except (CtrmgrError, LookupError):
        pass
    return []


def of_new(words: list[str]) -> list[str]:
    """The keys of a device that is described, or the types that it may be of."""
    kinds = [word.removeprefix("type=") for word in words if word.startswith("type=")]
    return of_type(kinds[-1], "=") if kinds else [f"type={kind}" for kind in things("type")]


def of_type(kind: str, end: str) -> list[str]:
    from ctrmgr.devices import driver

    return sorted(f"{key}{end}" for key, field in driver.load(kind).FIELDS.items() if not field.refused)


def attached(instance: str) -> list[str]:
    """The names of an instance's devices, its profiles' included."""
    from ctrmgr.backend import record
    from ctrmgr.devices import rows
    from ctrmgr.errors import CtrmgrError

    try:
        return sorted({row[1] for row in record.Record(instance).plan() if row[0] in rows.WORDS})
    except CtrmgrError:
        return []


def things(kind: str) -> list[str]:
    """The names of all instances, images, profiles, devices or CDI devices."""
    if kind == "instance":
        from ctrmgr.backend import record

        return record.names()
    if kind in ("key", "setting"):
        from ctrmgr.spec import keys

        end = "=" if kind == "setting" else ""
        names = [name.partition("*") for name, key in keys.KEYS.items() if not key.refused]
        return sorted({first if star else first + end for first, star, _ in names})
    if kind == "type":
        from ctrmgr.backend import brought
        from ctrmgr.devices import driver

        return sorted({*driver.DRIVERS, *brought.types()})
    if kind == "shell":
        return list(SCRIPTS)
    if kind == "command":
        from ctrmgr.cli import main

        return sorted(main.VERBS)
    if kind == "image":
        from ctrmgr.images import store

        return sorted({alias for alias, _ in store.aliases()} | {"builtin:busybox"})
    if kind == "profile":
        from ctrmgr.plan import folders

        return sorted({name for name, _ in folders.names()})
    if kind == "device":
        from ctrmgr.backend import catalog

        return [device.id for device in catalog.devices(holders=False)]
    if kind == "device-kind":
        from ctrmgr.backend import brought, inventory

        return [*inventory.KINDS, *brought.types()]
    if kind == "remote":
        from ctrmgr.remote import registry

        return list(registry.load().by_name)
    if kind == "partition":
        from ctrmgr.backend.held import NAMED, of

        return sorted(of(NAMED))
    if kind == "divisible":
        from ctrmgr.backend import partitions

        return sorted({place.found.id for place in partitions.places()[0]})
    if kind == "cdi":
        from ctrmgr.cdi.registry import Registry

        return list(Registry().devices)
    return []


COMMANDS = (
    Command(
        "completion",
        "print the completion script of a shell",
        run_completion,
        arguments=(
            Argument("SHELL", "bash, zsh or fish", complete="shell"),
            Argument("WORD", "for the scripts themselves", required=False, repeat=True),
        ),
    ),
)
