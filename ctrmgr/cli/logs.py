# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr logs`: what init wrote to its console."""

from __future__ import annotations

import os
import sys
import time

from ctrmgr.backend import record
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def run_logs(args: Args) -> None:
    own = record.Record(args.positional[0])
    path = f"{own.path}/console.log"
    for name in (f"{path}.1", path):
        if os.path.exists(name):
            with open(name, "rb") as file:
                while block := file.read(1 << 16):
                    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    if args.flag("follow"):
        follow(own.name, path)


def follow(name: str, path: str) -> None:
    """Go on until the instance has stopped; a log that is rotated meanwhile is begun again."""
    size = os.path.getsize(path) if os.path.exists(path) else 0
    inode = os.stat(path).st_ino if size else 0
    while True:
        alive = record.is_running(name)
        if os.path.exists(path):
            found = os.stat(path)
            size = 0 if found.st_ino != inode else size
            inode = found.st_ino
            with open(path, "rb") as file:
                file.seek(size)
                block = file.read()
            size += len(block)
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
        if not alive:
            return
        time.sleep(0.2)


def run_console(args: Args) -> None:
    """Local instances have a log of their console and no terminal behind it."""
    name = args.positional[0]
    record.running(name)
    raise UnsupportedError(
        f"`{name}`: the console of an instance on this machine can be read only",
        hint=f"`ctrmgr logs --follow {name}` shows it, `ctrmgr shell {name}` is a terminal",
    )


COMMANDS = (
    Command(
        "console",
        "sit at the console of an instance on a server",
        run_console,
        arguments=(Argument("INSTANCE", "REMOTE:NAME", complete="instance"),),
        help="Ctrl-a q leaves it, and so does the end of its input; ctrl-a ctrl-a is one ctrl-a. On this machine `logs --follow` shows the console and `shell` gives a terminal.",
    ),
    Command(
        "logs",
        "what an instance wrote to its console",
        run_logs,
        arguments=(Argument("INSTANCE", "its name", complete="instance"),),
        options=(Option("follow", "go on until it stops", short="F"),),
    ),
)
