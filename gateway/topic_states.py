"""What the doors tell of a topic's partitions, whoever leads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.doors import Broker, partition_of
from metadata.errors import TidelogError
from metadata.model import TopicPartition
from metadata.topic import Topic
from segments.partition_log import Bounds


class PartitionState(NamedTuple):
    partition: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    leader: str
    """Broker id; empty where nobody leads, or does not answer, and the numbers before it are -1."""
    leader_http_address: str
    """Empty where nobody leads, as the next."""
    leader_grpc_address: str


async def partition_states(broker: Broker, topic: Topic, partitions: Sequence[int] | None = None) -> list[PartitionState]:
    """Of all partitions, or of these. UnknownPartition for one that the topic does not have."""
    numbers = range(topic.partition_count) if partitions is None else partitions
    asked = [partition_of(topic, number) for number in numbers]
    found = await broker.routed_log.bounds_of(asked)
    return [_state(broker, partition, bounds) for partition, bounds in zip(asked, found, strict=True)]


def _state(broker: Broker, partition: TopicPartition, bounds: Bounds | TidelogError) -> PartitionState:
    leader = broker.leader(partition)
    if isinstance(bounds, TidelogError) or leader is None:
        return PartitionState(partition.partition, -1, -1, -1, "", "", "")
    return PartitionState(
        partition.partition,
        bounds.log_start_offset,
        bounds.high_watermark,
        bounds.leader_epoch,
        leader.broker_id,
        leader.http_address,
        leader.grpc_address,
    )
