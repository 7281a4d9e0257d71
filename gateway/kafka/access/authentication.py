"""Authenticates Kafka clients by their certificate or by SASL.

    connection ─▶ certificate? ─▶ its principal
                      └ none ─▶ ApiVersions and SASL only ─▶ SaslHandshake ─▶ tokens ─▶ the principal that they prove

    SaslHandshake 0    the tokens follow as bare frames
    SaslHandshake 1    the tokens follow in SaslAuthenticate

A connection is not read while one of its SASL messages is handled, so the next request meets the state that the message leaves.
A client that has authenticated may do so again on the same connection (KIP-368). Where its session has an end, it must.

Invariants: a failed exchange receives the same text for every cause, after FAILURE_DELAY_S, and ends the connection; the cause is
in the log and the audit log. A connection keeps the principal that it has first proved by SASL.

Sources: KIP-12, KIP-43, KIP-152, KIP-368, https://kafka.apache.org/protocol#sasl_handshake
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from typing import Final, NamedTuple

from gateway.access.authentication import ScramIdentity
from gateway.access.authorization import CallOrigin, Principal
from gateway.access.guard import AccessGuard
from gateway.kafka.access.sasl import (
    OAUTH_REFUSAL,
    OAUTHBEARER,
    PLAIN,
    SaslSession,
    parse_oauth,
    parse_plain,
)
from gateway.kafka.access.scram import NONCE_BYTES, ScramExchange
from gateway.kafka.api_versions import API_VERSIONS
from gateway.kafka.call import KafkaCall
from gateway.kafka.connection import Answer, Hold, KafkaConnection
from gateway.kafka.errors import ErrorCode
from gateway.kafka.protocol.admin_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from metadata.access.api_key import parse_key
from metadata.access.scram import MECHANISMS as SCRAM_MECHANISMS
from metadata.errors import Unauthenticated, Unavailable

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
# How long the answer to a failed exchange is withheld. Kafka's brokers have connection.failed.authentication.delay.ms, 100 ms.
FAILURE_DELAY_S: Final = 0.1
FAILURE_TEXT: Final = "Authentication failed: the credentials are not accepted"
_OPEN: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
_SASL: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
_LISTENER: Final = "kafka"
_ACTION: Final = "SaslAuthenticate"

log = logging.getLogger(__name__)


class Step(NamedTuple):
    """The result of one token of a client: the answer, and the principal once it is proved."""

    # The token for the client.
    answer: bytes = b""
    # The authenticated client; None: the exchange continues.
    principal: Principal | None = None


class _Challenged(NamedTuple):
    """A SCRAM exchange whose client owes its proof."""

    exchange: ScramExchange
    # None: there is no such user.
    identity: ScramIdentity | None
    user: str


class KafkaAuthentication:
    """Authenticates the connections of all Kafka listeners of a broker."""

    def __init__(self, guard: AccessGuard | None, *, session_s_max: float = 0.0) -> None:
        """`session_s_max` is the time after which a client must authenticate again; 0: when its credentials expire."""
        self._guard = guard
        self._session_s_max = session_s_max
        self.mechanisms: tuple[str, ...] = ()
        if guard is not None:
            self.mechanisms = (PLAIN, *SCRAM_MECHANISMS, *((OAUTHBEARER,) if guard.accepts_tokens else ()))

    def opened(self, connection: KafkaConnection) -> None:
        """Takes the certificate that the client has shown, if any."""
        if self._guard is not None and connection.subject is not None:
            connection.authenticated = self._guard.certified(connection.subject)

    def check(self, connection: KafkaConnection, api_key: int, action: str) -> None:
        """Raises Unauthenticated for a request of a client that has not authenticated, or whose session is over.

        Stops reading the connection before a SASL request, until that is handled.
        """
        if self._guard is None:
            return
        if api_key in _SASL:
            connection.hold(Hold.AUTHENTICATION)
        if api_key in _OPEN:
            return
        session: SaslSession | None = connection.sasl
        if session is not None and session.mechanism:
            error = Unauthenticated("the client sent a request in the middle of a SASL exchange")
        elif connection.authenticated is None:
            hint = "Set security.protocol to SASL_PLAINTEXT or SASL_SSL."
            error = Unauthenticated("the client sent a request before it has authenticated", hint=hint)
        elif session is not None and session.ends_s is not None and _now_s() >= session.ends_s:
            error = Unauthenticated("the client has not authenticated again in time", hint="Use a client with KIP-368.")
        else:
            return
        self._guard.record_refused(connection.authenticated, error, CallOrigin(_LISTENER, action, connection.client_host))
        raise error

    def takes_bare_tokens(self, connection: KafkaConnection) -> bool:
        """Returns whether the next frame is a token without a header, as after SaslHandshake of version 0. Stops reading if so."""
        session: SaslSession | None = connection.sasl
        if session is None or not (session.is_bare and session.mechanism):
            return False
        connection.hold(Hold.AUTHENTICATION)
        return True

    # ── SaslHandshake ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def handshake(self, call: KafkaCall, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """Begins an exchange. A failure ends the connection, as Kafka's brokers do."""
        connection = call.connection
        if self._guard is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        session = _session(connection)
        if session.mechanism:
            call.is_last = True
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=list(self.mechanisms))
        if request.mechanism not in self.mechanisms:
            call.is_last = True
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(self.mechanisms))
        session.mechanism, session.is_bare, session.exchange = request.mechanism, call.version == 0, None
        _read_again(connection)
        return SaslHandshakeResponse(mechanisms=list(self.mechanisms))

    # ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def authenticate(self, call: KafkaCall, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        """Takes the next token of the present exchange."""
        connection = call.connection
        session = _session(connection)
        if self._guard is None or not session.mechanism or session.is_bare:
            call.is_last = True
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="SaslAuthenticate comes after SaslHandshake"
            )
        try:
            step = await self._step(session, bytes(request.auth_bytes))
        except Unauthenticated as error:
            await self._fail(connection, session, error)
            call.is_last = True
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=FAILURE_TEXT)
        lifetime_ms = self._take(connection, session, step.principal) if step.principal is not None else 0
        _read_again(connection)
        return SaslAuthenticateResponse(auth_bytes=step.answer, error_message=None, session_lifetime_ms=lifetime_ms)

    async def answer_bare_token(self, connection: KafkaConnection, answer: Answer, token: bytes) -> None:
        """Takes a token without a header, and answers in the same form. A failure has no answer: the connection ends."""
        session = _session(connection)
        try:
            step = await self._step(session, token)
        except Unauthenticated as error:
            await self._fail(connection, session, error)
            raise
        if step.principal is not None:
            self._take(connection, session, step.principal)
        connection.decide(answer, [struct.pack(">i", len(step.answer)) + step.answer])
        _read_again(connection)

    async def _step(self, session: SaslSession, token: bytes) -> Step:
        """Takes a token of any mechanism.

        Raises Unauthenticated, or Unavailable if this broker cannot check the credentials now.
        """
        if session.mechanism in SCRAM_MECHANISMS:
            step = await self._scram(session, token)
        else:
            step = await (self._plain(token) if session.mechanism == PLAIN else self._oauth(session, token))
        held, proven = session.proven, step.principal
        if held is not None and proven is not None and held.principal != proven.principal:
            raise Unauthenticated(f"a connection of {held.principal} authenticates again as {proven.principal}")
        return step

    async def _plain(self, token: bytes) -> Step:
        username, password = parse_plain(token)
        key = parse_key(password) or parse_key(f"tlk_{username}_{password}")
        if key is None:
            raise Unauthenticated("the password is no API key")
        return Step(principal=await self._prove(f"tlk_{key.key_id}_{key.secret.reveal()}"))

    async def _scram(self, session: SaslSession, token: bytes) -> Step:
        assert self._guard is not None
        if isinstance(session.exchange, _Challenged):
            exchange, identity, user = session.exchange
            try:
                answer = exchange.final(token)
            except Unauthenticated:
                if await self._guard.is_replaced(identity, user, session.mechanism):
                    raise Unavailable(
                        f"the SCRAM credential of {user} was stored or replaced a moment ago", hint="Connect again."
                    ) from None
                raise
            assert identity is not None, "a user without a credential proves nothing"
            return Step(answer, identity.principal())
        mechanism = SCRAM_MECHANISMS[session.mechanism]
        exchange = ScramExchange(mechanism, secrets.token_urlsafe(NONCE_BYTES))
        user = exchange.first(token)
        # An unknown user is challenged at once, as a known one, and both wait for a proof of the view before they are refused.
        identity = self._guard.scram(user, mechanism.name)
        session.exchange = _Challenged(exchange, identity, user)
        return Step(exchange.challenge(identity.credential if identity is not None else None, self._guard.unknown_salt(user)))

    async def _oauth(self, session: SaslSession, token: bytes) -> Step:
        if isinstance(session.exchange, Unauthenticated):  # the client has received the refusal of its token
            raise session.exchange
        try:
            shown, authorization_id = parse_oauth(token)
            principal = await self._prove(shown)
            if authorization_id not in {"", principal.principal}:
                raise Unauthenticated("the client asks for another principal than its token's")
        except Unauthenticated as error:
            session.exchange = error
            return Step(OAUTH_REFUSAL)
        return Step(principal=principal)

    async def _prove(self, shown: str) -> Principal:
        assert self._guard is not None
        return await self._guard.prove(f"Bearer {shown}")

    # ── the ends of an exchange ─────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, connection: KafkaConnection, session: SaslSession, principal: Principal) -> int:
        """Notes the authenticated client. Returns the milliseconds until its session ends; 0: without an end."""
        assert self._guard is not None
        session.mechanism, session.exchange, session.is_bare = "", None, False
        session.proven = connection.authenticated = principal
        lifetimes = [left_ms] if (left_ms := self._guard.lifetime_left_ms(principal)) is not None else []
        if self._session_s_max:
            lifetimes.append(round(1000 * self._session_s_max))
        session.ends_s = _now_s() + min(lifetimes) / 1000 if lifetimes else None
        return max(1, min(lifetimes)) if lifetimes else 0

    async def _fail(self, connection: KafkaConnection, session: SaslSession, error: Unauthenticated) -> None:
        """Logs why the exchange failed, and waits, so that guessing is slow."""
        assert self._guard is not None
        log.info(
            "authentication failed client=%s listener=%s mechanism=%s: %s",
            connection.client_host,
            connection.listener.name,
            session.mechanism,
            error.message,
        )
        self._guard.record_refused(None, error, CallOrigin(_LISTENER, _ACTION, connection.client_host))
        await asyncio.sleep(FAILURE_DELAY_S)


def _session(connection: KafkaConnection) -> SaslSession:
    if connection.sasl is None:
        connection.sasl = SaslSession()
    session: SaslSession = connection.sasl
    return session


def _read_again(connection: KafkaConnection) -> None:
    """Reads the connection again once the answer to its SASL message is decided."""
    asyncio.get_running_loop().call_soon(connection.go_on, Hold.AUTHENTICATION)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
