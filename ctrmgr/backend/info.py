# SPDX-License-Identifier: GPL-3.0-or-later
"""What one instance is, has and uses, read back from the kernel where the kernel knows. Cold."""

from __future__ import annotations

import os
import time

from ctrmgr import state
from ctrmgr.backend import device_limits, ended, limits, parameters, record, usage
from ctrmgr.errors import CtrmgrError
from ctrmgr.host import lsm
from ctrmgr.host.cgroup import UNIFIED
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Info:
    """`fields` in the order in which people want to read them; lists (of texts or of maps) where there may be several."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, object]) -> None:
        self.fields = fields


def read(name: str) -> Info:
    """Raises NotFoundError, and CtrmgrError for corrupt files."""
    own = record.Record(name)
    plan = own.plan()
    fields: dict[str, object] = {
        "name": name,
        "status": "RUNNING" if record.is_running(name) else "STOPPED",
        "image": own.ref,
        "fingerprint": own.image,
        "profiles": own.profiles,
        "ids": [
            {"type": row[0][:3], "inside": int(row[1]), "host": int(row[2]), "count": int(row[3])}
            for row in plan
            if row[0] in ("uidmap", "gidmap")
        ],
        "addresses": [f"{row[2]}/{row[3]}" for row in plan if row[0] == "address"],
        "devices": [_planned(row) for row in plan if row[0] in ("device", "bind", "filesystem")],
        "partitions": _partitions(name),
        "tpms": _tpms(name),
        "root": "copied with shifted owners" if ["shifted", "1"] in plan else "overlay over idmapped layers",
    }
    if fields["status"] == "RUNNING":
        fields.update(_running(own, plan))
    else:
        fields["last-exit"] = _last_exit(own.path)
    return Info(fields)


def _planned(row: Sequence[str]) -> dict[str, object]:
    if row[0] != "device":
        name, type, source, path, options = row[1], *(("bind", *row[2:5]) if row[0] == "bind" else row[2:6])
        return {"name": name, "type": type, "source": source, "path": path, "options": options}
    _, name, kind, source, path, uid, gid, mode, access, required = row
    return {
        "name": name, "type": f"unix-{kind}", "source": source, "path": path, "uid": uid, "gid": gid, "mode": mode,
        "access": access, "required": required == "required",
    }  # fmt: skip


def _partitions(name: str) -> list[dict[str, object]]:
    if not ended.has_allocations(name):
        return []
    from ctrmgr.backend import partition_list

    return [
        {"name": each.used_by.partition("/")[2], "partition": each.name, "type": each.type, "of": each.device,
         "part": each.part, "takes": each.takes, "nodes": each.nodes, "state": each.state}
        for each in partition_list.of_instance(name)
    ]  # fmt: skip


def _tpms(name: str) -> list[dict[str, str]]:
    if not ended.has_allocations(name):
        return []
    from ctrmgr.backend import tpms

    return [{"name": device, **found} for device, found in tpms.of_instance(name).items()]


def _attached(part: control.Device) -> dict[str, object]:
    """What the monitor says of a part of a device."""
    found: dict[str, object] = {"name": part.name, "type": part.kind, "path": part.path}
    if part.kind in ("char", "block"):
        found.update(
            type=f"unix-{part.kind}", number=f"{part.major}:{part.minor}", uid=part.uid, gid=part.gid,
            mode=f"{part.mode:04o}", access=part.access, suspended=part.suspended,
        )  # fmt: skip
    elif part.kind in ("bind", "filesystem"):
        found["access"] = part.access
    elif part.kind == "netdev":
        found["parent"] = part.user
    return found


def _running(own: record.Record, plan: Sequence[Sequence[str]]) -> dict[str, object]:
    run = record.run_home(own.name)
    reply = control.ask(run, control.STATUS)
    monitor, init, frozen, started = reply.status()
    found: dict[str, object] = {
        "status": "FROZEN" if frozen else "RUNNING",
        "pid": init,
        "monitor-pid": monitor,
        "started": _iso(started),
        "attached": [
            _attached(part)
            for part in control.ask(run, control.DEVICES).devices()
            if part.kind not in ("share", "rule")
        ],
        "open-fds": _open_fds(*reply.open_fds()),
    }
    plan = [*plan, *device_limits.noted(own.name)]
    found["limits"] = held = [*limits.read(plan), *parameters.read(own, plan, init)]
    if any(row[0] == "follows-devices" for row in plan):
        from ctrmgr.backend import placement

        if placement.behind(own.name, plan):
            for limit in held:
                if str(limit["file"]).startswith("cpuset."):
                    limit.update(enforced=False, state="behind")
    found["gpus"] = _gpus(own.name)
    found["processes"] = _processes(plan)
    found.update(limits.usage(plan))
    return found


def _gpus(name: str) -> list[dict[str, object]]:
    """Memory in use on each GPU, and how much may be, as far as the kernel and the drivers count."""
    return [
        {"gpu": gpu, "memory": values["gpu-memory"], "memory-limit": values["gpu-memory-limit"]}
        for sample in usage.Sampler().sample([name])
        for gpu, values in sample.gpus.items()
    ]


def _processes(plan: Sequence[Sequence[str]]) -> int:
    folder = limits.Files(plan).folders.get(UNIFIED, "")
    return sum(len(_text(f"{below}/cgroup.procs").split()) for below, *_ in os.walk(folder, followlinks=False))


def _open_fds(found: str, reason: str) -> str:
    """What becomes of descriptors that are open when a device is detached: tried already, or as it will turn out."""
    if found == "untried":
        reason = lsm.no_fence()
        found = "held" if reason else "revoked"
    return f"{found}: {reason}" if reason else found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _last_exit(path: str) -> str:
    if not os.path.exists(f"{path}/exit"):
        return "never ran"
    try:
        ((kind, number, when),) = state.read_flat(f"{path}/exit")
        # reboot(2) in a pid namespace ends its init by SIGINT for a power-off: that is how systemd's instances end.
        how = "powered off" if (kind, number) == ("signaled", "2") else f"{kind} {number}"
        return f"{how} at {_iso(int(when))}"
    except (CtrmgrError, ValueError):
        return "not known: its record is damaged"


def _iso(nanoseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(nanoseconds // 10**9))
