# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices whose nodes a server chooses: believed when they are there, whatever the server says."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pytest

from ctrmgr.errors import BackendError, NotFoundError
from ctrmgr.remote import devices
from ctrmgr.remote.server import Server
from ctrmgr.remote.wire import Answer, Target

OLD, NEW = "2026-11-21 09:00:00 +0000 UTC", "2026-11-21 10:00:00 +0000 UTC"
KEYS = {"gpu": {"type": "gpu"}, "infiniband": {"type": "infiniband", "nictype": "physical", "parent": "ib0"}}


class Liar:
    """A server that says yes to everything; `nodes` is what is inside: path and time."""

    name, date, extensions = "s", "Sat, 21 Nov 2026 10:00:00 GMT", frozenset({"gpu_devices", "infiniband"})
    sys = True
    target = Target("s", "unix:///nowhere")
    info: ClassVar = {"environment": {"server": "lxd", "server_clustered": True}}

    def __init__(self, nodes: dict[str, str], **own: dict[str, str]) -> None:
        self.nodes, self.devices = nodes, own
        self.links = {"lo": "", "ib0": ""}
        """Name → address."""

    def url(self, path: str, _query: dict[str, str]) -> str:
        return path

    def get_tagged(self, path: str) -> tuple[Any, str]:
        assert path == "/instances/c1"
        found = {
            "status": "Running",
            "devices": self.devices,
            "config": {
                "volatile.d.name": "ib0" if self.devices.get("d", {}).get("type") == "infiniband" else "net7",
                "volatile.d.hwaddr": "00:16:3E:00:00:01",
            },
            "expanded_config": {},
            "last_used_at": "2026-11-21T09:30:00Z",
        }
        return {**found, "expanded_devices": {"root": {"type": "disk"}, **self.devices}}, "tag"

    def change(self, method: str, path: str, data: dict[str, Any], **_: object) -> None:
        assert path == "/instances/c1"
        self.devices = {**(self.devices if method == "PATCH" else {}), **data["devices"]}

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:
        if path == "/instances/c1":
            return self.get_tagged(path)[0]
        if path == "/instances/c1/state":
            return {"network": {link: {"hwaddr": address} for link, address in self.links.items()}}
        assert path == "/instances/c1/files" and query
        names = [node.rpartition("/")[2] for node in self.nodes if node.rpartition("/")[0] == query["path"]]
        if not names:
            raise NotFoundError("no such folder")
        return names

    def send(self, method: str, path: str, query: dict[str, str]) -> Answer:
        assert (method, path) == ("HEAD", "/instances/c1/files")
        folder, _, name = query["path"].rpartition("/")
        if folder == devices.NET:
            if not self.sys or name not in self.links:
                raise NotFoundError("no such file")
            return Answer(200, {"x-lxd-type": "symlink"}, b"")
        return Answer(200, {"x-lxd-type": "file", "x-lxd-modified": self.nodes[query["path"]]}, b"")


def server(nodes: dict[str, str], **own: dict[str, str]) -> tuple[Server, Liar]:
    liar = Liar(nodes, **own)
    return cast("Server", liar), liar


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        ("gpu", {"/dev/dri/card0": OLD, "/dev/dri/renderD128": NEW}),
        ("gpu", {"/dev/nvidiactl": NEW, "/dev/null": OLD}),
        ("infiniband", {"/dev/infiniband/uverbs0": NEW}),
    ],
)
def test_there(kind: str, nodes: dict[str, str]) -> None:
    found, liar = server(nodes)
    assert devices.attach(found, "c1", "d", KEYS[kind])
    assert "d" in liar.devices


@pytest.mark.parametrize("kind", ["gpu", "infiniband"])
@pytest.mark.parametrize("nodes", [{}, {"/dev/dri/card0": OLD, "/dev/infiniband/umad0": OLD, "/dev/null": NEW}])
def test_not_there(kind: str, nodes: dict[str, str]) -> None:
    found, liar = server(nodes)
    with pytest.raises(BackendError, match="nothing new is at `/dev/") as told:
        devices.attach(found, "c1", "d", KEYS[kind])
    assert told.value.hint == "it was taken out again"
    assert liar.devices == {}


def test_what_cannot_be_known() -> None:
    """The same GPU again brings nothing new; a slice brings what nobody can tell."""
    found, _ = server({}, d={"type": "gpu"})
    assert devices.attach(found, "c1", "e", {"type": "gpu"})
    found, liar = server({})
    liar.extensions |= {"gpu_mig", "gpu_mig_uuid"}
    assert devices.attach(found, "c1", "d", {"type": "gpu", "gputype": "mig", "mig.uuid": "x"})


@pytest.mark.parametrize("sys", [True, False])
def test_links(sys: bool) -> None:
    """There by their name or, renamed, by their address; gone when no link of that name has that address."""
    found, liar = server({})
    liar.sys = sys
    nic = {"type": "nic", "nictype": "p2p"}
    with pytest.raises(BackendError, match="in `c1` there is no link `net7`") as told:
        devices.attach(found, "c1", "d", nic)
    assert told.value.hint == "it was taken out again" and liar.devices == {}
    for name, address in (("net7", ""), ("net8", "00:16:3e:00:00:01"), ("net7", "00:16:3e:00:00:01")):
        liar.links = {"lo": "", name: address}
        assert devices.attach(found, "c1", "d", nic)
        if name == "net7" and address:
            with pytest.raises(BackendError, match="`net7` is still in `c1`"):
                devices.detach(found, "c1", "d")
        else:
            assert devices.detach(found, "c1", "d").live
        assert liar.devices == {}
