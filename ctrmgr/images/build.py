# SPDX-License-Identifier: GPL-3.0-or-later
"""`image build debian:trixie`: a distribution's root filesystem by mmdebstrap, with this machine's own apt sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading

from ctrmgr.errors import HostError, SpecError
from ctrmgr.images import store
from ctrmgr.images.importing import import_stream, silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctrmgr.images.importing import Progress

CHUNK = 1 << 20
SUITE = re.compile(r"[a-z][a-z0-9-]{1,30}")
KEYRINGS = "/usr/share/keyrings"
INCLUDE = ("systemd-sysv", "dbus", "iproute2", "procps")
"""So that it boots, answers `systemctl`, and people can look around."""


class Distribution:
    """`origin` is the repository's own name for itself, in its Release file."""

    __slots__ = ("components", "keyring", "origin")

    def __init__(self, origin: str, keyring: str, components: str) -> None:
        self.origin, self.keyring, self.components = origin, keyring, components


DISTRIBUTIONS = {
    "debian": Distribution("Debian", "debian-archive-keyring", "main"),
    "ubuntu": Distribution("Ubuntu", "ubuntu-keyring", "main universe"),
}


def build(what: str, *, include: Sequence[str] = (), alias: str = "", progress: Progress = silent) -> store.Image:
    """Build `DISTRIBUTION:SUITE`; its alias is `alias`, or `what`. Raises SpecError, HostError."""
    name, colon, suite = what.partition(":")
    distribution = DISTRIBUTIONS.get(name)
    if distribution is None or not colon or not SUITE.fullmatch(suite):
        known = ", ".join(f"`{word}:SUITE`" for word in DISTRIBUTIONS)
        raise SpecError(f"`{what}` cannot be built", hint=f"one of {known}, for example `debian:trixie`")
    for package in include:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", package):
            raise SpecError(f"`{package}` is no package name")
    store.check_alias(alias or what)
    packages = ",".join([*INCLUDE, *include])
    # The death signal lets it clean up behind itself when we are killed.
    command = [
        "setpriv",
        "--pdeathsig",
        "TERM",
        "mmdebstrap",
        "--variant=minbase",
        f"--include={packages}",
        "--format=tar",
        # Until it is an image, nothing of it must outlive a power cut: no sync for each file of each package.
        "--dpkgopt=force-unsafe-io",
        '--customize-hook=rm -f "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"',
        *_apt_options(),
    ]
    command += [suite, "-", *_sources(distribution, name, suite)]
    image, _ = import_stream(
        lambda write: _run(command, what, write, progress),
        source=what,
        tick=lambda done: progress("unpacking", done, 0) if done else None,
    )
    store.set_alias(alias or what, image.fingerprint)
    return image


def _run(command: list[str], what: str, write: Callable[[bytes], object], progress: Progress) -> None:
    progress("downloading packages", 0, 0)
    if not shutil.which("mmdebstrap"):
        raise HostError(f"building `{what}` needs the program mmdebstrap", hint="install the package `mmdebstrap`")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError as error:
        raise HostError(f"building `{what}` needs the program {error.filename}") from None
    assert process.stdout and process.stderr
    said: list[str] = []
    stderr = process.stderr
    listener = threading.Thread(target=lambda: said.extend(_lines(stderr.read())), daemon=True)
    listener.start()
    try:
        while data := process.stdout.read(CHUNK):
            write(data)
    except BaseException:
        process.terminate()
        raise
    finally:
        process.stdout.close()
        status = process.wait()
        listener.join()
    if status:
        errors = [line for line in said if line.startswith(("E:", "Err:"))] or said or ["no reason given"]
        raise HostError(
            f"mmdebstrap cannot build `{what}`: {errors[0]}",
            hint="is there such a suite, and is the package mirror reachable?",
        )


def _lines(data: bytes) -> list[str]:
    return [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]


def _sources(distribution: Distribution, name: str, suite: str) -> list[str]:
    """apt source lines for `suite` on this machine's mirrors; none, and mmdebstrap takes its own defaults."""
    keyring = f"{KEYRINGS}/{distribution.keyring}.gpg"
    if name == "ubuntu" and not os.path.exists(f"{KEYRINGS}/ubuntu-archive-keyring.gpg"):
        raise HostError("the keys of Ubuntu's archive are missing", hint="install the package `ubuntu-keyring`")
    signed = f"[signed-by={keyring}] " if os.path.exists(keyring) else ""
    lines = []
    for uri, pocket in _mirrors(distribution.origin):
        if pocket and suite in ("sid", "unstable", "experimental"):
            continue
        lines.append(f"deb {signed}{uri} {suite}{pocket} {distribution.components}")
    # Without the main archive of the distribution the others are of no use.
    return lines if any(line.endswith(f" {suite} {distribution.components}") for line in lines) else []


def _mirrors(origin: str) -> list[tuple[str, str]]:
    """(URI, pocket: nothing, `-updates` or `-security`) of the distribution, as apt is configured here."""
    form = "$(ORIGIN)\t$(REPO_URI)\t$(RELEASE)"
    try:
        listed = subprocess.run(
            ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return []
    found: list[tuple[str, str]] = []
    for line in listed.stdout.splitlines():
        fields = line.split("\t")
        if len(fields) != 3 or fields[0] != origin:
            continue
        suite, dash, pocket = fields[2].partition("-")
        mirror = (fields[1], dash + pocket)
        if suite and mirror[1] in ("", "-updates", "-security") and mirror not in found:
            found.append(mirror)
    return found


def _apt_options() -> list[str]:
    """How this machine's apt reaches its mirrors (proxies, certificates); kept out of the image."""
    try:
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return []
    wanted = [line for line in dump.splitlines() if re.match(r'Acquire::https?::.*"[^"]+";', line)]
    options = [f"--aptopt={line}" for line in dict.fromkeys(wanted)]
    return [*options, '--customize-hook=rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"'] if options else []
