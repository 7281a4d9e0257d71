"""Provides the client's identity, and checks that of the brokers.

    API key or token   ─▶ `authorization` of every call and request: Bearer …
    files of TLS       ─▶ read when a connection is made, so that they may be replaced

Invariant: a key goes over TLS, or to this machine, or where the program has said that it may go in plain text.
"""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Final

import grpc

from gateway.net.tls.credentials import load_key_pair, system_authorities
from metadata.errors import Denied, InvalidArgument
from metadata.secret import Secret
from tidelog.settings import ClientSettings

KEY_READ_AGAIN_S: Final = 5.0
_LOCAL: Final = frozenset({"localhost", "[::1]"})

# Authorities, key, certificate.
Pem = tuple[bytes | None, bytes | None, bytes | None]


class Credentials:
    """The credentials of one client."""

    def __init__(self, settings: ClientSettings, *, tls: bool) -> None:
        """Raises InvalidArgument if files are missing or invalid."""
        self.tls = tls
        self._settings = settings
        given = [name for name in ("ca_file", "cert_file", "tls_server_name") if getattr(settings, name)]
        if given and not tls:
            raise InvalidArgument(f"{given[0]} is set, and the address is not of TLS", hint="Write https:// or grpcs:// in it.")
        self._read_s = float("-inf")
        self._authorization: str | None = None
        self.has_key = settings.api_key is not None or settings.api_key_file is not None
        self.has_certificate = settings.cert_file is not None
        self.authorization()
        if tls:
            self.pem()

    @property
    def server_name(self) -> str:
        """Returns the name to look for in brokers' certificates; empty for the host of each."""
        return self._settings.tls_server_name

    def authorization(self, *, newest: bool = False) -> str | None:
        """Returns the header. Reads the key's file again now and then, or now for the `newest`; an unreadable file leaves the last
        key in force."""
        if isinstance(self._settings.api_key, Secret):
            return f"Bearer {self._settings.api_key.reveal()}"
        path = self._settings.api_key_file
        if path is not None and (newest or time.monotonic() - self._read_s >= KEY_READ_AGAIN_S):
            try:
                self._authorization = f"Bearer {_key(path)}"
            except InvalidArgument:
                if self._authorization is None:
                    raise
            self._read_s = time.monotonic()
        return self._authorization

    def may_go_to(self, host: str) -> bool:
        """Returns whether no key would go to this host in plain text, or the program allows it."""
        return self.tls or not self.has_key or self._settings.allow_plaintext_api_key or is_this_machine(host)

    def check_way(self, host: str) -> None:
        """Raises Denied where they may not go there."""
        if not self.may_go_to(host):
            raise Denied(
                f"the API key is not sent to {host}: without TLS others on the network could read it",
                hint="Write https:// (or grpcs://), or say that it may: allow_plaintext_api_key.",
            )

    def pem(self) -> Pem:
        """Returns the present content of the files. Raises InvalidArgument, also for a pair that does not match or is being
        replaced."""
        found = self._read()
        if self.has_certificate:
            self.ssl_context()
            if self._read() != found:
                raise InvalidArgument("cert_file and key_file change while they are read", hint="Try again in a moment.")
        return found

    def _read(self) -> Pem:
        settings = self._settings
        return _pem("ca_file", settings.ca_file), _pem("key_file", settings.key_file), _pem("cert_file", settings.cert_file)

    def channel_credentials(self, pem: Pem) -> grpc.ChannelCredentials:
        ca, key, cert = pem
        return grpc.ssl_channel_credentials(ca or system_authorities(), key, cert)

    def ssl_context(self, *, verify: bool = True) -> ssl.SSLContext:
        """Returns a context for HTTP. Without `verify` it only serves to look at a certificate, never for a key. Raises
        InvalidArgument."""
        context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.name = self.server_name
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        settings = self._settings
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        elif settings.ca_file is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(settings.ca_file)
            except (ssl.SSLError, OSError) as error:
                raise InvalidArgument(f"ca_file: {settings.ca_file} can't be used ({error})", hint="Name a PEM file.") from None
        if settings.cert_file is not None and settings.key_file is not None:
            load_key_pair(context, settings.cert_file, settings.key_file, setting="key_file")
        return context


class _NamedContext(ssl.SSLContext):
    """Asks for, and checks, another name than that of the host, where there is one."""

    name = ""

    def wrap_socket(  # type: ignore[override]  # clients give no more
        self, sock: socket.socket, *, server_hostname: str | None = None
    ) -> ssl.SSLSocket:
        return super().wrap_socket(sock, server_hostname=self.name or server_hostname)


def is_this_machine(host: str) -> bool:
    """Returns whether the host is this machine. A name other than localhost may be anywhere."""
    return host in _LOCAL or host.startswith("127.")


def _key(path: Path | str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"api_key_file: {path} can't be read ({getattr(error, 'strerror', 'it is no text')})",
            hint="Name a file with one line, tlk_…, that this user may read (--api-key-file, TIDELOG_API_KEY_FILE, the context).",
        ) from None
    if not text or not text.isprintable():
        raise InvalidArgument(f"api_key_file: {path} holds no key", hint="It is one line: tlk_…")
    return text


def _pem(name: str, path: Path | str | None) -> bytes | None:
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{name}: {path} can't be read ({error.strerror})", hint="Name a PEM file.") from None
    if b"-----BEGIN" not in text:
        raise InvalidArgument(f"{name}: {path} is not PEM", hint="It begins with -----BEGIN.")
    return text
