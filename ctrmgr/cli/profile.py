# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr profile …`: the YAML files that instances are made from."""

from __future__ import annotations

import os
import sys

from ctrmgr import state
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.plan import folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.cli.command import Args
    from ctrmgr.spec.profile import ProfileSpec

EMPTY = "# SPDX-License-Identifier: CC0-1.0\nname: {}\ndescription: ''\nconfig: {{}}\ndevices: {{}}\n"


def _talk(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(text, file=sys.stderr)


def _own(name: str) -> str:
    """The file in the folder that we write to."""
    from ctrmgr.spec.profile import check_name

    return f"{folders.search()[-1]}/{check_name(name)}.yaml"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise SpecError(f"`{path}` is not UTF-8") from None
    except FileNotFoundError:
        raise NotFoundError(f"no file `{path}`", hint="a word without slashes is the name of a profile") from None
    except OSError as error:
        raise state.unreadable(path, error) from error


def _validate(name: str, text: str) -> ProfileSpec:
    from ctrmgr import source
    from ctrmgr.spec import profile

    return profile.validate(source.parse(name, text))


def _write(args: Args, path: str, text: str) -> None:
    if args.flag("dry-run"):
        print(text, end="")
        return
    state.make_dir(os.path.dirname(path), 0o755)
    state.write_file(path, text.encode())


def profile_diff(args: Args) -> int:
    from difflib import unified_diff

    from ctrmgr.plan.compile import find

    one, other = (_read(word if "/" in word else find(word)).splitlines() for word in args.positional)
    lines = list(unified_diff(one, other, args.positional[0], args.positional[1], lineterm=""))
    for line in lines:
        print(line)
    return 1 if lines else 0


def profile_list(args: Args) -> None:
    from ctrmgr.cli import table
    from ctrmgr.spec import profile

    if args.positional:
        raise SpecError(f"`{args.positional[0]}` is no remote", hint="`REMOTE:` lists its profiles")
    rows: list[dict[str, object]] = []
    for name, path in folders.names():
        try:
            description = profile.load(path).description
        except CtrmgrError as error:
            first, *more = error.message.split("\n")
            description = f"(wrong: {first}{f', and {len(more)} more' if more else ''})"
        rows.append({"name": name, "description": description, "file": path})
    table.print_rows(("name", "description", "file"), rows, args.one("format", "table"), spare=("file",))


def profile_show(args: Args) -> None:
    from ctrmgr.plan.compile import find

    path = find(args.positional[0])
    if args.flag("oci"):
        from ctrmgr.spec import profile

        show_oci(args, *profile.merge([profile.load(path)], {}, {}))
    else:
        from ctrmgr.cli import table

        table.print_text(_read(path), args.one("format", "table"))


def show_oci(args: Args, config: Mapping[str, str], devices: Mapping[str, Mapping[str, str]]) -> None:
    """The limits for other runtimes. Raises UnsupportedError for those that OCI has no word for, unless `--ignore-unsupported`."""
    import json

    from ctrmgr.spec import oci_write

    made, left = oci_write.config(config, devices)
    for key, why in left.items():
        if not args.flag("ignore-unsupported"):
            hint = "`--ignore-unsupported` leaves out what cannot be said, and says so"
            raise UnsupportedError(f"`{key}` cannot be written: {why}", hint=hint)
        _talk(args, f"note: `{key}` is not written: {why}")
    print(json.dumps(made, indent="\t", ensure_ascii=False))


def _from_oci(name: str, file: str, text: str) -> str:
    """The limits of an OCI runtime configuration as a profile; "" when it is none."""
    import json

    from ctrmgr import source
    from ctrmgr.spec import oci

    if '"ociVersion"' not in text:
        return ""
    document = source.parse_json(file, text)
    if not oci.is_config(document.data):
        return ""
    config = oci.config(document)
    lines = [f"  {key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in config.items()]
    return EMPTY.format(name).replace("config: {}\n", f"config:\n{''.join(lines)}" if lines else "config: {}\n")


def _named(text: str, name: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(f"name: {name}\n" if line.startswith("name:") else line for line in lines)


def profile_create(args: Args) -> None:
    """The one in a file or on standard input, else an empty one."""
    from ctrmgr.cli.edit import piped

    name = args.positional[0]
    path = _own(name)
    if os.path.exists(path) or folders.find(name):
        raise ConflictError(
            f"profile `{name}` exists", hint=f"`ctrmgr profile edit {name}` changes it (of a packaged one, a copy)"
        )
    file = args.positional[1] if len(args.positional) > 1 else ""
    if file in ("", "-"):
        given, file = piped(whatever=file == "-"), "standard input"
    else:
        given = _read(file)
    text = EMPTY.format(name)
    if given.strip():
        text = _from_oci(name, file, given) or _named(given, name)
        _validate(file, text)
    _write(args, path, text)
    _talk(args, f"made profile `{name}`: {path}")


def profile_edit(args: Args) -> None:
    from ctrmgr.cli.edit import edit
    from ctrmgr.plan.compile import find

    name = args.positional[0]
    result = edit(_read(find(name)), name, _validate)
    if result is None:
        _talk(args, "nothing was changed")
        return
    _write(args, _own(name), result[0])
    _talk(args, f"wrote {_own(name)}; new instances use it, others keep the plan that they have")


def profile_copy(args: Args) -> None:
    from ctrmgr.plan.compile import find

    old, new = args.positional
    if folders.find(new):
        raise ConflictError(f"profile `{new}` exists")
    _write(args, _own(new), _named(_read(find(old)), new))
    _talk(args, f"copied profile `{old}` to `{new}`: {_own(new)}")


def profile_delete(args: Args) -> None:
    from ctrmgr.plan.compile import find

    for name in args.positional:
        path, own = find(name), _own(name)
        if path != own:
            raise ConflictError(
                f"profile `{name}` is not yours to delete: `{path}`", hint="one of your own with its name hides it"
            )
        if args.flag("dry-run"):
            print(f"remove {own}")
            continue
        try:
            os.unlink(own)
        except OSError as error:
            raise state.unwritable(own, error) from error
        _talk(args, f"deleted profile `{name}`")


def profile_validate(args: Args) -> None:
    """Names of profiles, or files (whatever has a slash or ends in .yaml). All are looked at before what is wrong is said."""
    from ctrmgr import source
    from ctrmgr.plan.compile import find
    from ctrmgr.spec import device, keys, profile

    wrong = []
    for name in args.positional or [name for name, _ in folders.names()]:
        path = name if "/" in name or name.endswith((".yaml", ".yml")) else find(name)
        try:
            spec = _validate(path, _read(path))
        except SpecError as error:
            wrong.append(error)
            continue
        _talk(args, f"`{name}` is valid")
        found, devices = profile.merge([spec], {}, {})
        for key, reason in [*keys.refused(found), *device.refused(devices)]:
            _talk(args, f"`{name}`: `{key}` is refused at launch: {reason}")
    if wrong:
        raise source.together(wrong)


def profile_push(args: Args) -> None:
    raise SpecError(f"`{args.positional[1]}` is no remote", hint="`REMOTE:` or `REMOTE:NAME`")


def profile_pull(args: Args) -> None:
    raise SpecError(f"`{args.positional[0]}` is on no remote", hint="`REMOTE:PROFILE`")


PROFILE = Argument("PROFILE", "its name", complete="profile")
FORCE = Option("force", "replace one of that name")
OCI = (
    Option(
        "oci", "its limits as an OCI `config.json`, for other runtimes; an error names those that OCI has no word for"
    ),
    Option("ignore-unsupported", "with `--oci`: leave these out, and say so"),
)
COMMANDS = (
    Command(
        "profile list",
        "profiles, and the file of each; or those of remotes",
        profile_list,
        arguments=(Argument("REMOTE:", "a remote's", required=False, repeat=True, complete="remote", distant=True),),
    ),
    Command(
        "profile show",
        "a profile's text",
        profile_show,
        arguments=(Argument("PROFILE", "its name, or REMOTE:NAME", complete="profile", distant=True),),
        options=OCI,
    ),
    Command(
        "profile push",
        "bring a profile to a remote, in the words of its server",
        profile_push,
        arguments=(
            Argument("PROFILE", "its name, or a file with a slash in its name", complete="profile"),
            Argument("REMOTE:[NAME]", "where to", complete="remote", distant=True),
        ),
        options=(FORCE, Option("ignore-unsupported", "leave out what the server cannot do, and say so")),
    ),
    Command(
        "profile pull",
        "take a profile over from a remote",
        profile_pull,
        arguments=(
            Argument("REMOTE:PROFILE", "which", complete="remote", distant=True),
            Argument("NEW", "its name here", required=False),
        ),
        options=(FORCE,),
    ),
    Command(
        "profile diff",
        "how two profiles differ, here or on servers; exit code 1 when they do",
        profile_diff,
        arguments=(
            Argument("PROFILE", "its name, or REMOTE:NAME", complete="profile", distant=True),
            Argument("OTHER", "its name, or REMOTE:[NAME]", complete="profile", distant=True),
        ),
        help="One of ours is compared as it would be on the other's server.",
    ),
    Command(
        "profile create",
        "make a profile from a file or standard input, else an empty one",
        profile_create,
        arguments=(
            Argument("PROFILE", "its name"),
            Argument(
                "FILE",
                "YAML, or the limits of an OCI config.json; without one or with `-`, what standard input has",
                required=False,
                complete="file",
            ),
        ),
    ),
    Command(
        "profile edit", "change a profile in $EDITOR, or to what standard input has", profile_edit, arguments=(PROFILE,)
    ),
    Command("profile copy", "copy a profile", profile_copy, arguments=(PROFILE, Argument("NEW", "the copy's name"))),
    Command(
        "profile delete",
        "delete profiles of your own",
        profile_delete,
        arguments=(Argument("PROFILE", "their names, or REMOTE:NAME", repeat=True, complete="profile", distant=True),),
    ),
    Command(
        "profile validate",
        "check profiles by name, or YAML files",
        profile_validate,
        arguments=(
            Argument("PROFILE", "names or files; all when none", required=False, repeat=True, complete="profile"),
        ),
    ),
)
