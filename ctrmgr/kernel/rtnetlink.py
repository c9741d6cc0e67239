# SPDX-License-Identifier: GPL-3.0-or-later
"""The GUIDs of InfiniBand's virtual functions, which the link of their physical function has: `ip link set PF vf N node_guid …`."""

from __future__ import annotations

import _socket
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NEWLINK, GETLINK, REQUEST, ACK, ERROR = 16, 18, 1, 4, 2
EXT_MASK, FILTER_VF = 29, 1
VFINFO_LIST, VF_INFO = 22, 1
KINDS = {"node_guid": 10, "port_guid": 11}
HEADER, LINK, ATTRIBUTE, GUID = (
    struct.Struct("=IHHII"),
    struct.Struct("=BxHiII"),
    struct.Struct("=HH"),
    struct.Struct("@IQ"),
)
"""A message, a link, an attribute, and what says a function's number with its GUID; all in the machine's own order."""


def number(guid: str) -> int:
    """`00:11:22:33:44:55:66:77`, of which the first byte is the highest."""
    return int(guid.replace(":", ""), 16)


def text(guid: int) -> str:
    return guid.to_bytes(8, "big").hex(":")


def attribute(kind: int, data: bytes) -> bytes:
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def message(kind: int, flags: int, index: int, data: bytes) -> bytes:
    body = LINK.pack(0, 0, index, 0, 0) + data
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST | flags, 1, 0) + body


def change(index: int, function: int, guids: Mapping[str, str]) -> bytes:
    """The message that gives a virtual function its GUIDs, as iproute2 sends it."""
    given = (attribute(KINDS[key], GUID.pack(function, number(guid))) for key, guid in guids.items())
    return message(NEWLINK, ACK, index, attribute(VFINFO_LIST, attribute(VF_INFO, b"".join(given))))


def parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes, one after the other."""
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        size, kind = ATTRIBUTE.unpack_from(data, at)
        if size < ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[at + ATTRIBUTE.size : at + size]
        at += size + -size % 4


def answer(data: bytes, function: int) -> dict[str, str]:
    """What an answer says of a function's GUIDs; nothing where its driver does not tell. Raises OSError."""
    kind = HEADER.unpack_from(data)[1]
    if kind == ERROR:
        code = -struct.unpack_from("=i", data, HEADER.size)[0]
        if code:
            raise OSError(code, os.strerror(code))
        return {}
    found: dict[str, str] = {}
    for one, functions in parts(data[HEADER.size + LINK.size :]):
        for _, info in parts(functions) if one == VFINFO_LIST else ():
            values = {key: GUID.unpack_from(value) for of, value in parts(info) for key, n in KINDS.items() if n == of}
            found.update({key: text(guid) for key, (owner, guid) in values.items() if owner == function})
    return found


def _ask(data: bytes) -> bytes:
    asked = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, 0)
    try:
        asked.sendto(data, (0, 0))
        return asked.recv(1 << 20)
    finally:
        asked.close()


def set_guids(index: int, function: int, guids: Mapping[str, str]) -> None:
    """Raises OSError: EOPNOTSUPP where the link is not InfiniBand's or its driver has no such functions."""
    answer(_ask(change(index, function, guids)), function)


def guids(index: int, function: int) -> dict[str, str]:
    """Of a function, as its physical function has them. Raises OSError."""
    mask = attribute(EXT_MASK, struct.pack("=I", FILTER_VF))
    return answer(_ask(message(GETLINK, 0, index, mask)), function)
