"""What a certificate says of its owner, in the same words at both listeners."""

from __future__ import annotations

import ssl

from gateway.net.tls.client_subject import ClientSubject, grpc_subject, http_subject, subject_of_der
from tests.kit.certificates import Authority


class Call:
    def __init__(self, **reported: list[bytes]) -> None:
        self._reported = reported

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._reported


def test_http_and_grpc_return_the_same_subject_of_a_certificate() -> None:
    pem, _ = Authority().sign("billing, inc.", organization="Example")
    reported = grpc_subject(Call(transport_security_type=[b"ssl"], x509_pem_cert=[pem]))
    assert reported == ClientSubject("CN=billing\\, inc.,O=Example", "billing, inc.")
    subject = subject_of_der(ssl.PEM_cert_to_DER_cert(pem.decode()))
    assert subject == reported
    assert http_subject({"state": {"tls_subject": subject}}) == reported


def test_a_client_without_a_certificate_has_no_subject() -> None:
    assert grpc_subject(Call()) is None
    assert grpc_subject(Call(transport_security_type=[b"ssl"])) is None
    assert http_subject({"state": {}}) is None
    assert http_subject({}) is None
