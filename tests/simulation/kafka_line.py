"""One connection of a Kafka client to the listener of a simulated broker, without a socket.

    client ── frame ──▶ [KafkaConnection ─▶ KafkaRequests ─▶ handlers of gateway/kafka] ── answer ──▶ client
           KafkaLine: the transport of the broker's side, and the client's own side

Everything between the brackets is the code of the product, and runs in the process of the broker. So a frozen broker keeps what
arrives, and a killed one breaks its connections. Bytes arrive whole, late and in order.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

from gateway.kafka.connection import KafkaConnection, Requests
from gateway.kafka.listener_config import ListenerConfig
from gateway.kafka.protocol.api_ranges import API_RANGES
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.simulation.virtual_loop import virtual_loop

API_KEYS = {name: key for key, name, *_ in API_RANGES}
_LENGTH = struct.Struct(">i")


class KafkaHost(Protocol):
    """A broker's process, as its Kafka clients reach it."""

    name: str
    # Connections of Kafka clients that are open.
    kafka_lines: dict[KafkaLine, None]

    @property
    def kafka_requests(self) -> Requests: ...

    @property
    def takes_connections(self) -> bool: ...

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Runs `work` in the broker's process."""

    def failed_to_answer(self, error: BaseException) -> None:
        """Makes the world fail by a bug in a handler."""


class _Connection(KafkaConnection):
    """The real one. An error that no client was meant to get fails the world."""

    def __init__(self, host: KafkaHost, listener: ListenerConfig) -> None:
        super().__init__(host.kafka_requests, listener)
        self._host = host

    def _fail(self, error: Exception) -> None:
        self._host.failed_to_answer(error)
        super()._fail(error)


class Asked:
    """A request that waits for its answer."""

    __slots__ = ("api", "key", "reply", "version")

    def __init__(self, api: str, key: int, version: int) -> None:
        self.api = api
        self.key = key
        self.version = version
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class KafkaLine(asyncio.Transport):
    """Sends requests in order, several at a time, and brings back their answers."""

    def __init__(self, host: KafkaHost, listener: ListenerConfig, *, client_id: str, latency_s: float) -> None:
        super().__init__()
        self.host = host
        self._client_id = client_id
        self._latency_s = latency_s
        self._listener = listener
        self._connection: KafkaConnection | None = None
        # What has arrived, and waits until the broker reads.
        self._arrived = bytearray()
        self._reads = True
        self._is_ending = False
        self._answers = bytearray()
        self._asked: deque[Asked] = deque()
        # Why the client can use it no more.
        self.broken: TidelogError | None = None
        host.kafka_lines[self] = None
        host.later(latency_s, self._connect)

    # ── the client's side ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def waiting(self) -> int:
        """The number of requests without an answer."""
        return len(self._asked)

    def send(self, api: str, version: int, message: Any) -> Asked:
        """Sends a request; its answer comes to `answer`. Requests arrive in the order of these calls. Raises Unavailable."""
        if self.broken is not None:
            raise Unavailable(f"the connection to {self.host.name} is closed")
        asked = Asked(api, API_KEYS[api], version)
        self._asked.append(asked)
        frame = INSTALLED.encode_request_frame(asked.key, message, version, 0, self._client_id)
        self.host.later(self._latency_s, lambda: self._arrive(frame))
        return asked

    def send_unanswered(self, api: str, version: int, message: Any) -> None:
        """Sends a request that has no answer: Produce with acks=0. Raises Unavailable."""
        if self.broken is not None:
            raise Unavailable(f"the connection to {self.host.name} is closed")
        frame = INSTALLED.encode_request_frame(API_KEYS[api], message, version, 0, self._client_id)
        self.host.later(self._latency_s, lambda: self._arrive(frame))

    async def answer(self, asked: Asked, *, timeout_s: float) -> Any:
        """Returns the answer to a request. Raises OutcomeUnknown where none comes in time, and closes the connection."""
        late = virtual_loop().call_later(timeout_s, self._late, asked.api)
        try:
            answer = await asked.reply
        except asyncio.CancelledError:
            self.close_by_client("the client has ended")
            raise
        finally:
            late.cancel()
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    async def ask(self, api: str, version: int, message: Any, *, timeout_s: float) -> Any:
        """Sends a request and returns its answer. Raises Unavailable and OutcomeUnknown, as `send` and `answer` do."""
        return await self.answer(self.send(api, version, message), timeout_s=timeout_s)

    def close_by_client(self, why: str) -> None:
        if self.broken is None:
            self.break_now(why)
            self.host.later(self._latency_s, self._lose)

    def break_later(self, why: str) -> None:
        """The client learns that the connection is gone."""
        virtual_loop().call_later(self._latency_s, self.break_now, why, context=Context())

    def break_now(self, why: str) -> None:
        if self.broken is not None:
            return
        self.broken = OutcomeUnknown(f"the connection to {self.host.name} broke: {why}")
        self.host.kafka_lines.pop(self, None)
        while self._asked:
            asked = self._asked.popleft()
            if not asked.reply.done():
                asked.reply.set_result(self.broken)

    def _late(self, api: str) -> None:
        self.close_by_client(f"no answer to {api} in time")

    def _receive(self, data: bytes) -> None:
        if self.broken is not None:
            return
        self._answers += data
        while len(self._answers) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._answers)[0]
            if len(self._answers) < end:
                return
            frame = bytes(self._answers[_LENGTH.size : end])
            del self._answers[:end]
            asked = self._asked.popleft()
            if not asked.reply.done():
                asked.reply.set_result(INSTALLED.decode_response(asked.key, frame, asked.version)[1])

    # ── the broker's side ───────────────────────────────────────────────────────────────────────────────────────────────

    def _connect(self) -> None:
        self._connection = _Connection(self.host, self._listener)
        self._connection.connection_made(self)
        self._deliver()

    def _arrive(self, frame: bytes) -> None:
        self._arrived += frame
        self._deliver()

    def _deliver(self) -> None:
        connection = self._connection
        while connection is not None and self._arrived and self._reads and not self._is_ending:
            room = connection.get_buffer(-1)
            count = min(len(room), len(self._arrived))
            room[:count] = self._arrived[:count]
            del self._arrived[:count]
            connection.buffer_updated(count)

    def _lose(self) -> None:
        """The connection is gone for the broker."""
        if not self._is_ending:
            self._is_ending = True
            if self._connection is not None:
                self._connection.connection_lost(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 40_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What is written is received."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if not self._is_ending and self.host.takes_connections:
            virtual_loop().call_later(self._latency_s, self._receive, bytes(data), context=Context())

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_reading(self) -> bool:
        return self._reads and not self._is_ending

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self.host.later(0.0, self._deliver)

    def is_closing(self) -> bool:
        return self._is_ending

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self.break_later("the broker closed it")
            if self._connection is not None:
                asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)
