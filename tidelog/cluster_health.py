"""How a cluster is, as a client finds it: each broker is asked itself, and the leaders of all partitions are looked up.

A fault is what an operator has to look at; a broker that drains is none. Invariant: it only reads.
"""

from __future__ import annotations

import asyncio

import msgspec

from metadata.errors import TidelogError, UnknownTopic
from tidelog.client import Client
from tidelog.descriptions import BrokerInfo

TOPICS_AT_ONCE = 16
"""Topics that are asked for their partitions at the same time."""


class BrokerHealth(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: str
    grpc_address: str
    status: str
    """serving, draining, not serving, unreachable."""
    detail: str = ""


class ClusterHealth(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    bucket: str
    brokers: list[BrokerHealth]
    topics: int
    partitions: int
    without_leader: int
    faults: list[str]
    """In sentences for people; none where all is well."""


async def check_cluster(log: Client) -> ClusterHealth:
    """Raises what the client raises where nobody answers."""
    cluster = await log.cluster()
    brokers = list(await asyncio.gather(*(_check_broker(log, broker) for broker in cluster.brokers)))
    names = [topic.name for topic in await log.topics.list()]
    room = asyncio.Semaphore(TOPICS_AT_ONCE)
    counted = await asyncio.gather(*(_count_leaders(log, name, room) for name in names))
    without = {name: missing for name, (_, missing) in zip(names, counted, strict=True) if missing}
    faults = [f"{broker.broker_id} is {broker.status}: {broker.detail}" for broker in brokers if broker.detail]
    faults += [f"{missing} partitions of {name} have no leader" for name, missing in sorted(without.items())]
    return ClusterHealth(
        cluster_id=cluster.cluster_id,
        bucket=cluster.bucket,
        brokers=brokers,
        topics=len(names),
        partitions=sum(partitions for partitions, _ in counted),
        without_leader=sum(without.values()),
        faults=faults,
    )


async def _check_broker(log: Client, broker: BrokerInfo) -> BrokerHealth:
    status, detail = "serving", ""
    try:
        if not await log.serves(broker):
            status, detail = "not serving", "it starts, stops, or has no session on the bucket; its log says why"
        elif broker.draining:
            status = "draining"
    except TidelogError as error:
        status, detail = "unreachable", error.message
    return BrokerHealth(broker_id=broker.broker_id, grpc_address=broker.grpc_address, status=status, detail=detail)


async def _count_leaders(log: Client, name: str, room: asyncio.Semaphore) -> tuple[int, int]:
    """Partitions of the topic, and those that nobody leads; none where it was deleted meanwhile."""
    async with room:
        try:
            topic = await log.topics.describe(name)
        except UnknownTopic:
            return 0, 0
    return len(topic.partitions), sum(not partition.leader for partition in topic.partitions)
