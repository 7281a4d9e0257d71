"""Batches that travel to the bucket together: one segment, from its first batch until its outcome is known.

Invariant: within it, a partition has one leader epoch, and its batches are in the order in which they came.
"""

from __future__ import annotations

import asyncio
from typing import Final

from metadata.errors import TidelogError
from metadata.model import LeaderEpoch, TopicPartition
from segments.wal.segment_file import BATCH_ENTRY_BYTES, StampedBatch


class PendingSegment:
    """Holds batches of one segment and the outcome that their producers wait for."""

    __slots__ = (
        "bytes_charged",
        "committed_at_s",
        "landed_at_s",
        "newest_at_s",
        "opened_at_s",
        "outcome",
        "partitions",
        "sent_at_s",
        "size_bytes",
    )

    def __init__(self, opened_at_s: float, outcome: asyncio.Future[TidelogError | None]) -> None:
        self.partitions: dict[TopicPartition, tuple[LeaderEpoch, list[StampedBatch]]] = {}
        self.size_bytes = 0
        self.bytes_charged = 0
        # When its first and its last batch came.
        self.opened_at_s = self.newest_at_s = opened_at_s
        # When its PUT began, when it was certain to be on the bucket, and when all before it were; 0 before that.
        self.sent_at_s = self.landed_at_s = self.committed_at_s = 0.0
        # None when committed, else the error for all waiters. A result, never an exception: there may be no waiter.
        self.outcome: Final = outcome

    def add(self, partition: TopicPartition, leader_epoch: LeaderEpoch, batch: StampedBatch, bytes_charged: int) -> None:
        held = self.partitions.get(partition)
        if held is None:
            self.partitions[partition] = (leader_epoch, [batch])
        else:
            assert held[0] == leader_epoch, f"{partition} changed its epoch while it was buffered: it must be flushed first"
            held[1].append(batch)
        self.size_bytes += batch.size_bytes + BATCH_ENTRY_BYTES
        self.bytes_charged += bytes_charged

    def holds(self, partition: TopicPartition, offset: int) -> bool:
        held = self.partitions.get(partition)
        return held is not None and held[1][0].base_offset <= offset <= held[1][-1].last_offset
