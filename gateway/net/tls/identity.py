"""Loads this broker's certificate and its trusted authorities at the start, and reloads them when their files change.

  files ──read──▶ valid? ─▶ no: an error in the log; the earlier identity stays in use
  every            └▶ yes: new connections get it: HTTP by a new context, gRPC by its fetcher, other brokers by new channels
  tls_reload_ms

Certificate and key are two files. An operator who replaces them one after the other leaves a pair that does not match for a moment;
it
is refused like any broken pair until the other file comes.

Invariants: an identity is used only after it was checked whole (the pair matches, each authority can be parsed, other brokers
accept
it). An open connection is never touched. No key is ever shown.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.net.tls.credentials import check_usable_as_client, load_key_pair, system_authorities
from gateway.net.tls.settings import TlsSettings
from metadata.errors import InvalidArgument

ALPN: Final = ["http/1.1"]
# Largest size of a file; a bundle of all public authorities has a quarter of a MiB.
FILE_BYTES_MAX: Final = 4 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Holds certificates and key that were read at one time and match."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    # None: the system's authorities.
    peer_ca: bytes | None
    # The context of the HTTP listener.
    context: ssl.SSLContext
    # When the first of our certificates expires, in seconds since 1970.
    not_after_s: float

    def __repr__(self) -> str:
        return f"TlsIdentity(not_after_s={self.not_after_s})"


class TlsReloader:
    """Holds the broker's TLS identity, and reloads it when its files change."""

    def __init__(self, settings: TlsSettings, *, has_peers: bool = False) -> None:
        """Reads the files; raises InvalidArgument that names the wrong file and why. `has_peers`: if other brokers require client
        certificates, they must accept this one."""
        self._settings = settings
        self._has_peers = has_peers
        self._complaint = ""  # the last logged reason; each is logged once
        self._changed: list[Callable[[], Awaitable[None]]] = []
        self.identity = read_identity(settings, has_peers=has_peers)
        _warn_of_readers(settings.tls_key_file)
        # How often changed files were refused.
        self.refused_count = 0

    @property
    def not_after_s(self) -> float:
        return self.identity.not_after_s

    @property
    def context(self) -> ssl.SSLContext:
        """Returns the context for the next connection of the HTTP listener."""
        return self.identity.context

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of the gRPC listener. grpc asks for newer ones before each handshake, in a thread of its own."""
        given = self.identity

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            if self.identity is given:
                return None
            given = self.identity
            return _grpc_configuration(given)

        return grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(given),
            fetch,  # type: ignore[arg-type]  # None is "no change", as its documentation says
            require_client_authentication=self.requires_certificate,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns credentials for a channel to another broker: its certificate is checked, and ours is sent if it asks."""
        now = self.identity
        return grpc.ssl_channel_credentials(
            root_certificates=now.peer_ca or system_authorities(), private_key=now.key, certificate_chain=now.cert
        )

    @property
    def requires_certificate(self) -> bool:
        return self._settings.tls_client_auth == "required"

    @property
    def peer_name(self) -> str:
        """Returns the name that other brokers' certificates must hold; empty: the host of each."""
        return self._settings.tls_peer_name

    def subscribe(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Adds a callback that `run` awaits after each change."""
        self._changed.append(changed)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tls_reload_ms / 1000)
            await self.reload()

    async def reload(self) -> bool:
        """Reloads changed files. Returns whether they changed, once all subscribers have adopted the new identity."""
        changed = await self._take_over()
        if changed:
            for notify in self._changed:
                await notify()
        return changed

    async def _take_over(self) -> bool:
        try:
            found = await asyncio.to_thread(self._read_changed)
        except InvalidArgument as error:
            self._refused(error.message)
            return False
        # new files may break their readers in any way: the earlier identity stays in use
        except Exception as error:  # noqa: BLE001
            self._refused(f"it can't be read: {type(error).__name__}: {error}", cause=error)
            return False
        self._complaint = ""
        if found is None:
            return False
        self.identity = found
        log.info("certificate reloaded expires=%s: new connections use it", _day(found.not_after_s))
        return True

    def _refused(self, why: str, *, cause: Exception | None = None) -> None:
        self.refused_count += 1
        if self._complaint != why:
            log.error("certificate reload refused: %s; the earlier one stays in use", why, exc_info=cause)
        self._complaint = why

    def _read_changed(self) -> TlsIdentity | None:
        if _read_all(self._settings) == _parts(self.identity):
            return None
        return read_identity(self._settings, has_peers=self._has_peers)


def read_identity(settings: TlsSettings, *, has_peers: bool = False) -> TlsIdentity:
    """Reads and checks the files. Raises InvalidArgument if they are invalid, or change during the reading."""
    parts = _read_all(settings)
    cert, key, client_ca, peer_ca = parts
    assert cert is not None
    assert key is not None
    not_after_s = min(found.not_valid_after_utc.timestamp() for found in _parsed("tls_cert_file", settings.tls_cert_file, cert))
    clients = _parsed("tls_client_ca_file", settings.tls_client_ca_file, client_ca) if client_ca is not None else []
    if peer_ca is not None and peer_ca is not client_ca:
        _parsed("tls_peer_ca_file", settings.tls_peer_ca_file, peer_ca)
    context = _http_context(settings, clients)
    if has_peers and settings.tls_client_auth == "required":
        _check_as_client(settings, clients)
    if _read_all(settings) != parts:  # the context reads the pair by itself
        raise InvalidArgument("the files of the certificate change while they are read", hint="They are read again in a moment.")
    return TlsIdentity(cert, key, client_ca, peer_ca, context, not_after_s)


def _http_context(settings: TlsSettings, clients: Sequence[x509.Certificate]) -> ssl.SSLContext:
    """Makes the context of the HTTP listener; `clients` are the authorities of client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a renegotiation costs clients nothing and the broker a handshake
    context.set_alpn_protocols(ALPN)
    assert settings.tls_cert_file is not None
    assert settings.tls_key_file is not None
    load_key_pair(context, settings.tls_cert_file, settings.tls_key_file, setting="tls_key_file")
    if settings.tls_client_auth != "off":
        try:  # as DER: of PEM, `ssl` takes no comments that are not ASCII, and gRPC and OpenSSL do
            context.load_verify_locations(cadata=b"".join(each.public_bytes(Encoding.DER) for each in clients))
        except ssl.SSLError as error:
            raise InvalidArgument(
                f"tls_client_ca_file: {settings.tls_client_ca_file} can't be used ({error.reason or error})",
                hint="Name a PEM file of the authorities that sign clients' certificates.",
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL  # http/server.py refuses clients without a certificate, except probes
        context.options |= ssl.OP_NO_TICKET  # a returning client sends its certificate again: it may have expired meanwhile
        context.num_tickets = 0
    return context


def _check_as_client(settings: TlsSettings, authorities: Sequence[x509.Certificate]) -> None:
    """Checks the certificate as a client's: brokers are clients of each other, and have the same settings."""
    assert settings.tls_cert_file is not None
    assert settings.tls_key_file is not None
    why = check_usable_as_client(settings.tls_cert_file, settings.tls_key_file, authorities)
    if why:
        raise InvalidArgument(
            f"tls_cert_file: the other brokers require certificates of their clients, and would refuse {settings.tls_cert_file} by "
            f"the authorities in {settings.tls_client_ca_file}: {why}",
            hint="Brokers are clients of each other: have it signed, for clientAuth as well as serverAuth, by an authority of "
            "tls_client_ca_file, or add its authority to that file at all brokers.",
        )


def _grpc_configuration(identity: TlsIdentity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.cert)], root_certificates=identity.client_ca)


_Parts = tuple[bytes | None, bytes | None, bytes | None, bytes | None]


def _parts(identity: TlsIdentity) -> _Parts:
    return identity.cert, identity.key, identity.client_ca, identity.peer_ca


def _read_all(settings: TlsSettings) -> _Parts:
    """Returns the certificate, key, authorities of clients, and authorities of brokers."""
    client_ca = _pem("tls_client_ca_file", settings.tls_client_ca_file)
    peer_ca = client_ca if settings.tls_peer_ca_file is None else _pem("tls_peer_ca_file", settings.tls_peer_ca_file)
    return _pem("tls_cert_file", settings.tls_cert_file), _pem("tls_key_file", settings.tls_key_file), client_ca, peer_ca


def _pem(name: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidArgument(f"{name}: {path} can't be read ({error.strerror})", hint="Name a PEM file.") from None
    if b"-----BEGIN" not in text:
        raise InvalidArgument(f"{name}: {path} is not PEM", hint="It begins with -----BEGIN.")
    return text


def _warn_of_readers(key: Path | None) -> None:
    if key is not None and key.stat().st_mode & stat.S_IROTH:
        log.warning(
            "tls_key_file is world-readable path=%s: every user of this machine can impersonate this broker; run chmod o-rwx", key
        )


def _parsed(name: str, path: Path | None, pem: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem)
        if len(found) != pem.count(b"-----BEGIN CERTIFICATE-----"):
            raise ValueError("the last one is cut off")
    except (ValueError, x509.InvalidVersion) as error:
        raise InvalidArgument(
            f"{name}: {path} does not hold whole certificates: {error}", hint="Name a PEM file of certificates."
        ) from None
    return found


def _day(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="minutes")
