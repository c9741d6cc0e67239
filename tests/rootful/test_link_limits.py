# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast an instance's link is: measured on the bridge, in a network namespace of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Ctr
from tests.rootful.test_bridge import Place, info

SINK = """
import socket, time
server = socket.create_server(("0.0.0.0", 5000), reuse_port=True)
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    begin, total = time.monotonic(), 0
    while data := connection.recv(65536):
        total += len(data)
    print(total, time.monotonic() - begin, flush=True)
    connection.close()
"""
SOURCE = """
import fcntl, socket, sys, termios, time
connection = socket.create_connection((sys.argv[1], 5001))
begin = time.monotonic()
connection.sendall(bytes(2 << 20))
while any(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))):  # what has not arrived
    time.sleep(0.001)
print(time.monotonic() - begin)
"""


class Wire(Place):
    """A host with somebody on it to talk to."""

    def __init__(self, ctr: Ctr) -> None:
        super().__init__(ctr)
        self.sink = subprocess.Popen([*self.host, sys.executable, "-c", SINK], stdout=subprocess.PIPE)
        assert self.sink.stdout is not None
        assert self.sink.stdout.readline() == b"ready\n"

    def end(self) -> None:
        self.sink.kill()
        self.sink.communicate()
        super().end()

    def sends(self, name: str) -> float:
        """Seconds that 2 MiB take from the instance to the host."""
        self.ctr("exec", name, "--", "sh", "-c", "dd if=/dev/zero bs=64K count=32 | nc 192.0.2.1 5000")
        assert self.sink.stdout is not None
        total, seconds = self.sink.stdout.readline().split()
        assert int(total) == 2 << 20
        return float(seconds)

    def receives(self, name: str) -> float:
        """And from the host to the instance."""
        server = self.ctr.popen("exec", name, "--", "sh", "-c", "nc -l -p 5001 | wc -c", stdout=subprocess.PIPE)
        self.ctr("exec", name, "--", "sh", "-c", "until netstat -ltn | grep -q :5001; do sleep 0.02; done")
        words = [*self.host, sys.executable, "-c", SOURCE, str(info(self.ctr, name)[0].ip)]
        seconds = float(subprocess.check_output(words))
        assert server.communicate()[0].strip() == str(2 << 20).encode()
        return seconds


@pytest.fixture
def wire(ctr: Ctr) -> Iterator[Wire]:
    found = Wire(ctr)
    yield found
    found.end()


def limits(ctr: Ctr, name: str) -> dict[str, tuple[str, bool]]:
    found = json.loads(ctr("info", name, "-fjson").stdout)["limits"]
    return {limit["key"]: (limit["value"], limit["enforced"]) for limit in found}


def passes(measure: Callable[[str], float], name: str) -> bool:
    """Whether 2 MiB pass faster than any of the limits lets them; a busy host may need more than one try."""
    return any(measure(name) < 0.7 for _ in range(8))


def test_both_directions_and_a_neighbour(wire: Wire) -> None:
    """2 MiB are a second at 16 Mbit, less what passes at once; twice that at 8."""
    ctr = wire.ctr
    ctr("launch", "builtin:busybox", "c1", "-c", "limits.egress=16Mbit", "-c", "limits.ingress=16Mbit")
    ctr("launch", "builtin:busybox", "c2")
    assert limits(ctr, "c1") == {"eth0.limits.ingress": ("16000000", True), "eth0.limits.egress": ("16000000", True)}
    assert limits(ctr, "c2") == {}
    assert 0.8 < wire.sends("c1") < 8
    assert 0.8 < wire.receives("c1") < 8
    assert passes(wire.sends, "c2")
    assert passes(wire.receives, "c2")
    assert ctr("config", "set", "c1", "limits.egress=8Mbit", "limits.ingress=8Mbit").stderr == ""
    assert 1.6 < wire.sends("c1") < 16
    assert 1.6 < wire.receives("c1") < 16
    ctr("config", "unset", "c1", "limits.egress")
    assert passes(wire.sends, "c1")
    assert limits(ctr, "c1") == {"eth0.limits.ingress": ("8000000", True)}
    ctr("config", "unset", "c1", "limits.ingress")
    assert passes(wire.receives, "c1")


def test_the_nics_own_keys_come_first(wire: Wire) -> None:
    nic = "eth0,type=nic,network=ctrbr0,limits.max=20Mbit,limits.priority=3"
    wire.ctr("launch", "builtin:busybox", "c1", "-d", nic, "-c", "limits.egress=1Mbit")
    assert limits(wire.ctr, "c1") == {
        "eth0.limits.ingress": ("20000000", True),
        "eth0.limits.egress": ("20000000", True),
        "eth0.limits.priority": ("3", True),
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-c", "limits.egress=1kbit"), 2, "less than 8kbit"),
        (("-c", "limits.egress=10Mb"), 2, "unknown unit `Mb`"),
        (("-d", "two,type=nic,network=ctrbr0"), 5, "one link to a bridge for now\n\nhint: take one"),
        (("-d", "eth0,type=nic,network=ctrbr0,limits.max=1Mbit,limits.egress=1Mbit"), 2, "limits.max"),
        (("-p", "default", "-p", "host-network", "-c", "limits.egress=1Mbit"), 5, "no link of its own"),
    ],
)
def test_refused(ctr: Ctr, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in ctr("launch", "builtin:busybox", "c1", *words, code=code).stderr
    assert "c1" not in ctr("list").stdout


def test_a_kernel_that_cannot(ctr: Ctr) -> None:
    """As without sch_tbf: the program that asks it may not."""
    words = ("launch", "builtin:busybox", "c1", "-c", "limits.egress=1Mbit")
    ctr.argv = ["capsh", "--drop=cap_sys_admin", "--", "-c", 'exec "$@"', "sh", *ctr.argv]
    refused = ctr(*words, "--dry-run", code=5)
    assert "`limits.ingress` and `limits.egress` cannot be enforced here" in refused.stderr
    said = ctr(*words, "-c", "limits.enforcement=best-effort", "--dry-run")
    assert "link-limit" not in said.stdout
