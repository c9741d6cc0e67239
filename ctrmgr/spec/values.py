# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of keys: each parser takes the text, returns it in one canonical form or raises ValueError with the reason."""

from __future__ import annotations

from ctrmgr.devices import nic
from ctrmgr.units import size_bytes

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")


def text(value: str) -> str:
    """Anything that a flat file can hold."""
    if "\0" in value:
        raise ValueError("has a NUL in it")
    return value


def boolean(value: str) -> str:
    """`true` or `false`; LXD takes 1, yes and on as well."""
    low = value.lower()
    if low in TRUE:
        return "true"
    if low in FALSE:
        return "false"
    raise ValueError("is not a boolean: true or false")


def is_true(value: str | None) -> bool:
    return (value or "").lower() in TRUE


def integer(value: str) -> str:
    """A number ≥ 0."""
    if not (value.isascii() and value.isdecimal()):
        raise ValueError("is not a whole number")
    return str(int(value))


def between(low: int, high: int, value: str) -> str:
    number = int(integer(value))
    if not low <= number <= high:
        raise ValueError(f"is not between {low} and {high}")
    return str(number)


def size(value: str) -> str:
    return str(size_bytes(value))


def memory(value: str) -> str:
    """A size > 0, or a percentage of the host's memory."""
    if value.endswith("%"):
        return between(1, 100, value[:-1]) + "%"
    number = size_bytes(value)
    if not number:
        raise ValueError("would leave no memory at all")
    return str(number)


def share(value: str) -> str:
    """`25%`, or `25`."""
    return between(1, 100, value.removesuffix("%")) + "%"


def swap(value: str) -> str:
    """`true`, `false` or a size."""
    return boolean(value) if value.lower() in TRUE + FALSE and not value.isdecimal() else size(value)


def milliseconds(value: str) -> int:
    """`20ms`, `1s`, `5000us`: whole ones, of which there are some."""
    for unit, factor in (("ms", 1000), ("us", 1), ("s", 1000000)):
        digits = value.removesuffix(unit)
        if digits != value and digits.isascii() and digits.isdecimal():
            whole, rest = divmod(int(digits) * factor, 1000)
            if rest or not whole:
                raise ValueError(f"has `{value}`, which is not a whole number of milliseconds above 0")
            return whole
    raise ValueError("is not a duration: a whole number and ms or s")


def allowance(value: str) -> str:
    """`50%`: a share when there is contention; `20ms/100ms`: a hard quota of time in each period."""
    if value.endswith("%"):
        return between(1, 10000, value[:-1]) + "%"
    quota, slash, period = value.partition("/")
    if not slash:
        raise ValueError("is neither a share (50%) nor a quota (20ms/100ms)")
    used, whole = milliseconds(quota), milliseconds(period)
    if not 1 <= whole <= 1000:
        raise ValueError("has a period that the kernel does not take: 1ms to 1s")
    return f"{used}ms/{whole}ms"


def cpus(value: str) -> str:
    """A number of CPUs (`2`), or which (`0-3`, `0,2`, `1-1`)."""
    if value.isascii() and value.isdecimal():
        if int(value) < 1:
            raise ValueError("leaves no CPU")
        return str(int(value))
    return cpu_list(value)


def cpu_list(value: str) -> str:
    for part in value.split(","):
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdecimal() and (not dash or (last.isascii() and last.isdecimal()))):
            raise ValueError("is neither a number of CPUs nor a set such as 0-3,6")
        if dash and int(last) < int(first):
            raise ValueError(f"has the empty range `{part}`")
    return value


def expand_cpus(value: str) -> list[int]:
    """The CPUs of a set that `cpu_list` has checked."""
    found: set[int] = set()
    for part in value.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


def nodes(value: str) -> str:
    """NUMA nodes: `0`, `0-1`, `0,2`; `balanced` or `devices`."""
    if value in ("balanced", "devices"):
        return value
    try:
        return cpu_list(value)
    except ValueError:
        raise ValueError("is not a set of NUMA nodes, such as 0 or 0-1, nor `balanced` or `devices`") from None


def amount(value: str) -> str:
    """A number ≥ 0, or `max`."""
    return value if value == "max" else integer(value)


def line(value: str) -> str:
    """One line that a kernel's file takes."""
    if any(letter < " " for letter in value) or len(value.encode()) > 255:
        raise ValueError("is not one line of at most 255 bytes")
    return value


def bits(value: str) -> str:
    """Bits in a second."""
    return nic.rate(value)


def processes(value: str) -> str:
    """≥ 1."""
    return between(1, 4194304, value)


def priority(value: str) -> str:
    """0 (least) … 10."""
    return between(0, 10, value)


def oom_priority(value: str) -> str:
    """-1000 (never) … 1000 (first), as /proc/PID/oom_score_adj has it."""
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and int(digits) <= 1000):
        raise ValueError("is not a number from -1000 to 1000")
    return str(int(value))


def one_of(choices: tuple[str, ...], value: str) -> str:
    if value not in choices:
        raise ValueError(f"is not one of {', '.join(choices)}")
    return value


def idmap_size(value: str) -> str:
    """At least the 65536 ids that the common images use."""
    return between(65536, 1 << 31, value)


def idmap_base(value: str) -> str:
    """A host id > 0: id 0 is the host's root."""
    return between(1, (1 << 32) - 2, value)


def raw_idmap(value: str) -> str:
    raw_idmap_rows(value)
    return value


def raw_idmap_rows(value: str) -> list[tuple[str, int, int, int]]:
    """(uid|gid, inside, outside, count) of LXD's lines `uid|gid|both OUTSIDE[-OUTSIDE] INSIDE[-INSIDE]`."""
    rows = []
    for line in filter(None, (line.strip() for line in value.splitlines())):
        words = line.split()
        if len(words) != 3 or words[0] not in ("uid", "gid", "both"):
            raise ValueError(f"has the line `{line}`: it should be `uid|gid|both HOST-ID INSTANCE-ID`")
        (outside, outside_count), (inside, count) = _id_range(words[1]), _id_range(words[2])
        if count != outside_count:
            raise ValueError(f"has the line `{line}`, whose ranges differ in length")
        if outside == 0:
            raise ValueError(f"has the line `{line}`: the host's root stays the host's")
        rows += [(kind, inside, outside, count) for kind in ("uid", "gid") if words[0] in (kind, "both")]
    return rows


def _id_range(word: str) -> tuple[int, int]:
    first, dash, last = word.partition("-")
    if not (first.isascii() and first.isdecimal() and (not dash or (last.isascii() and last.isdecimal()))):
        raise ValueError(f"has `{word}`, which is not an id or a range of ids")
    begin, end = int(first), int(last or first)
    if not begin <= end < (1 << 32) - 1:
        raise ValueError(f"has `{word}`, which is not a range of 32-bit ids")
    return begin, end - begin + 1


def rlimit(value: str) -> str:
    """`SOFT:HARD` or one number for both; `unlimited` is one, too."""
    soft, colon, hard = value.partition(":")
    hard = hard if colon else soft
    for word in (soft, hard):
        if word != "unlimited" and not (word.isascii() and word.isdecimal() and int(word) < 1 << 64):
            raise ValueError("is not a limit: a number, `unlimited`, or SOFT:HARD")
    if hard != "unlimited" and (soft == "unlimited" or int(soft) > int(hard)):
        raise ValueError("has a soft limit above the hard one")
    return f"{soft}:{hard}"


def words(value: str) -> list[str]:
    """Words between commas, blanks or line ends."""
    return value.replace(",", " ").split()


def syscalls(value: str) -> str:
    """System calls, one to a line, as LXD has them: a name, perhaps with what to do (`mount errno 1`)."""
    for line in filter(None, (line.strip() for line in value.splitlines())):
        name = line.split()[0]
        if not (name.isascii() and name.replace("_", "").isalnum()):
            raise ValueError(f"has `{name}`, which is not the name of a system call")
    return value


def capabilities(value: str) -> str:
    """Capability names, with or without `cap_`, between blanks or commas."""
    from ctrmgr.spec.capabilities import NUMBERS

    names = [word.lower().removeprefix("cap_") for word in words(value)]
    for name in names:
        if name not in NUMBERS:
            raise ValueError(f"has `{name}`, which is not a capability")
    return " ".join(names)


def environment(value: str) -> str:
    return text(value)
