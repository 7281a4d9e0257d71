"""Refuses HTTP requests that a page of another site makes through a browser on this machine or in this network. Pure.

    DNS rebinding   a site points its own name at 127.0.0.1, so its pages may read what a loopback listener answers. Their requests
                    name that site in `Host`. Checked on loopback listeners without TLS; over TLS the certificate does it.
    CSRF            a page of another site posts without a preflight, for example without a body. Browsers name that site in
                    `Origin`. Checked on every listener, for each method that may change something.

Neither concerns calls that show an API key or a token as `Bearer`, which a page of another site does not have. A certificate, and
an API key that a user has typed into the browser's login window (`Basic`), are shown by the browser itself. Clients that are no
browsers send the host that they connect to, and no Origin.

gRPC takes a POST of any content type that says `te: trailers`, which some browsers add over HTTP/2 by themselves. Browsers speak
HTTP/2 over TLS alone, so Origin is checked on gRPC listeners with TLS (grpc/limits.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from metadata.errors import Denied

# Methods that change nothing.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# In `allowed_hosts`: every name.
ANY: Final = "*"
# Values of Host that were found to be allowed, and are remembered.
REMEMBERED_MAX: Final = 100
_SHOWN_CHARACTERS: Final = 100
# HOST, HOST:PORT, [IPv6] or [IPv6]:PORT; no user, no path.
_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/?#\\\s]+))(?::[0-9]{0,5})?", re.ASCII)


class HostCheck:
    """Checks the Host and Origin of requests at one listener."""

    def __init__(
        self, *, allowed: Iterable[str], is_loopback: bool, is_tls: bool = False, asks_for_credentials: bool = False
    ) -> None:
        """`allowed`: names that stand for this broker beside those of the loopback, without their ports."""
        self._asks_for_credentials = asks_for_credentials
        self._allowed = frozenset(_plain(name) for name in allowed if name)
        self._checks_host = is_loopback and not is_tls and not asks_for_credentials
        self._known: set[bytes] = set()

    def check(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises Denied for the request of another site's page. `headers`: their names in lower case."""
        if ANY in self._allowed:
            return
        hosts, origins = [], []
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"authorization" and self._asks_for_credentials and not _is_basic(value):
                return  # these credentials are checked, and no browser adds them for a page of another site
        if self._checks_host:
            for host in hosts:
                if host not in self._known:
                    self._check_host(host)
        if method not in SAFE_METHODS:
            for origin in origins:
                self._check_origin(origin, hosts)

    def _check_host(self, host: bytes) -> None:
        if not self._names_this(_host_of(host.decode("latin-1"))):
            shown = host[:_SHOWN_CHARACTERS].decode("ascii", "replace")
            raise Denied(
                f"this broker listens on the loopback without authentication, and {shown!r} is no name of the loopback",
                hint="Use http://127.0.0.1 or http://localhost with the port. Behind a proxy: add the name to allowed_hosts, or "
                "switch authentication on.",
            )
        if len(self._known) < REMEMBERED_MAX:
            self._known.add(host)

    def _check_origin(self, origin: bytes, hosts: list[bytes]) -> None:
        text = origin.decode("latin-1").strip().lower()
        authority = text.partition("://")[2]
        if authority and [authority] == [host.decode("latin-1").strip().lower() for host in hosts]:
            return  # the browser says that the page came from here; Host is checked where that could be forged
        if not self._names_this(_host_of(authority)):
            raise Denied(
                f"a page of {text[:_SHOWN_CHARACTERS]!r} may not change anything on this broker without an API key or a token",
                hint="If the page is trusted, add its host to allowed_hosts, or let it send a key (Authorization: Bearer).",
            )

    def _names_this(self, host: str) -> bool:
        return is_loopback_name(host) or host in self._allowed


def _is_basic(authorization: bytes) -> bool:
    """Returns whether a browser may have added these credentials by itself, from its login window (RFC 7617)."""
    return authorization.lstrip()[:5].lower() == b"basic"


def is_loopback_name(host: str) -> bool:
    """Returns whether a host, in lower case and without brackets, is a loopback address, localhost, or below it (RFC 6761)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(authority: str) -> str:
    """Returns the host of HOST, HOST:PORT or [IPv6]:PORT; empty for anything else."""
    found = _AUTHORITY.fullmatch(authority.strip())
    return _plain(found[1] or found[2]) if found is not None else ""


def _plain(name: str) -> str:
    return name.strip().lower().rstrip(".")
