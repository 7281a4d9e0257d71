"""Checks a cluster's health as a client: asks each broker itself, and all partitions at their leaders.

A fault is what an operator has to look at; a broker that drains is none. Invariant: it only reads.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from metadata.errors import Corrupt, TidelogError, UnknownTopic
from tidelog.client import Client
from tidelog.transport.descriptions import BrokerInfo, PartitionInfo

# Topics that are asked for their partitions at the same time.
TOPICS_AT_ONCE = 16
# A broker renews its lease every third of session_timeout_ms (9 s), and so hears from the metadata store more often.
METADATA_AGE_MS_MAX = 15_000


class BrokerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one broker."""

    broker_id: str
    grpc_address: str
    # serving, draining, not serving, unreachable.
    status: str
    detail: str = ""


class UnservedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose leader refuses it (CORRUPT: it is damaged) or does not answer."""

    topic: str
    partition: int
    leader: str
    code: str
    error: str
    hint: str


class ClusterHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a cluster."""

    cluster_id: str
    bucket: str
    brokers: list[BrokerHealth]
    topics: int
    partitions: int
    without_leader: int
    unserved: list[UnservedPartition]
    # Sentences for people; empty if all is well.
    faults: list[str]


async def check_cluster(log: Client) -> ClusterHealth:
    """Checks brokers and partitions. Raises what the client raises if no broker answers."""
    cluster = await log.cluster()
    brokers = list(await asyncio.gather(*(_check_broker(log, broker) for broker in cluster.brokers)))
    names = [topic.name for topic in await log.topics.list()]
    room = asyncio.Semaphore(TOPICS_AT_ONCE)
    described = dict(zip(names, await asyncio.gather(*(_partitions(log, name, room) for name in names)), strict=True))
    without = {name: missing for name, found in described.items() if (missing := sum(not one.leader for one in found))}
    unserved = [
        UnservedPartition(
            topic=name, partition=one.partition, leader=one.leader, code=one.error_code, error=one.error, hint=one.hint
        )
        for name, found in sorted(described.items())
        for one in found
        if one.leader and one.error
    ]
    faults = [f"{broker.broker_id} is {broker.status}: {broker.detail}" for broker in brokers if broker.detail]
    faults += [
        f"{_counted(missing)} of {name} {'has' if missing == 1 else 'have'} no leader" for name, missing in sorted(without.items())
    ]
    faults += _faults_of(unserved)
    if cluster.metadata_age_ms > METADATA_AGE_MS_MAX:
        faults.append(
            f"the broker that was asked has heard nothing from the metadata store for {cluster.metadata_age_ms / 1000:.0f} s: "
            "topics and leaders can't change, and this answer may be old. Look at each member of etcd (tidelog doctor --etcd URL), "
            "or, without etcd, at the broker's log and the disk of its data directory"
        )
    return ClusterHealth(
        cluster_id=cluster.cluster_id,
        bucket=cluster.bucket,
        brokers=brokers,
        topics=len(names),
        partitions=sum(map(len, described.values())),
        without_leader=sum(without.values()),
        unserved=unserved,
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


def _faults_of(unserved: list[UnservedPartition]) -> list[str]:
    """Lists damaged partitions one by one, and counts those of each leader that does not answer."""
    damaged = [
        f"{one.leader} refuses {one.topic}/{one.partition}, which is damaged: {one.error}. {one.hint}"
        for one in unserved
        if one.code == Corrupt.code
    ]
    silent = Counter((one.leader, one.topic) for one in unserved if one.code != Corrupt.code)
    return damaged + [f"{leader} does not answer for {_counted(count)} of {topic}" for (leader, topic), count in silent.items()]


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions != 1 else ''}"


async def _partitions(log: Client, name: str, room: asyncio.Semaphore) -> tuple[PartitionInfo, ...]:
    """Returns the topic's partitions; none if it was deleted meanwhile."""
    async with room:
        try:
            return (await log.topics.describe(name)).partitions
        except UnknownTopic:
            return ()
