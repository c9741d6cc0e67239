# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr logs`: what init wrote to its console."""

from __future__ import annotations

import os
import sys
import time

from ctrmgr.backend import record
from ctrmgr.cli.command import Argument, Command, Option

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


COMMANDS = (
    Command(
        "logs",
        "what an instance wrote to its console",
        run_logs,
        arguments=(Argument("INSTANCE", "its name", complete="instance"),),
        options=(Option("follow", "go on until it stops", short="F"),),
    ),
)
