# SPDX-License-Identifier: GPL-3.0-or-later
"""`--target`: to which member of a cluster an instance goes, and to which next when that one cannot after all."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from functools import partial

from ctrmgr.cli import distant
from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError
from ctrmgr.remote import cluster, images, instances, placement, registry, wanted
from ctrmgr.remote.server import StaleError, quoted
from ctrmgr.remote.wire import GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ctrmgr.cli.command import Args
    from ctrmgr.cli.distant_config import Asked
    from ctrmgr.remote.cluster import Answers, Row
    from ctrmgr.remote.placement import Request, Verdict
    from ctrmgr.remote.server import Server

AUTO = "auto"
TRIES = 5
"""Members that are tried; what five refuse is not for lack."""


class RaceError(BackendError):
    """Somebody else has taken what we had chosen."""


def place(args: Args, asked: Asked, make: Callable[[Asked], None], show: Callable[[Asked], None]) -> None:
    """`make` the instance on the member that fits best; `show` it with --dry-run.

    Raises NotFoundError for a member or group that is not there, ConflictError when none fits, and what the last that was tried says.
    """
    server, target = asked.server, args.one("target")
    rows, request = question(server, target, asked.image, *effective(asked))
    answers = cluster.ask(server, rows)
    policy = args.one("policy") or placement.PACKING
    tried: dict[str, CtrmgrError] = {}
    for number in range(TRIES):
        verdicts = placement.rank(_fleet(server, answers, tried), request, policy)
        best = verdicts[0]
        if args.flag("explain") and number == 0:
            explain(args, verdicts)
        if not best.fits:
            raise refused(server, asked.name, verdicts, tried)
        attempt = pinned(asked, best)
        if args.flag("dry-run"):
            if not args.flag("explain"):
                show(attempt)
            return
        attempt.verify = partial(verify, asked, best, request, answers)
        try:
            make(attempt)
        except RaceError as error:
            distant.talk(args, f"{error.message}; looking for another")
        except BackendError as error:
            if isinstance(error, GoneError | StaleError):
                raise
            tried[best.member.name] = error
            distant.talk(args, f"`{best.member.name}`: {error.message}; trying the next")
        else:
            distant.talk(args, f"`{instances.label(server, asked.name)}` is on `{best.member.name}`")
            return
    raise next(
        iter(tried.values()), ConflictError(f"others are faster on `{server.name}` than we are", hint="try again")
    )


def question(
    server: Server, target: str, image: str, config: Mapping[str, str], devices: Mapping[str, Mapping[str, str]]
) -> tuple[list[Row], Request]:
    """Which members are meant, and what is asked of them. Raises NotFoundError with what there is."""
    rows = cluster.members(server, "without --target, instances are made on the server itself")
    group = target[1:] if target.startswith("@") else ""
    if target == AUTO or group:
        known = sorted({name for row in rows for name in row.groups})
        if group and group not in known:
            hint = f"there are {', '.join(known)}"
            raise NotFoundError(f"`{server.name}` has no group `{group}` with members", hint=hint)
        made_for = architecture(server, rows, image)
        return rows, wanted.request(config, devices, group=group, architecture=made_for)
    for row in rows:
        if row.name == target:
            # Who names a member has counted: limits are limits there, and no guarantees.
            return [row], wanted.request(config, devices, only=target, guarantees=False)
    raise NotFoundError(
        f"`{server.name}` has no member `{target}`",
        hint=f"there are {', '.join(row.name for row in rows)}; `auto` chooses one, `@GROUP` one of a group",
    )


def architecture(server: Server, rows: Iterable[Row], image: str) -> str:
    """What an image is made for, where members differ; "" for another server's, about which the member will say."""
    if len({row.architecture for row in rows}) < 2:
        return ""
    remote, colon, alias = image.rpartition(":")
    if remote in ("builtin", registry.LOCAL):
        return os.uname().machine
    if colon and registry.load().get(remote).name != server.name:
        return ""
    return str(server.get(f"/images/{images.find(server, alias)}")["architecture"])


def effective(asked: Asked) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Keys and devices that the instance will have: those of the server's profiles, and its own over them."""
    config: dict[str, str] = {}
    devices: dict[str, dict[str, str]] = {}
    for name in asked.profiles:
        profile = asked.server.get(f"/profiles/{quoted(name)}")
        config |= profile.get("config") or {}
        devices |= profile.get("devices") or {}
    return config | asked.made.config, devices | asked.made.devices


def _fleet(server: Server, answers: Iterable[Answers], tried: Mapping[str, CtrmgrError]) -> list[placement.Member]:
    """As it is now. What a member has does not change; what is held of it does."""
    members = cluster.fleet(answers, cluster.instances(server))
    for member in members:
        if member.name in tried:
            member.closed = "was tried, and refused"
    return members


def pinned(asked: Asked, best: Verdict) -> Asked:
    """The same for one member, with the devices that were chosen there."""
    made = copy.copy(asked.made)
    chosen, keys = wanted.pinned(effective(asked)[1] if best.units else {}, best)
    made.devices = {name: _told(keys) for name, keys in {**made.devices, **chosen}.items()}
    made.config = {**made.config, **keys}
    attempt = copy.copy(asked)
    attempt.made = made
    attempt.target = best.member.name
    return attempt


def _told(keys: Mapping[str, str]) -> dict[str, str]:
    """Without what only the choice was made by."""
    told = keys.get("type") not in ("gpu", "infiniband")
    return {key: value for key, value in keys.items() if told or key not in ("count", "lease", "uuid")}


def verify(asked: Asked, best: Verdict, request: Request, answers: Iterable[Answers]) -> None:
    """Two may have chosen the same GPU at once, and a server gives it to both: who was made later looks for another.

    Raises RaceError.
    """
    if not best.units and not request.memory and not request.cpus:
        return
    server = asked.server
    found = cluster.instances(server)
    here = [each for each in found if each.get("location") == best.member.name]
    mine = next((each for each in here if each["name"] == asked.name and _ours(server, each)), None)
    if mine is None:
        raise RaceError(f"`{instances.label(server, asked.name)}` is gone again")
    before = [each for each in here if _age(each) < _age(mine)]
    there = cluster.member(next(each for each in answers if each.row.name == best.member.name), before)
    units = {unit.address: unit for unit in (*there.gpus, *there.hcas)}
    for wish, unit in best.units:
        if not wish.open(units[unit.address]):
            raise RaceError(f"`{best.member.name}`: somebody else was faster to take `{unit.address}`")
    if why := placement.refusal(there, request):
        raise RaceError(f"`{best.member.name}` {why}: somebody else was faster")


def _ours(server: Server, instance: Mapping[str, Any]) -> bool:
    return str(instance.get("project", "default")) == (server.project or "default")


def _age(instance: Mapping[str, Any]) -> tuple[str, str, str]:
    """In the order of which instances were made; the name decides between two of the same moment."""
    whole, _, part = str(instance.get("created_at", "")).rstrip("Z").partition(".")
    return f"{whole}.{part:0<9}", str(instance.get("project", "")), str(instance["name"])


def refused(server: Server, name: str, verdicts: Iterable[Verdict], tried: Mapping[str, CtrmgrError]) -> CtrmgrError:
    """No member can: why each cannot."""
    if tried:
        return next(iter(tried.values()))
    reasons = [f"`{each.member.name}` {each.why}" for each in verdicts]
    more = f"\nand {len(reasons) - 10} more" if len(reasons) > 10 else ""
    return ConflictError(
        f"no member of `{server.name}` can take `{name}`:\n" + "\n".join(reasons[:10]) + more,
        hint="`ctrmgr cluster resources` shows what is free; `--target MEMBER` takes memory and CPUs as no guarantee",
    )


def explain(args: Args, verdicts: Iterable[Verdict]) -> None:
    """Each member with its score or why not: data with --dry-run, and talk otherwise."""
    from ctrmgr.cli.table import print_rows

    rows = [
        {
            "member": each.member.name,
            "score": f"{each.score:.1f}" if each.fits else "",
            "devices": [f"{wish.device}={unit.address}" for wish, unit in each.units],
            "why": each.why,
        }
        for each in verdicts
    ]
    out = sys.stdout if args.flag("dry-run") else sys.stderr
    with contextlib.redirect_stdout(out):
        print_rows(("member", "score", "devices", "why"), rows, args.one("format", "table"))
