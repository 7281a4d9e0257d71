"""Loads certificates with their keys, and checks that other brokers would accept this broker's certificate as a client's.

The check is a TLS handshake in memory in which the broker is both sides. Expiry does not count: an expired certificate raises an
alert,
and must not keep a broker from starting. The module also finds the system's trusted authorities for gRPC, which by default uses its
own.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate

from metadata.errors import InvalidArgument

_NOT_YET_VALID: Final = 9
# OpenSSL's verification error codes.
_HAS_EXPIRED: Final = 10
# Most steps of the handshake; it takes two of each side.
_STEPS_MAX: Final = 8


def check_usable_as_client(cert_file: Path, key_file: Path, authorities: Sequence[Certificate]) -> str:
    """Returns why a broker that trusts these authorities would refuse this one as its client; empty if it would not.

    Raises InvalidArgument if certificate and key do not match.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_key_pair(server, cert_file, key_file, setting="tls_key_file")
    server.load_verify_locations(cadata=b"".join(each.public_bytes(Encoding.DER) for each in authorities))
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does: an intermediate authority suffices
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    load_key_pair(client, cert_file, key_file, setting="tls_key_file")
    try:
        _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        return "" if error.verify_code in {_NOT_YET_VALID, _HAS_EXPIRED} else error.verify_message
    except ssl.SSLError as error:  # for example a key on a curve that TLS 1.3 does not know
        return f"no handshake can be made with its key, where RSA or P-256 would do ({error.reason or error})"
    return ""


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_STEPS_MAX):
        waiting = 0
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            return
    raise AssertionError("the handshake with itself does not come to an end")


def load_key_pair(context: ssl.SSLContext, cert_file: Path | str, key_file: Path | str, *, setting: str) -> None:
    """Loads a certificate with its key; `setting` is the setting that names the key's file. Raises InvalidArgument if one cannot be
    read, they do not match, or the key has a password."""
    try:
        context.load_cert_chain(cert_file, key_file, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument(
            f"{setting}: {key_file} is not the key of the certificate in {cert_file}, or has a password "
            f"({getattr(error, 'reason', None) or error})",
            hint="Name the PEM file of its private key, without a password.",
        ) from None
    except OSError as error:  # OpenSSL does not say which of the two
        raise InvalidArgument(
            f"{setting}: the certificate in {cert_file} and its key in {key_file} can't both be read ({error.strerror or error})",
            hint="Check that both files exist and are readable.",
        ) from None


BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine; OpenSSL finds its folder there, and names no file
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat, Fedora, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


def system_authorities() -> bytes | None:
    """Returns the system's authorities as PEM, from SSL_CERT_FILE if that is set. None: no bundle is found; gRPC's own apply."""
    for path in (ssl.get_default_verify_paths().cafile, *BUNDLES):
        try:
            if path:
                return Path(path).read_bytes()
        except OSError:
            continue
    return None
