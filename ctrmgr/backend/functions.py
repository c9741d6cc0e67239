# SPDX-License-Identifier: GPL-3.0-or-later
"""Which devices can do what: those that ctrmgr knows and those of plugins, in one list. Cold."""

from __future__ import annotations

from ctrmgr.backend import abilities, catalog
from ctrmgr.backend.held import everything
from ctrmgr.devices import fields, plugin, request
from ctrmgr.devices import rows as parts
from ctrmgr.devices.driver import Resolved
from ctrmgr.devices.plugin import Allocation, Found
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.plugins import call, registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.backend.held import Held
    from ctrmgr.backend.inventory import Device
    from ctrmgr.devices.plugin import Holder, Partition

    Functions = dict[str, dict[str, int | str]]


class Candidate:
    """A device with what it can do. `type` is its device type; `problem` is why nobody can have it now, whatever is asked;
    `found` is what its plugin said of it."""

    __slots__ = ("found", "functions", "held", "id", "model", "nodes", "problem", "shared", "type", "vendor")

    def __init__(
        self,
        type: str,
        id: str,
        *,
        model: str,
        vendor: str,
        functions: Functions,
        nodes: Sequence[str],
        held: int,
        shared: int,
        problem: str = "",
        found: Found | None = None,
    ) -> None:
        self.type, self.id, self.model, self.vendor, self.functions = type, id, model, vendor, functions
        self.nodes, self.held, self.shared, self.found = list(nodes), held, shared, found
        self.problem = problem or (f"{held} have it, and no more may" if shared and held >= shared else "")

    def fields(self) -> dict[str, object]:
        return {
            "type": self.type,
            "id": self.id,
            "model": self.model,
            "vendor": self.vendor,
            "functions": self.functions,
            "nodes": self.nodes,
            "held": self.held,
        }


class Plugin:
    """A plugin as it is on this machine: what it says of itself, what it found, or why it cannot be used."""

    __slots__ = ("description", "found", "persistent", "problem", "source")

    def __init__(self, source: registry.Source) -> None:
        self.source, self.description, self.persistent = source, "", False
        self.found: list[Found] = []
        self.problem: CtrmgrError | None = None
        try:
            self.description, self.persistent, _ = call.describe(source)
            self.found = call.identify(source)
        except CtrmgrError as error:
            self.problem = error


def plugins() -> list[Plugin]:
    """All plugins; a broken one says so and keeps nobody."""
    return [Plugin(source) for source in registry.sources().values()]


class Seen:
    """What was found on a machine, before anybody looked at who has it: plugins may take their time with that."""

    __slots__ = ("devices", "found", "root", "sources", "wrong")

    def __init__(self, kind: str, root: str) -> None:
        self.root = root
        own = [each for each in abilities.KINDS if kind in (each, registry.ANY)]
        self.devices = catalog.devices(root, kinds=own, holders=False) if own else []
        self.sources: dict[str, registry.Source] = {}
        self.found: dict[str, list[Found]] = {}
        self.wrong: list[CtrmgrError] = []
        """Why some plugins could not be asked."""
        for source in registry.sources().values() if kind == registry.ANY else [registry.find(kind)]:
            try:
                self.found[source.type] = call.identify(source, root)
                self.sources[source.type] = source
            except CtrmgrError as error:
                self.wrong.append(error)


def look(kind: str = registry.ANY, root: str = "/") -> Seen:
    """Find the devices of a type, or of all. Raises NotFoundError when no plugin brings the type."""
    return Seen(kind, root)


def candidates(seen: Seen, taken: Sequence[Held]) -> list[Candidate]:
    """Everything that has a function, in the order in which it is given."""
    if seen.devices and seen.root == "/":
        catalog.hold(seen.devices)
    found = [_known(device, seen.devices, taken) for device in seen.devices if abilities.of(device)]
    for kind, listed in seen.found.items():
        holding = [each.holder for each in taken if each.type == kind]
        found += [_of_plugin(kind, each, holding) for each in listed]
    return sorted(found, key=order)


def order(candidate: Candidate) -> tuple[int, str, str]:
    """The one to take first: that which fewest have, and of those the first id."""
    return (candidate.held, candidate.id, candidate.type)


def _of_plugin(kind: str, found: Found, holding: Sequence[plugin.Holder]) -> Candidate:
    functions = {name: dict(properties) for name, properties in found.functions.items()}
    return Candidate(
        kind,
        found.id,
        model=found.model,
        vendor=found.vendor,
        functions=functions,
        nodes=found.nodes,
        held=plugin.held(found, holding),
        shared=found.shared,
        found=found,
    )


def _known(device: Device, devices: Sequence[Device], taken: Sequence[Held]) -> Candidate:
    holders = {(each.instance, each.device): each.lease for each in device.holders}
    holders |= {
        each.key: "shared" for each in taken if (each.type, each.found_id) == (device.kind, device.id)
    } | holders
    alone = [name for (name, _), lease in holders.items() if lease == "exclusive"]
    return Candidate(
        device.kind,
        device.id,
        model=device.model,
        vendor=device.vendor,
        functions=abilities.of(device),
        nodes=[node.path for node in device.nodes],
        held=len(holders),
        shared=1 if device.kind == "unix-block" else 0,
        problem=abilities.problem(device, devices) or (f"`{alone[0]}` has it alone" if alone else ""),
    )


def why_not(candidate: Candidate, values: Mapping[str, str]) -> str:
    """Why a candidate is not one for these keys; "" when it is."""
    if candidate.type == "unix-block" and not any(values.get(key) for key in ("id", "model", "vendor")):
        return _unfit(candidate, values) or "it may have somebody's data: say which by `id`, `model` or `vendor`"
    if values.get("lease") == "exclusive" and candidate.held:
        return _unfit(candidate, values) or f"{candidate.held} have it, and it is asked for alone"
    return _unfit(candidate, values) or candidate.problem


def _unfit(candidate: Candidate, values: Mapping[str, str]) -> str:
    return request.why_not(
        values,
        id=candidate.id,
        vendor=candidate.vendor,
        model=candidate.model,
        functions=candidate.functions,
    )


def fitting(kind: str, values: Mapping[str, str], seen: Seen, taken: Sequence[Held]) -> list[Candidate]:
    """What fits, the one to take first in front. Raises NotFoundError that says why each of the others does not."""
    if kind != registry.ANY and seen.wrong:
        raise seen.wrong[0]
    found = candidates(seen, taken)
    good = [candidate for candidate in found if not why_not(candidate, values)]
    if good:
        return good
    name = values.get("function", "")
    near = [each for each in found if not name or name in each.functions]
    near = [each for each in near if each.id == values.get("id")] or near
    reasons = [f"{each.id}: {why_not(each, values)}" for each in near[:4]]
    if not reasons:
        there = sorted({function for each in found for function in each.functions})
        reasons = [f"there is {', '.join(there)}" if there else "this machine has nothing that can do anything"]
    reasons += [error.message for error in seen.wrong[:2]]
    wanted = name or values.get("id") or kind
    if any(not _unfit(each, values) for each in near):
        raise ConflictError(f"no device for `{wanted}` is free", hint="; ".join(reasons))
    raise NotFoundError(f"no device fits `{wanted}`", hint="; ".join(reasons))


ASKED = ("with", "min-memory", "min-cores", "vendor", "model", "id")
"""Keys of a request that say which device; the others say how it is to be inside."""


def asked(function: str, keys: Mapping[str, str]) -> dict[str, str]:
    """A request in canonical form. Raises SpecError."""
    for key in keys:
        if key not in ASKED:
            raise SpecError(f"`{key}` is not a key of a request", hint=f"there are {', '.join(ASKED)}")
    given = {"function": function, **keys} if function else dict(keys)
    for key, value in given.items():
        try:
            given[key] = request.FIELDS[key].parse(value)
        except ValueError as error:
            hint = request.FIELDS[key].description
            raise SpecError(f"`{key}` (`{value}`) {error}", hint=hint) from None
    return given


def find(function: str, keys: Mapping[str, str]) -> list[Candidate]:
    """What fits, the one that an instance would be given first in front. Raises SpecError, NotFoundError, ConflictError."""
    return fitting(registry.ANY, asked(function, keys), look(), everything())


# What becomes of the one that was chosen


def allocated(
    candidate: Candidate, values: Mapping[str, str], seen: Seen, good: Sequence[Candidate], holding: Sequence[Holder]
) -> tuple[Allocation, str]:
    """The allocation and how long it lasts. A plugin chooses among all of its own that fit. Raises ConflictError and what it raises."""
    if candidate.found is None:
        found = Found(candidate.id, model=candidate.model, vendor=candidate.vendor, nodes=candidate.nodes)
        return Allocation(found), "run"
    own = {key: value for key, value in values.items() if key != "type"}
    offered = [each.found for each in good if each.type == candidate.type and each.found is not None]
    chosen, persistent = call.allocate(seen.sources[candidate.type], own, offered, holding)
    return chosen, "instance" if persistent else "run"


def rows(held: Held) -> list[list[str]]:
    """The plan's rows of what was chosen; a plugin does what it must for it."""
    own = {key: value for key, value in held.values.items() if key in fields.OWNERSHIP}
    if held.divided or held.uses:
        from ctrmgr.backend import partitions

        return partitions.rows(held)
    if not held.is_plugins:
        which = {"source": held.found.nodes[0]} if held.type == "unix-block" else {"id": held.found_id}
        if held.values.get("function") == "gpu.display":
            which["kms"] = "true"
        return parts.rows(held.device, {"type": held.type, **which, **own})
    chosen = held.allocation
    edits = call.prepare(registry.find(held.type), chosen)
    try:
        return parts.rows_of(held.device, held.type, Resolved(edits, identity=chosen.found.identity), own)
    except ValueError as error:
        raise SpecError(f"device `{held.device}`: of `{held.found_id}` ({held.type}): {error}") from None


def released(held: Held) -> None:
    """Let whoever made it undo what it did. Raises what that raises."""
    if held.divided:
        from ctrmgr.backend import partitions

        partitions.unmade(held)
    else:
        call.release(registry.find(held.type), held.allocation)


def divisible(seen: Seen) -> bool:
    """Whether somebody may have a part of what was seen."""
    return any(found.partitions for listed in seen.found.values() for found in listed)


def there(candidate: Candidate, seen: Seen) -> list[Partition] | None:
    """The partitions that a plugin's device has."""
    if candidate.found is None or not candidate.found.partitions:
        return None
    return call.partitions(seen.sources[candidate.type], [candidate.found])
