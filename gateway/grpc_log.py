"""The service Log: its calls by name, and the short ones: producer ids, offsets."""

from __future__ import annotations

from typing import Final

from gateway.doors import Broker, naming, partition_of
from gateway.grpc_calls import MethodHandler, stream, unary, unary_read_late
from gateway.grpc_fetch import GrpcFetch
from gateway.grpc_produce import GrpcProduce
from gateway.grpc_status import status_of
from gateway.long_waits import LongWaits
from gateway.produce import topic_named
from gateway.proto import log_pb2
from metadata.errors import InvalidArgument, TidelogError
from metadata.model import TopicPartition

SERVICE: Final = "tidelog.v1.Log"
QUERIES_MAX: Final = 10_000


class LogService:
    def __init__(self, broker: Broker, waits: LongWaits) -> None:
        self._broker = broker
        self._produce = GrpcProduce(broker, waits)
        self.fetch = GrpcFetch(broker, waits)

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "InitProducer": unary(log_pb2.InitProducerRequest, self.init_producer),
            "Produce": unary_read_late(self._produce.produce),
            "ProduceStream": stream(self._produce.produce_stream),
            "Fetch": self.fetch.handler(),
            "ListOffsets": unary(log_pb2.ListOffsetsRequest, self.list_offsets),
        }

    async def init_producer(self, _: log_pb2.InitProducerRequest) -> log_pb2.InitProducerResponse:
        return log_pb2.InitProducerResponse(producer_id=await self._broker.producer_ids.next(), producer_epoch=0)

    async def list_offsets(self, request: log_pb2.ListOffsetsRequest) -> log_pb2.ListOffsetsResponse:
        if not 1 <= len(request.queries) <= QUERIES_MAX:
            raise InvalidArgument(f"the request has {len(request.queries)} queries; 1 to {QUERIES_MAX} are taken", field="queries")
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
