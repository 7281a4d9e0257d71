"""Reads partitions at another broker over gRPC: batches, bounds, epochs and record locations.

Invariant: results and errors are those that LocalLog returns at that broker. A request carries the topic id beside the topic name,
so that a recreated topic is not taken for the deleted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.proto import admin_pb2, log_pb2
from gateway.proto.status import from_status
from gateway.routing.location_messages import decode_locations
from gateway.routing.log_service import EpochQuestion, WrittenOnce
from gateway.routing.peer_channels import PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, ProducerId, Revision, SegmentSeq, SessionId, TopicPartition
from segments.log.manifest_follower import COMMIT_TIMEOUT_S
from segments.log.session_log import FetchTarget
from segments.partition.partition_log import NO_EPOCH, Bounds
from segments.partition.producer_state import SequencedBatch
from segments.read.log_reader import FetchResult
from segments.read.record_lookup import Explanation, FoundRecord
from segments.wal.run_index import EpochEnd

# Time limit of a request beyond its long poll.
TIMEOUT_S: Final = 10.0
# Time limit of a DeleteRecords, whose leader writes to the bucket.
DELETE_TIMEOUT_S: Final = 2 * COMMIT_TIMEOUT_S
# Partitions in one request; each takes two of the QUERIES_MAX of ListOffsets.
BOUNDS_MAX: Final = 4_000

_LOG: Final = "/tidelog.v1.Log/"


class PeerReader:
    """Sends reads to other brokers. Raises their errors, and those of PeerChannels.call."""

    def __init__(self, peers: PeerChannels) -> None:
        self._peers = peers

    async def fetch(
        self,
        leader: BrokerRegistration,
        targets: Sequence[tuple[str, FetchTarget]],
        *,
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: float,
    ) -> list[FetchResult | TidelogError]:
        """Fetches targets, each with the name of its topic, as ReadPath.fetch."""
        request = log_pb2.FetchRequest(
            partitions=[
                log_pb2.FetchPartition(
                    topic=topic,
                    topic_id=target.partition.topic_id,
                    partition=target.partition.partition,
                    offset=target.offset,
                    max_bytes=target.bytes_max,
                    current_leader_epoch=target.current_leader_epoch,
                    locations_bytes_min=target.locations_bytes_min,
                )
                for topic, target in targets
            ],
            max_bytes=bytes_max,
            min_bytes=bytes_min,
            max_wait_ms=round(wait_ms_max),
        )
        timeout_s = TIMEOUT_S + wait_ms_max / 1000
        answer = await self._peers.call(leader, _LOG + "Fetch", request, log_pb2.FetchResponse, timeout_s=timeout_s)
        _check_count(leader, len(answer.partitions), len(targets))
        return [_fetched(partition) for partition in answer.partitions]

    async def bounds(
        self, leader: BrokerRegistration, partitions: Sequence[tuple[str, TopicPartition]]
    ) -> list[Bounds | TidelogError]:
        """Returns the bounds of partitions, each with the name of its topic."""
        found: list[Bounds | TidelogError] = []
        for start in range(0, len(partitions), BOUNDS_MAX):
            asked = partitions[start : start + BOUNDS_MAX]
            queries = [query for topic, partition in asked for query in _bounds_queries(topic, partition)]
            results = await self._list_offsets(leader, queries)
            found += [_bounds(earliest, latest) for earliest, latest in zip(results[::2], results[1::2], strict=True)]
        return found

    async def ends_of_epochs(
        self, leader: BrokerRegistration, questions: Sequence[tuple[str, EpochQuestion]]
    ) -> list[EpochEnd | TidelogError]:
        """Answers questions, each with the name of its topic: at most as many as one client may ask in a request."""
        queries = [
            log_pb2.LeaderEpochQuery(
                topic=topic,
                topic_id=question.partition.topic_id,
                partition=question.partition.partition,
                leader_epoch=question.leader_epoch,
                current_leader_epoch=question.current_leader_epoch,
            )
            for topic, question in questions
        ]
        request = log_pb2.OffsetForLeaderEpochRequest(queries=queries)
        answer = await self._peers.call(
            leader, _LOG + "OffsetForLeaderEpoch", request, log_pb2.OffsetForLeaderEpochResponse, timeout_s=TIMEOUT_S
        )
        _check_count(leader, len(answer.ends), len(queries))
        return [
            from_status(end.error) if end.HasField("error") else EpochEnd(LeaderEpoch(end.leader_epoch), Offset(end.end_offset))
            for end in answer.ends
        ]

    async def offset_for_timestamp(
        self, leader: BrokerRegistration, topic: str, partition: TopicPartition, timestamp_ms: int
    ) -> FoundRecord | None:
        query = log_pb2.OffsetQuery(
            topic=topic, topic_id=partition.topic_id, partition=partition.partition, timestamp_ms=timestamp_ms
        )
        return await self._find_record(leader, query)

    async def offset_of_max_timestamp(
        self, leader: BrokerRegistration, topic: str, partition: TopicPartition
    ) -> FoundRecord | None:
        query = log_pb2.OffsetQuery(topic=topic, topic_id=partition.topic_id, partition=partition.partition, max_timestamp=True)
        return await self._find_record(leader, query)

    async def _find_record(self, leader: BrokerRegistration, query: log_pb2.OffsetQuery) -> FoundRecord | None:
        [found] = await self._list_offsets(leader, [query])
        if found.HasField("error"):
            raise from_status(found.error)
        return None if found.offset < 0 else FoundRecord(Offset(found.offset), found.timestamp_ms, _record_epoch(found))

    async def delete_records(
        self, leader: BrokerRegistration, topic: str, partition: TopicPartition, before_offset: int, *, validate_only: bool
    ) -> Offset:
        """Raises the log start at the leader. Raises OutcomeUnknown if the answer is lost, unless it only validates."""
        request = log_pb2.DeleteRecordsRequest(
            topic=topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            before_offset=before_offset,
            validate_only=validate_only,
        )

        def lost(why: str) -> TidelogError:
            if validate_only:
                return Unavailable(f"broker {leader.broker_id}, which leads the partition, did not answer: {why}")
            return OutcomeUnknown(
                f"broker {leader.broker_id}, which leads the partition, did not answer whether records were deleted: {why}",
                hint="Repeat the request: a second deletion changes nothing.",
            )

        answer = await self._peers.call(
            leader, _LOG + "DeleteRecords", request, log_pb2.DeleteRecordsResponse, timeout_s=DELETE_TIMEOUT_S, lost=lost
        )
        return Offset(answer.log_start_offset)

    async def explain(self, leader: BrokerRegistration, topic: str, partition: TopicPartition, offset: int) -> Explanation:
        request = admin_pb2.ExplainOffsetRequest(
            topic=topic, topic_id=partition.topic_id, partition=partition.partition, offset=offset
        )
        found = await self._peers.call(
            leader, "/tidelog.v1.Cluster/ExplainOffset", request, admin_pb2.ExplainOffsetResponse, timeout_s=TIMEOUT_S
        )
        return Explanation(
            found.object_key,
            found.range_start,
            found.range_end,
            Offset(found.base_offset),
            Offset(found.last_offset),
            LeaderEpoch(found.leader_epoch),
            found.batch_crc32c,
            found.in_tail_cache,
            SessionId(found.session) if found.HasField("session") else None,
            SegmentSeq(found.segment_seq) if found.HasField("segment_seq") else None,
            found.row_group if found.HasField("row_group") else None,
            found.file_checksum if found.HasField("file_checksum") else None,
        )

    async def written_once(
        self,
        leader: BrokerRegistration,
        topic: str,
        partitions: Sequence[TopicPartition],
        producer_id: ProducerId,
        *,
        topic_revision: Revision,
    ) -> WrittenOnce:
        """Asks one leader, as LogService.written_once. Raises NotLeader if it does not lead all the partitions."""
        request = log_pb2.FindWrittenOnceRequest(
            topic=topic,
            topic_id=partitions[0].topic_id,
            partitions=[partition.partition for partition in partitions],
            producer_id=producer_id,
            topic_revision=topic_revision,
        )
        answer = await self._peers.call(
            leader, _LOG + "FindWrittenOnce", request, log_pb2.FindWrittenOnceResponse, timeout_s=TIMEOUT_S
        )
        by_number = {int(partition.partition): partition for partition in partitions}
        batches = {
            by_number[batch.partition]: SequencedBatch(
                producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
                Offset(batch.base_offset),
                Offset(batch.last_offset),
            )
            for batch in answer.written
            if batch.partition in by_number
        }
        return WrittenOnce(batches, Revision(answer.topic_revision))

    async def _list_offsets(
        self, leader: BrokerRegistration, queries: Sequence[log_pb2.OffsetQuery]
    ) -> Sequence[log_pb2.OffsetResult]:
        request = log_pb2.ListOffsetsRequest(queries=queries)
        answer = await self._peers.call(leader, _LOG + "ListOffsets", request, log_pb2.ListOffsetsResponse, timeout_s=TIMEOUT_S)
        _check_count(leader, len(answer.results), len(queries))
        return answer.results


def _bounds_queries(topic: str, partition: TopicPartition) -> tuple[log_pb2.OffsetQuery, log_pb2.OffsetQuery]:
    def query(**at: bool) -> log_pb2.OffsetQuery:
        return log_pb2.OffsetQuery(topic=topic, topic_id=partition.topic_id, partition=partition.partition, **at)

    return query(earliest=True), query(latest=True)


def _bounds(earliest: log_pb2.OffsetResult, latest: log_pb2.OffsetResult) -> Bounds | TidelogError:
    """Returns the bounds; the end is the high watermark, since the answer leaves out uncommitted records."""
    for result in (earliest, latest):
        if result.HasField("error"):
            return from_status(result.error)
    high_watermark = Offset(latest.offset)
    leader_epoch = LeaderEpoch(latest.leader_epoch)
    return Bounds(Offset(earliest.offset), high_watermark, high_watermark, leader_epoch, _record_epoch(earliest))


def _record_epoch(found: log_pb2.OffsetResult) -> LeaderEpoch:
    """Returns NO_EPOCH where the other broker does not say it: its version may be an earlier one."""
    return LeaderEpoch(found.record_epoch) if found.HasField("record_epoch") else NO_EPOCH


def _fetched(partition: log_pb2.FetchedPartition) -> FetchResult | TidelogError:
    if partition.HasField("error"):
        return from_status(partition.error)
    batches = partition.record_batches
    return FetchResult(
        [batches] if batches else [],
        len(batches),
        Offset(partition.next_offset),
        Offset(partition.high_watermark),
        Offset(partition.log_start_offset),
        LeaderEpoch(partition.leader_epoch),
        decode_locations(partition.locations) if partition.HasField("locations") else None,
        committed_at_s=None,
    )


def _check_count(leader: BrokerRegistration, count: int, asked: int) -> None:
    if count != asked:
        raise Unavailable(f"broker {leader.broker_id} answered {count} of {asked} partitions", broker_id=leader.broker_id)
