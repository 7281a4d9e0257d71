"""Connections of Kafka clients to a broker of a test."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.broker.broker import Broker
from tests.kit.gateway.kafka_client import KafkaTestClient, kafka_client

KafkaCaller = KafkaTestClient


@asynccontextmanager
async def kafka_caller(
    broker: Broker, *, listener: int = 0, client_id: str = "tests", tls: ssl.SSLContext | None = None
) -> AsyncIterator[KafkaCaller]:
    """A connection to one of the Kafka listeners of the broker, by its place among them."""
    at = broker.kafka_listeners[listener]
    async with kafka_client(f"{at.host}:{at.port}", client_id=client_id, tls=tls) as client:
        yield client


@asynccontextmanager
async def kafka_caller_as(broker: Broker, key: str, *, listener: int = 0, client_id: str = "tests") -> AsyncIterator[KafkaCaller]:
    """The same, authenticated with an API key."""
    async with kafka_caller(broker, listener=listener, client_id=client_id) as client:
        await client.log_in(key)
        yield client
