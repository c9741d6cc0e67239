# SPDX-License-Identifier: GPL-3.0-or-later
"""What was chosen for a device, on disk. Hot; what only plugins need is imported for them.

STATE/allocations/INSTANCE.DEVICE    flat; there from before the device is prepared until after it is released
"""

from __future__ import annotations

from ctrmgr import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ctrmgr.devices.plugin import Allocation, Found, Holder

    Rows = list[list[str]]


NAMED = "@"
"""Stands for an instance's name with partitions that have names of their own: no instance can be called so."""


def folder() -> str:
    return f"{state.state_dir()}/allocations"


class Held:
    """One file: which device of which instance, what it got, how long it keeps it (`life`: `run` or `instance`), and the rows of
    the plan that it became, none as long as it is not prepared. `failed` is why a plugin did not release it."""

    __slots__ = ("device", "failed", "instance", "life", "rows", "text", "token", "type", "values")

    def __init__(self, instance: str, device: str) -> None:
        self.instance, self.device = instance, device
        self.type = self.token = self.life = self.failed = ""
        self.values: dict[str, str] = {}
        self.rows: Rows = []
        self.text: Rows = []
        """What only the plugin's side of it needs."""

    @property
    def path(self) -> str:
        return f"{folder()}/{self.instance}.{self.device}"

    @property
    def key(self) -> tuple[str, str]:
        """Whose it is."""
        return self.instance, self.device

    @property
    def owner(self) -> str:
        """Whose it is, for people."""
        return f"partition `{self.device}`" if self.instance == NAMED else f"{self.instance}/{self.device}"

    @property
    def by(self) -> str:
        """Who releases it: `plugin`, `maker` (a back-end that divides devices), `program` (it is ended), or nobody has to."""
        return self._word("by")

    @property
    def is_plugins(self) -> bool:
        """Whether a plugin must be asked to release it."""
        return self.by == "plugin"

    @property
    def divided(self) -> str:
        """Of a partition that was made for this: the boot in which it was; "" when it is none."""
        return self._word("divided")

    @property
    def uses(self) -> str:
        """The name of the partition that this has and does not make."""
        return self._word("uses")

    @property
    def part(self) -> str:
        """By which the hardware knows the partition."""
        return (self.state.get("partition") or self.token) if self.divided else ""

    def _word(self, key: str) -> str:
        return next((row[1] for row in self.text if row[0] == key), "")

    def flat(self) -> Rows:
        rows = [["allocation", self.type, self.token, self.life], *self.text]
        rows += [["value", key, value] for key, value in self.values.items()]
        rows += [["row", *row] for row in self.rows]
        return rows + ([["failed", self.failed]] if self.failed else [])

    def write(self) -> None:
        state.write_flat(self.path, self.flat())

    @property
    def found_id(self) -> str:
        return self._word("found")

    @property
    def state(self) -> dict[str, str]:
        """What its plugin or back-end wants to have again."""
        return {row[1]: row[2] for row in self.text if row[0] == "state"}

    @property
    def takes(self) -> dict[str, int]:
        return {row[1]: int(row[2]) for row in self.text if row[0] == "takes"}

    @property
    def holder(self) -> Holder:
        from ctrmgr.devices.plugin import Holder

        return Holder(self.instance, self.device, self.found_id, self.takes)

    @property
    def found(self) -> Found:
        return self.allocation.found

    @property
    def allocation(self) -> Allocation:
        """As the plugin knows it."""
        from ctrmgr.devices.plugin import Allocation, Found

        functions: dict[str, dict[str, int | str]] = {}
        several: dict[str, list[list[str]]] = {}
        for row in self.text:
            several.setdefault(row[0], []).append(row[1:])
        for name, key, kind, value in several.get("function", []):
            given = functions.setdefault(name, {})
            if kind:
                given[key] = int(value) if kind == "number" else value
        ((id, model, vendor, shared, numa),) = several["found"]
        return Allocation(
            Found(
                id,
                model=model,
                vendor=vendor,
                nodes=[path for (path,) in several.get("node", [])],
                functions=functions,
                shared=int(shared),
                pools={key: int(value) for key, value in several.get("pool", [])},
                identity=[(file, text) for file, text in several.get("identity", [])],
                numa=int(numa),
                partitions=int(self._word("partitions") or "0"),
            ),
            takes=self.takes,
            state=self.state,
            id=self.token,
            values=self.values,
        )

    def still_there(self) -> bool:
        """Whether the hardware is the one that it was chosen as."""
        return all(_text(row[1]) == row[2] for row in self.text if row[0] == "identity")


def _text(file: str) -> str:
    from ctrmgr.host import sysfs

    return sysfs.text(file)


def lines(chosen: Allocation) -> Rows:
    """What of an allocation is written down beside its values."""
    found = chosen.found
    rows = [["found", found.id, found.model, found.vendor, str(found.shared), str(found.numa)]]
    rows += [["node", path] for path in found.nodes]
    for name, properties in found.functions.items():
        rows.append(["function", name, "", "", ""])
        for key, value in properties.items():
            rows.append(["function", name, key, "number" if isinstance(value, int) else "word", str(value)])
    rows += [["pool", key, str(value)] for key, value in found.pools.items()]
    rows += [["partitions", str(found.partitions)]] if found.partitions else []
    rows += [["identity", file, text] for file, text in found.identity]
    rows += [["takes", key, str(value)] for key, value in chosen.takes.items()]
    return rows + [["state", key, value] for key, value in chosen.state.items()]


def everything() -> list[Held]:
    """All allocations of all instances."""
    return read(sorted(state.entries(folder())))


def of(instance: str) -> dict[str, Held]:
    """Those of one instance, by the name of the device."""
    return {each.device: each for each in read(names(instance))}


def names(instance: str) -> list[str]:
    return sorted(name for name in state.entries(folder()) if name.startswith(f"{instance}."))


def read(names: Iterable[str]) -> list[Held]:
    listed = []
    for name in names:
        instance, dot, device = name.partition(".")
        if not dot or ".tmp" in name:
            continue
        held = Held(instance, device)
        try:
            rows = state.read_flat(held.path)
        except FileNotFoundError:
            continue  # released since it was listed
        for row in rows:
            if row[0] == "allocation":
                held.type, held.token, held.life = row[1:4]
            elif row[0] == "value":
                held.values[row[1]] = row[2]
            elif row[0] == "row":
                held.rows.append(row[1:])
            elif row[0] == "failed":
                held.failed = row[1]
            else:
                held.text.append(row)
        listed.append(held)
    return listed
