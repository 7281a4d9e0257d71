"""One broker, or several, with Kafka listeners, and an admin client at one of them: for the tests of administrative APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from gateway.access.settings import AccessSettings
from gateway.broker.broker import Broker
from gateway.kafka.protocol.hot_messages import PartitionProduceData, ProduceRequest, TopicProduceData
from gateway.settings import GatewaySettings
from metadata.access.acl import Acl, Pattern
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from tests.kit.gateway.broker_cluster import Cluster, broker_cluster
from tests.kit.gateway.kafka_client import KafkaTestClient, kafka_client
from tests.kit.gateway.small_broker import PATIENCE_S

LISTENERS = "direct=127.0.0.1:0,forward=127.0.0.1:0/forward"


@dataclass
class KafkaAdmin:
    """The brokers, and a connection to the direct listener of the first."""

    cluster: Cluster
    client: KafkaTestClient

    @property
    def broker(self) -> Broker:
        return self.cluster.brokers[0]

    async def ask(self, api: str, version: int, message: Any) -> Any:
        return await self.client.ask(api, version, message)


def address(broker: Broker, listener: str = "direct") -> str:
    """Where clients reach a listener of the broker."""
    found = next(each for each in broker.kafka_listeners if each.name == listener)
    return f"{found.host}:{found.port}"


def with_admin(
    tmp_path: Path,
    scenario: Callable[[KafkaAdmin], Awaitable[None]],
    *,
    count: int = 1,
    gateway: GatewaySettings | None = None,
    access: AccessSettings | None = None,
) -> None:
    """Runs the scenario against so many brokers."""

    async def run() -> None:
        made = broker_cluster(tmp_path, count, kafka=LISTENERS, gateway=gateway, access=access)
        async with asyncio.timeout(PATIENCE_S), made as cluster, kafka_client(address(cluster.brokers[0])) as client:
            await scenario(KafkaAdmin(cluster, client))

    uvloop.run(run())


async def authenticate(admin: KafkaAdmin, principal: str) -> None:
    """Authenticates the open connection of the client as this principal, with an API key that is made for it."""
    made = await admin.broker.access.create_key(principal, expires_at_ms=0, scopes=(), description="a test", validate_only=False)
    await admin.client.log_in(made.text.reveal())


async def allow(admin: KafkaAdmin, principal: str, *rights: tuple[Any, Any, str], pattern: Pattern = "literal") -> None:
    """Gives the principal rights: operation, kind of resource, name."""
    for operation, resource, name in rights:
        acl = Acl(principal=principal, operation=operation, resource=resource, name=name, pattern=pattern)
        await admin.broker.access.add_acl(acl, validate_only=False)


async def produce(cluster: Cluster, topic: Topic, batch: bytes, partition: int = 0) -> None:
    """Appends the batch at the leader of the partition."""
    at = TopicPartition(topic.id, Partition(partition))
    await cluster.led(at)
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic.name, partition_data=[data])])
    async with kafka_client(address(cluster.leader(at))) as client:
        answer = await client.ask("Produce", 9, request)
    assert [each.error_code for named in answer.responses for each in named.partition_responses] == [0]
