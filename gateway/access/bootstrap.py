"""Builds the guard of a broker, and the metadata that proves its calls to other brokers, from the settings at the start."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.access.audit_log import AuditLog
from gateway.access.authentication import Authenticator, read_admin_key
from gateway.access.authorization import present_key_id, present_principal
from gateway.access.guard import AccessGuard
from gateway.access.peer_tokens import (
    PEER_KEY,
    PEER_PRINCIPAL,
    PEER_TOKEN,
    PEER_UNCHECKED,
    CallMetadata,
    PeerMetadata,
    PeerTokens,
    asserted_principal,
)
from gateway.access.quotas import PrincipalQuotas
from gateway.access.settings import AccessSettings
from metadata.access.api_key import Credential
from metadata.access.cache import AccessCache
from metadata.cluster.identity import forget_peer_secret, read_peer_secret, read_scram_secret
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout


class BrokerAccess(NamedTuple):
    """Holds a broker's guard, and the metadata that identifies it to other brokers."""

    # None where authentication is off.
    guard: AccessGuard | None
    # Makes the metadata of a call from the id of the called broker and the method; None where calls are not signed.
    peer_metadata: PeerMetadata | None


NO_ACCESS: Final = BrokerAccess(None, None)


class LocalAccess(NamedTuple):
    """Holds what access control takes from local files: the admin key and the audit log."""

    admin_key: Credential | None
    audit: AuditLog | None


async def prepare_access(settings: AccessSettings, *, broker_id: str, now_ms: Callable[[], int]) -> LocalAccess:
    """Opens local files before the broker joins a cluster. Raises InvalidArgument where one is unusable."""
    if not settings.authentication:
        return LocalAccess(None, None)
    admin_key = None
    if settings.admin_key_file is not None:
        admin_key = await asyncio.to_thread(read_admin_key, settings.admin_key_file)
    audit = None if settings.audit_log == "off" else AuditLog(settings.audit_log, broker_id=broker_id, now_ms=now_ms)
    return LocalAccess(admin_key, audit)


async def open_access(
    settings: AccessSettings,
    local: LocalAccess,
    store: MetadataStore,
    layout: KeyLayout,
    *,
    cluster_id: str,
    broker_id: str,
    now_ms: Callable[[], int],
    has_peers: bool,
    peers_speak_tls: bool = False,
    view_age_s_max: float | None = None,
) -> BrokerAccess:
    """Makes the guard, and what proves this broker to others. Raises Unavailable, OutcomeUnknown, Corrupt.

    `view_age_s_max`: how old the view of keys, ACLs and quotas may be; None where the metadata are in this process.

    A broker without peers (`has_peers`: etcd is configured) has no peer secret, removes one that an earlier version left, and takes
    no forwarded calls. A broker without authentication signs its calls too, for brokers that require it, but over TLS alone: an
    eavesdropper could replay a token in plain text.
    """
    tokens_of_peers = None
    if not has_peers:
        await forget_peer_secret(store, layout)
    elif settings.authentication or peers_speak_tls:
        secret = await read_peer_secret(store, layout, secrets.token_bytes)
        tokens_of_peers = PeerTokens(secret, cluster_id=cluster_id, broker_id=broker_id, now_ms=now_ms)
    if not settings.authentication:
        return NO_ACCESS if tokens_of_peers is None else BrokerAccess(None, unchecked_metadata(tokens_of_peers))
    cache = AccessCache(store, layout, age_s_max=view_age_s_max)
    tokens = None
    if settings.oidc_issuer:
        from gateway.access.oidc import OidcVerifier  # its libraries are a sixth of all imports

        tokens = OidcVerifier(settings)
    authentication = Authenticator(
        settings,
        cache,
        now_ms=now_ms,
        admin_key=local.admin_key,
        tokens=tokens,
    )
    quotas = PrincipalQuotas(cache, time.monotonic)
    guard = AccessGuard(
        cache,
        authentication,
        quotas,
        local.audit,
        tokens_of_peers,
        now_ms=now_ms,
        metrics_open=settings.metrics_open,
        scram_secret=await read_scram_secret(store, layout, secrets.token_bytes),
    )
    return BrokerAccess(guard, peer_metadata(tokens_of_peers) if tokens_of_peers is not None else None)


def unchecked_metadata(tokens: PeerTokens) -> PeerMetadata:
    """Returns the metadata of a broker without authentication: it asserts that, and no principal."""
    asserted = ((PEER_UNCHECKED, "true"),)

    def metadata(called: str, method: str) -> CallMetadata:
        return (*asserted, (PEER_TOKEN, tokens.sign(called, method, asserted)))

    return metadata


def peer_metadata(tokens: PeerTokens) -> PeerMetadata:
    """Returns the metadata of a broker that authenticates its clients: it asserts principal and API key of the present call.

    The token covers each entry of `asserted`; their names are in peer_tokens.ASSERTED. A message that carries records of many
    clients has no principal.
    """

    def metadata(called: str, method: str) -> CallMetadata:
        principal, key_id = present_principal(), present_key_id()
        asserted: tuple[tuple[str, str], ...] = ((PEER_PRINCIPAL, asserted_principal(principal)),) if principal else ()
        if key_id:
            asserted = (*asserted, (PEER_KEY, key_id))
        return (*asserted, (PEER_TOKEN, tokens.sign(called, method, asserted)))

    return metadata
