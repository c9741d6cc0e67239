# SPDX-License-Identifier: GPL-3.0-or-later
"""Our own certificate and key, made once: what servers know us by."""

from __future__ import annotations

import os
import stat

from ctrmgr import state
from ctrmgr.errors import HostError
from ctrmgr.remote import registry

DAYS = 3650


def ensure() -> tuple[str, str]:
    """The files of certificate and key, made when there are none. Raises HostError for a key that others can read."""
    certificate, key = registry.identity_paths()
    folder = os.path.dirname(key)
    state.make_dir(folder, 0o755)
    with state.Lock(folder):
        if not os.path.exists(certificate) or not os.path.exists(key):
            _make(certificate, key)
    check(key)
    return certificate, key


def check(key: str) -> None:
    """Raises HostError when the key is not ours alone."""
    try:
        found = os.stat(key)
    except OSError as error:
        raise state.unreadable(key, error) from error
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise HostError(
            f"`{key}` can be read by others (mode {stat.S_IMODE(found.st_mode):04o})", hint=f"chmod 600 {key}"
        )


def _make(certificate: str, key: str) -> None:
    import datetime
    import socket

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import oid

    private = ec.generate_private_key(ec.SECP384R1())
    owner = f"{os.environ.get('SUDO_USER') or os.environ.get('USER') or 'root'}@{socket.gethostname()}"[:64]
    name = x509.Name(
        [
            x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, "ctrmgr"),
            x509.NameAttribute(oid.NameOID.COMMON_NAME, owner),
        ]
    )
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(private, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    secret = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # The key first: a certificate without its key would be taken for a whole pair by nobody.
    state.write_file(key, secret, 0o600)
    state.write_file(certificate, made.public_bytes(pem), 0o644)


def fingerprint() -> str:
    """Of our own certificate; "" when there is none yet."""
    import ssl

    from ctrmgr.remote.wire import fingerprint as of

    path = registry.identity_paths()[0]
    try:
        with open(path, encoding="ascii") as file:
            return of(ssl.PEM_cert_to_DER_cert(file.read()))
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise state.unreadable(path, error) from error
    except ValueError:
        raise state.corrupt(path, 1, "is not a certificate") from None
