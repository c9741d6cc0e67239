# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP, websockets and operations against a server of a few lines, which says what a real one seldom does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.remote import body, devices, instances, registry, trust, wire
from ctrmgr.remote.server import OperationError, Server, StaleError, quoted, retried
from ctrmgr.remote.together import together
from ctrmgr.remote.websocket import BINARY, CONTINUATION, TEXT, Frames, WebSocket, frame


class Scripted:
    """Answers each request with the next of its answers, and remembers the requests. None: closes the connection."""

    def __init__(self, path: Path) -> None:
        self.answers: list[bytes | None] = []
        self.requests: list[str] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                block = client.recv(65536)
                if not block:
                    client.close()
                    return
                data += block
            head, _, data = data.partition(b"\r\n\r\n")
            size = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
            )
            while len(data) < size:
                data += client.recv(65536)
            data = data[size:]
            self.requests.append(head.split(b" HTTP")[0].decode())
            answer = self.answers.pop(0) if self.answers else None
            if answer is None:
                client.close()
                return
            client.sendall(answer)


def reply(metadata: object, status: int = 200, headers: str = "", **more: object) -> bytes:
    body = json.dumps({"type": "sync", "metadata": metadata, **more}).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@pytest.fixture
def script() -> Iterator[tuple[Scripted, Server]]:
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    found = Scripted(folder / "s")
    with Server("far", wire.Target("far", f"unix://{folder}/s"), "tools") as server:
        yield found, server
    found.listener.close()
    shutil.rmtree(folder)


def test_one_connection_and_the_project(script: tuple[Scripted, Server]) -> None:
    far, server = script
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{"type":"sync","\r\n11;x=y\r\nmetadata":[1,2]}\n\r\n0\r\nTrailer: x\r\n\r\n'
    far.answers = [reply({"a": 1}), chunked, reply(3)]
    assert (server.get("/x"), server.get("/y", query={"recursion": "1"}), server.get(f"/z/{quoted('a b/ü')}")) == (
        {"a": 1},
        [1, 2],
        3,
    )
    assert far.requests == [
        "GET /1.0/x?project=tools",
        "GET /1.0/y?project=tools&recursion=1",
        "GET /1.0/z/a%20b%2F%C3%BC?project=tools",
    ]


def test_a_connection_that_was_closed_meanwhile(script: tuple[Scripted, Server]) -> None:
    far, server = script
    far.answers = [reply(1), reply(2)]
    assert server.get("/x") == 1
    assert server.connection.socket
    server.connection.socket.shutdown(socket.SHUT_RDWR)
    assert server.get("/x") == 2


def test_gone(script: tuple[Scripted, Server]) -> None:
    far, server = script
    with pytest.raises(wire.GoneError, match="went away") as error:
        server.change("POST", "/instances", {}, doubt="look there")
    assert error.value.hint == "look there" and far.requests == ["POST /1.0/instances?project=tools"]


@pytest.mark.parametrize(
    ("ended", "kind", "words"),
    [
        ({"status_code": 401, "status": "Cancelled"}, OperationError, "was cancelled"),
        (
            {"status_code": 400, "status": "Failure", "err": "Reached maximum of 3 instances"},
            OperationError,
            "Reached maximum",
        ),
        (
            {"status_code": 400, "status": "Failure", "err": "Instance is busy running a x operation"},
            StaleError,
            "busy",
        ),
    ],
)
def test_operations_that_fail(
    script: tuple[Scripted, Server], ended: object, kind: type[CtrmgrError], words: str
) -> None:
    far, server = script
    far.answers = [reply({"id": "op"}, 202), reply(ended)]
    with pytest.raises(kind, match=words) as error:
        server.change("PUT", "/instances/c1/state", {})
    assert error.value.exit_code == 6
    assert far.requests[1] == "GET /1.0/operations/op/wait?project=tools"


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (404, NotFoundError, 3),
        (409, ConflictError, 4),
        (412, StaleError, 6),
        (403, BackendError, 6),
        (500, BackendError, 6),
    ],
)
def test_refusals(script: tuple[Scripted, Server], status: int, kind: type[CtrmgrError], code: int) -> None:
    far, server = script
    far.answers = [reply(None, status, error="no such luck")]
    with pytest.raises(kind, match=r"`far`.*no such luck") as error:
        server.get("/x")
    assert error.value.exit_code == code


def test_what_somebody_else_has_changed_is_read_again(script: tuple[Scripted, Server]) -> None:
    far, server = script
    mine = {"config": {}, "devices": {}, "profiles": []}
    theirs = {"config": {"user.theirs": "1"}, "devices": {}, "profiles": []}
    tag = 'Etag: "{}"\r\n'
    far.answers = [reply(mine, 200, tag.format("a")), reply(None, 412), reply(theirs, 200, tag.format("b")), reply({})]
    sent: list[dict[str, dict[str, str]]] = []

    def change(_: object, data: dict[str, dict[str, str]]) -> None:
        data["config"]["user.ours"] = "1"
        sent.append(data)

    instances.update(server, "c1", change)
    assert sent[-1]["config"] == {"user.theirs": "1", "user.ours": "1"}


def test_others_that_never_rest(script: tuple[Scripted, Server]) -> None:
    far, server = script
    far.answers = [reply({}), reply(None, 412)] * 3
    with pytest.raises(ConflictError):
        retried(server, lambda found, etag: server.send("PUT", "/x", {}) and None, "/x", seconds=0)  # type: ignore[func-returns-value]


def test_a_ping_is_not_answered() -> None:
    """The answer would reach a server that has closed, whose kernel then drops what is still on its way."""
    each = WebSocket.__new__(WebSocket)
    each.frames, each.out, each.closing, each.ended = Frames(b"\x89\x04ping\x82\x01x"), bytearray(), False, False
    assert each.messages() == [(BINARY, b"x")] and not each.out


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_001])
def test_frames(size: int) -> None:
    """What we send is masked; taken apart from pieces of any size it is what was said."""
    data = os.urandom(size)
    ours = frame(BINARY, data)
    assert ours[1] & 0x80
    head = 2 if size < 126 else 4 if size < 65536 else 10
    key, masked = ours[head : head + 4], ours[head + 4 :]
    assert bytes(byte ^ key[n % 4] for n, byte in enumerate(masked)) == data
    theirs = bytes((ours[0], ours[1] & 0x7F)) + ours[2:head] + data
    frames = Frames()
    for start in range(0, len(theirs), 4099):
        assert frames.next() is None
        frames.add(theirs[start : start + 4099])
    assert frames.next() == (BINARY, data) and frames.next() is None


def test_frames_in_parts_and_nonsense() -> None:
    frames = Frames(bytes((TEXT, 1)) + b"a" + bytes((0x80 | CONTINUATION, 1)) + b"b")
    assert (frames.next(), frames.next()) == ((TEXT, b"a"), (TEXT, b"b"))
    for wrong in (b"\x83\x00", b"\xc2\x00", b"\x82\x80", b"\x82\x7f\xff" + bytes(7)):
        with pytest.raises(ValueError, match=r"websocket|large"):
            Frames(wrong).next()


@pytest.mark.parametrize(
    ("word", "url"),
    [
        ("host2", "https://host2:8443"),
        ("host2:9000", "https://host2:9000"),
        ("https://host2/", "https://host2:8443"),
        ("https://[fe80::1]:7", "https://[fe80::1]:7"),
        ("/var/lib/x/unix.socket", "unix:///var/lib/x/unix.socket"),
        ("unix:///var/x", "unix:///var/x"),
        ("unix:/var/x", "unix:///var/x"),
    ],
)
def test_urls(word: str, url: str) -> None:
    assert trust.normal_url(word) == url


@pytest.mark.parametrize("word", ["http://x", "https://", "https://a b", "x:y", "https://u@h", "https://h:0"])
def test_wrong_urls(word: str) -> None:
    with pytest.raises(SpecError):
        trust.normal_url(word)


def test_the_file_of_remotes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is written is read; a damaged line is named."""
    monkeypatch.setenv("CTRMGR_CONFIG_DIR", str(tmp_path))
    with registry.Opened() as remotes:
        remotes.by_name["a"] = registry.Remote("a", "unix:///x", "lxd", "p")
        remotes.default = "a"
    found = registry.load()
    assert (found.get("").url, found.get("a").project) == ("unix:///x", "p")

    def fail() -> None:
        with registry.Opened() as remotes:
            remotes.by_name.clear()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(registry.load().by_name) == ["a"]
    (tmp_path / "remotes").write_text("remote\ta\nend\n")
    with pytest.raises(CtrmgrError, match="line 1"):
        registry.load()


def test_moments() -> None:
    """The clock of a server in its three ways of writing it."""
    at = devices.Moment((2026, 11, 21, 9, 5, 11))
    assert devices.Moment.of_http("Sat, 21 Nov 2026 09:05:11 GMT") == at
    assert (
        devices.Moment.of("2026-11-21 09:05:11 +0000 UTC") == devices.Moment.of("2026-11-21T09:05:11.483136269Z") == at
    )
    assert devices.Moment.of("2026-11-21 09:05:10 +0000 UTC") < at
    assert devices.Moment.of("") == devices.Moment.of_http("x") == devices.Moment() < at


def test_a_server_does_not_steer_the_terminal(script: tuple[Scripted, Server]) -> None:
    far, server = script
    far.answers = [reply(None, 500, error="\x1b[2Jgone\n" + "x" * 9999)]
    with pytest.raises(BackendError) as error:
        server.get("/x")
    assert error.value.message.isprintable() and len(error.value.message) < 600


@pytest.mark.parametrize(
    "value",
    [None, True, [], {}, {"a": [1, -2, {"b": None}], 'é\ud800\n"\\': "\x00\U0001f600"}, ["x", False, [[]], 1 << 70]],
)
def test_json_as_the_librarys(value: object) -> None:
    text = body.dumps(value)
    assert json.loads(text) == value and body.loads(text.encode()) == value
    assert body.loads(f" \r\n{json.dumps(value, indent=2)}\t") == value


def test_json_that_is_none() -> None:
    for bad in (b"", b"{", b'{"a": 1} x', b"NaN", b"[1,]", b"\xff", b'"\n"', b"tru", b"[1", b"-"):
        with pytest.raises(ValueError):  # noqa: PT011
            body.loads(bad)
    for strange in (1.5, b"x", {1: 2}, object()):
        with pytest.raises(TypeError):
            body.dumps(strange)


def test_together() -> None:
    """All at once: each call waits for the others. An error of ours is an answer; a bug is a bug."""
    meeting = threading.Barrier(3, timeout=10)

    def fails() -> int:
        meeting.wait()
        raise NotFoundError("no")

    told = together({"a": meeting.wait, "b": fails, "c": meeting.wait})
    assert isinstance(told["b"], NotFoundError) and sorted(map(str, (told["a"], told["c"]))) != ["", ""]
    assert together({"a": lambda: 1}) == {"a": 1} and together({}) == {}
    with pytest.raises(ZeroDivisionError):
        together({"a": lambda: 1 // 0, "b": lambda: 1})
