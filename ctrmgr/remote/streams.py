# SPDX-License-Identifier: GPL-3.0-or-later
"""Image servers (simplestreams): what they have, and its files, each checked by the hash that the server's index has of it.

They are asked as any web server is: by https, with the certificate authorities that this machine trusts.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.error
import urllib.request

from ctrmgr.errors import BackendError, NotFoundError
from ctrmgr.remote.server import shown
from ctrmgr.remote.wire import ANSWER_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ctrmgr.remote.registry import Remote

INDEX_MAX = 64 << 20
BLOCK = 1 << 20
MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "armhf": "armv7l", "i386": "i686", "ppc64el": "ppc64le",
            "riscv64": "riscv64", "s390x": "s390x"}  # fmt: skip
METADATA = ("incus.tar.xz", "lxd.tar.xz")
ROOTS = {
    "squashfs": ("combined_squashfs_sha256",),
    "root.tar.xz": ("combined_rootxz_sha256", "combined_sha256"),
}
"""Kinds of root filesystem, the best first, and where the hash of metadata and root together is."""


class Item:
    """One file of an image."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.path, self.size, self.sha256 = str(found["path"]), int(found["size"]), str(found["sha256"])


class StreamImage:
    """The newest version of a product: its metadata and its root filesystem."""

    def __init__(self, product: dict[str, Any], version: str, fingerprint: str, files: list[Item]) -> None:
        self.aliases = [word for word in str(product.get("aliases", "")).split(",") if word]
        self.architecture = MACHINES.get(str(product.get("arch", "")), str(product.get("arch", "")))
        words = [str(product.get(key, "")) for key in ("os", "release_title", "arch")]
        self.description = " ".join(filter(None, words)) + f" ({version})"
        self.version, self.fingerprint, self.files = version, fingerprint, files


class _Safe(urllib.request.HTTPRedirectHandler):
    """A mirror elsewhere is as good, as long as it proves who it is."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith("https://"):
            raise urllib.error.URLError(f"it sends us on to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _get(remote: Remote, path: str) -> Any:
    """A response. Raises BackendError, NotFoundError."""
    if not path or path.startswith("/") or "://" in path or ".." in path.split("/"):
        raise BackendError(f"`{remote.name}` names a file elsewhere: `{shown(path)}`")
    if not remote.url.startswith("https://"):
        raise BackendError(f"`{remote.name}` is at `{remote.url}`", hint="images are taken from https servers only")
    request = urllib.request.Request(f"{remote.url}/{path}", headers={"User-Agent": "ctrmgr"})
    try:
        return urllib.request.build_opener(_Safe).open(request, timeout=ANSWER_SECONDS)
    except urllib.error.HTTPError as error:
        raise BackendError(f"`{remote.name}`: `{path}`: HTTP status {error.code}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise BackendError(f"`{remote.name}` cannot be reached at `{remote.url}`: {shown(reason)}") from None


def _json(remote: Remote, path: str) -> dict[str, Any]:
    with _get(remote, path) as answer:
        try:
            data = answer.read(INDEX_MAX)
            found = json.loads(data)
        except OSError as error:
            raise BackendError(f"`{remote.name}` went away: {error}") from None
        except ValueError:
            found = None
    if not isinstance(found, dict):
        raise BackendError(f"`{remote.name}` is no image server: `{path}` is not its index")
    return found


def listing(remote: Remote) -> list[StreamImage]:
    """The newest of each product that a container can be made of. Raises BackendError."""
    index = _json(remote, "streams/v1/index.json").get("index") or {}
    found = []
    try:
        for entry in index.values():
            if entry.get("datatype") != "image-downloads":
                continue
            products = _json(remote, str(entry["path"])).get("products", {}).values()
            found += [image for product in products if (image := _newest(product))]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BackendError(f"`{remote.name}`: its index is damaged") from None
    return found


def _newest(product: dict[str, Any]) -> StreamImage | None:
    for version in sorted(product.get("versions", {}), reverse=True):
        items = {str(item.get("ftype", "")): item for item in product["versions"][version].get("items", {}).values()}
        for meta in METADATA:
            for root, keys in ROOTS.items():
                if meta in items and root in items:
                    digest = next((str(items[meta][key]) for key in keys if key in items[meta]), "")
                    if digest:
                        return StreamImage(product, version, digest, [Item(items[meta]), Item(items[root])])
    return None


def find(remote: Remote, word: str) -> StreamImage:
    """By alias (for this machine's architecture unless it says one) or by the beginning of the fingerprint. Raises NotFoundError."""
    images = listing(remote)
    machine = os.uname().machine
    here = [image for image in images if image.architecture == machine]
    for image in (*here, *images):
        if word in image.aliases and (image in here or word.rpartition("/")[2] in MACHINES):
            return image
    for image in here:
        if any(word in (f"{alias}/{_arch(image)}", alias.removesuffix("/default")) for alias in image.aliases):
            return image
    for image in images:
        if len(word) >= 6 and image.fingerprint.startswith(word):
            return image
    from difflib import get_close_matches

    near = get_close_matches(word, [alias for image in here for alias in image.aliases], 1)
    raise NotFoundError(
        f"no image `{remote.name}:{word}` for {machine}",
        hint=f"did you mean `{near[0]}`?" if near else f"`ctrmgr image list {remote.name}:` lists them",
    )


def _arch(image: StreamImage) -> str:
    return next((arch for arch, machine in MACHINES.items() if machine == image.architecture), image.architecture)


def fetch(remote: Remote, image: StreamImage, folder: str) -> list[str]:
    """Download its files; returns their paths: metadata, root. Raises BackendError when they are not what the index says."""
    paths = []
    together = hashlib.sha256()
    for name, item in zip(("metadata", "rootfs"), image.files, strict=True):
        paths.append(f"{folder}/{name}")
        digest = hashlib.sha256()
        with open(paths[-1], "wb") as file:
            for block in _blocks(remote, item):
                digest.update(block)
                together.update(block)
                file.write(block)
        if digest.hexdigest() != item.sha256:
            raise BackendError(f"`{remote.name}`: `{item.path}` is not what its index says", hint="nothing was kept")
    if together.hexdigest() != image.fingerprint:
        raise BackendError(f"`{remote.name}`: the files do not belong together", hint="nothing was kept")
    return paths


def _blocks(remote: Remote, item: Item) -> Iterator[bytes]:
    left = item.size
    with _get(remote, item.path) as answer:
        while left:
            try:
                block = answer.read(min(left, BLOCK))
            except OSError as error:
                raise BackendError(f"`{remote.name}` went away: {error}", hint="nothing was kept") from None
            if not block:
                raise BackendError(f"`{remote.name}` went away: `{item.path}` is cut off", hint="nothing was kept")
            left -= len(block)
            yield block
