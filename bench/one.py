# SPDX-License-Identifier: GPL-3.0-or-later
"""One instance, every verb in turn; and the Python API."""

from __future__ import annotations

from pathlib import Path

from bench import timing
from bench.ours import Ctrmgr
from bench.peer import Peer
from bench.timing import Results

BARE = "python3 -I -c pass"
LAUNCH = "launch until init runs"
EXEC = "exec /bin/true"
ATTACH = "attach a char device"
DETACH = "detach it"
LIST = "list (1 instance)"
STOP = "stop"
START = "start"
STOP_DELETE = "stop + delete"
API_LAUNCH = "API launch (crun: `run -d`)"
API_ATTACH = "API attach"
API_DETACH = "API detach"
API_DELETE = "API kill + delete"


def one_round(peer: Peer, results: Results, instance: str) -> None:
    """Every verb once. Raises CommandFailedError at the first that fails: no number is better than a wrong one."""

    def timed(row: str, *verbs: list[str] | None) -> None:
        took = 0.0
        for argv in verbs:
            if argv is None:
                return
            took += peer.milliseconds(argv)
            peer.settle()
        results.add(row, peer.name, took)

    peer.prepare(instance)
    timed(LAUNCH, peer.launch(instance))
    try:
        timed(EXEC, peer.exec(instance))
        timed(ATTACH, peer.attach(instance))
        timed(DETACH, peer.detach(instance))
        timed(LIST, peer.listing())
        stop, start, delete = peer.stop(instance), peer.start(instance), peer.delete(instance)
        if start is None or stop is None:
            timed(STOP_DELETE, delete)
        else:
            timed(STOP, stop)
            timed(START, start)
            timed(STOP_DELETE, stop, delete)
    except timing.CommandFailedError:
        peer.run(*peer.delete(instance), check=False)
        raise


def bare(ours: Ctrmgr, results: Results) -> None:
    """Nothing but a start of the interpreter that runs ctrmgr."""
    results.add(BARE, ours.name, ours.milliseconds([ours.interpreter(), "-I", "-c", "pass"]))


def api(ours: Ctrmgr, results: Results, rounds: int) -> None:
    """The Python API in a warm process, beside whole `crun run -d` commands of the same run."""
    script = Path(__file__).with_name("api.py")
    for line in ours.run(ours.interpreter(), str(script), str(rounds)).splitlines():
        row, value = line.split("\t")
        results.add(
            {"launch": API_LAUNCH, "attach": API_ATTACH, "detach": API_DETACH, "delete": API_DELETE}[row],
            ours.name,
            float(value),
        )
    for took in results.samples.get(LAUNCH, {}).get("crun", []):
        results.add(API_LAUNCH, "crun", took)
