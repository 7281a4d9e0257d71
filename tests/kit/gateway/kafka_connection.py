"""A connection of a Kafka client without a socket: what it writes is kept, and its requests are what a test makes of them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from gateway.kafka.connection import KafkaConnection
from gateway.kafka.frame_reader import SHARED_BYTES, Announced, Frame
from gateway.kafka.listener_config import ListenerConfig, Route
from gateway.net.connection_limiter import ConnectionLimiter
from segments.byte_budget import Admission, ByteBudget

LISTENER = ListenerConfig("kafka", "127.0.0.1:0", "", Route.DIRECT)


class HeldTransport(asyncio.Transport):
    """Takes what is written at once, or keeps it while the client `is_stalled`."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 40_000)})
        self.protocol: Any = None
        self.written = bytearray()
        self.unsent = bytearray()
        self.is_stalled = False
        self._reads = True
        self.is_ending = False
        self.is_lost = False
        self._high = 0
        self._is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def write(self, data: Any) -> None:
        (self.unsent if self.is_stalled else self.written).extend(data)
        if len(self.unsent) > self._high and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def receive(self, count: int = 1 << 40) -> None:
        """The client receives so many of the unsent bytes."""
        self.written += self.unsent[:count]
        del self.unsent[:count]
        if not self.unsent:
            if self._is_paused:
                self._is_paused = False
                self.protocol.resume_writing()
            if self.is_ending:
                self._lose()

    def is_reading(self) -> bool:
        return self._reads and not self.is_ending

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def is_closing(self) -> bool:
        return self.is_ending

    def close(self) -> None:
        self.is_ending = True
        if not self.unsent:
            self._lose()

    def abort(self) -> None:
        self.is_ending = True
        self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class ScriptedRequests:
    """Calls `begun` for each request, and has memory for `budget_bytes` of long ones."""

    def __init__(self, begun: Callable[[KafkaConnection, bytes], None], *, budget_bytes: int = 1 << 20) -> None:
        self.shared_buffer = memoryview(bytearray(SHARED_BYTES))
        self.connections = ConnectionLimiter(10, 10)
        self.budget = ByteBudget(budget_bytes)
        self._begun = begun

    def frame_bytes_max(self, connection: KafkaConnection) -> int:
        return self.budget.bytes_max

    def shortens(self, connection: KafkaConnection) -> bool:
        return False

    def opened(self, connection: KafkaConnection) -> None: ...
    def closed(self, connection: KafkaConnection) -> None: ...

    def admit_now(self, announced: Announced) -> Admission | None:
        return self.budget.admit_now(announced.size_bytes)

    async def admit(self, announced: Announced) -> Admission:
        return await self.budget.admit(announced.size_bytes, timeout_s=60.0).__aenter__()

    def begin(self, connection: KafkaConnection, frame: Frame, admission: Admission | None) -> None:
        if admission is not None:
            admission.release()
        self._begun(connection, bytes(frame.data))


def connected(requests: Any) -> tuple[KafkaConnection, HeldTransport]:
    """Returns an open connection, and its transport."""
    transport = HeldTransport()
    connection = KafkaConnection(requests, LISTENER)
    transport.protocol = connection
    connection.connection_made(transport)
    return connection, transport


def send(connection: KafkaConnection, data: bytes) -> None:
    """Delivers bytes of the client, as much at once as there is room for, while the connection is read."""
    at = 0
    while at < len(data) and not connection.is_closed:
        assert connection.transport.is_reading(), "the connection is not read"  # a transport delivers nothing meanwhile
        at += deliver(connection, data[at:])


def deliver(connection: KafkaConnection, data: bytes) -> int:
    """Delivers bytes in one piece. Returns for how many there was room."""
    buffer = connection.get_buffer(-1)
    count = min(len(buffer), len(data))
    buffer[:count] = data[:count]
    connection.buffer_updated(count)
    return count


def framed(body: bytes) -> bytes:
    """Returns the bytes of a request, with its length."""
    return struct.pack(">i", len(body)) + body
