"""The guard of one broker, and what it shows to the others, made from its settings when it starts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.access.audit_log import AuditLog
from gateway.access.authentication import Authentication, read_admin_key
from gateway.access.caller import present_principal
from gateway.access.guard import PEER_PRINCIPAL, PEER_SECRET, PEER_UNCHECKED, Guard
from gateway.access.principal_quotas import PrincipalQuotas
from gateway.access.settings import AccessSettings
from gateway.peers import CallMetadata
from metadata.access_cache import AccessCache
from metadata.api_key import Credential
from metadata.etcd_layout import EtcdLayout
from metadata.peer_secret import read_peer_secret
from metadata.secret import Secret
from metadata.store import MetadataStore

_PRINTABLE: Final = frozenset(map(chr, range(0x20, 0x7F)))


class Access(NamedTuple):
    """What a broker has to know who calls, and to be known by the others."""

    guard: Guard | None
    """None where authentication is off."""
    peer_metadata: Callable[[], CallMetadata] | None
    """What goes with each call to another broker."""


NO_ACCESS: Final = Access(None, None)


class Prepared(NamedTuple):
    """What lies on this machine of it."""

    admin_key: Credential | None
    audit: AuditLog | None


async def prepare_access(settings: AccessSettings, *, broker_id: str, now_ms: Callable[[], int]) -> Prepared:
    """What can be wrong with it is told before there is a cluster. Raises InvalidArgument."""
    if not settings.authentication:
        return Prepared(None, None)
    admin_key = None
    if settings.admin_key_file is not None:
        admin_key = await asyncio.to_thread(read_admin_key, settings.admin_key_file)
    audit = None if settings.audit_log == "off" else AuditLog(settings.audit_log, broker_id=broker_id, now_ms=now_ms)
    return Prepared(admin_key, audit)


async def open_access(
    settings: AccessSettings,
    prepared: Prepared,
    store: MetadataStore,
    layout: EtcdLayout,
    *,
    now_ms: Callable[[], int],
    peers_speak_tls: bool = False,
) -> Access:
    """A broker without authentication sends the cluster's secret as well, for those that have it already, but over TLS alone: who
    listens to what is plain today may not know it tomorrow. Raises Unavailable, OutcomeUnknown, Corrupt."""
    if not settings.authentication:
        if not peers_speak_tls:
            return NO_ACCESS
        return Access(None, unchecked_metadata(await read_peer_secret(store, layout, secrets.token_bytes)))
    peer_secret = await read_peer_secret(store, layout, secrets.token_bytes)
    cache = AccessCache(store, layout)
    tokens = None
    if settings.oidc_issuer:
        from gateway.access.bearer_tokens import BearerTokens  # what it takes to read tokens is a sixth of all imports

        tokens = BearerTokens(settings)
    authentication = Authentication(
        settings,
        cache,
        now_ms=now_ms,
        admin_key=prepared.admin_key,
        tokens=tokens,
    )
    quotas = PrincipalQuotas(cache, time.monotonic)
    guard = Guard(cache, authentication, quotas, prepared.audit, peer_secret, now_ms=now_ms, metrics_open=settings.metrics_open)
    return Access(guard, peer_metadata(peer_secret))


def unchecked_metadata(peer_secret: Secret) -> Callable[[], CallMetadata]:
    """Of a broker that asks nobody who he is: for its clients it can only say that."""
    metadata = ((PEER_SECRET, peer_secret.reveal()), (PEER_UNCHECKED, "true"))
    return lambda: metadata


def peer_metadata(peer_secret: Secret) -> Callable[[], CallMetadata]:
    """Of a broker that checks its clients. The principal is for its log: what is sent for many has none, and a name that
    gRPC's metadata can't carry is left out."""
    secret = (PEER_SECRET, peer_secret.reveal())

    def metadata() -> CallMetadata:
        principal = present_principal()
        if principal and _PRINTABLE.issuperset(principal):
            return secret, (PEER_PRINCIPAL, principal)
        return (secret,)

    return metadata
