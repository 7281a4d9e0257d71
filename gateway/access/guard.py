"""What stands before every call of both doors once authentication is on: who is it, may it, has it quota left; and what is told
of it.

    call ─▶ its row in calls.py ─▶ who? ─▶ noted in its task (caller.py) ─▶ quota ─▶ the call ─▶ audit
                                    └ forwarded: only who knows the cluster's peer secret; it was checked where it came in

A broker whose authentication is off has checked nobody, and what it forwards is done all the same: whoever reaches it can make a
key for himself there, so nothing would be kept from him. The log names it, and the audit log tells what is changed through it.

Calls that last (long polls, streams) are watched: when keys, ACLs or quotas change, and when credentials expire, those that may go
on no longer end with the reason. Invariants: no call is begun before its caller is known, but for those that are open; what ends
here has told the audit log once.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final

from gateway.access.audit_log import AuditLog
from gateway.access.authentication import Authentication, Subject
from gateway.access.caller import Caller, CheckedCall, begin
from gateway.access.calls import Needs
from gateway.access.principal_quotas import Flow, Meter, PrincipalQuotas
from gateway.current_call import current_call
from metadata.access_cache import AccessCache
from metadata.acl import CLUSTER_NAME
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated
from metadata.secret import Secret

PEER_SECRET: Final = "tidelog-peer"
"""Keys of the metadata between brokers: the cluster's secret, and the name of the principal that the first broker has checked."""
PEER_PRINCIPAL: Final = "tidelog-principal"
PEER_UNCHECKED: Final = "tidelog-unchecked"
"""And that it has checked nobody: its authentication is off."""
NAME_CHARACTERS_MAX: Final = 249
UNCHECKED: Final = "broker without authentication"
"""As a credential, for the audit log."""
UNCHECKED_MAX: Final = 1_000
OK: Final = "ok"

log = logging.getLogger(__name__)


class Guard:
    def __init__(
        self,
        cache: AccessCache,
        authentication: Authentication,
        quotas: PrincipalQuotas,
        audit: AuditLog | None,
        peer_secret: Secret,
        *,
        now_ms: Callable[[], int],
        metrics_open: bool = False,
    ) -> None:
        self.cache = cache
        self.audit = audit
        self.metrics_open = metrics_open
        self._authentication = authentication
        self._quotas = quotas
        self._peer_secret = peer_secret.reveal().encode()
        self._now_ms = now_ms
        self._lasting: set[_Lasting] = set()
        self._unchecked: set[str] = set()
        cache.subscribe(self._look_again)
        authentication.subscribe(self._look_again)

    @property
    def lasting(self) -> int:
        """Calls that are watched now."""
        return len(self._lasting)

    async def run(self) -> None:
        """Follows keys, ACLs and quotas, and writes the audit log, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cache.run(), name="keys and ACLs")
            tasks.create_task(self._authentication.run(), name="keys of the OpenID provider")
            if self.audit is not None:
                tasks.create_task(self.audit.run(), name="audit log")

    # ── who ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(
        self,
        needs: Needs,
        shown: str | bytes,
        subject: Callable[[], Subject | None],
        *,
        door: str,
        action: str,
        address: str,
        request_id: str = "",
    ) -> CheckedCall:
        """The call of a client, noted in this task. Unauthenticated, NotAuthorized; both are told to the audit log."""
        caller: Caller | None
        if needs.open:
            caller = await self._whoever(shown, subject)
        else:
            try:
                caller = (self._authentication.known(shown) if shown else None) or await self._authentication.caller(
                    shown, subject()
                )
            except Unauthenticated as error:
                self._tell(error.code, door=door, address=address, call=action, request_id=request_id, reason=error.message)
                raise
        return self._begun(caller, needs, door=door, action=action, address=address, request_id=request_id)

    async def _whoever(self, shown: str | bytes, subject: Callable[[], Subject | None]) -> Caller | None:
        """A call that is open to all: who shows nothing, or something wrong, is a stranger."""
        try:
            return await self._authentication.caller(shown, subject())
        except TidelogError:
            return None

    def begin_forwarded(
        self, needs: Needs, secret: str, principal: str, *, door: str, action: str, address: str, unchecked_by: str = ""
    ) -> CheckedCall:
        """The call of another broker, for its client; `unchecked_by`: its id, where its authentication is off. NotAuthorized
        without the cluster's secret."""
        if not hmac.compare_digest(secret.encode(), self._peer_secret):
            error = NotAuthorized(
                "only brokers of this cluster may forward calls",
                hint="Where it was a broker: is it of this cluster, and has it authentication, or else TLS?",
            )
            self._tell(error.code, door=door, address=address, call=action, reason=error.message)
            raise error
        if unchecked_by:
            self._tell_of_unchecked(unchecked_by)
        name = principal[:NAME_CHARACTERS_MAX]
        peer = Caller(name, self.cache, self._now_ms, credential=UNCHECKED if unchecked_by else "peer", is_peer=True)
        return self._begun(peer, needs, door=door, action=action, address=address)

    def _begun(
        self, caller: Caller | None, needs: Needs, *, door: str, action: str, address: str, request_id: str = ""
    ) -> CheckedCall:
        call = CheckedCall(caller, needs, door=door, action=action, address=address, refusal=self._refused, request_id=request_id)
        begin(call)
        if needs.peer and not (caller is not None and caller.is_peer):
            self._tell_of(call, NotAuthorized.code, ("between brokers",))
            raise NotAuthorized("this call is for brokers of the cluster alone", hint="Clients have no use for it.")
        if needs.cluster is not None:
            call.check("cluster", CLUSTER_NAME)
        return call

    def _tell_of_unchecked(self, broker_id: str) -> None:
        """Once of each broker."""
        if broker_id not in self._unchecked and len(self._unchecked) < UNCHECKED_MAX:
            self._unchecked.add(broker_id)
            log.warning(
                "broker %s forwards calls of clients that nobody has checked, since its authentication is off: whoever reaches it "
                "may do everything in this cluster until it is switched on there, too",
                broker_id[:NAME_CHARACTERS_MAX],
            )

    def check_again(self, call: CheckedCall) -> None:
        """What was checked at its head, once its message has come. Unauthenticated, NotAuthorized; the audit log hears of both."""
        if call.caller is None:
            return
        try:
            call.caller.check_counts()
        except Unauthenticated as error:
            self.cut(call, error)
            raise
        if call.needs.cluster is not None:
            call.check("cluster", CLUSTER_NAME)

    def meter(self, call: CheckedCall) -> Meter | None:
        """None of a principal without a quota. Throttled where it has used it up."""
        caller = call.caller
        if caller is None or caller.is_peer or call.needs.open:  # a probe is answered whatever else its principal does
            return None
        meter = self._quotas.meter(caller.principal)
        if meter is not None:
            meter.begin()
        return meter

    def flow(self, call: CheckedCall) -> Flow | None:
        """For the streams of a call. None for those of peers and strangers."""
        caller = call.caller
        if caller is None or caller.is_peer:
            return None
        principal = caller.principal
        return Flow(lambda: self._quotas.meter(principal))

    # ── how long ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def as_long_as_it_may(self, call: CheckedCall) -> AbstractContextManager[None]:
        """Runs the body of a call that lasts; interrupted with the reason once it may go on no longer."""
        if call.caller is None or call.caller.is_peer:
            return nullcontext()
        return _Lasting(self, call)

    def watch(self, lasting: _Lasting) -> None:
        self._lasting.add(lasting)

    def forget(self, lasting: _Lasting) -> None:
        self._lasting.discard(lasting)

    def milliseconds_left(self, caller: Caller) -> int | None:
        """Of its credentials; None: no end is known."""
        return max(0, caller.expires_at_ms - self._now_ms()) if caller.expires_at_ms else None

    def _look_again(self) -> None:
        for lasting in tuple(self._lasting):
            lasting.look()

    def cut(self, call: CheckedCall, error: TidelogError) -> None:
        """Tells that the call was ended before its time."""
        self._tell_of(call, error.code, (), reason=error.message)
        call.note_told()

    # ── what is told ────────────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, call: CheckedCall, failure: str) -> None:
        """Tells of a change that was asked for: done, or why not. `failure`: the code of its error."""
        told_elsewhere = call.caller is not None and call.caller.is_peer and call.caller.credential != UNCHECKED
        if call.needs.changes and not call.was_refused and not told_elsewhere:
            self._tell_of(call, failure or OK, tuple(call.resources))

    def _refused(self, call: CheckedCall, operation: str, kind: str, name: str) -> None:
        if self.audit is not None and call.caller is not None:
            reason = call.caller.refusal(operation, kind, name).message
            self._tell_of(call, NotAuthorized.code, (f"{kind}:{name}",), reason=reason)

    def _tell_of(self, call: CheckedCall, outcome: str, resources: tuple[str, ...], *, reason: str = "") -> None:
        credential = call.caller.credential if call.caller is not None else ""
        self._tell(
            outcome,
            principal=call.principal,
            credential=credential,
            door=call.door,
            address=call.address,
            call=call.action,
            resources=resources,
            request_id=call.request_id,
            reason=reason,
            validate_only=call.validate_only,
        )

    def _tell(
        self,
        outcome: str,
        *,
        door: str,
        address: str,
        call: str,
        principal: str = "",
        credential: str = "",
        resources: tuple[str, ...] = (),
        request_id: str = "",
        reason: str = "",
        validate_only: bool = False,
    ) -> None:
        if self.audit is not None:
            self.audit.tell(
                outcome=outcome,
                principal=principal,
                credential=credential,
                door=door,
                address=address,
                call=call,
                resources=resources,
                request_id=request_id or _request_id(),
                reason=reason,
                validate_only=validate_only,
            )


class _Lasting:
    """A call that is watched. As asyncio.Timeout does it, at less cost where nothing expires: each read pays for this."""

    __slots__ = ("_call", "_cancelling", "_guard", "_task", "_timer", "_why")

    def __init__(self, guard: Guard, call: CheckedCall) -> None:
        self._guard = guard
        self._call = call
        self._why: TidelogError | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._guard.watch(self)
        self._wait_for_the_end()

    def _wait_for_the_end(self) -> None:
        """Of the credentials, by the wall clock; the loop's own may be a moment ahead of it."""
        assert self._call.caller is not None
        left_ms = self._guard.milliseconds_left(self._call.caller)
        if left_ms is not None:
            self._timer = self._task.get_loop().call_later(max(left_ms, 1) / 1000, self._end_has_come)

    def _end_has_come(self) -> None:
        self.look()
        if self._why is None:
            self._wait_for_the_end()

    def look(self) -> None:
        """Ends it, where it may go on no longer. Called when rights have changed, and when credentials expire."""
        if self._why is None:
            self._why = self._call.why_no_more()
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
            self._guard.cut(self._call, self._why)
            raise self._why from None


def _request_id() -> str:
    """As the log names the present call."""
    call = current_call()
    return call.request_id if call is not None else ""
