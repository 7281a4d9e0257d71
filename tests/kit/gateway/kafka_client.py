"""A client of Kafka's protocol for tests: one connection over a real socket, which sends what a test says, in any version."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.net.addresses import host_and_port
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED

KEYS = {definition.name: key for key, definition in DEFINITIONS.items()}
ANSWER_TIMEOUT_S = 60.0


class KafkaTestClient:
    """One connection. Requests may be sent ahead of the answers to those before."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str = "tests") -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_ids = itertools.count(1)

    def send(self, api: str, version: int, message: Any = None, /, **fields: Any) -> int:
        """Sends a request: a message, or one of these fields, whose structs may be dictionaries. Returns its correlation id."""
        correlation_id = next(self._correlation_ids)
        key = KEYS[api]
        if message is None:
            message = _struct(key, DEFINITIONS[key].request.root, fields)
        self.send_bytes(INSTALLED.encode_request_frame(key, message, version, correlation_id, self._client_id))
        return correlation_id

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    def send_frame(self, body: bytes) -> None:
        """Sends a frame without a header."""
        self.send_bytes(struct.pack(">i", len(body)) + body)

    async def receive_frame(self) -> bytes:
        """Returns the next answer without its length. Raises IncompleteReadError where the connection was closed."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def receive(self, api: str, version: int) -> tuple[int, Any]:
        """Returns the correlation id and the message of the next answer."""
        return INSTALLED.decode_response(KEYS[api], await self.receive_frame(), version)

    async def answer(self, api: str, version: int) -> Any:
        """Returns the message of the next answer."""
        return (await self.receive(api, version))[1]

    async def ask(self, api: str, version: int, message: Any = None, /, **fields: Any) -> Any:
        """Sends a request as `send` does, and returns its answer."""
        sent = self.send(api, version, message, **fields)
        correlation_id, answer = await self.receive(api, version)
        assert correlation_id == sent
        return answer

    async def log_in(self, key: str) -> None:
        """Authenticates with an API key, by SASL PLAIN."""
        assert (await self.ask("SaslHandshake", 1, mechanism="PLAIN")).error_code == 0
        answer = await self.ask("SaslAuthenticate", 2, auth_bytes=f"\0tests\0{key}".encode())
        assert answer.error_code == 0, answer.error_message

    async def is_closed(self) -> bool:
        """Waits for the next bytes. Returns whether the broker closed the connection instead of sending any."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self._writer.close()


def _struct(key: int, struct_of: Any, fields: dict[str, Any]) -> Any:
    request = DEFINITIONS[key].request
    kinds = {each.attribute: each for each in struct_of.fields}

    def value(name: str, given: Any) -> Any:
        each = kinds[name]
        if not each.is_struct:
            return given
        inner = request.structs[each.type]
        return [built(inner, item) for item in given] if isinstance(given, list | tuple) else built(inner, given)

    def built(inner: Any, given: Any) -> Any:
        return _struct(key, inner, given) if isinstance(given, dict) else given

    return INSTALLED.class_of(struct_of)(**{name: value(name, given) for name, given in fields.items()})


@asynccontextmanager
async def kafka_client(
    address: str, *, client_id: str = "tests", tls: ssl.SSLContext | None = None
) -> AsyncIterator[KafkaTestClient]:
    """A connection to HOST:PORT, which is closed at the end."""
    host, port = host_and_port(address)
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        yield KafkaTestClient(reader, writer, client_id)
    finally:
        writer.close()
