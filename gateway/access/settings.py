"""Holds and validates the settings of authentication, authorization and the audit log. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

from metadata.access.acl import check_principal
from metadata.errors import InvalidArgument

# Hosts that an OpenID provider may have without TLS.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Holds the settings of authentication and authorization."""

    # Requires credentials of every call: an API key, a token, or a client certificate. ACLs then permit what the principal may do;
    # without ACLs it may do nothing. Off: every call is permitted.
    authentication: bool = False
    # A file with one API key (tlk_…) of a principal `admin` that may do everything, for the first steps. It is read at the start.
    admin_key_file: Path | None = None
    # Principals, with commas between, that may do everything whatever the ACLs say. Where names hold commas, separate them with ;.
    admin_principals: str = ""
    # How a client certificate names its principal: cn, its common name, or subject, the whole name.
    tls_principal: str = "cn"
    # URL of an OpenID provider whose tokens are accepted as credentials. Its keys are found by discovery. Empty: none.
    oidc_issuer: str = ""
    # The audience that these tokens must name.
    oidc_audience: str = ""
    # The claim that names the principal.
    oidc_principal_claim: str = "sub"
    # How old the broker's view of API keys, ACLs and quotas may be. A broker to which etcd has not confirmed it for this long is
    # not ready, and refuses requests as UNAVAILABLE, except those of the admin key. 0: session_timeout_ms.
    access_max_age_ms: float = 0.0
    # Hosts, with commas between, that requests without credentials may name in `Host` and `Origin`, such as those of a proxy.
    # Names of the loopback and the host of advertise_http are always allowed; * allows every host. See docs/guides/security.md.
    allowed_hosts: str = ""
    # Serves /metrics without credentials although `authentication` is on.
    metrics_open: bool = False
    # Where denials and changes are logged, one JSON object a line: off, stderr, or a file. Only with `authentication`.
    audit_log: str = "stderr"

    def __post_init__(self) -> None:
        for name in self.admins:
            check_principal(name)
        if not 0 <= self.access_max_age_ms < inf:  # NaN as well
            raise InvalidArgument(
                f"access_max_age_ms is {self.access_max_age_ms}; it must be a number of at least 0",
                hint="Leave it out for session_timeout_ms.",
            )
        if self.tls_principal not in {"cn", "subject"}:
            raise InvalidArgument(f"tls_principal is {self.tls_principal!r}", hint="Use cn or subject.")
        if bool(self.oidc_issuer) != bool(self.oidc_audience):
            missing = "oidc_audience" if self.oidc_issuer else "oidc_issuer"
            raise InvalidArgument(f"{missing} is not set", hint="oidc_issuer and oidc_audience go together.")
        for name in self.hosts:
            if not name.isprintable() or any(sign in name for sign in "/@: "):
                raise InvalidArgument(
                    f"allowed_hosts names {name[:100]!r}, which is no host",
                    hint="Write names without scheme and port: a.example,b.example",
                )
        if self.oidc_issuer:
            url = urlsplit(self.oidc_issuer)
            if not url.hostname or not (url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK)):
                raise InvalidArgument(
                    f"oidc_issuer is {self.oidc_issuer[:200]!r}, not an https URL",
                    hint="Write it as the provider's tokens name it.",
                )
        if not self.oidc_principal_claim or not self.audit_log:
            raise InvalidArgument("oidc_principal_claim and audit_log can't be empty", hint="Leave them out for their defaults.")

    @property
    def hosts(self) -> frozenset[str]:
        """Returns the names in `allowed_hosts`."""
        return frozenset(name.strip() for name in self.allowed_hosts.split(",") if name.strip())

    @property
    def admins(self) -> frozenset[str]:
        """Returns the names in `admin_principals`."""
        separator = ";" if ";" in self.admin_principals else ","
        return frozenset(name.strip() for name in self.admin_principals.split(separator) if name.strip())
