"""A client of Kafka's protocol that sends exactly what a test says, through a real socket."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.broker.broker import Broker
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED

KEYS = {definition.name: key for key, definition in DEFINITIONS.items()}
ANSWER_TIMEOUT_S = 20.0


@dataclass
class KafkaSocket:
    """One connection. Requests are numbered from 1."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: int = 0

    def send(self, name: str, version: int, **fields: Any) -> None:
        """Sends a request without waiting for its answer."""
        key = KEYS[name]
        self.sent += 1
        message = INSTALLED.class_of(DEFINITIONS[key].request.root)(**fields)
        self.writer.write(INSTALLED.encode_request_frame(key, message, version, self.sent))

    async def receive(self, name: str, version: int) -> Any:
        """Returns the next answer, which is to a request of this name and version."""
        _, message = INSTALLED.decode_response(KEYS[name], await self.receive_frame(), version)
        return message

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        """Sends a request, and returns its answer."""
        self.send(name, version, **fields)
        return await self.receive(name, version)

    def send_frame(self, body: bytes) -> None:
        """Sends a frame without a header."""
        self.writer.write(struct.pack(">i", len(body)) + body)

    async def receive_frame(self) -> bytes:
        """Returns the next frame without its length. Raises IncompleteReadError where the connection was closed."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        """Waits for the next bytes. Returns whether the broker closed the connection instead of sending any."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def kafka_socket(broker: Broker, tls: ssl.SSLContext | None = None) -> AsyncIterator[KafkaSocket]:
    """Connects to the first Kafka listener of a broker."""
    listener = broker.kafka_listeners[0]
    reader, writer = await asyncio.open_connection(listener.host, listener.port, ssl=tls)
    try:
        yield KafkaSocket(reader, writer)
    finally:
        writer.close()
