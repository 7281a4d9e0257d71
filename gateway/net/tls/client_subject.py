"""Reads the subject of a verified client certificate, in the same form for both listeners. Pure.

  HTTP   http/server.py stores the subject once per connection      ─▶ http_subject(scope)
  gRPC   grpc's auth_context holds the certificate of each call     ─▶ grpc_subject(context)

Invariant: only subjects that TLS has verified against `tls_client_ca_file` are returned: a certificate that fails ends the
handshake,
so such a connection makes no call. None: the client sent no certificate, was not asked for one, or there is no TLS.
Source: RFC 4514 for the text of a subject
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# Key in the `state` of an ASGI scope.
STATE_KEY: Final = "tls_subject"
# Certificates whose parsed subject is cached.
REMEMBERED_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class ClientSubject:
    """Names the subject of a verified client certificate."""

    # The whole name, the most specific part first: CN=billing,OU=payments,O=Example.
    subject: str
    # The first if there are several; empty if there is none.
    common_name: str


class AuthenticatedCall(Protocol):
    """Gives access to the authentication context of a gRPC call."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


def http_subject(scope: MutableMapping[str, Any]) -> ClientSubject | None:
    """Returns the verified subject of an HTTP request's connection."""
    found: ClientSubject | None = (scope.get("state") or {}).get(STATE_KEY)
    return found


def grpc_subject(context: AuthenticatedCall) -> ClientSubject | None:
    """Returns the verified subject of a gRPC call's connection."""
    for pem in context.auth_context().get("x509_pem_cert") or ():
        return subject_of_pem(pem)
    return None


# cryptography is imported with the first certificate, so a broker without TLS starts without it


@lru_cache(maxsize=REMEMBERED_MAX)
def subject_of_pem(pem: bytes) -> ClientSubject:
    from cryptography.x509 import load_pem_x509_certificate

    return _subject(load_pem_x509_certificate(pem))


def subject_of_der(der: bytes) -> ClientSubject:
    from cryptography.x509 import load_der_x509_certificate

    return _subject(load_der_x509_certificate(der))


def _subject(certificate: Certificate) -> ClientSubject:
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return ClientSubject(certificate.subject.rfc4514_string(), str(names[0].value) if names else "")
