"""What the doors tell of a topic's partitions. Pure but for asking the log."""

from __future__ import annotations

from typing import NamedTuple

from gateway.doors import Broker, partition_of
from metadata.errors import TidelogError
from metadata.topic import Topic


class PartitionState(NamedTuple):
    partition: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    leader: str
    """Broker id; empty where nobody leads, and the numbers before it are -1."""


def partition_states(broker: Broker, topic: Topic) -> list[PartitionState]:
    return [partition_state(broker, topic, partition) for partition in range(topic.partition_count)]


def partition_state(broker: Broker, topic: Topic, partition: int) -> PartitionState:
    """UnknownPartition for one that the topic does not have."""
    asked = partition_of(topic, partition)
    try:
        bounds = broker.log.bounds(asked)
    except TidelogError:
        return PartitionState(partition, -1, -1, -1, "")
    return PartitionState(partition, bounds.log_start_offset, bounds.high_watermark, bounds.leader_epoch, broker.broker_id)
