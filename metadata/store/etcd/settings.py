"""Holds the addresses of etcd members and our credentials, and the status of a member. Pure; does not import the client.

    etcd = http://a:2379,http://b:2379,http://c:2379      members of one cluster, in any order; one is asked, the others stand by

Invariant: an EtcdSettings names members that can be addressed, all with TLS or none, and no half of a pair.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from metadata.errors import InvalidArgument
from metadata.secret import Secret
from metadata.setting_fields import fixed
from metadata.shown_url import shown_url

DEFAULT_PORT = 2379
_FORM = "Name scheme, host and port, a number up to 65535: http://etcd-0:2379,http://etcd-1:2379"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Holds the address of one member."""

    host: str
    port: int
    tls: bool

    @property
    def target(self) -> str:
        """Returns the address in gRPC's form."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.target}"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Holds the addresses of an etcd cluster, the credentials for it, and the time limits of requests."""

    # Members of an etcd cluster: http://HOST:PORT or https://HOST:PORT, with commas between. Empty: SQLite in data_dir.
    etcd: str = ""
    # Name of a user of etcd, where etcd requires one.
    etcd_user: str = ""
    # Its password. Set it as TIDELOG_ETCD_PASSWORD, since flags show in the list of processes.
    etcd_password: Secret | None = None
    # A file that holds the password instead, such as a mounted secret. It is read once, at the start.
    etcd_password_file: Path | None = None
    # PEM file of the authorities that sign etcd's certificates. Default: those that gRPC brings along.
    etcd_ca: Path | None = None
    # PEM file of our own certificate, where etcd requires one.
    etcd_cert: Path | None = None
    # PEM file of its private key.
    etcd_key: Path | None = None
    # How long members are tried one after the other before a request fails as unavailable. It is below the 10 s for which the SDK
    # waits for one broker, so that the SDK receives the reason.
    etcd_deadline_ms: float = 8_000.0
    # Time limit of one try of a connection to one member.
    etcd_connect_timeout_ms: float = fixed(2_000.0)
    # Time limit of one try of one request at one member. A write without an answer after that has an unknown outcome.
    etcd_request_timeout_ms: float = fixed(3_000.0)

    def __post_init__(self) -> None:
        for name in ("etcd_connect_timeout_ms", "etcd_request_timeout_ms", "etcd_deadline_ms"):
            if not 0 < getattr(self, name) <= 3_600_000:  # also refuses NaN
                raise InvalidArgument(f"{name} is {getattr(self, name)}; it must be above 0 and at most 3600000 (an hour)")
        if bool(self.etcd_user) != bool(self.etcd_password):
            missing = "etcd_password" if self.etcd_user else "etcd_user"
            raise InvalidArgument(f"{missing} is not set", hint="etcd_user and etcd_password go together.")
        if (self.etcd_cert is None) != (self.etcd_key is None):
            missing = "etcd_key" if self.etcd_key is None else "etcd_cert"
            raise InvalidArgument(f"{missing} is not set", hint="etcd_cert and etcd_key go together.")
        addresses = self.addresses
        tls = any(address.tls for address in addresses)
        if tls and not all(address.tls for address in addresses):
            raise InvalidArgument("etcd names members with TLS and members without", hint="Make all of them https://.")
        for name, value in (("etcd_ca", self.etcd_ca), ("etcd_cert", self.etcd_cert)):
            if value is not None and not tls:
                raise InvalidArgument(f"{name} is set, but etcd is not https", hint="Write https:// in etcd.")
        if self.etcd_user and not addresses:
            raise InvalidArgument("etcd_user is set, but etcd is not", hint=_FORM)

    @property
    def addresses(self) -> tuple[EtcdAddress, ...]:
        """Returns the members' addresses; empty where `etcd` is not set. Raises InvalidArgument."""
        if not self.etcd.strip():
            return ()
        addresses = tuple(_parsed(url.strip()) for url in self.etcd.split(","))
        for address in addresses:
            if addresses.count(address) > 1:
                raise InvalidArgument(f"etcd names {address.url} twice", hint="Name each member once.")
        return addresses


def _parsed(url: str) -> EtcdAddress:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port that is no number, half a bracket
        raise _no_address(url) from None
    if "@" in parts.netloc:
        raise InvalidArgument("etcd holds credentials", hint="Set etcd_user and etcd_password: URLs show in messages and logs.")
    rest = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or rest or not url.isprintable() or " " in url:
        raise _no_address(url)
    return EtcdAddress(parts.hostname, DEFAULT_PORT if port is None else port, parts.scheme == "https")


def _no_address(url: str) -> InvalidArgument:
    shown = "***" if "@" in url else repr(shown_url(url)[:120])
    return InvalidArgument(f"{shown} in etcd is not the address of a member", hint=_FORM)


class EtcdStatus(NamedTuple):
    """Describes the etcd member that was asked."""

    db_size_bytes: int
    # Id of the leader; 0: the member knows none.
    leader: int
    # Nothing can be written until there is room and the alarm NOSPACE is cleared.
    is_full: bool
    # Changes of leader that this process has seen.
    leader_changes: int = 0
    # The last leader that was known.
    last_leader: int = 0


def next_status(before: EtcdStatus | None, *, db_size_bytes: int, leader: int, alarms: Iterable[str]) -> EtcdStatus:
    """Returns the status with the changes of leader that this answer adds."""
    changes, last_leader = (before.leader_changes, before.last_leader) if before is not None else (0, 0)
    if leader and last_leader not in {0, leader}:
        changes += 1
    return EtcdStatus(db_size_bytes, leader, any("NOSPACE" in alarm for alarm in alarms), changes, leader or last_leader)
