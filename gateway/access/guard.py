"""Admits every call of a broker with authentication: authenticates it, authorizes it, charges quotas, and records it.

    call ─▶ its row in permissions.py ─▶ principal ─▶ bound to its task (authorization.py) ─▶ quota ─▶ handler ─▶ audit log
                                    └ forwarded: only with a token of the broker that has checked the client (peer_tokens.py)

A broker without authentication has checked no client, yet its forwarded calls are served: anyone who reaches that broker can create
a key there, so refusing would protect nothing. The log names the broker. A forwarded change is in the audit logs of both brokers:
here with the asserted principal and the id of the other broker.

Lasting calls (long polls, streams) are watched. When keys, ACLs or quotas change and when credentials expire, the guard ends the
calls that may not continue. Invariants: only open calls begin without a principal. The audit log has each refusal once.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final

from gateway.access.audit_log import AuditLine, AuditLog
from gateway.access.authentication import Authenticator, ScramIdentity, Subject
from gateway.access.authorization import AuthorizedCall, CallOrigin, Principal, begin
from gateway.access.explanation import AccessExplainer
from gateway.access.peer_tokens import PEER_KEY, PeerClaim, PeerTokens
from gateway.access.permissions import FORWARDED_CALLS, RequiredAccess
from gateway.access.quotas import Meter, PrincipalQuotas, StreamUsage
from gateway.access.refusals import settle_cluster
from gateway.telemetry.request_context import current_call
from metadata.access.acl import CLUSTER_NAME
from metadata.access.api_key import check_counts
from metadata.access.cache import AccessCache
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated, Unavailable
from metadata.secret import Secret

# Credentials of forwarded calls in the audit log.
PEER: Final = "peer"
UNCHECKED: Final = "broker without authentication"
# Brokers that the guard remembers to have warned about.
UNCHECKED_MAX: Final = 1_000
# The least time between two warnings about the tokens of one broker.
WARNING_INTERVAL_S: Final = 60.0
OK: Final = "ok"

log = logging.getLogger(__name__)


class AccessGuard:
    """Authenticates, authorizes, meters and records the calls of all listeners. Its owner runs `run()` as a task."""

    def __init__(
        self,
        cache: AccessCache,
        authentication: Authenticator,
        quotas: PrincipalQuotas,
        audit: AuditLog | None,
        peers: PeerTokens | None,
        *,
        now_ms: Callable[[], int],
        metrics_open: bool = False,
        scram_secret: Secret | None = None,
    ) -> None:
        """`peers` is None without etcd; forwarded calls are refused then.

        `scram_secret` is the cluster's secret for salts of unknown users; None generates one for this broker.
        """
        self.cache = cache
        self.audit = audit
        self.metrics_open = metrics_open
        self.explainer = AccessExplainer(cache, authentication, quotas, now_ms=now_ms)
        self._authentication = authentication
        self._quotas = quotas
        self._peers = peers
        self._scram_secret = scram_secret or Secret(secrets.token_hex(32))
        self._now_ms = now_ms
        self._lasting: set[_Lasting] = set()
        self._unchecked: set[str] = set()
        self._warned_s: dict[str, float] = {}
        cache.subscribe(self._check_lasting)
        authentication.subscribe(self._check_lasting)

    @property
    def lasting(self) -> int:
        """Returns the number of lasting calls that are watched now."""
        return len(self._lasting)

    async def run(self) -> None:
        """Follows keys, ACLs and quotas, and writes the audit log, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cache.run(), name="keys and ACLs")
            tasks.create_task(self._authentication.run(), name="keys of the OpenID provider")
            if self.audit is not None:
                tasks.create_task(self.audit.run(), name="audit log")

    # ── the principal ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(
        self,
        needs: RequiredAccess,
        shown: str | bytes,
        subject: Callable[[], Subject | None],
        origin: CallOrigin,
    ) -> AuthorizedCall:
        """Begins the call of a client and binds it to this task.

        Raises Unauthenticated and NotAuthorized, which the audit log records; Unavailable.
        """
        caller: Principal | None
        if needs.open:
            caller = await self._caller_if_known(shown, subject)
        else:
            try:
                caller = (self._authentication.known(shown) if shown else None) or await self._authentication.caller(
                    shown, subject()
                )
            except Unauthenticated as error:
                self.record_refused(None, error, origin)
                raise
        call = self.call_of(caller, needs, origin)
        await settle_cluster(call)
        return self._begun(call)

    async def _caller_if_known(self, shown: str | bytes, subject: Callable[[], Subject | None]) -> Principal | None:
        """Returns the principal of an open call; None where its credentials are missing or invalid."""
        try:
            return await self._authentication.caller(shown, subject(), waits=False)
        except TidelogError:
            return None

    def begin_forwarded(self, needs: RequiredAccess, claim: PeerClaim, origin: CallOrigin) -> AuthorizedCall:
        """Begins a call that another broker forwards for its client. The action is the method, /service/name.

        Raises Unauthenticated where no broker of this cluster has signed it, or this broker has no peers, and as
        check_forwarded_key; NotAuthorized for a method that brokers do not forward; Unavailable as PeerTokens.check.
        """
        try:
            self._check_claim(claim, origin.action)
            self.check_forwarded_key(claim.value(PEER_KEY))
        except TidelogError as error:
            self.record_refused(None, error, origin)
            raise
        if claim.is_unchecked:
            self._warn_of_unchecked(claim.broker_id)
        peer = Principal(
            claim.principal,
            self.cache,
            self._now_ms,
            credential=UNCHECKED if claim.is_unchecked else PEER,
            is_peer=True,
            forwarded_by=claim.broker_id,
            key_id=claim.value(PEER_KEY),
        )
        return self._begun(self.call_of(peer, needs, origin))

    def check_forwarded_key(self, key_id: str) -> None:
        """Raises Unauthenticated where this broker knows that the API key was revoked or has expired.

        The broker that checked the key may not know that yet. An unknown key passes: it may have been created a moment ago.
        """
        key = self.cache.known_key(key_id) if key_id else None
        if key is not None:
            check_counts(key, self._now_ms())

    def _check_claim(self, claim: PeerClaim, method: str) -> None:
        if self._peers is None:
            raise Unauthenticated(
                "this broker takes no forwarded calls: without etcd it has no peers",
                hint="A client must not send tidelog-… metadata.",
            )
        try:
            self._peers.check(claim, method)
        except Unavailable as error:
            self._warn_of_token(claim.broker_id, error)
            raise
        if method not in FORWARDED_CALLS:
            raise NotAuthorized(f"brokers do not forward {method}", hint="Call it at any broker with credentials of a client.")

    def _warn_of_token(self, broker_id: str, error: Unavailable) -> None:
        """Logs the refused tokens of a broker, at most once in WARNING_INTERVAL_S."""
        now_s = time.monotonic()
        if now_s - self._warned_s.get(broker_id, float("-inf")) >= WARNING_INTERVAL_S:
            if len(self._warned_s) >= UNCHECKED_MAX:
                self._warned_s.clear()
            self._warned_s[broker_id] = now_s
            log.warning("forwarded calls refused broker=%s: %s; %s", broker_id, error.message, error.hint)

    @property
    def accepts_tokens(self) -> bool:
        """Returns True if tokens of an OpenID provider are accepted."""
        return self._authentication.accepts_tokens

    @property
    def oidc_issuer(self) -> str:
        """Returns the URL of the OpenID provider whose tokens are accepted; empty without one."""
        return self._authentication.oidc_issuer

    def scram(self, user: str, mechanism: str) -> ScramIdentity | None:
        """Returns the SCRAM credential of a user; None where this broker knows of none. Raises Unavailable."""
        return self._authentication.scram(user, mechanism)

    async def is_replaced(self, identity: ScramIdentity | None, user: str, mechanism: str) -> bool:
        """Returns whether the user has another SCRAM credential by now than the one of its challenge. Raises Unavailable.

        Waits for a proof of the view also where there is none, so that the wait does not tell which users exist.
        """
        await self._authentication.catch_up()
        held = self._authentication.scram(user, mechanism)
        return held is not None and (identity is None or held.credential != identity.credential)

    def unknown_salt(self, user: str) -> bytes:
        """Returns the salt of an unknown user, the same at all brokers and times, so that it looks like a known one."""
        return hmac.digest(self._scram_secret.reveal().encode(), user.encode(), "sha256")

    @property
    def session_secret(self) -> Secret:
        """Returns the cluster's secret that keys of the console's sessions are derived from."""
        return self._scram_secret

    async def prove(self, shown: str) -> Principal:
        """Returns the principal of an `authorization` header. Raises Unauthenticated, which the caller records; Unavailable."""
        return self._authentication.known(shown) or await self._authentication.caller(shown, None)

    def known_principal(self, principal: str, key_id: str) -> Principal | None:
        """Returns a principal that a broker of the cluster has authenticated; None for a key that this broker does not know.

        Raises Unavailable before the keys were read.
        """
        return self._authentication.named(principal, key_id)

    def record_refused(self, caller: Principal | None, error: TidelogError, origin: CallOrigin) -> None:
        """Records in the audit log a request that was refused before it became a call."""
        self._record(caller, error.code, origin, reason=error.message)

    def certified(self, subject: Subject) -> Principal | None:
        """Returns the principal of a client certificate; None where its name cannot be a principal."""
        try:
            return self._authentication.certified(subject)
        except Unauthenticated:
            return None

    def call_of(self, caller: Principal | None, needs: RequiredAccess, origin: CallOrigin) -> AuthorizedCall:
        """Returns a call of an authenticated principal. The listener binds it where the call runs (authorization.acting)."""
        return AuthorizedCall(caller, needs, origin, refusal=self._refused)

    def _begun(self, call: AuthorizedCall) -> AuthorizedCall:
        caller, needs = call.caller, call.needs
        begin(call)
        if needs.peer and not (caller is not None and caller.is_peer):
            self._record_call(call, NotAuthorized.code, ("between brokers",))
            raise NotAuthorized("only brokers of the cluster may make this call", hint="Clients have no use for it.")
        if needs.cluster is not None:
            call.check("cluster", CLUSTER_NAME)
        return call

    def _warn_of_unchecked(self, broker_id: str) -> None:
        """Logs, once for each broker, that it forwards calls of unauthenticated clients."""
        if broker_id not in self._unchecked and len(self._unchecked) < UNCHECKED_MAX:
            self._unchecked.add(broker_id)
            log.warning(
                "forwarded calls of unauthenticated clients broker=%s: its authentication is off, so every client may "
                "do everything in this cluster; switch authentication on there",
                broker_id,
            )

    def check_again(self, call: AuthorizedCall) -> None:
        """Checks credentials and cluster rights again once the call's message has arrived.

        Raises Unauthenticated and NotAuthorized, which the audit log records.
        """
        if call.caller is None:
            return
        self.check_counts(call)
        if call.needs.cluster is not None:
            call.check("cluster", CLUSTER_NAME)

    def check_counts(self, call: AuthorizedCall) -> None:
        """Raises Unauthenticated where the caller's credentials have expired or were revoked; the audit log records it."""
        if call.caller is None:
            return
        try:
            call.caller.check_counts()
        except Unauthenticated as error:
            self.cut(call, error)
            raise

    def quota(self, call: AuthorizedCall) -> Meter | None:
        """Returns the quota meter of the call's principal; None where no quota applies."""
        caller = call.caller
        if caller is None or caller.is_peer or call.needs.open:  # probes are answered whatever their principal has used
            return None
        return self.quota_of(caller)

    def quota_of(self, caller: Principal) -> Meter | None:
        """Returns the quota meter of a principal, a new one once its quota has changed; None where no quota applies."""
        return self._quotas.meter(caller.principal)

    def meter(self, call: AuthorizedCall) -> Meter | None:
        """Charges a request and returns its meter; None where no quota applies. Raises Throttled once the quota is used up."""
        meter = self.quota(call)
        if meter is not None:
            meter.begin(call.needs)
        return meter

    def flow(self, call: AuthorizedCall) -> StreamUsage | None:
        """Returns the metering of a call's streams; None for peers and unauthenticated clients."""
        caller = call.caller
        if caller is None or caller.is_peer:
            return None
        principal = caller.principal
        return StreamUsage(lambda: self._quotas.meter(principal), call.needs)

    # ── lasting calls ─────────────────────────────────────────────────────────────────────────────────────────────────

    def while_permitted(self, call: AuthorizedCall) -> AbstractContextManager[None]:
        """Cancels the body of a lasting call once it may not continue, and raises the reason in its place."""
        if call.caller is None or call.caller.is_peer:
            return nullcontext()
        return _Lasting(self, call)

    def watch(self, lasting: _Lasting) -> None:
        self._lasting.add(lasting)

    def forget(self, lasting: _Lasting) -> None:
        self._lasting.discard(lasting)

    def lifetime_left_ms(self, caller: Principal) -> int | None:
        """Returns how long the credentials remain valid; None where they do not expire."""
        return max(0, caller.expires_at_ms - self._now_ms()) if caller.expires_at_ms else None

    def _check_lasting(self) -> None:
        for lasting in tuple(self._lasting):
            lasting.check()

    def cut(self, call: AuthorizedCall, error: TidelogError) -> None:
        """Records that the guard has ended the call."""
        self._record_call(call, error.code, (), reason=error.message)
        call.note_logged()

    # ── audit ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, call: AuthorizedCall, failure: str) -> None:
        """Records the outcome of a change. `failure` is the code of its error; empty if it was done, or has noted its error."""
        if call.changes and (call.did_part or not call.was_refused):
            self._record_call(call, failure or call.failure or OK, call.resources)

    def _refused(self, call: AuthorizedCall, operation: str, kind: str, name: str) -> None:
        if self.audit is not None and call.caller is not None:
            reason = call.caller.refusal(operation, kind, name).message
            self._record_call(call, NotAuthorized.code, (f"{kind}:{name}",), reason=reason)

    def _record_call(self, call: AuthorizedCall, outcome: str, resources: tuple[str, ...], *, reason: str = "") -> None:
        self._record(call.caller, outcome, call.origin, resources=resources, reason=reason, validate_only=call.validate_only)

    def _record(
        self,
        caller: Principal | None,
        outcome: str,
        origin: CallOrigin,
        *,
        reason: str,
        resources: tuple[str, ...] = (),
        validate_only: bool = False,
    ) -> None:
        if self.audit is not None:
            line = AuditLine(
                outcome=outcome,
                principal=caller.principal if caller is not None else "",
                credential=caller.credential if caller is not None else "",
                listener=origin.listener,
                address=origin.address,
                call=origin.action,
                resources=resources,
                request_id=origin.request_id or _request_id(),
                reason=reason,
                validate_only=validate_only,
                forwarded_by=caller.forwarded_by if caller is not None else "",
            )
            self.audit.record(line)


class _Lasting:
    """Cancels the task of a lasting call once the call may not continue.

    It works as asyncio.Timeout, and costs less where nothing expires; every read pays for it.
    """

    __slots__ = ("_call", "_cancelling", "_guard", "_task", "_timer", "_why")

    def __init__(self, guard: AccessGuard, call: AuthorizedCall) -> None:
        self._guard = guard
        self._call = call
        self._why: TidelogError | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._guard.watch(self)
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        """Sets a timer for the expiry of the credentials by the wall clock, which may be slightly behind the loop's clock."""
        assert self._call.caller is not None
        left_ms = self._guard.lifetime_left_ms(self._call.caller)
        if left_ms is not None:
            self._timer = self._task.get_loop().call_later(max(left_ms, 1) / 1000, self._on_expiry)

    def _on_expiry(self) -> None:
        self.check()
        if self._why is None:
            self._schedule_expiry()

    def check(self) -> None:
        """Cancels the task if the call may not continue. Called when rights have changed, and when credentials expire."""
        if self._why is None:
            self._why = self._call.end_reason()
            if self._why is not None:
                self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._guard.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._why is None:
            return
        cancelled_by_us_alone = self._task.uncancel() <= self._cancelling
        if cancelled_by_us_alone and kind is not None and issubclass(kind, asyncio.CancelledError):
            if not isinstance(self._why, Unavailable):  # a stale view is no refusal of this principal
                self._guard.cut(self._call, self._why)
            raise self._why from None


def _request_id() -> str:
    """Returns the request id of the present call; empty outside a request."""
    call = current_call()
    return call.request_id if call is not None else ""
