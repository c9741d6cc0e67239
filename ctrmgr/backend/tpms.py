# SPDX-License-Identifier: GPL-3.0-or-later
"""Emulated TPMs of instances: the program of each begun before its nodes are given, and ended after they are taken. Cold.

    INSTANCE/tpm/DEVICE.state/    what the TPM knows; the instance's, whatever becomes of the device
    INSTANCE/tpm/DEVICE.log       what its program had to say in this run

As allocations are they are recorded, with the process that keeps the program, before that does anything. It ends by itself when the
instance does, or when no command is at an instance that does not run.
"""

from __future__ import annotations

import os
import stat

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.backend.held import Held, folder, of
from ctrmgr.backend.record import crash
from ctrmgr.devices import tpm as device
from ctrmgr.errors import CtrmgrError, HelperError, HostError, UnsupportedError
from ctrmgr.host import tpm
from ctrmgr.kernel import emulator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.asked import Request

BY = "program"
FOLDER = "tpm"
"""In an instance's directory, and in a snapshot's."""


def recorded(instance: str, request: Request) -> Held:
    """Write down that one is about to be made. Raises UnsupportedError when none can be."""
    reason, cure = tpm.missing()
    if reason:
        raise UnsupportedError(f"device `{request.device}`: {reason}", hint=cure)
    held = Held(instance, request.device)
    held.type, held.life, held.values, held.token = "tpm", "run", request.values, os.urandom(8).hex()
    held.text = [["by", BY], ["found", f"{tpm.PROGRAM}-{held.token}", "TPM 2.0", tpm.PROGRAM, "1", "-1"]]
    state.make_dir(folder(), 0o700)
    held.write()
    return held


def rows(held: Held) -> list[list[str]]:
    """Run its program, and return the plan's rows of what the kernel has made. Raises HostError, HelperError."""
    home = record.home(held.instance)
    state.make_dir(f"{home}/{FOLDER}", 0o700)
    place = f"{home}/{FOLDER}/{held.device}"
    owner = _owner(record.read_plan(home))
    log = -1
    try:
        _hand_over(f"{place}.state", owner)
        log = os.open(f"{place}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        words = [tpm.proxy(), home, f"{record.run_home(held.instance)}/state", *map(str, owner), f"{place}.state"]
        nodes = _begun(held, [*words, tpm.emulator()], log)
    except OSError as error:
        raise state.unwritable(error.filename or place, error) from error
    except HelperError as error:
        said = _last_line(f"{place}.log")
        reason = f"{error.message}: {said}" if said else error.message
        raise HostError(
            f"device `{held.device}`: no TPM can be emulated: {reason}", hint=f"see `{place}.log`"
        ) from None
    finally:
        if log >= 0:
            os.close(log)
    held.text += [["node", node] for node in nodes]
    return device.nodes(held.device, held.values, (nodes[0], nodes[1]))


def _begun(held: Held, words: Sequence[str], log: int) -> list[str]:
    process = emulator.Emulator(words, log)
    try:
        crash("tpm-begun")
        held.text.append(["state", "process", process.key])
        held.write()
        crash("tpm-recorded")
        return process.go()
    finally:
        process.close()


def released(held: Held) -> None:
    """End its program. Raises HelperError."""
    emulator.end(held.state.get("process", ""))


def _owner(plan: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Ids that nobody else has, and no program inside: the last of the instance's own ranges."""
    found = []
    for kind in ("uidmap", "gidmap"):
        count, first = max(((int(row[3]), int(row[2])) for row in plan if row[0] == kind), default=(0, 0))
        if not count:
            raise CtrmgrError(f"the plan has no `{kind}`")
        found.append(first + count - 1)
    return found[0], found[1]


def _hand_over(path: str, owner: tuple[int, int]) -> None:
    """Give a TPM's state to who emulates it now; a copy was another's. What such a program does not write is removed."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(fd, *owner)
        for name in os.listdir(fd):
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
            elif not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def _last_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 16).strip().splitlines()
    except OSError:
        return ""
    return "".join(letter for letter in lines[-1] if letter.isprintable()) if lines else ""


def of_instance(name: str) -> dict[str, dict[str, str]]:
    """Those that an instance has now, by device: the program, and whether it runs."""
    return {
        each.device: {"emulator": tpm.PROGRAM, "state": "running" if emulator.lives(_key(each)) else "ended"}
        for each in of(name).values()
        if each.by == BY
    }


def _key(held: Held) -> str:
    return held.state.get("process", "")
