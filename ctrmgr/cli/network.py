# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr network list` and `storage list`: what instances are on, here and on servers."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.cli.command import Argument, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ctrmgr.cli.command import Args
    from ctrmgr.errors import CtrmgrError
    from ctrmgr.remote.server import Server

    Rows = list[dict[str, object]]

NETWORK = ("name", "type", "managed", "ipv4", "ipv6", "used by")
STORAGE = ("name", "driver", "source", "used", "total", "used by")


def _listed(args: Args, columns: tuple[str, ...], here: Callable[[], Rows], there: Callable[[Server], Rows]) -> int:
    """Servers are asked at the same time; one that does not answer does not hide the others."""
    import sys

    from ctrmgr.cli import table
    from ctrmgr.errors import CtrmgrError, SpecError

    names = []
    for word in args.positional or ["local:"]:
        remote, colon, rest = word.partition(":")
        if not colon or rest:
            raise SpecError(f"`{word}` is no remote", hint="REMOTE:")
        names.append(remote)
    told = _told(names, here, there)
    rows: Rows = []
    code = 0
    for name in names:
        found = told[name]
        if not isinstance(found, CtrmgrError):
            rows += found
        elif len(names) < 2:
            raise found
        else:
            print(f"error: {found.message}", file=sys.stderr)
            code = max(code, found.exit_code)
    form = args.one("format", "table")
    if form == "table":
        for row in rows:
            for key in ("used", "total"):
                if isinstance(row.get(key), int):
                    row[key] = table.size(int(str(row[key])))
            if "managed" in row:
                row["managed"] = "yes" if row["managed"] else ""
    table.print_rows(columns, rows, form)
    return code


def _told(names: list[str], here: Callable[[], Rows], there: Callable[[Server], Rows]) -> dict[str, Rows | CtrmgrError]:
    """What each has, or why it does not say."""
    from ctrmgr.remote.server import open_server
    from ctrmgr.remote.together import together

    def asking(name: str) -> Callable[[], Rows]:
        def ask() -> Rows:
            with open_server(name) as server:
                return there(server)

        return ask

    told = together({name: asking(name) for name in names if name != "local"})
    return told | together({name: here for name in names if name == "local"})


def network_list(args: Args) -> int:
    return _listed(args, NETWORK, _networks_here, _networks_there)


def _networks_here() -> Rows:
    from ctrmgr.backend import record

    users: dict[str, int] = {}
    for name in record.names():
        for row in record.read_plan(record.home(name)):
            if row[0] == "link":
                users[row[1]] = users.get(row[1], 0) + 1
    folder = f"{state.state_dir()}/networks"
    rows: Rows = []
    for name in sorted(state.entries(folder)):
        found = {row[0]: f"{row[1]}/{row[2]}" for row in state.read_flat(f"{folder}/{name}") if len(row) == 3}
        rows.append(
            {
                "name": name,
                "type": "bridge",
                "managed": True,
                "ipv4": found.get("ipv4", ""),
                "ipv6": found.get("ipv6", ""),
                "used by": users.get(name, 0),
            }
        )
    return rows


def _networks_there(server: Server) -> Rows:
    return [
        {
            "name": f"{server.name}:{each['name']}",
            "type": each["type"],
            "managed": each["managed"],
            "ipv4": each["config"].get("ipv4.address", ""),
            "ipv6": each["config"].get("ipv6.address", ""),
            "used by": len(each["used_by"] or ()),
        }
        for each in sorted(server.get("/networks", query={"recursion": "1"}), key=lambda each: str(each["name"]))
    ]


def storage_list(args: Args) -> int:
    return _listed(args, STORAGE, _storage_here, _storage_there)


def _storage_here() -> Rows:
    """One place, on whatever filesystem it lies."""
    from ctrmgr.backend import record

    path = state.state_dir()
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return [
        {
            "name": "local",
            "driver": "overlay",
            "source": state.state_dir(),
            "used": (found.f_blocks - found.f_bfree) * found.f_frsize,
            "total": found.f_blocks * found.f_frsize,
            "used by": len(record.names()),
        }
    ]


def _storage_there(server: Server) -> Rows:
    from ctrmgr.errors import BackendError, NotFoundError
    from ctrmgr.remote.server import quoted
    from ctrmgr.remote.wire import GoneError

    rows: Rows = []
    for each in sorted(server.get("/storage-pools", query={"recursion": "1"}), key=lambda each: str(each["name"])):
        try:
            space = server.get(f"/storage-pools/{quoted(str(each['name']))}/resources")["space"]
        except (BackendError, NotFoundError) as error:
            if isinstance(error, GoneError):
                raise
            space = {}
        rows.append(
            {
                "name": f"{server.name}:{each['name']}",
                "driver": each["driver"],
                "source": each["config"].get("source", ""),
                "used": space.get("used", ""),
                "total": space.get("total", ""),
                "used by": len(each["used_by"] or ()),
            }
        )
    return rows


REMOTES = Argument(
    "REMOTE:", "of these servers; `local:` is this machine", required=False, repeat=True, complete="remote"
)
COMMANDS = (
    Command("network list", "networks that instances can be on", network_list, arguments=(REMOTES,)),
    Command("storage list", "where instances lie, and how full it is", storage_list, arguments=(REMOTES,)),
)
