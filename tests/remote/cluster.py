# SPDX-License-Identifier: GPL-3.0-or-later
"""A real cluster: three daemons, each in namespaces of its own, whose links meet at a bridge in one more network namespace."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.conftest import Ctr
from tests.remote.daemons import Daemon, cgroups, empty, remove_cgroups, tiny_image
from tests.remote.middle import Middle


class Switch:
    """A network namespace with a bridge. `ctrmgr` runs in it too: it outlives any member."""

    ADDRESS = "10.77.0.254"

    def __init__(self) -> None:
        # The namespace is ready when its holder says so.
        self.process = subprocess.Popen(
            ["unshare", "--net", "sh", "-ec", SWITCH, "sh", self.ADDRESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout and self.process.stdout.readline() == b"ready\n"
        self.pid = self.process.pid

    def inside(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def plug(self, number: int, pid: int) -> str:
        """A link to the namespace of process `pid`; returns its address there."""
        address = f"10.77.0.{number}"
        link = f"m{number}"
        there = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        for words in (
            [*self.inside(), "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid)],
            [*self.inside(), "ip", "link", "set", link, "master", "br0", "up"],
            [*there, "ip", "address", "add", f"{address}/24", "dev", "eth0"],
            [*there, "ip", "link", "set", "eth0", "up"],
        ):
            subprocess.run(words, check=True)
        return address

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)


SWITCH = """
ip link set lo up
ip link add br0 type bridge
ip address add "$1/24" dev br0
ip link set br0 up
echo ready
read -r _ || :
"""


class Cluster:
    """Members `m1`, `m2`, `m3`; the first made the cluster."""

    def __init__(self, kind: type[Daemon], scratch: Path) -> None:
        self.kind, self.scratch = kind.kind, scratch
        self.switch = Switch()
        self.members: dict[str, Daemon] = {}
        try:
            for number in (1, 2, 3):
                member = kind(scratch / f"m{number}")
                self.members[f"m{number}"] = member
                address = self.switch.plug(number, member.pid)
                self._join(member, f"m{number}", f"{address}:8443")
        except BaseException:
            self.close()
            raise

    @property
    def first(self) -> Daemon:
        return self.members["m1"]

    def _join(self, member: Daemon, name: str, address: str) -> None:
        pool = {"name": "default", "driver": "dir"}
        root = {"type": "disk", "path": "/", "pool": "default"}
        cluster: dict[str, object] = {"enabled": True, "server_name": name}
        preseed: dict[str, object] = {"config": {"core.https_address": address}, "cluster": cluster}
        if member is self.first:
            preseed |= {"storage_pools": [pool], "profiles": [{"name": "default", "devices": {"root": root}}]}
        else:
            cluster |= {
                "server_address": address,
                "cluster_token": self.first.tool("cluster", "add", name, "--quiet").split()[-1],
            }
            cluster["member_config"] = [{"entity": "storage-pool", "name": "default", "key": "source", "value": ""}]
            del preseed["config"]
        member.run(*member.admin, "init", "--preseed", stdin=json.dumps(preseed).encode())

    def tool(self, *words: str, code: int | None = 0) -> str:
        return self.first.tool(*words, code=code)

    def set_up(self, image: Path) -> None:
        shutil.copy(image, self.first.scratch / "image.tar")
        self.tool("image", "import", str(self.first.scratch / "image.tar"), "--alias", "tiny")

    def close(self) -> None:
        """Without goodbye: the last ones would wait for those that are gone."""
        for member in self.members.values():
            member.process.kill()
        for member in self.members.values():
            member.kill()
        self.switch.close()


Answer = Callable[[str, str], object]


class Front(Middle):
    """`answer(method, path)` has something else to say to a request, or None: the member is asked."""

    def __init__(self, path: Path, behind: Path) -> None:
        self.answer: Answer = lambda method, path: None
        super().__init__(path, behind)
        self.rule = self._rule

    def _rule(self, data: bytes) -> str | bytes:
        method, path, *_ = data.split(b"\r\n")[0].decode().split(" ")
        said = self.answer(method, path)
        if said is None:
            return "pass"
        body = json.dumps({"type": "sync", "status": "Success", "status_code": 200, "metadata": said}).encode()
        return (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )


class Outside(Ctr):
    """`ctrmgr` beside the cluster: at its bridge, and known to it as nothing yet."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.argv = [*cluster.switch.inside(), *self.argv]

    def clean_up(self) -> None:
        empty(self, "host")


@contextlib.contextmanager
def clustered(kind: type[Daemon]) -> Iterator[Cluster]:
    """Three members with an image `tiny`; nothing is left of them."""
    scratch = Path(tempfile.mkdtemp(prefix="ctr-cluster-", dir="/var/tmp"))
    scratch.chmod(0o711)
    before = cgroups()
    try:
        found = Cluster(kind, scratch)
        try:
            found.set_up(tiny_image(scratch / "tiny.tar"))
            yield found
        finally:
            found.close()
    finally:
        remove_cgroups(cgroups() - before)
        shutil.rmtree(scratch)
