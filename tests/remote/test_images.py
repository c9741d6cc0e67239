# SPDX-License-Identifier: GPL-3.0-or-later
"""Images on servers, from image servers, and made of instances."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import lzma
import os
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from tests.conftest import Ctr
from tests.remote.daemons import Known, Remote, tiny_image
from tests.remote.middle import Middle


@pytest.fixture
def both(both: Known) -> Iterator[Known]:
    """Images that a test brings to the servers are deleted."""
    yield both
    both.forget_instances()
    for kind in ("lxd", "incus"):
        for image in images(both, f"{kind}:"):
            if f"{kind}:tiny" not in image["alias"]:
                both("image", "delete", f"{kind}:{image['fingerprint']}")


def images(ctr: Ctr, *words: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(ctr("image", "list", *words, "-f", "json").stdout)
    return found


@pytest.mark.usefixtures("here")
def test_there_and_back(both: Ctr, tmp_path: Path) -> None:
    """LXD → here → Incus → a file → LXD: the same fingerprint wherever it is."""
    (tiny,) = images(both, "lxd:tiny")
    assert tiny["alias"] == ["lxd:tiny"] and tiny["architecture"] == os.uname().machine
    assert both("image", "copy", "lxd:tiny", "local:", "--alias", "here").stdout.strip() == tiny["fingerprint"]
    assert both("image", "info", "here", "-f", "json").stdout
    both("image", "copy", "lxd:tiny", "incus:", "--alias", "from/lxd")
    assert (
        json.loads(both("image", "info", "incus:from/lxd", "-f", "json").stdout)["fingerprint"] == tiny["fingerprint"]
    )
    path = tmp_path / "out.tar"
    assert both("image", "export", "incus:from/lxd", str(path)).stdout == f"{path}\n"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tiny["fingerprint"]
    assert "is there already" in both("image", "export", "incus:from/lxd", str(path), code=4).stderr
    assert "has this image already" in both("image", "import", str(path), "lxd:", code=4).stderr
    both("launch", "from/lxd", "incus:c1")
    both("image", "copy", "local:here", "incus:", "--alias", "ours")
    both("launch", "ours", "incus:c2")
    assert "did you mean `tiny`" in both("image", "info", "lxd:tny", code=3).stderr
    assert "did you mean `lxd`" in both("image", "copy", "here", "lxdd:", code=3).stderr


def test_aliases(both: Ctr) -> None:
    both("image", "alias", "create", "lxd:other", "tiny")
    listed = json.loads(both("image", "alias", "list", "lxd:", "-f", "json").stdout)
    assert [row["alias"] for row in listed] == ["lxd:other", "lxd:tiny"]
    assert "stands for" not in both("image", "alias", "create", "lxd:other", "tiny").stderr
    both("image", "alias", "delete", "lxd:other")
    assert "no image alias" in both("image", "alias", "delete", "lxd:other", code=3).stderr


@pytest.mark.usefixtures("here")
def test_publish(both: Ctr) -> None:
    """From LXD to Incus, on LXD itself, to this machine, and from here to LXD."""
    both("launch", "tiny", "lxd:c1")
    both("exec", "lxd:c1", "--", "sh", "-c", "echo mine >/etc/x")
    assert "is running" in both("publish", "lxd:c1", code=4).stderr
    both("stop", "--force", "lxd:c1")
    first = both("publish", "lxd:c1", "--alias", "img1").stdout.strip()
    assert images(both, "lxd:img1")[0]["fingerprint"] == first
    assert "has an image `img1`" in both("publish", "lxd:c1", "--alias", "img1", code=4).stderr
    both("publish", "lxd:c1", "incus:", "--alias", "img2")
    both("launch", "img2", "incus:c2")
    assert both("exec", "incus:c2", "--", "cat", "/etc/x").stdout == "mine\n"
    both("publish", "lxd:c1", "local:", "--alias", "img3")
    both("launch", "img3", "c3", "-p", "no-network")
    assert both("exec", "c3", "--", "cat", "/etc/x").stdout == "mine\n"
    both("stop", "--force", "c3")
    both("publish", "c3", "--alias", "img4", "--description", "of c3")
    assert "of c3" in both("image", "info", "img4").stdout
    both("publish", "c3", "lxd:", "--alias", "img5")
    both("launch", "img5", "lxd:c5")
    assert both("exec", "lxd:c5", "--", "cat", "/etc/x").stdout == "mine\n"
    assert len(images(both, "lxd:")) == 3, "an image that was on the way is left"


class Streams:
    """A simplestreams server on loopback, with the tiny image in two files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        image = tarfile.open(tiny_image(folder / "tiny.tar"))
        meta, root = BytesIO(), BytesIO()
        with tarfile.open(fileobj=meta, mode="w") as one, tarfile.open(fileobj=root, mode="w") as two:
            for member in image.getmembers():
                data = image.extractfile(member) if member.isreg() else None
                member.name = member.name.removeprefix("rootfs").lstrip("/") or "."
                (one if member.name == "metadata.yaml" else two).addfile(member, data)
        self.meta, self.root = lzma.compress(meta.getvalue()), lzma.compress(root.getvalue())
        (folder / "streams/v1").mkdir(parents=True)
        (folder / "lxd.tar.xz").write_bytes(self.meta)
        (folder / "root.tar.xz").write_bytes(self.root)
        self.fingerprint = hashlib.sha256(self.meta + self.root).hexdigest()
        self.index()
        key = [folder / "cert.pem", folder / "key.pem"]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=images",
             "-addext", "subjectAltName=IP:127.0.0.1", "-out", key[0], "-keyout", key[1]],
            check=True, capture_output=True,
        )  # fmt: skip
        handler = functools.partial(Quiet, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.certificate = str(key[0])
        self.url = f"https://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def index(self, path: str = "root.tar.xz") -> None:
        arch = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
        items = {
            name: {"ftype": name, "path": where, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, where, data in (("lxd.tar.xz", "lxd.tar.xz", self.meta), ("root.tar.xz", path, self.root))
        }
        items["lxd.tar.xz"]["combined_rootxz_sha256"] = self.fingerprint
        product = {"aliases": "tiny/1/default,tiny/1", "arch": arch, "os": "Tiny", "release_title": "one",
                   "versions": {"20250101_00:00": {"items": items}, "20240101_00:00": {"items": {}}}}  # fmt: skip
        files = {
            "index.json": {
                "format": "index:1.0",
                "index": {"images": {"datatype": "image-downloads", "path": "streams/v1/images.json"}},
            },
            "images.json": {"format": "products:1.0", "products": {"tiny:1": product}},
        }
        for name, data in files.items():
            (self.folder / "streams/v1" / name).write_text(json.dumps(data))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    found = Streams(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.usefixtures("here")
def test_image_server(both: Ctr, streams: Streams, tmp_path: Path) -> None:
    both("remote", "add", "images", streams.url, "--images")
    unknown = both("image", "list", "images:", code=6)
    assert "`images` cannot be reached" in unknown.stderr and "certificate" in unknown.stderr  # nobody has signed it
    both.env["SSL_CERT_FILE"] = streams.certificate
    (row,) = images(both, "images:")
    assert row["alias"] == ["images:tiny/1/default", "images:tiny/1"] and row["fingerprint"] == streams.fingerprint
    assert "Tiny one" in both("image", "info", "images:tiny/1").stdout
    assert both("image", "copy", "images:tiny/1", "local:", "--alias", "tiny").stdout.strip() == streams.fingerprint
    both("launch", "tiny", "c1", "-p", "no-network")
    assert both("exec", "c1", "--", "cat", "/etc/group").stdout.startswith("root:x:0:")
    both("launch", "images:tiny/1", "c2", "-p", "no-network")
    assert "comes from `lxd`" in both("launch", "lxd:tiny", "c3", "-p", "no-network").stderr
    assert both("create", "lxd:tiny", "c4", "-p", "no-network").stderr == ""
    assert "no image `lxd:nope`" in both("launch", "lxd:nope", "c5", code=3).stderr
    for kind in ("lxd", "incus"):
        both("image", "copy", "images:tiny/1", f"{kind}:", "--alias", "streamed")
        both("launch", "streamed", f"{kind}:c1")
        out = tmp_path / kind
        assert both("image", "export", f"{kind}:streamed", str(out)).stdout.split() == [str(out), f"{out}.root"]
        assert out.read_bytes() == streams.meta and Path(f"{out}.root").read_bytes() == streams.root
    assert "no image `images:nope`" in both("image", "info", "images:nope", code=3).stderr
    assert "images only" in both("image", "delete", "images:tiny/1", code=6).stderr


def test_a_bad_image_server(both: Ctr, streams: Streams) -> None:
    both.env["SSL_CERT_FILE"] = streams.certificate
    both("remote", "add", "images", streams.url, "--images")
    (streams.folder / "root.tar.xz").write_bytes(streams.root[:-1] + b"x")
    assert "is not what its index says" in both("image", "copy", "images:tiny/1", "local:", code=6).stderr
    (streams.folder / "root.tar.xz").write_bytes(streams.root[:100])
    assert "is cut off" in both("image", "copy", "images:tiny/1", "local:", code=6).stderr
    streams.index("../../etc/passwd")
    assert "names a file elsewhere" in both("image", "copy", "images:tiny/1", "local:", code=6).stderr
    (streams.folder / "streams/v1/images.json").write_text('{"products": 7}')
    assert "index is damaged" in both("image", "list", "images:", code=6).stderr
    assert images(both) == []
    assert [path.name for path in (both.folder / "state").iterdir() if path.name.startswith(".copy")] == []


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_gone_in_the_middle(unix: Remote, middle: Middle, tmp_path: Path) -> None:
    before = unix.daemon.tool("image", "list", "--format=csv")
    middle.rule = lambda data: "cut" if data.startswith(b"POST /1.0/images ") else "pass"
    gone = unix("image", "import", str(tiny_image(tmp_path / "new.tar")), "far:", code=6)
    assert "`far` went away" in gone.stderr
    middle.rule = lambda data: "cut" if b"/export" in data.split(b"\r\n")[0] else "pass"
    assert "`far` went away" in unix("image", "copy", "far:tiny", "local:", code=6).stderr
    assert unix.daemon.tool("image", "list", "--format=csv") == before and images(unix) == []
