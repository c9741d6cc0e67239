# SPDX-License-Identifier: GPL-3.0-or-later
"""Remotes are added, trusted, pinned, renamed and forgotten; nothing is sent to a server whose certificate is another one."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Ctr
from tests.remote.daemons import ADDRESS, Remote


def listed(ctr: Ctr) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(ctr("remote", "list", "--format", "json").stdout)
    return found


def test_unix_socket(bare: Remote) -> None:
    bare("remote", "add", "host", str(bare.daemon.home))
    assert listed(bare) == [
        {
            "name": "host",
            "url": f"unix://{bare.daemon.socket}",
            "kind": bare.daemon.kind,
            "project": "",
            "default": False,
        }
    ]
    assert not (bare.folder / "etc/client.key").exists()
    shown = json.loads(bare("remote", "show", "host", "--format", "json").stdout)
    assert shown["trusts-us"] is True and "etag" in shown["extensions"]


def test_token_once(bare: Remote) -> None:
    """On both kinds, at the address in the token, with the certificate in it; safe modes; a used token is refused."""
    token = bare.daemon.token("first")
    bare("remote", "add", "host", "--token", "-", stdin=token + "\n")
    assert listed(bare)[0]["url"] == f"https://{ADDRESS}"
    etc = bare.folder / "etc"
    assert stat.S_IMODE((etc / "client.key").stat().st_mode) == 0o600
    shown = json.loads(bare("remote", "show", "host", "--format", "json").stdout)
    assert shown["trusts-us"] is True
    assert shown["fingerprint"] == json.loads(base64.b64decode(token))["fingerprint"]
    (etc / "client.key").unlink()
    (etc / "client.crt").unlink()
    refused = bare("remote", "add", "again", "--token", token, code=6)
    assert "refuses our token" in refused.stderr and len(listed(bare)) == 1


def test_password(servers: dict[str, object], bare: Remote) -> None:
    shown = bare("remote", "add", "host", ADDRESS, "--password", "wrong", code=6).stderr.split("certificate ")[1][:64]
    wrong = bare("remote", "add", "host", ADDRESS, "--password", "wrong", "--certificate", shown, code=6)
    if bare.daemon.kind == "incus":
        assert "Incus has no passwords" in wrong.stderr
        return
    assert "refuses our password" in wrong.stderr
    bare.daemon.tool("config", "set", "core.trust_password", "sesame")
    bare("remote", "add", "host", ADDRESS, "--password", "-", "--certificate", shown, stdin="sesame\n")
    bare.daemon.tool("config", "unset", "core.trust_password")
    assert listed(bare)[0]["name"] == "host"


def test_nobody_compared(bare: Remote) -> None:
    refused = bare("remote", "add", "host", ADDRESS, code=6)
    assert "nobody has compared" in refused.stderr
    other = bare("remote", "add", "host", ADDRESS, "--certificate", "0" * 64, code=6)
    assert "nothing was sent" in other.stderr
    assert listed(bare) == [] and not (bare.folder / "etc/servercerts").exists()


def test_token_for_another_server(bare: Remote) -> None:
    token = json.loads(base64.b64decode(bare.daemon.token("other")))
    token["fingerprint"] = "ab" * 32
    text = base64.b64encode(json.dumps(token).encode()).decode()
    assert "not abab" in bare("remote", "add", "host", ADDRESS, "--token", text, code=6).stderr
    assert "not a token" in bare("remote", "add", "host", ADDRESS, "--token", "abc", code=2).stderr


def test_certificate_changed(https: Remote) -> None:
    """Whatever answers there with another certificate hears nothing from us."""
    pin = https.folder / "etc/servercerts/host.crt"
    right = pin.read_text()
    https("remote", "show")
    pin.write_text((https.folder / "etc/client.crt").read_text())
    changed = https("remote", "show", "host", code=6)
    assert "another certificate" in changed.stderr and "remote trust host" in changed.stderr
    fingerprint = changed.stderr.split("is trusted: ")[1][:64]
    assert "nobody has compared" in https("remote", "trust", "host", code=6).stderr
    https("remote", "trust", "host:", "--certificate", fingerprint)
    assert pin.read_text() == right
    https("remote", "show", "host")


def test_project(bare: Remote) -> None:
    socket = str(bare.daemon.socket)
    wrong = bare("remote", "add", "host", socket, "--project", "nowhere", code=6)
    assert "no project `nowhere`" in wrong.stderr and "default" in wrong.stderr
    assert listed(bare) == []


def test_rename_default_remove(https: Remote) -> None:
    https("remote", "set-default", "host")
    https("remote", "rename", "host", "tower")
    assert listed(https)[0]["name"] == "tower" and listed(https)[0]["default"] is True
    https("remote", "show", "tower")
    assert "did you mean `tower`" in https("remote", "show", "towr", code=3).stderr
    https("remote", "remove", "tower")
    assert listed(https) == [] and list((https.folder / "etc/servercerts").iterdir()) == []


def test_import_of_the_vendors_client(bare: Remote) -> None:
    """Its key, its pinned certificate; no token is needed again."""
    theirs = bare.folder / "theirs"
    (theirs / "servercerts").mkdir(parents=True)
    daemon = bare.daemon
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9",
         "-subj", "/CN=them", "-keyout", theirs / "client.key", "-out", theirs / "client.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    (daemon.scratch / "them.crt").write_bytes((theirs / "client.crt").read_bytes())
    more = ("add-certificate",) if daemon.kind == "incus" else ("add",)
    daemon.tool("config", "trust", *more, str(daemon.scratch / "them.crt"))
    (theirs / "servercerts/far.crt").write_bytes((daemon.home / "server.crt").read_bytes())
    (theirs / "config.yml").write_text(
        "default-remote: local\nremotes:\n"
        f"  far:\n    addr: https://{ADDRESS}\n    auth_type: tls\n    protocol: lxd\n    public: false\n"
        "  images:\n    addr: https://images.example.org\n    protocol: simplestreams\n    public: true\n"
        "  local:\n    addr: unix://\n    public: false\n"
    )
    rows = json.loads(bare("remote", "import", str(theirs), "--format", "json").stdout)
    assert {row["name"]: row["outcome"] for row in rows} == {
        "far": "added", "images": "added", "local": "it is the client's own machine",
    }  # fmt: skip
    assert json.loads(bare("remote", "show", "far", "--format", "json").stdout)["trusts-us"] is True
    assert stat.S_IMODE((bare.folder / "etc/clientcerts/far.key").stat().st_mode) == 0o600
    assert bare("remote", "import", str(theirs), code=6).stdout.count("there is one of this name") == 2


def test_a_key_that_others_can_read(https: Remote) -> None:
    key = https.folder / "etc/client.key"
    key.chmod(0o644)
    assert "chmod 600" in https("remote", "add", "x", "--token", https.daemon.token("x"), code=5).stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("add", "local", "/x"), 4),
        (("add", "a b", "/x"), 2),
        (("add", "x", "ftp://x"), 2),
        (("add", "x", "https://h:99999"), 2),
        (("add", "x", "/nowhere/unix.socket"), 6),
        (("add", "x", "https://127.0.0.1:1"), 6),
        (("add", "x"), 2),
        (("remove", "x"), 3),
        (("set-default", "x"), 3),
        (("trust", "x"), 3),
        (("import", "/nowhere"), 3),
    ],
)
def test_refusals(ctr: Ctr, words: tuple[str, ...], code: int) -> None:
    result = ctr("remote", *words, code=code)
    assert result.stderr.startswith("error: ")
    assert not Path(ctr.folder / "etc/remotes").exists()
