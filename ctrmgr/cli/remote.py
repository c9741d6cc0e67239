# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr remote …`: which servers there are, and how they and we know each other."""

from __future__ import annotations

import os
import sys

from ctrmgr.cli import table
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import BackendError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def talk(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(text, file=sys.stderr)


def secret(args: Args, name: str) -> str:
    """`--token -` is read from standard input: a command line can be seen by others."""
    given = args.one(name)
    if given == "-":
        given = sys.stdin.readline().strip()
        if not given:
            raise SpecError(f"`--{name} -`: nothing on standard input")
    return given


def confirm(shown: str) -> bool:
    """Ask whoever sits at the terminal; nobody there is a no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"certificate fingerprint: {shown}\nIs it the server's (yes/no)? ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def remote_add(args: Args) -> None:
    from ctrmgr.remote import trust

    name, url = args.positional[0], args.positional[1] if len(args.positional) > 1 else ""
    token, password = secret(args, "token"), secret(args, "password")
    if token and password:
        raise SpecError("`--token` and `--password` exclude each other")
    if args.flag("dry-run"):
        print(f"add {name} {trust.normal_url(url) if url else 'at the address in the token'}")
        return
    remote = trust.add(
        name,
        url,
        token=token,
        password=password,
        certificate=args.one("certificate"),
        project=args.one("project"),
        images=args.flag("images"),
        confirm=confirm,
    )
    talk(args, f"added `{remote.name}`: {remote.kind} at {remote.url}")


def remote_list(args: Args) -> None:
    from ctrmgr.remote import registry

    remotes = registry.load()
    rows = [
        {
            "name": each.name,
            "url": each.url,
            "kind": each.kind,
            "project": each.project,
            "default": each.name == remotes.default,
        }
        for each in remotes.by_name.values()
    ]
    form = args.one("format", "table")
    if form == "table":
        rows = [{**row, "default": "yes" if row["default"] else ""} for row in rows]
    table.print_rows(("name", "url", "kind", "project", "default"), rows, form)


def remote_show(args: Args) -> None:
    """One remote and what its server says of itself; without a name, ourselves."""
    from ctrmgr.remote import identity, registry, server

    form = args.one("format", "table")
    if not args.positional:
        identity.ensure()
        fields: dict[str, object] = {
            "certificate": registry.identity_paths()[0],
            "fingerprint": identity.fingerprint(),
        }
        table.print_object(fields, form)
        return
    remotes = registry.load()
    remote = remotes.get(args.positional[0].removesuffix(":"))
    fields = {
        "name": remote.name,
        "url": remote.url,
        "kind": remote.kind,
        "project": remote.project or ("" if remote.kind == registry.IMAGES else "default"),
        "default": remote.name == remotes.default,
    }
    if remote.kind != registry.IMAGES:
        target = remote.target()
        if target.certificate:
            from ctrmgr.remote.wire import fingerprint

            fields["fingerprint"] = fingerprint(target.certificate)
            fields["our-certificate"] = registry.identity_of(remote.name)[0]
        with server.of(remote) as found:
            environment = found.info.get("environment") or {}
            fields["trusts-us"] = found.info.get("auth") == "trusted"
            fields["version"] = environment.get("server_version", "")
            fields["kernel"] = environment.get("kernel_version", "")
            fields["clustered"] = bool(environment.get("server_clustered"))
            fields["extensions"] = len(found.extensions)
            if form in ("json", "yaml"):
                fields["extensions"] = sorted(found.extensions)
    table.print_object(fields, form)


def remote_remove(args: Args) -> None:
    from ctrmgr.remote import registry, trust

    if args.flag("dry-run"):
        for name in args.positional:
            print(f"remove {registry.load().get(name).name}")
        return
    trust.remove(args.positional)
    talk(args, f"forgot {', '.join(args.positional)}; our certificate is still on the server")


def remote_rename(args: Args) -> None:
    from ctrmgr.remote import trust

    if args.flag("dry-run"):
        print(f"rename {args.positional[0]} {args.positional[1]}")
        return
    trust.rename(*args.positional)


def remote_set_default(args: Args) -> None:
    from ctrmgr.remote import registry

    name = args.positional[0].removesuffix(":")
    with registry.Opened() as remotes:
        remotes.default = remotes.get(name).name
    talk(args, f"`:c1` is now `{name}:c1`")


def remote_trust(args: Args) -> None:
    from ctrmgr.remote import trust

    name = args.positional[0].removesuffix(":")
    shown = trust.trust(name, certificate=args.one("certificate"), token=secret(args, "token"), confirm=confirm)
    talk(args, f"`{name}` is trusted by its certificate {shown}")


def remote_import(args: Args) -> int:
    from ctrmgr.remote import importing

    given = [os.path.abspath(word) for word in args.positional] or importing.folders()
    if not given:
        raise NotFoundError("there is no configuration of LXD's or Incus' client", hint="name its folder")
    found = [each for folder in given for each in importing.load(folder)]
    rows = [{"name": each.name, "url": each.url, "outcome": each.outcome} for each in found]
    table.print_rows(("name", "url", "outcome"), rows, args.one("format", "table"))
    return 0 if any(row["outcome"] == "added" for row in rows) else BackendError.exit_code


NAME = Argument("NAME", "its name", complete="remote")
CERTIFICATE = Option(
    "certificate", "the server's certificate (PEM), or its SHA-256 fingerprint", metavar="FILE|FINGERPRINT"
)
TOKEN = Option("token", "a token of the server's for a new client; `-` reads it", metavar="TOKEN")
COMMANDS = (
    Command(
        "remote add",
        "make an LXD or Incus server known under a name",
        remote_add,
        arguments=(
            Argument("NAME", "letters, digits, `-`, `_` and `.`"),
            Argument("URL|SOCKET", "https://HOST:8443, or the path of a unix socket; a token has it", required=False),
        ),
        options=(
            TOKEN,
            Option("password", "its trust password (LXD 5.0 and older); `-` reads it", metavar="PASSWORD"),
            CERTIFICATE,
            Option("project", "the project in which everything happens", metavar="PROJECT"),
            Option("images", "it is a server of images (simplestreams) and of nothing else"),
        ),
        help="The certificate that the server shows must be the one in the token or the one that --certificate names, "
        "or somebody at the terminal compares its fingerprint. It is kept: another one is refused from then on.",
    ),
    Command("remote list", "the servers that are known", remote_list),
    Command(
        "remote show",
        "one server: version, certificate, whether it trusts us; without a name, our own certificate",
        remote_show,
        arguments=(Argument("NAME", "its name", required=False, complete="remote"),),
    ),
    Command(
        "remote remove",
        "forget servers",
        remote_remove,
        arguments=(Argument("NAME", "their names", repeat=True, complete="remote"),),
    ),
    Command(
        "remote rename", "call a server by another name", remote_rename, arguments=(NAME, Argument("NEW", "the name"))
    ),
    Command("remote set-default", "which server is meant by `:c1`", remote_set_default, arguments=(NAME,)),
    Command(
        "remote trust",
        "take the certificate that a server shows now",
        remote_trust,
        arguments=(NAME,),
        options=(CERTIFICATE, TOKEN),
    ),
    Command(
        "remote import",
        "take the servers over that LXD's or Incus' own client knows",
        remote_import,
        arguments=(
            Argument(
                "FOLDER",
                "such as ~/.config/lxc; without one, all that there are",
                required=False,
                repeat=True,
                complete="file",
            ),
        ),
    ),
)
