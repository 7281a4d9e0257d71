"""Admits the requests of all Kafka connections of a broker, finds their handlers, and sends the responses.

    frame ─▶ header ─▶ is the version served? ─▶ is the client authenticated? ─┬▶ Produce ─▶ produce.py, at once
                └ no: closed                          └ no: closed              ├▶ a heartbeat ─▶ at once, if it need not wait
                                                                                └▶ any other ─▶ its handler, in order

    a long frame ─▶ memory of the log's buffer for Produce, of the listeners' own budget for any other API ─▶ received
    a Produce above request_bytes_max ─▶ received without its records ─▶ MESSAGE_TOO_LARGE

Kafka's protocol has no answer for a request that was not understood: the connection is closed, and the log says why. ApiVersions
of an unknown version is the exception (KIP-511).

Invariant: a request is handled only in a version that this broker advertises and, if authentication is on, only after its client
has authenticated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from gateway.access.authorization import AuthorizedCall, CallOrigin, acting
from gateway.access.permissions import KAFKA_CALLS, RequiredAccess
from gateway.api import BrokerApi
from gateway.error_codes import BodyTooSlow
from gateway.kafka.access.authentication import SASL_AUTHENTICATE, SASL_HANDSHAKE, KafkaAuthentication
from gateway.kafka.access.named_resources import permits_named, settle_named
from gateway.kafka.api_versions import API_VERSIONS, answer_api_versions, unsupported_version
from gateway.kafka.call import Handler, KafkaCall
from gateway.kafka.connection import Answer, Hold, KafkaConnection
from gateway.kafka.frame_reader import SHARED_BYTES, Announced, Frame
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.produce import ADVERTISED, PRODUCE, KafkaProduce
from gateway.kafka.protocol.apis import APIS, Api, RequestHeader, decode_header
from gateway.net.connection_limiter import ConnectionLimiter
from gateway.telemetry.request_context import RequestContext, begin_call, end_call, note_deadline
from metadata.errors import InvalidArgument, NotAuthorized, TidelogError, Unauthenticated
from metadata.model import TopicId
from segments.byte_budget import Admission, ByteBudget
from segments.object_store.interface import Buffer

# A client that has not authenticated sends short requests only.
UNAUTHENTICATED_BYTES_MAX: Final = 32 << 10
# Long requests other than Produce that are received at the same time.
RECEIVE_BYTES_MAX: Final = 32 << 20
# Longer than any client waits; the wait ends when the client closes its connection.
ADMISSION_TIMEOUT_S: Final = 3_600.0
# The time that clients wait for an answer if the request does not say: request.timeout.ms is 30 s by default.
ANSWER_TIMEOUT_S: Final = 30.0
LISTENER: Final = "kafka"
# A client that waits longer would be disconnected for its silence, and begin again without a wait. Its debt stays.
THROTTLE_S_MAX: Final = 300.0


class KafkaRequests:
    """Handles the requests of all Kafka connections of a broker, within their shared budgets of memory."""

    def __init__(
        self,
        broker: BrokerApi,
        leaders: KafkaLeaders,
        handlers: Mapping[int, Handler],
        authentication: KafkaAuthentication,
    ) -> None:
        """`handlers` are those of each API but Produce and ApiVersions, by API key."""
        settings = broker.settings
        self.shared_buffer = memoryview(bytearray(SHARED_BYTES))
        self.connections = ConnectionLimiter(settings.kafka_connections_max, settings.kafka_connections_per_address_max)
        self.open: set[KafkaConnection] = set()
        self._broker = broker
        self._guard = broker.guard
        self._traffic = broker.metrics.traffic.kafka
        self._budget = ByteBudget(RECEIVE_BYTES_MAX, of="requests of Kafka clients that are being received")
        self._produce = KafkaProduce(broker, leaders, self.charge)
        self._authentication = authentication
        self._handlers = {
            **handlers,
            API_VERSIONS: Handler(0, 4, KAFKA_CALLS["ApiVersions"], self._api_versions),
            SASL_HANDSHAKE: Handler(0, 1, KAFKA_CALLS["SaslHandshake"], authentication.handshake),
            SASL_AUTHENTICATE: Handler(0, 2, KAFKA_CALLS["SaslAuthenticate"], authentication.authenticate),
        }
        if self._guard is not None:
            self._guard.cache.subscribe(self._end_changed_waits)
        served = {key: (each.version_min, each.version_max) for key, each in self._handlers.items()}
        self.versions = dict(sorted({**served, PRODUCE: ADVERTISED}.items()))

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def opened(self, connection: KafkaConnection) -> None:
        self.open.add(connection)
        self._authentication.opened(connection)

    def closed(self, connection: KafkaConnection) -> None:
        self.open.discard(connection)

    def frame_bytes_max(self, connection: KafkaConnection) -> int:
        if self._guard is not None and connection.authenticated is None:
            return UNAUTHENTICATED_BYTES_MAX
        return self._broker.settings.request_bytes_max

    def shortens(self, connection: KafkaConnection) -> bool:
        return self._guard is None or connection.authenticated is not None

    def admit_now(self, announced: Announced) -> Admission | None:
        if announced.api_key == PRODUCE:
            return self._broker.cluster_log.admit_now(announced.size_bytes)
        return self._budget.admit_now(announced.size_bytes)

    async def admit(self, announced: Announced) -> Admission:
        budget = self._broker.cluster_log if announced.api_key == PRODUCE else self._budget
        return await budget.admit(announced.size_bytes, timeout_s=ADMISSION_TIMEOUT_S).__aenter__()

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, connection: KafkaConnection, frame: Frame, admission: Admission | None) -> None:
        """Begins a request. A Produce that need not wait is appended before this returns.

        Raises TidelogError if the connection must be closed.
        """
        try:
            self._begin(connection, frame, admission)
        except BaseException:
            if admission is not None:
                admission.release()
            raise

    def _begin(self, connection: KafkaConnection, frame: Frame, admission: Admission | None) -> None:
        if self._authentication.takes_bare_tokens(connection):
            answer = connection.answer()
            token = bytes(frame.data)
            connection.enqueue(answer, lambda: self._authentication.answer_bare_token(connection, answer, token))
            return
        header = decode_header(frame.data)
        if header.api_key not in self.versions:
            raise InvalidArgument(f"the client asks for API {header.api_key}, which this broker does not have")
        api = APIS[header.api_key]
        version_min, version_max = self.versions[header.api_key]
        if not max(version_min, api.min_version) <= header.api_version <= version_max:
            if header.api_key == API_VERSIONS:
                connection.decide(connection.answer(), unsupported_version(self.versions, header.correlation_id))
                return
            raise InvalidArgument(
                f"the client asks for version {header.api_version} of {api.name}; "
                f"{max(version_min, api.min_version)} to {version_max} are served"
            )
        self._authentication.check(connection, header.api_key, api.name)
        if header.api_key == PRODUCE:
            message = api.decode(frame.data, header.body_offset, header.api_version)
            authorized = self.authorize(connection, api.name, KAFKA_CALLS[api.name])
            if authorized is None or permits_named(authorized, api.name, message, self._topic_name):
                self._produce.begin(connection, header, message, frame, admission, authorized)
                return
            owned = frame if frame.is_owned else Frame(memoryview(bytes(frame.data)), is_owned=True)
            connection.hold(Hold.RIGHTS)
            connection.run(partial(self._produce_settled, connection, header, owned, admission, authorized))
            return
        handler = self._handlers[header.api_key]
        answer = connection.answer()
        if connection.is_free and self._answer_at_once(connection, answer, handler, api, header, frame.data):
            if admission is not None:
                admission.release()
            return
        if admission is not None:
            answer.release = admission.release  # where the connection is lost before the request is handled
        # Decoded in its turn: structs of short fields take 50 times the memory of their bytes.
        data = frame.data if frame.is_owned else bytes(frame.data)
        connection.enqueue(answer, partial(self._answer, connection, answer, handler, api, header, data, admission))

    async def _produce_settled(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        frame: Frame,
        admission: Admission | None,
        authorized: AuthorizedCall,
    ) -> None:
        """Begins a Produce once this broker has heard of all rights. The connection is not read meanwhile."""
        api = APIS[header.api_key]
        try:
            message = api.decode(frame.data, header.body_offset, header.api_version)
            await settle_named(authorized, api.name, message, self._topic_name)
            self._produce.begin(connection, header, message, frame, admission, authorized)
        except BaseException:
            if admission is not None:
                admission.release()
            raise
        connection.go_on(Hold.RIGHTS)

    def _topic_name(self, topic_id: bytes) -> str:
        """Returns the name of a topic. Raises UnknownTopic."""
        return self._broker.topic_cache.by_id(TopicId(topic_id.hex())).name

    def _answer_at_once(
        self,
        connection: KafkaConnection,
        answer: Answer,
        handler: Handler,
        api: Api,
        header: RequestHeader,
        data: Buffer,
    ) -> bool:
        """Answers a request whose handler waits for nothing. Returns False, without any effect, if it has to wait."""
        if handler.handle_at_once is None:
            return False
        message = api.decode(data, header.body_offset, header.api_version)
        authorized = self.authorize(connection, api.name, handler.needs)
        if authorized is not None and not permits_named(authorized, api.name, message, self._topic_name):
            return False
        call = KafkaCall(connection, header.api_version, header.client_id or "", authorized)
        with acting(authorized):
            response = handler.handle_at_once(call, message)
        if response is None:
            return False
        self._traffic.calls += 1
        if authorized is not None and self._guard is not None:
            self._guard.ended(authorized, "")
        connection.decide(answer, self._encoded(call, api, header, response, request_bytes=len(data)))
        return True

    async def _answer(
        self,
        connection: KafkaConnection,
        answer: Answer,
        handler: Handler,
        api: Api,
        header: RequestHeader,
        data: Buffer,
        admission: Admission | None,
    ) -> None:
        """Decodes one request, runs its handler, and sends the response."""
        try:
            message = api.decode(data, header.body_offset, header.api_version)
        except BaseException:
            if admission is not None:
                admission.release()
            raise
        traffic_call = RequestContext(self._traffic)
        token = begin_call(traffic_call)
        note_deadline(ANSWER_TIMEOUT_S)
        authorized = self.authorize(connection, api.name, handler.needs)
        call = KafkaCall(connection, header.api_version, header.client_id or "", authorized)
        failure = "INTERNAL"
        try:
            if authorized is not None:
                await settle_named(authorized, api.name, message, self._topic_name)
            with acting(authorized):
                response = await self._handle(handler, call, message)
            failure = ""
        except TidelogError as error:
            failure = error.code
            raise
        finally:
            end_call(traffic_call, token)
            if admission is not None:
                admission.release()
            if authorized is not None and self._guard is not None:
                self._guard.ended(authorized, failure)
            if failure and call.release is not None:
                call.release()
        try:
            buffers = self._encoded(call, api, header, response, request_bytes=len(data))
        except Exception:  # a value that the protocol has no room for
            if call.release is not None:
                call.release()
            raise
        answer.is_last = call.is_last
        connection.decide(answer, buffers, call.release)

    def _encoded(self, call: KafkaCall, api: Api, header: RequestHeader, response: Any, *, request_bytes: int) -> Sequence[Buffer]:
        """Returns the answer as it is sent, with the time that its client must wait for its quota."""
        buffers = api.encode(response, header.api_version, header.correlation_id)
        if call.authorized is None:
            return buffers
        sent_bytes = sum(map(len, buffers))
        wait_s = self.charge(call.connection, call.authorized, bytes_in=request_bytes, bytes_out=sent_bytes)
        if wait_s > 0 and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = round(1000 * wait_s)
            buffers = api.encode(response, header.api_version, header.correlation_id)
        return buffers

    async def _handle(self, handler: Handler, call: KafkaCall, message: Any) -> Any:
        """Runs the handler. A long poll ends as soon as its credentials do, and then its connection is closed.

        If the caller has lost a right meanwhile, the handler runs again, and answers with the error of the topic or group.
        """
        authorized = call.authorized
        if authorized is None or self._guard is None or not handler.needs.lasts:
            return await handler.handle(call, message)
        try:
            with self._guard.while_permitted(authorized):
                return await handler.handle(call, message)
        except NotAuthorized:
            if call.release is not None:
                call.release()
                call.release = None
            authorized.granted.clear()
            return await handler.handle(call, message)

    def authorize(self, connection: KafkaConnection, action: str, needs: RequiredAccess) -> AuthorizedCall | None:
        """Returns the rights of the connection's client in this call; None if authentication is off.

        Raises Unauthenticated if its credentials have expired or were revoked, Unavailable while that is not known.
        """
        if self._guard is None:
            return None
        caller = connection.authenticated
        if caller is None and not needs.open:
            raise Unauthenticated("the client has not authenticated")
        call = self._guard.call_of(caller, needs, CallOrigin(LISTENER, action, connection.client_host))
        if not needs.open:
            self._guard.check_counts(call)
        return call

    def charge(self, connection: KafkaConnection, authorized: AuthorizedCall | None, *, bytes_in: int, bytes_out: int) -> float:
        """Counts a request for the quota of its principal. Returns the seconds for which the client must wait (KIP-219).

        The response carries this time as throttle_time_ms. The connection is not read for as long, or until the quota changes.
        As in Kafka, only Produce counts bytes in and only Fetch counts bytes out, and no other API waits for them.
        """
        if self._guard is None or authorized is None or (meter := self._guard.quota(authorized)) is None:
            return 0.0
        wait_s = min(THROTTLE_S_MAX, meter.charge(authorized.needs, bytes_in=bytes_in, bytes_out=bytes_out))
        if wait_s > 0:
            connection.throttle(wait_s, meter)
        return wait_s

    def _end_changed_waits(self) -> None:
        """Reads connections again that wait for a quota which was changed or removed meanwhile."""
        assert self._guard is not None
        for connection in self.open:
            if connection.throttled_by is not None and connection.authenticated is not None:
                connection.end_throttle(unless=self._guard.quota_of(connection.authenticated))

    async def _api_versions(self, call: KafkaCall, request: Any) -> Any:
        return answer_api_versions(self.versions, call, request)

    # ── idle connections ────────────────────────────────────────────────────────────────────────────────────────────────

    def close_idle(self, *, idle_s: float, receive_s: float) -> None:
        """Closes connections that sent nothing for `idle_s`, and those whose request has paused for `receive_s` or is slow."""
        now_s = asyncio.get_running_loop().time()
        for connection in tuple(self.open):
            silent_s = now_s - connection.last_used_s
            if (connection.awaits_bytes and silent_s > receive_s) or connection.is_too_slow(now_s):
                connection.refuse(BodyTooSlow("a request comes too slowly, and holds memory that others wait for"))
            elif connection.is_idle and silent_s > idle_s:
                connection.close()
