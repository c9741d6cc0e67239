# SPDX-License-Identifier: GPL-3.0-or-later
"""Unpacked images, addressed by their content, and the aliases that people call them by.

    STATE/images/FINGERPRINT/rootfs/     the files, owned by the image's own ids
    STATE/images/FINGERPRINT/metadata    flat: `key<TAB>value`
    STATE/aliases/ALIAS                  symlink whose text is the fingerprint

A directory that has its final name is complete: it was filled as `.new-…` and renamed.
`STATE/images` has mode 0700, or a setuid program of an image would be one of the host.
"""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.errors import CtrmgrError, HostError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

BUSYBOX = "builtin:busybox"
ALIAS_MAX = 200


class Image:
    """One image of the store.

    `metadata` has the keys init (a path in the image, or `builtin`), halt-signal (number), os, release,
    architecture, description, size (bytes), created (seconds since 1970), source.
    """

    __slots__ = ("fingerprint", "metadata", "path", "rootfs")

    def __init__(self, fingerprint: str, path: str, metadata: dict[str, str]) -> None:
        self.fingerprint, self.path, self.metadata = fingerprint, path, metadata
        self.rootfs = path + "/rootfs"


def images_dir() -> str:
    return state.state_dir() + "/images"


def aliases_dir() -> str:
    return state.state_dir() + "/aliases"


def make_dirs() -> None:
    """Make the store's directories. Raises OSError."""
    os.makedirs(images_dir(), mode=0o700, exist_ok=True)
    os.chmod(images_dir(), 0o700)
    os.makedirs(aliases_dir(), mode=0o755, exist_ok=True)


def find(ref: str) -> Image:
    """The image that an alias, a fingerprint or a unique prefix of one names; `builtin:busybox` is made when missing.

    Raises NotFoundError (hint: the nearest alias), SpecError (ambiguous prefix), CtrmgrError (broken image).
    """
    target = alias_target(ref)
    if target is not None:
        try:
            return load(target)
        except NotFoundError:
            # An alias whose image a crash took away: as good as none.
            pass
    if ref == BUSYBOX:
        from ctrmgr.images import embedded

        return load(embedded.build())
    if is_hex(ref):
        return load(complete(ref))
    raise not_found(ref)


def load(fingerprint: str) -> Image:
    """The image with exactly this fingerprint. Raises NotFoundError, or CtrmgrError when its metadata is broken."""
    path = f"{images_dir()}/{fingerprint}"
    try:
        rows = state.read_flat(path + "/metadata")
    except FileNotFoundError:
        if os.path.isdir(path):
            raise CtrmgrError(
                f"image `{fingerprint[:12]}` is broken: it has no metadata",
                hint=f"`ctrmgr image delete {fingerprint[:12]}` and import it again",
            ) from None
        raise not_found(fingerprint) from None
    except HostError:
        raise
    except CtrmgrError as error:
        raise CtrmgrError(
            f"image `{fingerprint[:12]}` is broken: {error.message}",
            hint=f"`ctrmgr image delete {fingerprint[:12]}` and import it again",
        ) from None
    return Image(fingerprint, path, {row[0]: row[1] for row in rows if len(row) == 2})


def fingerprints() -> list[str]:
    """Every image of the store, sorted."""
    return sorted(name for name in state.entries(images_dir()) if is_hex(name) and len(name) == 64)


def complete(prefix: str) -> str:
    """The one fingerprint that begins with `prefix`. Raises NotFoundError or SpecError."""
    matches = [name for name in fingerprints() if name.startswith(prefix)]
    if not matches:
        raise not_found(prefix)
    if len(matches) > 1:
        shown = ", ".join(name[:12] for name in matches[:4])
        raise SpecError(f"image `{prefix}` is ambiguous", hint=f"it begins {shown}: give more of the fingerprint")
    return matches[0]


def is_hex(word: str) -> bool:
    return bool(word) and len(word) <= 64 and not word.strip("0123456789abcdef")


def alias_path(name: str) -> str:
    # Aliases may hold slashes (`debian/13`), file names may not.
    return f"{aliases_dir()}/{name.replace('%', '%25').replace('/', '%2F')}"


def alias_target(name: str) -> str | None:
    """The fingerprint that `name` stands for."""
    try:
        return os.readlink(alias_path(name)) if name else None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL, errno.ENAMETOOLONG):
            return None
        raise state.unreadable(alias_path(name), error) from error


def aliases() -> Iterator[tuple[str, str]]:
    """(alias, fingerprint), sorted by alias."""
    for name in sorted(state.entries(aliases_dir())):
        alias = name.replace("%2F", "/").replace("%25", "%")
        target = None if name.startswith(".") else alias_target(alias)
        if target is not None:
            yield alias, target


def check_alias(name: str) -> None:
    """Raises SpecError for what cannot be an alias."""
    if not name or len(name) > ALIAS_MAX or name[0] in ".-/" or not name.isprintable() or " " in name:
        raise SpecError(
            f"`{name}` cannot be an image alias",
            hint=f"1–{ALIAS_MAX} printable characters without spaces, not beginning with `.`, `-` or `/`",
        )


def set_alias(name: str, fingerprint: str) -> None:
    """Let `name` stand for the image, whatever it stood for before. Atomic. Raises SpecError, OSError."""
    check_alias(name)
    path = alias_path(name)
    aside = f"{aliases_dir()}/.new-{os.getpid()}-{hash(name) & 0xFFFFFFFF:x}"
    try:
        os.symlink(fingerprint, aside)
        os.rename(aside, path)
    except OSError:
        try:
            os.unlink(aside)
        except FileNotFoundError:
            pass
        raise


def drop_alias(name: str) -> None:
    """Forget the alias, if it is there; the image stays. Raises OSError."""
    try:
        os.unlink(alias_path(name))
    except FileNotFoundError:
        pass


def not_found(ref: str) -> NotFoundError:
    from difflib import get_close_matches

    names = [BUSYBOX, *(name for name, _ in aliases())]
    near = get_close_matches(ref, names, 1, 0.5)
    hint = f"did you mean `{near[0]}`?" if near else "`ctrmgr image list` shows what there is"
    return NotFoundError(f"no image `{ref}`", hint=hint)
