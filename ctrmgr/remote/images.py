# SPDX-License-Identifier: GPL-3.0-or-later
"""Which image an instance on a server is made of: the server's own, another server's, or an image server's."""

from __future__ import annotations

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError
from ctrmgr.remote import registry
from ctrmgr.remote.server import Server, of, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any


def source(server: Server, word: str) -> dict[str, Any]:
    """The `source` of a new instance, for `alias`, `FINGERPRINT` or `REMOTE:alias`. Raises NotFoundError, BackendError."""
    remote_name, colon, image = word.partition(":")
    if not colon:
        return {"type": "image", "fingerprint": find(server, word)}
    remote = registry.load().get(remote_name)
    if remote.name == server.name:
        return {"type": "image", "fingerprint": find(server, image)}
    pull = {"type": "image", "mode": "pull", "server": remote.url}
    if remote.kind == registry.IMAGES:
        return {**pull, "protocol": registry.IMAGES, "alias": image}
    if remote.url.startswith("unix://"):
        raise BackendError(
            f"`{server.name}` cannot fetch an image from `{remote.name}`, which is at a unix socket",
            hint="add that server by https",
        )
    import ssl

    target = remote.target()
    with of(remote) as origin:
        fingerprint = find(origin, image)
        pull |= {"fingerprint": fingerprint, "certificate": ssl.DER_cert_to_PEM_cert(target.certificate)}
        if not origin.get(f"/images/{fingerprint}").get("public"):
            secret = origin.decoded(origin.send("POST", f"/images/{fingerprint}/secret"))
            pull["secret"] = secret["metadata"]["secret"]
    # Each kind speaks its own dialect to itself; to the other both say `lxd`.
    return {**pull, "protocol": "incus" if remote.kind == "incus" == server_kind(server) else "lxd"}


def server_kind(server: Server) -> str:
    return str(server.info["environment"]["server"]).lower()


def find(server: Server, word: str) -> str:
    """The fingerprint of a server's image by alias or by the beginning of the fingerprint. Raises NotFoundError."""
    try:
        return str(server.get(f"/images/aliases/{quoted(word)}")["target"])
    except NotFoundError:
        pass
    if len(word) >= 6 and not word.strip("0123456789abcdef"):
        try:
            return str(server.get(f"/images/{quoted(word)}")["fingerprint"])
        except NotFoundError:
            pass
    from difflib import get_close_matches

    known = [str(url).rpartition("/aliases/")[2] for url in server.get("/images/aliases")]
    near = get_close_matches(word, known, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"it has: {', '.join(known[:10]) or 'no images'}"
    raise NotFoundError(f"no image `{server.name}:{word}`", hint=hint)


def known(server: Server, alias: str) -> str:
    """The fingerprint behind an alias, or ""."""
    try:
        return str(server.get(f"/images/aliases/{quoted(alias)}")["target"])
    except NotFoundError:
        return ""


def upload(server: Server, path: str, alias: str) -> str:
    """Bring an image (a tarball of LXD's form) to a server under an alias; returns its fingerprint."""
    fingerprint = hashed([path])
    if fingerprint in fingerprints(server):
        set_alias(server, alias, fingerprint)  # whoever brought it came no further
    else:
        name_it(server, send(server, [path]), alias)
    return fingerprint


def hashed(paths: Sequence[str]) -> str:
    """The fingerprint that an image of these files gets."""
    import hashlib

    digest = hashlib.sha256()
    for path in paths:
        for block in _file(path):
            digest.update(block)
    return digest.hexdigest()


def fingerprints(server: Server) -> set[str]:
    return {str(url).rpartition("/")[2].partition("?")[0] for url in server.get("/images")}


# What there is


def listing(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/images", query={"recursion": "1"})
    return sorted(found, key=lambda each: ([alias["name"] for alias in each["aliases"]], each["fingerprint"]))


def get(server: Server, word: str) -> dict[str, Any]:
    """All of one. Raises NotFoundError."""
    found: dict[str, Any] = server.get(f"/images/{find(server, word)}")
    return found


def delete(server: Server, word: str) -> None:
    server.change("DELETE", f"/images/{find(server, word)}")


def set_alias(server: Server, alias: str, fingerprint: str, *, force: bool = False) -> None:
    """Raises ConflictError when it stands for another image and `force` is not given."""
    taken = known(server, alias)
    if taken == fingerprint:
        return
    if not taken:
        server.change("POST", "/images/aliases", {"name": alias, "target": fingerprint, "description": ""})
    elif force:
        server.change("PUT", f"/images/aliases/{quoted(alias)}", {"target": fingerprint, "description": ""})
    else:
        raise ConflictError(
            f"on `{server.name}` alias `{alias}` stands for image `{taken[:12]}`", hint="--force moves it"
        )


def name_it(server: Server, fingerprint: str, alias: str) -> None:
    """Give an image that was just made its alias; when that fails, it goes again, or it is said that it is there."""
    from ctrmgr.remote import copying

    try:
        set_alias(server, alias, fingerprint)
    except BaseException as error:
        left = copying.forget_image(server, fingerprint)
        if left and isinstance(error, CtrmgrError):
            error.hint = f"image `{fingerprint[:12]}` is left on `{server.name}`: {left}"
        raise


def drop_alias(server: Server, alias: str) -> None:
    if not known(server, alias):
        raise NotFoundError(f"no image alias `{server.name}:{alias}`")
    server.change("DELETE", f"/images/aliases/{quoted(alias)}")


# Their files


def fetch(server: Server, fingerprint: str, folder: str) -> list[str]:
    """Download an image: one path (unified), or two (metadata, root). Raises BackendError when the hash is another."""
    import hashlib

    from ctrmgr.remote.wire import Answer

    with Server(server.name, server.target, server.project) as stream:
        url = stream.url(f"/images/{quoted(fingerprint)}/export")
        (status, headers), body = stream.connection.begin("GET", url, timeout=None)
        if status >= 300:
            raise server.refusal(Answer(status, headers, b"".join(body)))
        kind, _, rest = headers.get("content-type", "").partition("boundary=")
        parts = _parts(body, rest.strip('"; ').encode()) if kind.startswith("multipart/") else iter([body])
        digest, paths = hashlib.sha256(), []
        for number, part in enumerate(parts):
            paths.append(f"{folder}/{number}")
            with open(paths[-1], "wb") as file:
                for block in part:
                    digest.update(block)
                    file.write(block)
    if digest.hexdigest() != fingerprint:
        raise BackendError(f"`{server.name}` gave something else than image `{fingerprint[:12]}`")
    return paths


def _parts(body: Iterator[bytes], boundary: bytes) -> Iterator[Iterator[bytes]]:
    """The contents of a multipart body, each to be taken before the next."""
    mark, buffer, over = b"\r\n--" + boundary, b"\r\n", False

    def until(end: bytes) -> Iterator[bytes]:
        """What is before `end`, which is taken too."""
        nonlocal buffer
        while end not in buffer:
            if len(buffer) > len(end):
                yield buffer[: -len(end)]
                buffer = buffer[-len(end) :]
            block = next(body, b"")
            if not block:
                raise BackendError("a part of the image is missing")
            buffer += block
        before, _, buffer = buffer.partition(end)
        yield before

    for _ in until(mark):
        pass
    while not over:
        head = b"".join(until(b"\r\n"))
        over = head.startswith(b"--")
        if not over:
            for _ in until(b"\r\n\r\n"):
                pass
            yield until(mark)
            if not buffer:
                buffer = next(body, b"")
    for _ in body:
        pass


def send(server: Server, paths: Sequence[str]) -> str:
    """Give a server an image of one file or two; returns its fingerprint, which is the hash of them. Raises BackendError."""
    import os

    from ctrmgr.remote import copying

    if len(paths) == 1:
        return copying.send_image(server, _file(paths[0]))
    boundary = os.urandom(16).hex()
    hashed = copying.Hashed(block for path in paths for block in _file(path))

    def form() -> Iterator[bytes]:
        blocks = iter(hashed)
        for name, path in zip(("metadata", "rootfs"), paths, strict=True):
            yield (
                f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
                "Content-Type: application/octet-stream\r\n\r\n"
            ).encode()
            left = os.path.getsize(path)
            while left:
                block = next(blocks, b"")
                if not block:
                    raise BackendError(f"`{path}` became shorter while it was read")
                left -= len(block)
                yield block
            yield b"\r\n"
        yield f"--{boundary}--\r\n".encode()

    done = copying.upload(server, "/images", form(), {"Content-Type": f"multipart/form-data; boundary={boundary}"})
    fingerprint = str(done["metadata"]["fingerprint"])
    if fingerprint != hashed.hash.hexdigest():
        copying.forget_image(server, fingerprint)
        raise BackendError(f"`{server.name}` has got something else than was sent", hint="it was deleted again")
    return fingerprint


def _file(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            yield block
