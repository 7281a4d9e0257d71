"""What a leader must know of a topic before it takes batches of requests with an Idempotency-Key, as its Log asks for it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from metadata.model import TopicPartition


class KeyedRouting(Protocol):
    def check(self, partition: TopicPartition, partition_count: int) -> None:
        """Raises StaleRouting or NoLeader unless a new batch may be taken that was routed over so many partitions."""
        ...

    def is_proven(self, partition: TopicPartition) -> bool:
        """Whether this leader knows at least as many partitions of the topic as every leader of the partition before it knew."""
        ...

    async def prove(self, partitions: Collection[TopicPartition]) -> None:
        """Finds out from the metadata store what makes `is_proven` true of these, which are led here. Raises Unavailable."""
        ...


class AnyRouting:
    """For a Log whose owner knows no topics: every routing is taken."""

    def check(self, partition: TopicPartition, partition_count: int) -> None:
        pass

    def is_proven(self, partition: TopicPartition) -> bool:
        return True

    async def prove(self, partitions: Collection[TopicPartition]) -> None:
        pass
