"""Explains in words why a TLS connection failed: gRPC reports only that it did.

It is asked by a handshake of our own, whose errors are precise. What each means, and what to do:

    unknown authority · ended, or not valid yet · another name · no TLS there · TLS there and none here · our certificate is wanted
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from tidelog.transport.credentials import Credentials

_EXPIRED, _NOT_YET = 10, 9
# Of host and of address. X509_V_ERR_… of OpenSSL, as the others.
_NAME_MISMATCHES = (62, 64)
_UNWANTED: Final = (
    *("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "DECRYPT_ERROR"),
    "ALERT_HANDSHAKE_FAILURE",  # TLS 1.2, where none was shown
)
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE")
# With TLS 1.3, a server that does not take our certificate says so, or hangs up, only after what is the handshake here.
LAST_WORD_S: Final = 0.5


class TlsProblem(NamedTuple):
    """A TLS problem with its remedy."""

    cause: str
    remedy: str


def diagnose_tls(host: str, port: int, credentials: Credentials, *, protocol: str, timeout_s: float) -> TlsProblem | None:
    """Returns the TLS problem at this address; None if there is none, or no connection at all. Blocks.

    `protocol`: the protocol to speak over it, h2 or http/1.1.
    """
    context = credentials.ssl_context()
    context.set_alpn_protocols([protocol])
    try:
        with connected(context, host, port, timeout_s=timeout_s) as connection, suppress(TimeoutError):
            connection.settimeout(LAST_WORD_S)
            if not connection.recv(1):
                return _unwanted(credentials)
    except ssl.SSLError as error:
        return trouble_of(error, host, port, credentials)
    except ConnectionResetError:
        return _unwanted(credentials)
    except OSError:
        return None
    return None


@contextmanager
def connected(context: ssl.SSLContext, host: str, port: int, *, timeout_s: float) -> Iterator[ssl.SSLSocket]:
    """Connects to the first address that answers, and makes the handshake; the connection is closed in the end. OSError, which an
    SSLError is.

    Wrapped before it is connected: where the other end of a connected one has hung up, Python 3.11 loses what it wraps, unclosed.
    """
    host = host.strip("[]")
    candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for left, (family, kind, number, _, address) in zip(range(len(candidates) - 1, -1, -1), candidates, strict=True):
        with socket.socket(family, kind, number) as plain, context.wrap_socket(plain, server_hostname=host) as connection:
            connection.settimeout(timeout_s)
            try:
                connection.connect(address)
            except ssl.SSLError:
                raise
            except OSError:
                if left:
                    continue
                raise
            yield connection
            return


def trouble_of(error: ssl.SSLError, host: str, port: int, credentials: Credentials) -> TlsProblem:
    """Diagnoses an error that is known already."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error, host, port, credentials)
    if any(sign in reason for sign in _NO_TLS):
        return TlsProblem("what answers there does not speak TLS", "Write http:// or grpc:// in the address.")
    if any(sign in reason for sign in _UNWANTED):
        return _unwanted(credentials)
    if "CERTIFICATE_EXPIRED" in reason:
        return TlsProblem("this client's certificate has ended", "Put a new one into cert_file and key_file.")
    return TlsProblem(f"the TLS handshake failed: {reason}", "Look at both ends' certificates: `tidelog doctor --url URL`.")


def _unwanted(credentials: Credentials) -> TlsProblem:
    if credentials.has_certificate:
        return TlsProblem(
            "it does not take this client's certificate",
            "Use one that is signed by an authority of its tls_client_ca_file, and has not ended (cert_file, key_file).",
        )
    return TlsProblem("it wants a certificate of this client", "Name one: cert_file and key_file (--cert-file, --key-file).")


def _unverified(error: ssl.SSLCertVerificationError, host: str, port: int, credentials: Credentials) -> TlsProblem:
    asked = credentials.server_name or host.strip("[]")
    if error.verify_code == _EXPIRED:
        return TlsProblem("its certificate has ended", "Put a new one into the broker's tls_cert_file; look at the clocks.")
    if error.verify_code == _NOT_YET:
        return TlsProblem("its certificate is not valid yet", "Look at the clocks of both machines.")
    if error.verify_code in _NAME_MISMATCHES:
        names = ", ".join(_names(host, port, credentials)) or "no name at all"
        return TlsProblem(
            f"its certificate is not for {asked}; it holds {names}",
            "Use one of its names in the address, or name the one to look for (tls_server_name), or put this one into it.",
        )
    return TlsProblem(
        f"its certificate is signed by an authority that is not known here ({error.verify_message})",
        "Name the file of that authority: ca_file (--ca-file, TIDELOG_CA_FILE).",
    )


def _names(host: str, port: int, credentials: Credentials) -> list[str]:
    """Returns the names in the certificate of this address."""
    from cryptography import x509

    der = peer_certificate(host, port, credentials, timeout_s=2.0)
    if der is None:
        return []
    try:
        found = x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in found]


def peer_certificate(host: str, port: int, credentials: Credentials, *, timeout_s: float) -> bytes | None:
    """Returns the peer's certificate, unverified; None without TLS. Only for diagnosis. Blocks."""
    try:
        with connected(credentials.ssl_context(verify=False), host, port, timeout_s=timeout_s) as connection:
            return connection.getpeercert(binary_form=True)
    except OSError:  # an SSLError as well
        return None
