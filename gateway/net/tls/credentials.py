"""Whether other brokers will take this one's certificate where they require one of their clients: asked of OpenSSL, by a handshake
with itself in memory, in which the broker is both.

What is not judged is time: a certificate that has ended is told by its alert, and must not keep a broker from starting.

A certificate and its private key as PEM files, those of a broker or of a client, given to a context of TLS.

The authorities that this machine trusts, for gRPC, which by itself goes by those that it brings along.
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
# As OpenSSL counts what may be wrong with a certificate.
_HAS_EXPIRED: Final = 10
# Of the handshake: it takes two of each side.
_STEPS_MAX: Final = 8


def check_usable_as_client(cert_file: Path, key_file: Path, authorities: Sequence[Certificate]) -> str:
    """What a broker that goes by these authorities says of this one as its client; empty where it takes it.

    Raises InvalidArgument where certificate and key do not fit together.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_key_pair(server, cert_file, key_file, setting="tls_key_file")
    server.load_verify_locations(cadata=b"".join(each.public_bytes(Encoding.DER) for each in authorities))
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does: an authority in the middle will do
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    load_key_pair(client, cert_file, key_file, setting="tls_key_file")
    try:
        _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        return "" if error.verify_code in {_NOT_YET_VALID, _HAS_EXPIRED} else error.verify_message
    except ssl.SSLError as error:  # as of a key on a curve that TLS 1.3 does not know
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
    """`setting`: what named the key's file. Raises InvalidArgument where one can't be read, the two do not fit together, or
    a password is wanted."""
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
            hint="Look whether both files are there, and may be read.",
        ) from None


BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine; OpenSSL finds its folder there, and names no file
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat, Fedora, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


def system_authorities() -> bytes | None:
    """PEM, by SSL_CERT_FILE where that is set, as for HTTP. None: no bundle is found, and those that gRPC brings along count."""
    for path in (ssl.get_default_verify_paths().cafile, *BUNDLES):
        try:
            if path:
                return Path(path).read_bytes()
        except OSError:
            continue
    return None
