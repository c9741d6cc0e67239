# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of an instance, one entry each: the key, what it takes, and the files that carry it out on cgroup2 and on v1.

`ctrmgr.plan.limits` finds the hierarchy and does the rest: it has no rule for any one key.
"""

from __future__ import annotations

from ctrmgr.errors import HostError, SpecError, UnsupportedError
from ctrmgr.spec import values
from ctrmgr.spec.key import Key
from ctrmgr.spec.limit_files import UNIFIED_FILES, hugetlb
from ctrmgr.units import size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    class Machine(Protocol):
        """What values depend on: see `ctrmgr.host.machine.Host`."""

        @property
        def cpus(self) -> tuple[int, ...]: ...
        @property
        def nodes(self) -> Mapping[int, tuple[int, ...]]: ...
        @property
        def memory(self) -> int: ...
        @property
        def pid_max(self) -> int: ...
        @property
        def huge_pages(self) -> tuple[str, ...]: ...
        @property
        def rdma_devices(self) -> tuple[str, ...]: ...
        @property
        def misc_capacity(self) -> Mapping[str, int]: ...

    Make = Callable[["Ask"], str | None]


class Ask:
    """One key of a configuration, on a machine. `suffix` is what follows the entry's prefix, or the key's last word."""

    __slots__ = ("config", "host", "key", "suffix", "unified")

    def __init__(self, key: str, suffix: str, config: Mapping[str, str], host: Machine, unified: bool) -> None:
        self.key, self.suffix, self.config, self.host, self.unified = key, suffix, config, host, unified

    @property
    def value(self) -> str:
        return self.config[self.key]


class File:
    """A controller's file: the first of `names` (between blanks) that the host has. `make` gives what is written, or None for
    nothing. `since` is the kernel that brought it, `probed` one that only some hosts have; where it is missing, the limit
    cannot be enforced, unless it is `optional`."""

    __slots__ = ("make", "names", "optional", "probed", "since")

    def __init__(
        self,
        names: str,
        make: Make,
        *,
        since: tuple[int, int] = (0, 0),
        probed: bool = False,
        optional: Callable[[Ask], bool] = lambda ask: False,
    ) -> None:
        self.names, self.make, self.since, self.optional = names.split(), make, since, optional
        self.probed = probed or len(self.names) > 1


class Limit(Key):
    """A key that a cgroup controller carries out. `{}` in a file's name is the key's suffix.

    `absent` says why not, where the controller is there but has none of the files.
    """

    __slots__ = ("absent", "controller", "v1", "v1_controller", "v2")

    def __init__(
        self,
        name: str,
        type: str,
        description: str,
        *,
        controller: str,
        v2: tuple[File, ...],
        v1: tuple[File, ...],
        v1_controller: str = "",
        absent: str = "this kernel's controller has no such limit",
        parse: Callable[[str], str] | None = None,
        suffix: Callable[[str], bool] | None = None,
        default: str = "",
    ) -> None:
        super().__init__(name, type, description, parse=parse, suffix=suffix, default=default, live=True)
        self.controller, self.v1_controller = controller, v1_controller or controller
        self.v1, self.v2, self.absent = v1, v2, absent

    def covers(self, key: str) -> bool:
        """Whether the entry is this key's."""
        return key.startswith(self.name[:-1]) if self.name.endswith(".*") else key == self.name

    def ask(self, key: str, config: Mapping[str, str], host: Machine, unified: bool) -> Ask:
        suffix = key[len(self.name) - 1 :] if self.name.endswith(".*") else key.rpartition(".")[2]
        return Ask(key, suffix, config, host, unified)


def _given(ask: Ask) -> str:
    return ask.value


def _cpus(ask: Ask) -> str:
    """The set, or `COUNT of SET`: then `plan.instance` chooses for each instance, in turn."""
    if ask.config.get("limits.cpu.nodes") == "balanced":
        return _balanced(ask)
    online = [cpu for cpu in ask.host.cpus if cpu in _node_cpus(ask)]
    value = ask.config.get("limits.cpu", "")
    if not value:
        return ",".join(map(str, online))
    if value.isdecimal():
        if int(value) > len(online):
            where = (
                f"NUMA nodes {ask.config['limits.cpu.nodes']} have"
                if "limits.cpu.nodes" in ask.config
                else "this host has"
            )
            raise HostError(f"`limits.cpu`: {where} {len(online)} CPUs, not {value}")
        return f"{value} of {','.join(map(str, online))}"
    for cpu in values.expand_cpus(value):
        if cpu not in ask.host.cpus:
            raise HostError(f"`limits.cpu`: this host has no CPU {cpu} that is online")
        if cpu not in online:
            raise SpecError(f"`limits.cpu`: CPU {cpu} is not of NUMA nodes {ask.config['limits.cpu.nodes']}")
    return value


def _node_cpus(ask: Ask) -> tuple[int, ...]:
    value = _said_nodes(ask)
    if not value:
        return ask.host.cpus
    found: list[int] = []
    for node in values.expand_cpus(value):
        if node not in ask.host.nodes:
            raise HostError(
                f"`limits.cpu.nodes`: this host has no NUMA node {node}",
                hint=f"it has {', '.join(map(str, ask.host.nodes))}",
            )
        found += ask.host.nodes[node]
    return tuple(found)


def _balanced(ask: Ask) -> str:
    """`COUNT numa of NODE=SET;…`: `plan.instance` chooses the node for each instance, in turn, and of it as many CPUs (0: all)."""
    value = ask.config.get("limits.cpu", "0")
    if not value.isdecimal():
        raise SpecError("`limits.cpu` says which CPUs, `limits.cpu.nodes: balanced` that they are to be chosen")
    nodes = {node: cpus for node, cpus in ask.host.nodes.items() if cpus and len(cpus) >= int(value)}
    if not nodes:
        most = max(map(len, ask.host.nodes.values()), default=0)
        raise HostError(
            f"`limits.cpu`: no NUMA node has {value} CPUs",
            hint=f"the largest has {most}; or leave `limits.cpu.nodes` out",
        )
    return f"{value} numa of " + ";".join(f"{node}={','.join(map(str, cpus))}" for node, cpus in nodes.items())


def _said_nodes(ask: Ask) -> str:
    """`devices` is what `plan.numa` has put there; where nobody has looked at devices, it says nothing yet."""
    value = ask.config.get("limits.cpu.nodes", "")
    return "" if value == "devices" else value


def _nodes(ask: Ask) -> str | None:
    value = _said_nodes(ask)
    if value == "balanced":
        return _balanced(ask)
    # A v1 cpuset takes no process before it has memory nodes; on cgroup2 it has its parent's.
    return value or (None if ask.unified else ",".join(map(str, ask.host.nodes)))


def _percent(ask: Ask) -> int:
    allowance = ask.config.get("limits.cpu.allowance", "100%")
    return int(allowance[:-1]) if allowance.endswith("%") else 100


def _less(ask: Ask) -> int:
    # As LXD has it: the priority only decides between equal shares.
    return 10 - int(ask.config.get("limits.cpu.priority", "10"))


def _weight(ask: Ask) -> str:
    return str(max(1, _percent(ask) - _less(ask)))


def _shares(ask: Ask) -> str:
    return str(max(2, _percent(ask) * 1024 // 100 - _less(ask)))


def _quota(ask: Ask) -> tuple[int, int] | None:
    used, slash, whole = ask.value.partition("/")
    if not slash:
        return None
    quota, period, count = values.milliseconds(used), values.milliseconds(whole), len(ask.host.cpus)
    if quota > period * count:
        raise HostError(f"`{ask.key}`: this host has {count} CPUs: {period * count}ms/{period}ms is all of them")
    return quota * 1000, period * 1000


def _cpu_max(ask: Ask) -> str | None:
    quota = _quota(ask)
    return f"{quota[0]} {quota[1]}" if quota else None


def _cfs_period(ask: Ask) -> str | None:
    quota = _quota(ask)
    return str(quota[1]) if quota else None


def _cfs_quota(ask: Ask) -> str | None:
    quota = _quota(ask)
    return str(quota[0]) if quota else None


def memory_bytes(value: str, host: Machine) -> int:
    """Bytes of a size, or of a percentage of the host's."""
    return host.memory * int(value[:-1]) // 100 if value.endswith("%") else size_bytes(value)


def _memory(ask: Ask) -> int:
    value = ask.config.get("limits.memory", "")
    limit = memory_bytes(value, ask.host) if value else 0
    if limit > ask.host.memory:
        raise HostError(
            f"`limits.memory`: this host has {ask.host.memory >> 20} MiB of memory, not {limit >> 20}",
            hint="a limit above that would limit nothing; a percentage fits every host",
        )
    return limit


def _is_soft(ask: Ask) -> bool:
    return ask.config.get("limits.memory.enforce") == "soft"


def _hard(ask: Ask) -> str | None:
    return None if _is_soft(ask) else str(_memory(ask))


def _soft(ask: Ask) -> str | None:
    return str(_memory(ask)) if _is_soft(ask) else None


def _swap_max(ask: Ask) -> str | None:
    if ask.value == "true":
        return None
    return "0" if ask.value == "false" else str(size_bytes(ask.value))


def _swappiness(ask: Ask) -> str | None:
    swap = ask.config.get("limits.memory.swap", "true")
    if swap in ("false", "0"):
        return "0"  # enough by itself, and it needs no swap accounting
    # As LXD has it: the highest priority is the kernel's default of 60.
    return (
        str(70 - int(ask.config["limits.memory.swap.priority"]))
        if "limits.memory.swap.priority" in ask.config
        else None
    )


def _swap_priority(ask: Ask) -> str | None:
    return _swappiness(ask)


def _memsw(ask: Ask) -> str | None:
    if ask.value == "true":
        return None
    extra = 0 if ask.value == "false" else size_bytes(ask.value)
    limit = _memory(ask)
    if limit and not _is_soft(ask):
        return str(limit + extra)
    if extra:
        raise SpecError(
            "`limits.memory.swap`: a size needs a hard `limits.memory` here: cgroup v1 limits the sum of both"
        )
    return None


def _flag(ask: Ask) -> str:
    return "1" if values.is_true(ask.value) else "0"


def _huge(ask: Ask) -> str:
    if ask.suffix not in ask.host.huge_pages:
        raise UnsupportedError(
            f"`{ask.key}` cannot be enforced here: this host has no pages of {ask.suffix}",
            hint=f"it has {', '.join(ask.host.huge_pages) or 'none that are huge'}",
        )
    wanted, page = size_bytes(ask.value), PAGES[ask.suffix]
    if wanted > ask.host.memory:
        raise HostError(f"`{ask.key}`: this host has {ask.host.memory >> 20} MiB of memory in all")
    if wanted and wanted < page:
        raise SpecError(f"`{ask.key}`: {wanted} bytes are less than one page", hint="0 allows none")
    return str(wanted // page * page)  # the kernel counts whole pages


def _processes(ask: Ask) -> str:
    if int(ask.value) > ask.host.pid_max:
        raise HostError(
            f"`{ask.key}`: this host can have {ask.host.pid_max} processes in all", hint="sysctl kernel.pid_max"
        )
    return ask.value


def _disk_weight(ask: Ask) -> str:
    # 0 … 10 over the weights that both schedulers take.
    return str(max(10, int(ask.value) * 100))


def _misc(ask: Ask) -> str:
    capacity = ask.host.misc_capacity
    if ask.suffix not in capacity:
        raise HostError(
            f"`{ask.key}`: this host has no such resource",
            hint=f"it has {', '.join(capacity) or 'none'} (misc.capacity)",
        )
    if ask.value != "max" and int(ask.value) > capacity[ask.suffix]:
        raise HostError(f"`{ask.key}`: this host has {capacity[ask.suffix]} in all")
    return f"{ask.suffix} {ask.value}"


def _rdma(ask: Ask) -> str:
    device, _, resource = ask.suffix.rpartition(".")
    if device not in ask.host.rdma_devices:
        raise HostError(
            f"`{ask.key}`: this host has no RDMA device `{device}`",
            hint=f"it has {', '.join(ask.host.rdma_devices) or 'none'}",
        )
    return f"{device} {resource}={ask.value}"


def _is_rdma(suffix: str) -> bool:
    device, dot, resource = suffix.rpartition(".")
    return bool(dot and device and resource in ("hca_handle", "hca_object")) and not set(device) & set(" /=\t\n")


def _is_misc(suffix: str) -> bool:
    return suffix.replace("_", "").isalnum()


def is_unified(suffix: str) -> bool:
    """Whether an interface file of that name can be written by a `unified.` key."""
    return hugetlb(suffix) in UNIFIED_FILES


PAGES = {"64KB": 1 << 16, "1MB": 1 << 20, "2MB": 1 << 21, "1GB": 1 << 30}
WEIGHTS = "no block scheduler with weights (bfq, or io.cost) is in use"
SWAP = (
    File("memory.swappiness", _swappiness),
    File("memory.memsw.limit_in_bytes", _memsw, probed=True, optional=lambda ask: ask.value in ("false", "0")),
)

LIMITS = (
    Limit("limits.cpu", "CPUs", "a number of CPUs, or which ones (`0-3,6`)", parse=values.cpus, controller="cpuset",
          v2=(File("cpuset.cpus", _cpus),), v1=(File("cpuset.mems", _nodes), File("cpuset.cpus", _cpus))),
    Limit("limits.cpu.nodes", "NUMA nodes", "whose CPUs and whose memory (`0`, `0-1`); `balanced`: one, in turn; ours, `devices`: "
          "those that its devices are at", parse=values.nodes,
          controller="cpuset", v2=(File("cpuset.mems", _nodes), File("cpuset.cpus", _cpus)),
          v1=(File("cpuset.mems", _nodes), File("cpuset.cpus", _cpus))),
    Limit("limits.cpu.allowance", "share or quota", "`50%`: share under contention; `20ms/100ms`: hard quota",
          parse=values.allowance, default="100%", controller="cpu",
          v2=(File("cpu.weight", _weight), File("cpu.max", _cpu_max)),
          v1=(File("cpu.shares", _shares), File("cpu.cfs_period_us", _cfs_period), File("cpu.cfs_quota_us", _cfs_quota))),
    Limit("limits.cpu.priority", "priority 0–10", "weight of equal shares against each other", default="10",
          controller="cpu", v2=(File("cpu.weight", _weight),), v1=(File("cpu.shares", _shares),)),
    Limit("limits.memory", "size or %", "memory, of the host's when in percent", parse=values.memory, controller="memory",
          v2=(File("memory.high", _soft), File("memory.max", _hard)),
          v1=(File("memory.soft_limit_in_bytes", _soft), File("memory.limit_in_bytes", _hard))),
    Limit("limits.memory.swap", "boolean or size", "whether, or how much of, its memory may be swapped out",
          parse=values.swap, default="true", controller="memory", v2=(File("memory.swap.max", _swap_max),), v1=SWAP,
          absent="this kernel does not count swap: boot with `swapaccount=1`"),
    Limit("limits.memory.swap.priority", "priority 0–10", "the lower, the sooner its memory is swapped out; cgroup v1 only",
          controller="memory", v2=(), v1=(File("memory.swappiness", _swap_priority),),
          absent="cgroup2 has no swappiness for a cgroup; `limits.memory.swap` says how much may be swapped out"),
    Limit("limits.memory.oom_group", "boolean", "ours; out of memory, all of it is killed, not one process; cgroup2 only",
          default="false", controller="memory", v2=(File("memory.oom.group", _flag, since=(4, 19)),), v1=(),
          absent="only cgroup2 (Linux 4.19) kills a cgroup as a whole"),
    *(Limit(f"limits.hugepages.{page}", "size", f"memory in pages of {page}", controller="hugetlb",
            v2=(File("hugetlb.{}.max", _huge), File("hugetlb.{}.rsvd.max", _huge, since=(5, 7), optional=lambda ask: True)),
            v1=(File("hugetlb.{}.limit_in_bytes", _huge),
                File("hugetlb.{}.rsvd.limit_in_bytes", _huge, since=(5, 7), optional=lambda ask: True)))
      for page in PAGES),
    Limit("limits.processes", "integer", "processes and threads", parse=values.processes, controller="pids",
          v2=(File("pids.max", _processes),), v1=(File("pids.max", _processes),)),
    Limit("limits.disk.priority", "priority 0–10", "weight of disk requests under contention", controller="io",
          v1_controller="blkio", v2=(File("io.bfq.weight io.weight", _disk_weight),),
          v1=(File("blkio.bfq.weight blkio.weight", _disk_weight),), absent=WEIGHTS),
    Limit("limits.misc.*", "integer or max", "ours; a resource of the misc controller (`limits.misc.sev_es`)",
          parse=values.amount, suffix=_is_misc, controller="misc", v2=(File("misc.max", _misc),), v1=(File("misc.max", _misc),)),
    Limit("limits.rdma.*", "integer or max", "ours; `limits.rdma.HCA.hca_handle` and `.hca_object`: contexts and objects of "
          "an RDMA device", parse=values.amount, suffix=_is_rdma, controller="rdma", v2=(File("rdma.max", _rdma),),
          v1=(File("rdma.max", _rdma),)),
    Limit("unified.*", "string", "ours, as OCI has it; any limit file of cgroup2, as it is (`unified.memory.low: 64M`)",
          parse=values.line, suffix=is_unified, controller="", v2=(File("{}", _given),), v1=(),
          absent="it is in cgroup v1 here, and `unified.` keys are cgroup2's"),
)  # fmt: skip
"""In the order in which the files are written: raw ones come last."""
