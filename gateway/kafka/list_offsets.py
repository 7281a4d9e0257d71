"""Answers ListOffsets and OffsetForLeaderEpoch: bounds of partitions, offsets by time, and ends of leader epochs.

A timestamp of ListOffsets is a time in milliseconds since 1970, for the first record at or after it, or one of these:

    -1  latest                              -4  earliest on this broker: the log start, since any broker reads all
    -2  earliest                            -5  latest in the remote tier: there is none
    -3  the record of the largest time      -6  earliest that is not only in the remote tier: the log start

The leader epoch beside an offset is that of the record there: by it a client learns later whether its position is still the same
(KIP-320). Beside the latest offset it is the leader's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from gateway.api import BrokerApi
from gateway.concurrency.bounded_map import map_bounded
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import UnsupportedTimestamp, list_offsets_code
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.protocol.admin_messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderTopicResult,
)
from gateway.kafka.protocol.client_messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from gateway.routing.log_service import EpochQuestion
from gateway.topics.names import BOUNDS_WAIT_S, NamedPartition, resolve_partitions
from metadata.errors import NotLeader, TidelogError
from metadata.model import TopicPartition
from segments.partition.partition_log import check_epoch
from segments.read.record_lookup import FoundRecord

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
# The first version of ListOffsets that knows the bound.
_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_EARLIEST: Final = frozenset({EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD})
# Partitions of one request that are answered at the same time: another broker may have to be asked for each.
OFFSETS_MAX: Final = 256
# Look-ups by time of one request that run at the same time: each may read a segment.
LOOKUPS_MAX: Final = 16


class KafkaOffsets:
    """Answers ListOffsets and OffsetForLeaderEpoch for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi, leaders: KafkaLeaders) -> None:
        self._broker = broker
        self._leaders = leaders
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)

    async def list_offsets(self, call: KafkaCall, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Answers each partition with an offset, or with its error."""
        names = [NamedPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
        found = iter(await self._resolved(call, names))
        asked = [(each, next(found), call.version) for topic in request.topics for each in topic.partitions]
        answers = iter(await map_bounded(lambda each: self._offset(*each), asked, at_once=OFFSETS_MAX))
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(name=topic.name, partitions=[next(answers) for _ in topic.partitions])
                for topic in request.topics
            ]
        )

    async def offset_for_leader_epoch(self, call: KafkaCall, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """Answers each partition with the end of the largest epoch that is not above the one in question (KIP-320)."""
        asked = [each for topic in request.topics for each in topic.partitions]
        names = [NamedPartition(topic.topic, each.partition) for topic in request.topics for each in topic.partitions]
        partitions = await self._resolved(call, names)
        questions = [
            EpochQuestion(at, each.leader_epoch, _known_epoch(each.current_leader_epoch))
            for each, at in zip(asked, partitions, strict=True)
            if not isinstance(at, TidelogError)
        ]
        ends = iter(await self._broker.cluster_log.ends_of_epochs(questions, wait_s=BOUNDS_WAIT_S) if questions else ())
        answers = []
        for each, at in zip(asked, partitions, strict=True):
            end = at if isinstance(at, TidelogError) else next(ends)
            answer = OffsetForLeaderEpochResponseEpochEndOffset(partition=each.partition)
            if isinstance(end, TidelogError):
                answer.error_code = list_offsets_code(end)
            else:
                answer.leader_epoch, answer.end_offset = end.leader_epoch, end.end_offset
            answers.append(answer)
        rest = iter(answers)
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(topic=topic.topic, partitions=[next(rest) for _ in topic.partitions])
                for topic in request.topics
            ]
        )

    async def _resolved(self, call: KafkaCall, names: Sequence[NamedPartition]) -> list[TopicPartition | TidelogError]:
        """Returns each partition, with NotLeader in place of one for which the client should ask another broker."""
        found = await resolve_partitions(self._broker, names)
        return [
            NotLeader(f"another broker leads {at}")
            if isinstance(at, TopicPartition) and not self._leaders.is_served_here(at, call.connection.listener)
            else at
            for at in found
        ]

    async def _offset(
        self, asked: ListOffsetsPartition, partition: TopicPartition | TidelogError, version: int
    ) -> ListOffsetsPartitionResponse:
        answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        try:
            if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, version + 1):
                raise UnsupportedTimestamp(f"version {version} of ListOffsets has no timestamp {asked.timestamp}")
            if isinstance(partition, TidelogError):
                raise partition
            bounds = await self._broker.cluster_log.bounds(partition)
            known = _known_epoch(asked.current_leader_epoch)
            if known is not None:
                check_epoch(partition, held=bounds.leader_epoch, current=known)
            if asked.timestamp == LATEST_TIERED:
                return answer
            if asked.timestamp in _EARLIEST:
                answer.offset, answer.leader_epoch = bounds.log_start_offset, bounds.log_start_epoch
            elif asked.timestamp == LATEST:
                answer.offset, answer.leader_epoch = bounds.high_watermark, bounds.leader_epoch
            else:
                async with self._lookups:
                    found = await self._lookup(partition, asked.timestamp)
                if found is not None:
                    answer.offset, answer.timestamp, answer.leader_epoch = found.offset, found.timestamp_ms, found.leader_epoch
        except TidelogError as error:
            answer.error_code = list_offsets_code(error)
        return answer

    async def _lookup(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        if timestamp_ms == MAX_TIMESTAMP:
            return await self._broker.cluster_log.offset_of_max_timestamp(partition)
        return await self._broker.cluster_log.offset_for_timestamp(partition, timestamp_ms)


def _known_epoch(leader_epoch: int) -> int | None:
    return leader_epoch if leader_epoch >= 0 else None
