# SPDX-License-Identifier: GPL-3.0-or-later
"""`node_guid` and `port_guid` of virtual functions: given before an instance has the function, put back when it has it no more. Cold.

A driver reads them when it takes a function: it gives it up and takes it anew, each time. What they were is noted first, in
`RUN/.guids/ADDRESS`, with whose the function is: whoever has it next finds there what it had at first.
"""

from __future__ import annotations

import os
import time

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.errors import CtrmgrError, HostError, UnsupportedError
from ctrmgr.host import pci, rdma, sysfs
from ctrmgr.kernel import control, rtnetlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Rows = Sequence[Sequence[str]]

KEYS = ("node_guid", "port_guid")
INFINIBAND = 32
"""The type of such a link (ARPHRD_INFINIBAND)."""
NONE = "ff:ff:ff:ff:ff:ff:ff:ff"
"""What a function is set to that had none, where its driver takes no zeros."""
PATIENCE = 5.0
"""How long a function may take until its links and nodes have their names again: udev gives those."""


class Virtual:
    """A virtual function, with the link of its physical one. Raises HostError, UnsupportedError."""

    def __init__(self, address: str, root: str = "/") -> None:
        self.address, self.root = address, root.rstrip("/")
        self.path = sysfs.real(f"{self.root}/sys/bus/pci/devices/{address}")
        function = pci.read(address, root)
        owner = pci.read(function.physfn, root) if function and function.physfn else None
        if not function or not owner or address not in owner.virtfns:
            raise HostError(f"`{address}` is no virtual function of this host")
        self.driver, self.number = function.driver, owner.virtfns.index(address)
        links = [f"{owner.path}/net/{name}" for name in sysfs.names(f"{owner.path}/net")]
        found = [sysfs.number(f"{link}/ifindex") for link in links if sysfs.number(f"{link}/type") == INFINIBAND]
        if not found:
            raise UnsupportedError(f"`{owner.address}` has no InfiniBand link, by which its functions get their GUIDs")
        self.link = found[0]

    def current(self) -> dict[str, str]:
        try:
            said = rtnetlink.guids(self.link, self.number)
        except OSError as error:
            raise HostError(f"`{self.address}`: its GUIDs cannot be read: {error.strerror}") from None
        return {key: said.get(key, rtnetlink.text(0)) for key in KEYS}

    def set(self, guids: Mapping[str, str]) -> None:
        try:
            rtnetlink.set_guids(self.link, self.number, guids)
        except OSError as error:
            raise HostError(f"the driver refuses these GUIDs of `{self.address}`: {error.strerror}") from None

    def rebind(self) -> None:
        """Have the driver read them; its links and nodes are made anew, and waited for."""
        before, until = self.names(), time.monotonic() + PATIENCE
        folder = f"{self.root}/sys/bus/pci/drivers/{self.driver}"
        for file in ("unbind", "bind"):
            self._write(f"{folder}/{file}")
        while self.names() != before and time.monotonic() < until:
            time.sleep(0.02)

    def _write(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, self.address.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise HostError(f"`{path}` refuses `{self.address}`: {error.strerror}") from None

    def names(self) -> list[str]:
        """Of what programs know it by."""
        return [
            f"{folder}/{name}"
            for folder in ("net", "infiniband", "infiniband_verbs", "infiniband_mad")
            for name in sysfs.names(f"{self.path}/{folder}")
        ]

    def has(self, guids: Mapping[str, str]) -> bool:
        """Whether its driver has them."""
        for hca in rdma.hcas(self.root or "/"):
            if hca.function and hca.function.address == self.address:
                said = {"node_guid": [hca.node_guid], "port_guid": [port.guid for port in hca.ports]}
                plain = {key: [guid.replace(":", "") for guid in each] for key, each in said.items()}
                return all(guid.replace(":", "") in plain[key] for key, guid in guids.items())
        return False


def prepare(name: str, rows: Rows, root: str = "/") -> None:
    """Before an instance gets its functions, which it has leased. Raises HostError, UnsupportedError; then all is as before."""
    state.make_dir(_folder(), 0o700)
    with state.Lock(_folder()):
        for _, device, address, *guids in (row for row in rows if row[0] == "vf-guid"):
            wanted = {key: guid for key, guid in zip(KEYS, guids, strict=True) if guid}
            function = Virtual(address, root)
            first = _noted(address)[2:] or list(function.current().values())
            state.write_flat(f"{_folder()}/{address}", [[name, device, *first]])
            try:
                function.set(wanted)
                if not function.has(wanted):
                    function.rebind()
                if not function.has(wanted):
                    raise HostError(f"the driver of `{address}` does not take its GUIDs")
            except BaseException:
                _put_back(address, root)
                raise


def mend(name: str, *, running: bool, root: str = "/") -> None:
    """Put back what functions had that the instance has no more."""
    if not os.path.isdir(_folder()):
        return
    with state.Lock(_folder()):
        noted = [(address, _noted(address)) for address in state.entries(_folder())]
        mine = [(address, row[1]) for address, row in noted if row[:1] == [name]]
        there = control.ask(record.run_home(name), control.DEVICES).devices() if mine and running else []
        for address, device in mine:
            if all(part.name != device for part in there):
                _put_back(address, root)


def _put_back(address: str, root: str) -> None:
    """A function that is gone has nothing to put back; a driver that refuses is not asked again."""
    first = dict(zip(KEYS, _noted(address)[2:], strict=False))
    try:
        function = Virtual(address, root)
        try:
            function.set(first)
        except HostError:
            function.set({key: NONE if guid == rtnetlink.text(0) else guid for key, guid in first.items()})
        function.rebind()
    except CtrmgrError:
        pass
    state.unlink(f"{_folder()}/{address}")


def _folder() -> str:
    return f"{state.run_dir()}/.guids"


def _noted(address: str) -> list[str]:
    """Whose it is: instance, device; and the GUIDs that it had at first."""
    try:
        (row,) = state.read_flat(f"{_folder()}/{address}")
        return row if len(row) == 2 + len(KEYS) else []
    except (FileNotFoundError, ValueError, CtrmgrError):
        return []
