"""Certificates for tests: an authority, and what it signs for 127.0.0.1, or for others."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(hours=1)
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: of the authority, of a server on 127.0.0.1, and of a client."""

    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path


class Authority:
    """It lives in memory; its certificate and what it signs are bytes of PEM."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _signed([(NameOID.COMMON_NAME, name)], self._key, self._key, issuer=None)

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def sign(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = (LOOPBACK,),
        organization: str = "",
        ended: bool = False,
        valid: datetime.timedelta = _VALID,
        for_clients: bool = True,
        curve: type[ec.EllipticCurve] = ec.SECP256R1,
    ) -> tuple[bytes, bytes]:
        """A certificate and its key. `hosts`: names and addresses that it holds for; `ended`: half an hour ago; `for_clients`:
        whether it may be shown by a client, too; `curve`: of its key."""
        private = ec.generate_private_key(curve())
        subject = [(NameOID.COMMON_NAME, name)]
        if organization:
            subject.insert(0, (NameOID.ORGANIZATION_NAME, organization))
        signed = _signed(
            subject,
            private,
            self._key,
            issuer=self._certificate,
            hosts=hosts,
            valid=-valid / 2 if ended else valid,
            for_clients=for_clients,
        )
        return signed.public_bytes(serialization.Encoding.PEM), private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make_certificates(directory: Path, authority: Authority | None = None, *, client: str = "client") -> Certificates:
    """New certificates of this authority, or of a new one, in the directory. Overwrites those that are there."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = authority or Authority()
    made = Certificates(*(directory / f"{name}.pem" for name in ("ca", "server", "server-key", "client", "client-key")))
    made.ca.write_bytes(authority.pem)
    for name, cert, key in (("server", made.cert, made.key), (client, made.client_cert, made.client_key)):
        signed, private = authority.sign(name)
        cert.write_bytes(signed)
        key.touch(mode=0o600)
        key.write_bytes(private)
    return made


def _signed(
    names: list[tuple[x509.ObjectIdentifier, str]],
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Certificate | None,
    hosts: tuple[str, ...] = (),
    valid: datetime.timedelta = _VALID,
    for_clients: bool = True,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(kind, name) for kind, name in names])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + valid)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if for_clients else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(by, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
