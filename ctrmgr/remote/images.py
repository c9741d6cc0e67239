# SPDX-License-Identifier: GPL-3.0-or-later
"""Which image an instance on a server is made of: the server's own, another server's, or an image server's."""

from __future__ import annotations

from ctrmgr.errors import BackendError, NotFoundError
from ctrmgr.remote import registry
from ctrmgr.remote.server import Server, of, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    import os

    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(os.path.getsize(path)),
    }

    with open(path, "rb") as file:
        blocks = iter(lambda: file.read(1 << 20), b"")
        answer = server.connection.request("POST", server.url("/images"), blocks, headers, timeout=None)
    if answer.status >= 300:
        raise server.refusal(answer)
    done = server.wait(server.decoded(answer)["id"])
    fingerprint = str(done["metadata"]["fingerprint"])
    server.change("POST", "/images/aliases", {"name": alias, "target": fingerprint})
    return fingerprint
