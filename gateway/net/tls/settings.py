"""Holds the settings of TLS: the listeners' certificates, and which clients and brokers are trusted. Pure; checked when they are
made.

  loopback        needs nothing
  anywhere else   TLS and authenticated clients: by `authentication`, or by certificates (`tls_client_auth = required`);
                  else the broker does not start, unless `insecure_listeners` permits it

Invariant: a TlsSettings has whole pairs, and names an authority if it asks clients for certificates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from math import isfinite
from pathlib import Path
from types import MappingProxyType

from metadata.errors import InvalidArgument

CLIENT_AUTH = ("off", "optional", "required")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Holds the settings of TLS on both listeners and between brokers."""

    # PEM file of this broker's certificate and its intermediates. With it, both listeners speak TLS only.
    tls_cert_file: Path | None = None
    # PEM file of its private key, without a password.
    tls_key_file: Path | None = None
    # PEM file of the authorities that sign clients' certificates.
    tls_client_ca_file: Path | None = None
    # Whether clients show certificates: off, optional or required. With optional, the gRPC listener asks for none, since its
    # library can only require one.
    tls_client_auth: str = "off"
    # PEM file of the authorities by which this broker checks the others. Default: tls_client_ca_file, else the system's.
    tls_peer_ca_file: Path | None = None
    # The name that the other brokers' certificates must hold, where brokers are advertised by addresses that no certificate holds,
    # such as those of pods. Empty: the host at which each broker is advertised.
    tls_peer_name: str = ""
    # How often these files are read again. A change applies to new connections only.
    tls_reload_ms: float = 10_000.0
    # Lets the broker listen beyond loopback without TLS or without authentication.
    insecure_listeners: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            missing = "tls_key_file" if self.tls_key_file is None else "tls_cert_file"
            raise InvalidArgument(f"{missing} is not set", hint="tls_cert_file and tls_key_file go together.")
        if self.tls_client_auth not in CLIENT_AUTH:
            raise InvalidArgument(f"tls_client_auth is {self.tls_client_auth!r}", hint=f"Use one of {', '.join(CLIENT_AUTH)}.")
        for name in ("tls_client_ca_file", "tls_peer_ca_file", "tls_peer_name"):
            if getattr(self, name) and not self.is_on:
                raise InvalidArgument(
                    f"{name} is set, and tls_cert_file is not: the listeners speak no TLS",
                    hint="Set tls_cert_file and tls_key_file.",
                )
        if self.tls_client_auth != "off" and self.tls_client_ca_file is None:
            raise InvalidArgument(
                f"tls_client_auth is {self.tls_client_auth}, and tls_client_ca_file is not set",
                hint="Name the PEM file of the authorities that sign clients' certificates.",
            )
        if not (isfinite(self.tls_reload_ms) and self.tls_reload_ms > 0):
            raise InvalidArgument(f"tls_reload_ms is {self.tls_reload_ms}; it must be a number above 0")

    @property
    def is_on(self) -> bool:
        return self.tls_cert_file is not None


def is_loopback(address: str) -> bool:
    """Returns whether only this machine reaches HOST:PORT. Names other than localhost count as reachable from elsewhere."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_listeners(
    tls: TlsSettings, *, http: str, grpc: str, authentication: bool, kafka: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises InvalidArgument where the listeners would be open to strangers: see the picture above.

    `kafka`: the address of each Kafka listener, by its name.
    """
    addresses = {"http": http, "grpc": grpc, **{f"the Kafka listener {name}": address for name, address in kafka.items()}}
    beyond = [f"{listener} on {address}" for listener, address in addresses.items() if not is_loopback(address)]
    if not beyond or tls.insecure_listeners:
        return
    missing = []
    if not tls.is_on:
        missing.append("TLS (tls_cert_file, tls_key_file)")
    if not authentication and tls.tls_client_auth != "required":
        missing.append("authentication (authentication = true, or tls_client_auth = required)")
    if missing:
        raise InvalidArgument(
            f"the broker would listen beyond this machine ({', '.join(beyond)}) without {' and without '.join(missing)}",
            hint="docs/guides/security.md shows how to set them; where a trusted network is all that reaches the broker, "
            "--insecure-listeners true.",
        )
