# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs on `REMOTE:NAME`: the same words, output and exit codes as locally. Imported when a word names a remote."""

from __future__ import annotations

import sys

from ctrmgr.cli.command import owner, pairs
from ctrmgr.errors import BackendError, CtrmgrError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.remote import instances, looking, registry
from ctrmgr.remote.server import Server, open_server
from ctrmgr.remote.wire import GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ctrmgr.cli.command import Args, Command


def talk(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(text, file=sys.stderr)


class Servers:
    """Connections of one command, each made once."""

    def __init__(self) -> None:
        self.open: dict[str, Server] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.open.values():
            server.connection.close()

    def get(self, name: str) -> Server:
        if name not in self.open:
            self.open[name] = open_server(name)
        return self.open[name]


def one(word: str) -> tuple[Server, str]:
    """The server and the instance that a word means. Raises SpecError, NotFoundError."""
    found = registry.split(word)
    if not found or not found[1]:
        raise SpecError(f"`{word}`: an instance is missing", hint="REMOTE:NAME")
    return open_server(found[0]), found[1]


def is_local(word: str) -> bool:
    return ":" not in word or word.startswith(f"{registry.LOCAL}:")


def each(args: Args, verb: str, action: Callable[[Server, str], None], local: Callable[[str], None]) -> int:
    """As `power.each`, for instances here and there."""
    if args.flag("all"):
        return every(args, verb, action)
    code = 0
    with Servers() as servers:
        for word in args.positional:
            try:
                if is_local(word):
                    _do(args, verb, word.removeprefix("local:"), local)
                    continue
                remote, name = registry.split(word) or ("", "")
                if not name:
                    raise SpecError(f"`{word}`: an instance is missing", hint=f"`{word}NAME`, or --all")
                server = servers.get(remote)
                if args.flag("dry-run"):
                    instances.get(server, name)
                _do(args, verb, word, lambda _, server=server, name=name: action(server, name))  # type: ignore[misc]
            except CtrmgrError as error:
                if len(args.positional) == 1:
                    raise
                print(f"error: {error.message}", file=sys.stderr)
                code = max(code, error.exit_code)
    return code


def every(args: Args, verb: str, action: Callable[[Server, str], None]) -> int:
    """`--all` with remotes: all instances of each."""
    code = 0
    with Servers() as servers:
        for word in args.positional:
            remote, name = registry.split(word) or ("", "")
            if name or is_local(word):
                raise SpecError(f"`{word}`: --all is for whole remotes", hint="REMOTE:")
            server = servers.get(remote)
            for row in looking.listing(server):
                try:
                    short = row["name"].partition(":")[2]
                    _do(args, verb, row["name"], lambda _, server=server, short=short: action(server, short))  # type: ignore[misc]
                except CtrmgrError as error:
                    print(f"error: {error.message}", file=sys.stderr)
                    code = max(code, error.exit_code)
    return code


def _do(args: Args, verb: str, name: str, action: Callable[[str], None]) -> None:
    if args.flag("dry-run"):
        print(f"{verb} {name}")
    else:
        action(name)


# Power


def _here() -> ModuleType:
    """What does it on this machine: imported when a word names one of its instances."""
    from ctrmgr.backend import local

    return local


def run_start(args: Args) -> int:
    return each(args, "start", instances.start, lambda name: _here().start(name))


def run_stop(args: Args) -> int:
    from ctrmgr.cli import power

    wait, force = power.timeout(args), args.flag("force")
    return each(
        args,
        "stop",
        lambda server, name: instances.stop(server, name, timeout=wait, force=force),
        lambda name: _here().stop(name, timeout=wait, force=force),
    )


def run_restart(args: Args) -> int:
    from ctrmgr.cli import power

    wait, force = power.timeout(args), args.flag("force")
    return each(
        args,
        "restart",
        lambda server, name: instances.restart(server, name, timeout=wait, force=force),
        lambda name: _here().restart(name, timeout=wait, force=force),
    )


def run_kill(args: Args) -> int:
    from ctrmgr.cli import power
    from ctrmgr.remote import execute

    given = args.one("signal")
    if not given:
        return each(
            args,
            "kill",
            lambda server, name: instances.stop(server, name, force=True),
            lambda name: _here().stop(name, force=True),
        )
    number = power.signal_number(given)

    def kill(server: Server, name: str) -> None:
        execute.refuse_if_stopped(server, name)
        execute.record(server, name, ["kill", f"-{number}", "1"])

    return each(args, "kill", kill, lambda name: _here().signal(name, number))


def run_freeze(args: Args) -> int:
    return each(args, "freeze", instances.freeze, lambda name: _here().freeze(name))


def run_unfreeze(args: Args) -> int:
    return each(
        args,
        "unfreeze",
        lambda server, name: instances.freeze(server, name, thaw=True),
        lambda name: _here().freeze(name, thaw=True),
    )


def run_delete(args: Args) -> int:
    force = args.flag("force")
    return each(
        args,
        "delete",
        lambda server, name: instances.delete(server, name, force=force),
        lambda name: _here().delete(name, force=force),
    )


def run_rename(args: Args) -> None:
    old, new = args.positional
    server, name = one(old)
    there = registry.split(new)
    if there and there[0] != registry.split(old)[0]:  # type: ignore[index]
        raise SpecError(f"`{new}` is on another machine", hint="rename stays where it is")
    if args.flag("dry-run"):
        instances.get(server, name)
        print(f"rename {old} {new}")
        return
    instances.rename(server, name, there[1] if there else new)


# Looking


def run_list(args: Args) -> int:
    """Remotes are asked at the same time; one that does not answer does not hide the others."""
    from ctrmgr.cli.table import print_rows
    from ctrmgr.remote.together import together

    parts: dict[str, list[str]] = {}
    for word in args.positional:
        remote, part = registry.split(word) or (registry.LOCAL, word)
        remote = remote if remote == registry.LOCAL else registry.load().get(remote).name
        parts.setdefault(remote, []).append(part)
    servers = {name: open_server(name) for name in parts if name != registry.LOCAL}
    told = together({name: _asking(server) for name, server in servers.items()})
    told |= together({name: _listed_here for name in parts if name == registry.LOCAL})
    rows: list[dict[str, str]] = []
    code = 0
    for name, wanted in parts.items():
        found = told[name]
        if isinstance(found, CtrmgrError):
            print(f"error: {found.message}", file=sys.stderr)
            code = max(code, found.exit_code)
            continue
        rows += [row for row in found if any(word in row["name"].rpartition(":")[2] for word in wanted)]
    print_rows(("name", "status", "ipv4", "image"), rows, args.one("format", "table"))
    return code


def _asking(server: Server) -> Callable[[], list[dict[str, str]]]:
    return lambda: looking.listing(server)


def _listed_here() -> list[dict[str, str]]:
    from ctrmgr.backend import listing, repair

    repair.sweep()
    return [{"name": row.name, "status": row.status, "ipv4": row.ipv4, "image": row.image} for row in listing.listing()]


def run_info(args: Args) -> None:
    from ctrmgr.cli.table import print_object

    server, name = one(args.positional[0])
    print_object(looking.info(server, name), args.one("format", "table"))


def run_logs(args: Args) -> None:
    import time

    server, name = one(args.positional[0])
    seen = looking.console(server, name)
    _out(seen)
    while args.flag("follow"):
        running = instances.get(server, name)["status"] != "Stopped"
        now = looking.console(server, name)
        if now and now not in seen:
            # The server keeps the last part of it: what we have seen ends somewhere in that.
            tail = seen[-4096:]
            at = now.rfind(tail) if tail else -1
            _out(now[at + len(tail) :] if tail and at >= 0 else now)
            seen = now
        if not running:
            return
        time.sleep(0.3)


def _out(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def run_console(args: Args) -> None:
    from ctrmgr.remote import execute

    server, name = one(args.positional[0])
    if args.flag("dry-run"):
        instances.get(server, name)
        print(f"console {args.positional[0]}")
        return
    with server:
        execute.refuse_if_stopped(server, name)
        talk(args, "ctrl-a q leaves it")
        try:
            shown = execute.console(server, name)
        except CtrmgrError as error:
            raise instances.translated(server, name, error) from None
    if not shown:
        talk(args, "note: the console has shown nothing of the input: whether anybody has read it is not known")


# Commands inside


def run_exec(args: Args) -> int:
    return _enter(args, [*args.positional[1:], *(args.rest or [])], shell=False)


def run_shell(args: Args) -> int:
    return _enter(args, [], shell=True)


def _enter(args: Args, command: list[str], *, shell: bool) -> int:
    import os

    from ctrmgr.remote import devices, execute, owners

    word = args.positional[0]
    if args.flag("tty") and args.flag("no-tty"):
        raise SpecError("`--tty` and `--no-tty` exclude each other")
    if not command and not shell:
        raise SpecError(f"no command to run in `{word}`", hint=f"ctrmgr exec {word} -- COMMAND")
    env = pairs(args.all("env"), "KEY=VALUE")
    if args.flag("dry-run"):
        print(" ".join(["exec", word, *command]))
        return 0
    server, name = one(word)
    tty = args.flag("tty") or (not args.flag("no-tty") and os.isatty(0) and os.isatty(1))
    wanted, group = owner(args)
    with server:
        user = None
        try:
            if wanted not in ("", "0", "root") or shell:
                user = owners.user(server, name, wanted or "0")
            gid = owners.number(server, name, "gid", group) if group else user.gid if user else 0
            if user:
                env = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, **env}
            if shell:
                command = [(user.shell if user else "") or "/bin/sh", "-l"]
            if tty and "TERM" in os.environ:
                env = {"TERM": os.environ["TERM"], **env}
            cwd = args.one("cwd") or (user.home if user else "")
            if args.one("cwd").startswith("/") and not devices.node(server, name, cwd):
                # Servers would say nothing and begin in /.
                raise NotFoundError(f"go to `{cwd}`: No such file or directory")
            code = execute.run(server, name, command, env=env, uid=user.uid if user else 0, gid=gid, cwd=cwd, tty=tty)
        except (BackendError, NotFoundError) as error:
            if not isinstance(error, GoneError):
                execute.refuse_if_stopped(server, name)
                if "is not running" in error.message:  # its end has begun
                    raise execute.not_running(server, name) from None
            raise
    return code


RUN: dict[str, Callable[[Args], int | None]] = {
    "console": run_console,
    "delete": run_delete,
    "exec": run_exec,
    "freeze": run_freeze,
    "info": run_info,
    "kill": run_kill,
    "list": run_list,
    "logs": run_logs,
    "rename": run_rename,
    "restart": run_restart,
    "shell": run_shell,
    "start": run_start,
    "stop": run_stop,
    "unfreeze": run_unfreeze,
}


MODULES = {
    "config device": "distant_config_device",
    "config edit": "distant_config_edit",
    "copy": "distant_copy",
    "move": "distant_move",
    "profile": "distant_profile",
    "publish": "distant_image",
    "snapshot": "distant_snapshot",
}
"""First words → module of this package with more of these."""


def run(command: Command, args: Args) -> int | None:
    """Carry a verb out whose words name a remote. Raises UnsupportedError for one that stays on this machine."""
    function = RUN.get(command.name)
    if function is None:
        words = command.name.split(" ")
        module = MODULES.get(" ".join(words[:2])) or MODULES.get(words[0], "distant_config")
        more = __import__(f"ctrmgr.cli.{module}", fromlist=("RUN",)).RUN
        function = more.get(command.name)
    if function is None:
        raise UnsupportedError(f"`ctrmgr {command.name}` is done on this machine only")
    return function(args)
