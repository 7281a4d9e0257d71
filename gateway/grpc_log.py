"""The service Log but for produce: producer ids, fetch (a long poll), offsets.

Errors of one partition stand in its place, so that one topic that was deleted does not stop a reader of ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.doors import Broker, named, naming, partition_of
from gateway.fetch_wire import PartitionAnswer, encode_fetch_response
from gateway.grpc_calls import MethodHandler, stream, unary, unary_bytes, unary_read_late
from gateway.grpc_produce import GrpcProduce
from gateway.grpc_status import status_of
from gateway.long_waits import LongWaits
from gateway.produce import topic_named
from gateway.proto import log_pb2
from gateway.reads import records_from
from metadata.errors import InvalidArgument, Stopping, TidelogError
from metadata.model import TopicPartition
from metadata.topic import Topic
from segments.log import FetchTarget, Log
from segments.log_reader import Fetched

SERVICE: Final = "tidelog.v1.Log"
PARTITIONS_MAX: Final = 10_000
"""Partitions in one fetch, or queries in one ListOffsets."""


class Asked(NamedTuple):
    topic: Topic
    target: FetchTarget


class LogService:
    def __init__(self, broker: Broker, waits: LongWaits) -> None:
        self._broker = broker
        self._waits = waits
        self._produce = GrpcProduce(broker, waits)

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "InitProducer": unary(log_pb2.InitProducerRequest, self.init_producer),
            "Produce": unary_read_late(self._produce.produce),
            "ProduceStream": stream(self._produce.produce_stream),
            "Fetch": unary_bytes(log_pb2.FetchRequest, self.fetch),
            "ListOffsets": unary(log_pb2.ListOffsetsRequest, self.list_offsets),
        }

    async def init_producer(self, _: log_pb2.InitProducerRequest) -> log_pb2.InitProducerResponse:
        return log_pb2.InitProducerResponse(producer_id=await self._broker.producer_ids.next(), producer_epoch=0)

    async def fetch(self, request: log_pb2.FetchRequest) -> bytes:
        settings = self._broker.settings
        _check_count(len(request.partitions), "partitions")
        if request.max_wait_ms > settings.fetch_wait_ms_max:
            raise InvalidArgument(
                f"max_wait_ms is {request.max_wait_ms}; at most {settings.fetch_wait_ms_max}", field="max_wait_ms"
            )
        if request.format not in log_pb2.FetchFormat.values():
            raise InvalidArgument(f"format {request.format} is not known", field="format")
        bytes_max = min(request.max_bytes or settings.fetch_bytes_max, settings.fetch_bytes_max)
        log = self._broker.log
        asked = [self._target(partition, bytes_max) for partition in request.partitions]
        targets = [place.target for place in asked if isinstance(place, Asked)]
        wait_ms_max = request.max_wait_ms if len(targets) == len(asked) else 0
        fetched = iter(await self._fetch(log, targets, bytes_max, min(request.min_bytes, bytes_max), wait_ms_max))
        structured = request.format == log_pb2.FETCH_FORMAT_RECORDS
        told: list[PartitionAnswer] = []
        for partition, place in zip(request.partitions, asked, strict=True):
            answer = next(fetched) if isinstance(place, Asked) else place
            if isinstance(answer, TidelogError):
                error = named(answer, place.topic) if isinstance(place, Asked) else answer
                failed = log_pb2.FetchedPartition(topic=partition.topic, partition=partition.partition, error=status_of(error))
                told.append((failed, [], 0))
            else:
                told.append(await _told(partition, answer, structured, log.settings.decompressed_bytes_max))
        return encode_fetch_response(told)

    def _target(self, partition: log_pb2.FetchPartition, bytes_max: int) -> Asked | TidelogError:
        try:
            topic = topic_named(self._broker, partition.topic)
            place = partition_of(topic, partition.partition)
        except TidelogError as error:
            return error
        return Asked(topic, FetchTarget(place, partition.offset, partition.max_bytes or bytes_max))

    async def _fetch(
        self, log: Log, targets: Sequence[FetchTarget], bytes_max: int, bytes_min: int, wait_ms_max: int
    ) -> Sequence[Fetched | TidelogError]:
        """Waits for `bytes_min` bytes; a broker that stops answers with what there is."""
        if wait_ms_max and bytes_min:
            try:
                async with self._waits.until_stop():
                    return await log.fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
            except Stopping:
                pass
        return await log.fetch(targets, bytes_max=bytes_max, bytes_min=0, wait_ms_max=0)

    async def list_offsets(self, request: log_pb2.ListOffsetsRequest) -> log_pb2.ListOffsetsResponse:
        _check_count(len(request.queries), "queries")
        response = log_pb2.ListOffsetsResponse()
        for query in request.queries:
            try:
                response.results.append(await self._offset(query))
            except TidelogError as error:
                response.results.add(offset=-1, timestamp_ms=-1).error.CopyFrom(status_of(error))
        return response

    async def _offset(self, query: log_pb2.OffsetQuery) -> log_pb2.OffsetResult:
        topic = topic_named(self._broker, query.topic)
        with naming(topic):
            return await self._offset_in(partition_of(topic, query.partition), query)

    async def _offset_in(self, partition: TopicPartition, query: log_pb2.OffsetQuery) -> log_pb2.OffsetResult:
        log = self._broker.log
        bounds = log.bounds(partition)
        offset, timestamp_ms = -1, -1
        match query.WhichOneof("at"):
            case "earliest":
                offset = bounds.log_start_offset
            case "latest":
                offset = bounds.high_watermark
            case "timestamp_ms":
                found = await log.offset_for_timestamp(partition, query.timestamp_ms)
                if found is not None:
                    offset, timestamp_ms = found
            case _:
                raise InvalidArgument("the query says neither earliest nor latest nor timestamp_ms", field="at")
        return log_pb2.OffsetResult(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=bounds.leader_epoch)


async def _told(
    partition: log_pb2.FetchPartition, answer: Fetched, structured: bool, decompressed_bytes_max: int
) -> PartitionAnswer:
    told = log_pb2.FetchedPartition(
        topic=partition.topic,
        partition=partition.partition,
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start_offset,
        next_offset=answer.next_offset,
    )
    if not structured:
        return told, answer.batches, answer.size_bytes
    records, told.next_offset = await records_from(answer, partition.offset, decompressed_bytes_max=decompressed_bytes_max)
    told.records.extend(
        log_pb2.Record(
            key=key,
            value=value,
            headers=[log_pb2.Header(key=name, value=content) for name, content in headers],
            timestamp_ms=timestamp_ms,
            partition=partition.partition,
            offset=offset,
        )
        for offset, timestamp_ms, key, value, headers in records
    )
    return told, [], 0


def _check_count(count: int, field: str) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidArgument(f"the request has {count} {field}; 1 to {PARTITIONS_MAX} are taken", field=field)
