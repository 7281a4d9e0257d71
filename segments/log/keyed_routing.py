"""Checks what a leader must know of a topic before it takes batches of requests with an Idempotency-Key. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from metadata.model import LeaderEpoch, TopicPartition


class KeyedRouting(Protocol):
    """Decides over how many partitions a keyed request may be routed. The owner of a SessionLog, who knows the topics, brings it.

    Each question names the leader epoch in which this broker leads the partition.
    """

    def check(self, partition: TopicPartition, leader_epoch: LeaderEpoch, partition_count: int) -> None:
        """Raises StaleRouting or NoLeader unless the leader may take a new batch that was routed over so many partitions."""
        ...

    def is_proven(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> bool:
        """Returns whether this leader knows at least as many partitions of the topic as every earlier leader of the partition."""
        ...

    async def prove(self, leader_epochs: Mapping[TopicPartition, LeaderEpoch]) -> None:
        """Reads from the metadata store what makes `is_proven` true of these partitions. Raises Unavailable."""
        ...


class AnyRouting:
    """Accepts every routing, for a SessionLog whose owner knows no topics."""

    def check(self, partition: TopicPartition, leader_epoch: LeaderEpoch, partition_count: int) -> None:
        pass

    def is_proven(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> bool:
        return True

    async def prove(self, leader_epochs: Mapping[TopicPartition, LeaderEpoch]) -> None:
        pass
