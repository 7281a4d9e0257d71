"""A Kafka client of tests: sends requests by their classes, and receives answers, in any version."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from gateway.net.addresses import host_and_port
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED

KEYS = {definition.name: key for key, definition in DEFINITIONS.items()}


class KafkaTestClient:
    """One connection. Requests may be sent ahead of the answers to those before."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_ids = itertools.count(1)

    def send(self, api: str, version: int, message: Any) -> int:
        """Sends a request. Returns its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send_bytes(INSTALLED.encode_request_frame(KEYS[api], message, version, correlation_id))
        return correlation_id

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive_frame(self) -> bytes:
        """Returns the next answer without its length. Raises IncompleteReadError where the connection was closed."""
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def receive(self, api: str, version: int) -> tuple[int, Any]:
        """Returns the correlation id and the message of the next answer."""
        return INSTALLED.decode_response(KEYS[api], await self.receive_frame(), version)

    async def ask(self, api: str, version: int, message: Any) -> Any:
        """Sends a request, and returns its answer."""
        sent = self.send(api, version, message)
        correlation_id, answer = await self.receive(api, version)
        assert correlation_id == sent
        return answer

    async def is_closed(self) -> bool:
        """Waits for the end of the connection. False where an answer came instead."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def kafka_client(address: str) -> AsyncIterator[KafkaTestClient]:
    """A connection to HOST:PORT, which is closed at the end."""
    host, port = host_and_port(address)
    reader, writer = cast(Any, await asyncio.open_connection(host, port))
    try:
        yield KafkaTestClient(reader, writer)
    finally:
        writer.close()
