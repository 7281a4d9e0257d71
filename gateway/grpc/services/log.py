"""Serves Log over gRPC: its calls by name, and the short ones itself: producer ids, offsets, leader epochs, deleted records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.access.authorization import note_validate_only
from gateway.access.refusals import settle_topics
from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.calls import MethodHandler, stream, unary, unary_by_origin, unary_deferred_read
from gateway.grpc.consume.service import GrpcConsume
from gateway.grpc.fetch.leader_epochs import checked_epoch, current_epoch_of
from gateway.grpc.fetch.service import GrpcFetch
from gateway.grpc.produce.open_streams import ProducerStreams
from gateway.grpc.produce.service import GrpcProduce
from gateway.proto import log_pb2
from gateway.proto.status import to_status
from gateway.records.append import topic_named, why_made_again
from gateway.routing.local_log import TOPIC_WAIT_S
from gateway.routing.log_service import EpochQuestion, LogService
from gateway.topics.names import (
    LOOKUP_S,
    NamedPartition,
    check_topic_id,
    named,
    naming,
    partition_of,
    topic_with,
    why_not_heard_of,
)
from metadata.errors import FencedLeaderEpoch, InvalidArgument, NoLeader, NotFound, TidelogError, UnknownTopic
from metadata.model import ProducerId, Revision, TopicId, TopicPartition
from segments.deadline import Deadline
from segments.partition.partition_log import NO_EPOCH, Bounds, check_epoch
from segments.partition.producer_state import ONE_SHOT

SERVICE: Final = "tidelog.v1.Log"
QUERIES_MAX: Final = 10_000
# Kinds of queries that look for a record: each may read from the bucket, or ask another broker.
_BY_TIMESTAMP: Final = frozenset({"timestamp_ms", "max_timestamp"})
LOOKUPS_AT_ONCE: Final = 16


class GrpcLogService:
    """Lists the handlers of the service Log, and answers its short calls."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits, producers: ProducerStreams) -> None:
        self._broker = broker
        self._produce = GrpcProduce(broker, waits, producers)
        self.fetch = GrpcFetch(broker, waits)
        self._consume = GrpcConsume(broker, waits, self.fetch)

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "InitProducer": unary(log_pb2.InitProducerRequest, self.init_producer),
            "Produce": unary_deferred_read(self._produce.produce),
            "ProduceStream": stream(self._produce.produce_stream),
            "Fetch": self.fetch.handler(),
            "Consume": stream(self._consume.consume),
            "ListOffsets": unary_by_origin(log_pb2.ListOffsetsRequest, self.list_offsets),
            "OffsetForLeaderEpoch": unary_by_origin(log_pb2.OffsetForLeaderEpochRequest, self.offset_for_leader_epoch),
            "DeleteRecords": unary_by_origin(log_pb2.DeleteRecordsRequest, self.delete_records),
            "FindWrittenOnce": unary(log_pb2.FindWrittenOnceRequest, self.find_written_once),
        }

    async def init_producer(self, _: log_pb2.InitProducerRequest) -> log_pb2.InitProducerResponse:
        return log_pb2.InitProducerResponse(producer_id=self._broker.producer_ids.next(), producer_epoch=0)

    async def list_offsets(self, request: log_pb2.ListOffsetsRequest, forwarded: bool) -> log_pb2.ListOffsetsResponse:
        _check_count(len(request.queries))
        log = self._broker.local_log if forwarded else self._broker.cluster_log
        resolved = await self._resolved(request.queries, forwarded)
        partitions = list({partition: None for partition in resolved if isinstance(partition, TopicPartition)})
        bounds = dict(zip(partitions, await log.bounds_of(partitions), strict=True))
        answers = [
            partition if isinstance(partition, TidelogError) else _in_its_epoch(log, partition, query, bounds[partition])
            for query, partition in zip(request.queries, resolved, strict=True)
        ]
        slots = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        async with asyncio.TaskGroup() as lookups:
            results = [
                lookups.create_task(_offset_by_timestamp(log, partition, query, answer, slots))
                if isinstance(partition, TopicPartition) and query.WhichOneof("at") in _BY_TIMESTAMP
                else _bound(query, answer)
                for query, partition, answer in zip(request.queries, resolved, answers, strict=True)
            ]
        answered = [await result if isinstance(result, asyncio.Task) else result for result in results]
        if not forwarded:
            answered = await self._of_present_topics(request.queries, resolved, answered)
        response = log_pb2.ListOffsetsResponse()
        for query, result in zip(request.queries, answered, strict=True):
            if isinstance(result, TidelogError):
                response.results.add(offset=-1, timestamp_ms=-1).error.CopyFrom(to_status(self._named(result, query)))
            else:
                response.results.append(result)
        return response

    async def offset_for_leader_epoch(
        self, request: log_pb2.OffsetForLeaderEpochRequest, forwarded: bool
    ) -> log_pb2.OffsetForLeaderEpochResponse:
        _check_count(len(request.queries))
        log = self._broker.local_log if forwarded else self._broker.cluster_log
        resolved = await self._resolved(request.queries, forwarded)
        asked = [_epoch_question(query, partition) for query, partition in zip(request.queries, resolved, strict=True)]
        found = iter(await log.ends_of_epochs([question for question in asked if isinstance(question, EpochQuestion)]))
        response = log_pb2.OffsetForLeaderEpochResponse()
        for query, question in zip(request.queries, asked, strict=True):
            end = next(found) if isinstance(question, EpochQuestion) else question
            if isinstance(end, TidelogError):
                response.ends.add(leader_epoch=-1, end_offset=-1).error.CopyFrom(to_status(self._named(end, query)))
            else:
                response.ends.add(leader_epoch=end.leader_epoch, end_offset=end.end_offset)
        return response

    async def delete_records(self, request: log_pb2.DeleteRecordsRequest, forwarded: bool) -> log_pb2.DeleteRecordsResponse:
        topic = await topic_with(self._broker, request.topic, request.partition, topic_id=request.topic_id, waits=not forwarded)
        log = self._broker.local_log if forwarded else self._broker.cluster_log
        note_validate_only(request.validate_only)
        with naming(topic):
            log_start_offset = await log.delete_records(
                partition_of(topic, request.partition), request.before_offset, validate_only=request.validate_only
            )
        return log_pb2.DeleteRecordsResponse(log_start_offset=log_start_offset)

    async def _resolved(
        self, queries: Sequence[log_pb2.OffsetQuery | log_pb2.LeaderEpochQuery], forwarded: bool
    ) -> list[TopicPartition | TidelogError]:
        """Returns the partitions, once this broker has heard of those that a client names. Another broker repeats its call."""
        if forwarded:
            return [self._resolve(query, {}) for query in queries]
        await settle_topics(query.topic for query in queries)
        found = [self._resolve(query, {}) for query in queries]
        unknown = [query for query, partition in zip(queries, found, strict=True) if isinstance(partition, NotFound)]
        if not unknown:
            return found
        names = [NamedPartition(query.topic, query.partition, query.topic_id) for query in unknown]
        why = await why_not_heard_of(self._broker, names)
        return [
            self._resolve(query, why) if isinstance(partition, NotFound) else partition
            for query, partition in zip(queries, found, strict=True)
        ]

    def _resolve(
        self, query: log_pb2.OffsetQuery | log_pb2.LeaderEpochQuery, why: Mapping[str, TidelogError]
    ) -> TopicPartition | TidelogError:
        """`why` holds, by topic, the errors of partitions that this broker does not know."""
        try:
            topic = topic_named(self._broker, query.topic)
            check_topic_id(topic, query.topic_id)
            return partition_of(topic, query.partition)
        except NotFound as error:
            return why.get(query.topic, error.with_traceback(None))
        except TidelogError as error:
            return error.with_traceback(None)

    async def _of_present_topics(
        self,
        queries: Sequence[log_pb2.OffsetQuery],
        resolved: Sequence[TopicPartition | TidelogError],
        answers: Sequence[log_pb2.OffsetResult | TidelogError],
    ) -> list[log_pb2.OffsetResult | TidelogError]:
        """Replaces UnknownTopic by a retryable error where a client named no id, and the topic was deleted and made again."""
        deadline, why = Deadline.after(LOOKUP_S), dict[TopicId, TidelogError | None]()
        found: list[log_pb2.OffsetResult | TidelogError] = []
        for query, partition, answer in zip(queries, resolved, answers, strict=True):
            if isinstance(answer, UnknownTopic) and isinstance(partition, TopicPartition) and not query.topic_id:
                former = partition.topic_id
                if former not in why:
                    why[former] = await why_made_again(self._broker, query.topic, former, deadline)
                found.append(why[former] or answer)
            else:
                found.append(answer)
        return found

    def _named(self, error: TidelogError, query: log_pb2.OffsetQuery | log_pb2.LeaderEpochQuery) -> TidelogError:
        try:
            return named(error, topic_named(self._broker, query.topic))
        except TidelogError:
            return error

    async def find_written_once(self, request: log_pb2.FindWrittenOnceRequest) -> log_pb2.FindWrittenOnceResponse:
        """Finds the results of one-shot batches that may have been written.

        Raises NotLeader or NoLeader if one of the partitions is not led here, or if this broker's view of the topic is older than
        the caller's:
        then it cannot tell what was written.
        """
        if request.producer_id < ONE_SHOT or len(request.partitions) > QUERIES_MAX:
            raise InvalidArgument(
                f"{request.producer_id} is not a one-shot producer, or more than {QUERIES_MAX} partitions are named",
                field="producer_id",
            )
        if not request.partitions:
            raise InvalidArgument("the request names no partition", field="partitions")
        revision = Revision(request.topic_revision)
        if not await self._broker.topic_cache.wait_for(revision, timeout_s=TOPIC_WAIT_S):
            raise NoLeader(f"this broker has not read the topic {request.topic} at revision {revision} yet")
        topic = topic_named(self._broker, request.topic)
        check_topic_id(topic, request.topic_id)
        with naming(topic):
            partitions = [partition_of(topic, partition) for partition in request.partitions]
            written = await self._broker.local_log.written_once(
                partitions, ProducerId(request.producer_id), topic_revision=revision
            )
        return log_pb2.FindWrittenOnceResponse(
            written=[
                log_pb2.WrittenOnce(
                    partition=partition.partition,
                    producer_epoch=batch.producer_epoch,
                    base_sequence=batch.base_sequence,
                    last_sequence=batch.last_sequence,
                    base_offset=batch.base_offset,
                    last_offset=batch.last_offset,
                )
                for partition, batch in written.batches.items()
            ],
            topic_revision=written.topic_revision,
        )


def _epoch_question(query: log_pb2.LeaderEpochQuery, partition: TopicPartition | TidelogError) -> EpochQuestion | TidelogError:
    if isinstance(partition, TidelogError):
        return partition
    try:
        return EpochQuestion(partition, checked_epoch(query.leader_epoch, field="leader_epoch"), current_epoch_of(query))
    except InvalidArgument as error:
        return error.with_traceback(None)


def _check_count(queries: int) -> None:
    if not 1 <= queries <= QUERIES_MAX:
        raise InvalidArgument(f"the request has {queries} queries; 1 to {QUERIES_MAX} are taken", field="queries")


def _in_its_epoch(
    log: LogService, partition: TopicPartition, query: log_pb2.OffsetQuery, bounds: Bounds | TidelogError
) -> Bounds | TidelogError:
    """Returns the bounds if their leader's epoch is the one that the reader knows; else the error that check_epoch raises."""
    try:
        current = current_epoch_of(query)
        if current is not None and isinstance(bounds, Bounds):
            check_epoch(partition, held=bounds.leader_epoch, current=current)
    except FencedLeaderEpoch as error:
        return log.fenced(partition, error.with_traceback(None))
    except TidelogError as error:
        return error.with_traceback(None)
    return bounds


def _bound(query: log_pb2.OffsetQuery, bounds: Bounds | TidelogError) -> log_pb2.OffsetResult | TidelogError:
    if isinstance(bounds, TidelogError):
        return bounds
    match query.WhichOneof("at"):
        case "earliest":
            offset, epoch = bounds.log_start_offset, bounds.log_start_epoch
        case "latest":
            offset, epoch = bounds.high_watermark, bounds.leader_epoch
        case _:
            return InvalidArgument("the query says neither earliest nor latest nor timestamp_ms nor max_timestamp", field="at")
    return log_pb2.OffsetResult(
        offset=offset, timestamp_ms=-1, leader_epoch=bounds.leader_epoch, record_epoch=epoch if epoch != NO_EPOCH else None
    )


async def _offset_by_timestamp(
    log: LogService,
    partition: TopicPartition,
    query: log_pb2.OffsetQuery,
    bounds: Bounds | TidelogError,
    slots: asyncio.Semaphore,
) -> log_pb2.OffsetResult | TidelogError:
    if isinstance(bounds, TidelogError):
        return bounds
    try:
        async with slots:
            if query.max_timestamp:
                found = await log.offset_of_max_timestamp(partition)
            else:
                found = await log.offset_for_timestamp(partition, query.timestamp_ms)
    except TidelogError as error:
        return error.with_traceback(None)
    offset, timestamp_ms, epoch = (-1, -1, NO_EPOCH) if found is None else found
    return log_pb2.OffsetResult(
        offset=offset,
        timestamp_ms=timestamp_ms,
        leader_epoch=bounds.leader_epoch,
        record_epoch=epoch if epoch != NO_EPOCH else None,
    )
