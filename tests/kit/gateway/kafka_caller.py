"""A client of Kafka's protocol over a real socket: one connection, one request at a time, in the version that a test names."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.broker import Broker
from gateway.kafka.connection import KafkaConnection
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED
from tests.kit.metadata.stores import until

KEYS = {definition.name: key for key, definition in DEFINITIONS.items()}


class KafkaCaller:
    """Sends requests, and returns their decoded answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_id = 0

    @property
    def port(self) -> int:
        """The client's own, by which a broker knows its connection."""
        port: int = self._writer.get_extra_info("sockname")[1]
        return port

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        """Sends `fields` as a request of the API and returns the answer. Structs are dictionaries."""
        self.send(api, version, **fields)
        return await self.answer(api, version)

    def send(self, api: str, version: int, **fields: Any) -> None:
        self._correlation_id += 1
        key = KEYS[api]
        message = _struct(key, DEFINITIONS[key].request.root, fields)
        self._writer.write(INSTALLED.encode_request_frame(key, message, version, self._correlation_id, self._client_id))

    async def answer(self, api: str, version: int) -> Any:
        """Returns the answer to the request that was sent last."""
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        correlation_id, message = INSTALLED.decode_response(KEYS[api], await self._reader.readexactly(size), version)
        assert correlation_id == self._correlation_id
        return message

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def _struct(key: int, struct_of: Any, fields: dict[str, Any]) -> Any:
    request = DEFINITIONS[key].request
    kinds = {each.attribute: each for each in struct_of.fields}

    def value(name: str, given: Any) -> Any:
        each = kinds[name]
        if not each.is_struct or given is None:
            return given
        inner = request.structs[each.type]
        return [_struct(key, inner, item) for item in given] if each.is_array else _struct(key, inner, given)

    return INSTALLED.class_of(struct_of)(**{name: value(name, given) for name, given in fields.items()})


@asynccontextmanager
async def kafka_caller(broker: Broker, *, listener: int = 0, client_id: str = "tests") -> AsyncIterator[KafkaCaller]:
    """A connection to one of the Kafka listeners of the broker, by its place among them."""
    at = broker.kafka_listeners[listener]
    reader, writer = await asyncio.open_connection(at.host, at.port)
    client = KafkaCaller(reader, writer, client_id)
    try:
        yield client
    finally:
        await client.close()


async def authenticate(broker: Broker, client: KafkaCaller, key: str) -> None:
    """Makes the client the principal of this API key, as if its connection had proved it."""
    assert broker.guard is not None
    principal = await broker.guard._authentication.caller(f"Bearer {key}", None)

    def connections() -> list[KafkaConnection]:
        assert broker._kafka is not None
        return [each for each in broker._kafka.requests.open if each.transport.get_extra_info("peername")[1] == client.port]

    await until(lambda: bool(connections()))
    [connection] = connections()
    connection.authenticated = principal


@asynccontextmanager
async def kafka_caller_as(broker: Broker, key: str, **terms: Any) -> AsyncIterator[KafkaCaller]:
    """The same, authenticated."""
    async with kafka_caller(broker, **terms) as client:
        await authenticate(broker, client, key)
        yield client
