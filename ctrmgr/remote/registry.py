# SPDX-License-Identifier: GPL-3.0-or-later
"""Which remotes there are: `remotes` in the configuration folder, and a pinned certificate for each that is reached by https."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.errors import ConflictError, NotFoundError, SpecError
from ctrmgr.remote.wire import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
LOCAL = "local"
"""This machine. No remote can have its name."""
SERVERS = ("lxd", "incus")
IMAGES = "simplestreams"


class Remote:
    """A server by its name. `kind` is `lxd`, `incus`, or `simplestreams` for one that has only images."""

    __slots__ = ("kind", "name", "project", "url")

    def __init__(self, name: str, url: str, kind: str, project: str = "") -> None:
        self.name, self.url, self.kind, self.project = name, url, kind, project

    def target(self) -> Target:
        """Raises NotFoundError when its certificate, or ours, is missing."""
        if self.url.startswith("unix://"):
            return Target(self.name, self.url)
        return Target(self.name, self.url, certificate=pinned(self.name), identity=identity_of(self.name))


class Remotes:
    """All of them in the order in which they were added, and which of them is meant by a word that begins with `:`."""

    def __init__(self, found: Iterable[Remote] = (), default: str = "") -> None:
        self.by_name = {remote.name: remote for remote in found}
        self.default = default

    def get(self, name: str) -> Remote:
        """Raises NotFoundError with what there is."""
        wanted = name or self.default
        if not wanted:
            raise NotFoundError("no remote is the default", hint="`ctrmgr remote set-default NAME`")
        if wanted not in self.by_name:
            raise NotFoundError(f"no remote `{wanted}`", hint=_near(wanted, list(self.by_name)))
        return self.by_name[wanted]


def _near(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there are: {', '.join(known)}" if known else "`ctrmgr remote add NAME URL`"


def _path() -> str:
    return state.config_dir() + "/remotes"


def load() -> Remotes:
    """Raises CtrmgrError when the file is corrupt."""
    path = _path()
    try:
        rows = state.read_flat(path)
    except FileNotFoundError:
        return Remotes()
    found, default = [], ""
    for number, row in enumerate(rows, 1):
        if row[0] == "default" and len(row) == 2:
            default = row[1]
        elif row[0] == "remote" and len(row) == 5:
            found.append(Remote(row[1], row[2], row[3], row[4]))
        else:
            raise state.corrupt(path, number, f"begins with `{row[0]}`")
    return Remotes(found, default)


def save(remotes: Remotes) -> None:
    rows = [["remote", each.name, each.url, each.kind, each.project] for each in remotes.by_name.values()]
    state.write_flat(_path(), [*rows, *([["default", remotes.default]] if remotes.default else [])])


class Opened:
    """`with Opened() as remotes`: nobody else writes meanwhile; saved at the end unless the block raises."""

    def __init__(self) -> None:
        state.make_dir(state.config_dir(), 0o755)
        self.lock = state.Lock(state.config_dir())

    def __enter__(self) -> Remotes:
        self.lock.__enter__()
        try:
            self.remotes = load()
        except BaseException:
            self.lock.__exit__(None, None, None)
            raise
        return self.remotes

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                save(self.remotes)
        finally:
            self.lock.__exit__(None, None, None)


def check_name(name: str) -> str:
    """Raises SpecError for what cannot be a remote's name, ConflictError for this machine's."""
    if not 0 < len(name) <= 64 or name[0] in ".-" or not set(name) <= LETTERS:
        raise SpecError(
            f"`{name}` cannot be the name of a remote", hint="letters, digits, `-`, `_` and `.`; at most 64"
        )
    if name == LOCAL:
        raise ConflictError("`local` is this machine", hint="choose another name")
    return name


def certificate_path(name: str) -> str:
    return f"{state.config_dir()}/servercerts/{name}.crt"


def identity_paths() -> tuple[str, str]:
    """Our own certificate and its key."""
    folder = state.config_dir()
    return f"{folder}/client.crt", f"{folder}/client.key"


def own_identity_paths(name: str) -> tuple[str, str]:
    """A pair for one remote alone: taken over from another client."""
    folder = f"{state.config_dir()}/clientcerts"
    return f"{folder}/{name}.crt", f"{folder}/{name}.key"


def identity_of(name: str) -> tuple[str, str]:
    """What a remote knows us by."""
    own = own_identity_paths(name)
    return own if os.path.exists(own[1]) else identity_paths()


def forget(name: str) -> None:
    """Remove the files of a remote that is no longer registered."""
    for path in (certificate_path(name), *own_identity_paths(name)):
        state.unlink(path)


def pinned(name: str) -> bytes:
    """A remote's certificate (DER). Raises NotFoundError."""
    path = certificate_path(name)
    try:
        with open(path, "rb") as file:
            return der(file.read())
    except FileNotFoundError:
        raise NotFoundError(f"the certificate of `{name}` is missing", hint=f"`ctrmgr remote trust {name}`") from None
    except OSError as error:
        raise state.unreadable(path, error) from error
    except ValueError:
        raise state.corrupt(path, 1, "is not a certificate") from None


def der(text: bytes) -> bytes:
    """The bytes of a certificate that is written as text (PEM). Raises ValueError."""
    import binascii

    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    found = text.strip()
    if not found.startswith(begin) or not found.endswith(end):
        raise ValueError("no certificate")
    return binascii.a2b_base64(found[len(begin) : -len(end)])


def pin(name: str, certificate: bytes) -> None:
    import ssl

    path = certificate_path(name)
    state.make_dir(os.path.dirname(path), 0o755)
    state.write_file(path, ssl.DER_cert_to_PEM_cert(certificate).encode(), 0o644)


def split(word: str) -> tuple[str, str] | None:
    """`host2:c1` → remote and instance; None for a word that means this machine."""
    remote, colon, name = word.partition(":")
    if not colon:
        return None
    return remote, name
