"""Serves Fetch over gRPC: a long poll over many partitions, answered with batches or structured records.

  poll: until there are records ─▶ ask for room ─▶ fetch, open ─▶ gRPC sends it ─▶ the call is done: give the room back

The error of a partition stands in its place in the answer, so one deleted topic does not stop a reader of ten.

A call is done when its reader has taken the last byte, or is gone; grpc/slow_readers.py ensures that one of both happens.

Invariant: a call holds room for its answer while the answer is on its way, and none while it waits for records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

import grpc

from gateway.access.refusals import settle_topics
from gateway.api import BrokerApi
from gateway.concurrency.offload import OnePerLoopTurn
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.calls import Context, MethodHandler, is_forwarded, unary_bytes
from gateway.grpc.fetch.leader_epochs import current_epoch_of
from gateway.grpc.fetch.response_encoder import PartitionResponse, encode_fetch_response, encode_records
from gateway.grpc.slow_readers import SlowReaderGuard
from gateway.proto import log_pb2
from gateway.proto.status import to_status
from gateway.records.append import topic_named
from gateway.records.batch_decoder import RECORDS_MAX, decode_records, room_for
from gateway.records.response_budget import BYTES_LEAST, Reservation, ResponseBudget
from gateway.routing.location_messages import encode_locations
from gateway.routing.log_service import LogService
from gateway.topics.names import BOUNDS_WAIT_S, NamedPartition, check_topic_id, named, partition_of, why_not_heard_of
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import FencedLeaderEpoch, InvalidArgument, NotFound, Stopping, TidelogError, UnknownLeaderEpoch
from metadata.model import Offset, check_client_rack
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.partition.partition_log import check_epoch
from segments.read.log_reader import FetchResult

PARTITIONS_MAX: Final = 10_000
# From this size on, an answer is encoded and handed to gRPC in its own turn of the loop: that takes a millisecond per MiB.
LARGE_ANSWER_BYTES: Final = 128 << 10
# Copies of an answer on its way: ours, and gRPC's own.
COPIES: Final = 2


_NOTHING: Final[Mapping[str, TidelogError]] = {}


class RequestedPartition(NamedTuple):
    """One partition of a request: where to read, or why it can't be read."""

    request: log_pb2.FetchPartition
    topic: Topic | None
    target: FetchTarget | TidelogError
    # The broker to read from instead; the answer then has no records.
    preferred: BrokerRegistration | None = None


class FetchOptions(NamedTuple):
    """Holds the terms of a request, within the broker's bounds."""

    bytes_max: int
    bytes_min: int
    wait_ms: int
    structured: bool
    client_rack: str = ""
    is_forwarded: bool = False


class GrpcFetch:
    """Serves Fetch within the memory budget of answers, and reports which answers are on their way."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits) -> None:
        self._broker = broker
        self._waits = waits
        self.room = ResponseBudget(broker.settings, waits)
        self._large_answers = OnePerLoopTurn()
        self._traffic = broker.metrics.traffic
        self._deliveries = SlowReaderGuard(self.room, pause_s=broker.settings.answer_timeout_ms / 1000)

    def handler(self) -> MethodHandler:
        """Makes the handler of the call Fetch."""

        async def call(message: bytes, context: Context) -> bytes:
            reservation = self.room.reserve()
            context.add_done_callback(lambda _: reservation.keep(0))  # type: ignore[arg-type]  # its stubs name a class where a Protocol is meant
            forwarded = is_forwarded(context)
            log = self._broker.local_log if forwarded else self._broker.cluster_log
            answered = unary_bytes(
                log_pb2.FetchRequest, lambda request: self._fetch(request, reservation, log, forwarded=forwarded)
            ).unary_unary
            answer = cast(bytes, await answered(message, context))  # type: ignore[arg-type,misc]  # typed for blocking servers
            if reservation.bytes_held:
                ended = self.under_way(context, len(answer))
                context.add_done_callback(lambda _: ended())  # type: ignore[arg-type]  # its stubs name a class where a Protocol is meant
            return answer

        return grpc.unary_unary_rpc_method_handler(call)

    def under_way(self, context: Context, size_bytes: int) -> Callable[[], None]:
        """Records that an answer of `size_bytes` is handed to gRPC for this client. Returns a function to call once it is taken."""
        delivery = self._deliveries.begin(context.peer(), local_address=self._broker.grpc_address, size_bytes=size_bytes)
        return lambda: self._deliveries.end(delivery)

    async def _fetch(
        self, request: log_pb2.FetchRequest, reservation: Reservation, log: LogService, *, forwarded: bool = False
    ) -> bytes:
        """Returns the FetchResponse; `reservation` then holds room for it, and none if it has no records."""
        began_s = asyncio.get_running_loop().time()
        terms = self._terms(request, forwarded)
        if not forwarded:
            await settle_topics(each.topic for each in request.partitions)
        asked = [self._asked(partition, terms, log) for partition in request.partitions]
        if not forwarded:  # the other broker repeats its call
            asked = await self._heard_of(asked, terms, log)
        answers = await self._fetched(asked, terms, reservation, log)
        message = await self.laid_out(asked, answers, terms, reservation, log, encode_fetch_response)
        self._traffic.over_grpc(is_forwarded=forwarded).fetch_took(answers, began_s=began_s, could_wait=terms.wait_ms > 0)
        return message

    async def laid_out(
        self,
        asked: Sequence[RequestedPartition],
        answers: Sequence[FetchResult | TidelogError],
        terms: FetchOptions,
        reservation: Reservation,
        log: LogService,
        encode: Callable[[Sequence[PartitionResponse]], bytes],
    ) -> bytes:
        """Encodes the answers as one message, in the order of `asked`, as far as `reservation` has room.

        The reservation then holds the message's size.

        `encode` may run in a thread.
        """
        decompressed_bytes_max = log.settings.decompressed_bytes_max
        if sum(answer.size_bytes for answer in answers if isinstance(answer, FetchResult)) >= LARGE_ANSWER_BYTES:
            await self._large_answers.take()
        opened = [answer for answer in answers if terms.structured and isinstance(answer, FetchResult)]

        def laid() -> tuple[bytes, int]:
            responses = _responses(asked, answers, terms, reservation.bytes_held // COPIES, decompressed_bytes_max)
            return encode(responses), _record_count(asked, responses)

        message, records = await self.room.opened(opened, laid)
        traffic = self._traffic.over_grpc(is_forwarded=terms.is_forwarded)
        traffic.fetched(records=records, answer_bytes=len(message) if records else 0)
        for answer in answers:
            if isinstance(answer, TidelogError):
                traffic.refused(answer)
        if reservation.bytes_held:
            reservation.keep(COPIES * len(message))
        return message

    def _terms(self, request: log_pb2.FetchRequest, forwarded: bool) -> FetchOptions:
        settings = self._broker.settings
        if not 1 <= len(request.partitions) <= PARTITIONS_MAX:
            raise InvalidArgument(
                f"the request has {len(request.partitions)} partitions; 1 to {PARTITIONS_MAX} are taken", field="partitions"
            )
        if request.max_wait_ms > settings.fetch_wait_ms_max:
            raise InvalidArgument(
                f"max_wait_ms is {request.max_wait_ms}; at most {settings.fetch_wait_ms_max}", field="max_wait_ms"
            )
        if request.format not in log_pb2.FetchFormat.values():
            raise InvalidArgument(f"format {request.format} is not known", field="format")
        bytes_max = min(request.max_bytes or settings.fetch_bytes_max, settings.fetch_bytes_max)
        structured = request.format == log_pb2.FETCH_FORMAT_RECORDS
        client_rack = check_client_rack(request.client_rack)
        return FetchOptions(bytes_max, min(request.min_bytes, bytes_max), request.max_wait_ms, structured, client_rack, forwarded)

    async def _heard_of(self, asked: list[RequestedPartition], terms: FetchOptions, log: LogService) -> list[RequestedPartition]:
        """Returns the partitions, once this broker has heard of those that it does not know."""
        unknown = [request for request, _, target, _ in asked if isinstance(target, NotFound)]
        if not unknown:
            return asked
        names = [NamedPartition(request.topic, request.partition, request.topic_id) for request in unknown]
        why = await why_not_heard_of(self._broker, names)
        return [self._asked(each.request, terms, log, why) if isinstance(each.target, NotFound) else each for each in asked]

    def _asked(
        self, partition: log_pb2.FetchPartition, terms: FetchOptions, log: LogService, why: Mapping[str, TidelogError] = _NOTHING
    ) -> RequestedPartition:
        """`why` holds, by topic, the errors of partitions that this broker does not know."""
        try:
            topic = topic_named(self._broker, partition.topic)
            check_topic_id(topic, partition.topic_id)
            topic_partition = partition_of(topic, partition.partition)
            current_leader_epoch = current_epoch_of(partition)
        except NotFound as error:
            return RequestedPartition(partition, None, why.get(partition.topic, error))
        except TidelogError as error:
            return RequestedPartition(partition, None, error)
        bytes_max = partition.max_bytes or terms.bytes_max
        locations_bytes_min = log.locations_bytes_min(terms.client_rack)
        if terms.is_forwarded and partition.HasField("locations_bytes_min"):
            locations_bytes_min = partition.locations_bytes_min
        target = FetchTarget(topic_partition, partition.offset, bytes_max, current_leader_epoch, locations_bytes_min)
        return RequestedPartition(partition, topic, target, log.preferred_broker(topic_partition, terms.client_rack))

    async def _fetched(
        self, asked: Sequence[RequestedPartition], terms: FetchOptions, reservation: Reservation, log: LogService
    ) -> list[FetchResult | TidelogError]:
        """Returns an answer for each partition, within the room that `reservation` gets. Without records it holds none."""
        loop = asyncio.get_running_loop()
        sent_on = [target for _, _, target, preferred in asked if preferred and isinstance(target, FetchTarget)]
        bounds = iter(await _bounds_alone(log, sent_on) if sent_on else ())
        targets = [target for _, _, target, preferred in asked if not preferred and isinstance(target, FetchTarget)]
        terms = terms if len(targets) == len(asked) else terms._replace(wait_ms=0)
        ends_s = loop.time() + terms.wait_ms / 1000
        answers = await self._await_records(targets, terms, log) if targets else []
        bytes_there = sum(answer.size_bytes for answer in answers if isinstance(answer, FetchResult))
        if bytes_there:
            errors = [answer if isinstance(answer, TidelogError) else None for answer in answers]
            del answers  # a call that waits for room holds no records
            readable = [target for target, error in zip(targets, errors, strict=True) if error is None]
            read = iter(await self.admitted(readable, bytes_there, terms, reservation, log, timeout_s=ends_s - loop.time()))
            answers = [next(read) if error is None else error for error in errors]  # each error is reported once
        found = iter(answers)
        return [
            target if isinstance(target, TidelogError) else next(bounds if preferred else found)
            for _, _, target, preferred in asked
        ]

    async def admitted(
        self,
        targets: Sequence[FetchTarget],
        bytes_there: int,
        terms: FetchOptions,
        reservation: Reservation,
        log: LogService,
        *,
        timeout_s: float,
    ) -> list[FetchResult | TidelogError]:
        """Fetches as much as `reservation` gets room for. `bytes_there` is the size that the poll found. Raises Throttled if
        there is no room in time."""
        one_batch = COPIES * min(bytes_there, self._broker.settings.message_bytes_max)
        await reservation.ask(
            room_for(terms.bytes_max) if terms.structured else COPIES * terms.bytes_max,
            bytes_least=BYTES_LEAST if terms.structured else max(one_batch, BYTES_LEAST),
            timeout_s=timeout_s,
        )
        return await log.fetch(targets, bytes_max=min(terms.bytes_max, reservation.bytes_held // COPIES), bytes_min=0)

    async def _await_records(
        self, targets: Sequence[FetchTarget], terms: FetchOptions, log: LogService
    ) -> list[FetchResult | TidelogError]:
        """Returns the answers after the wait, or at a stop. If one batch is enough to end the wait, answers hold the first batch
        only."""
        if terms.wait_ms and terms.bytes_min:
            bytes_max = terms.bytes_max if terms.bytes_min > 1 else 1
            try:
                async with self._waits.until_stop():
                    return await log.fetch(targets, bytes_max=bytes_max, bytes_min=terms.bytes_min, wait_ms_max=terms.wait_ms)
            except Stopping:
                pass
        return await log.fetch(targets, bytes_max=1, bytes_min=0)


def _record_count(asked: Sequence[RequestedPartition], responses: Sequence[PartitionResponse]) -> int:
    return sum(
        answer.partition.next_offset - partition.offset
        for (partition, *_), answer in zip(asked, responses, strict=True)
        if answer.size_bytes
    )


async def _bounds_alone(log: LogService, targets: Sequence[FetchTarget]) -> list[FetchResult | TidelogError]:
    """Returns answers without records, with the bounds that their leaders report at once."""
    found = await log.bounds_of([target.partition for target in targets], wait_s=BOUNDS_WAIT_S)
    answers: list[FetchResult | TidelogError] = []
    for target, bounds in zip(targets, found, strict=True):
        if isinstance(bounds, TidelogError):
            answers.append(bounds)
            continue
        held, current = bounds.leader_epoch, target.current_leader_epoch
        try:
            if current is not None:
                check_epoch(target.partition, held=held, current=current)
        except FencedLeaderEpoch as error:
            answers.append(log.fenced(target.partition, error.with_traceback(None)))
        except UnknownLeaderEpoch as error:
            answers.append(error.with_traceback(None))
        else:
            offset = Offset(target.offset)
            answers.append(FetchResult([], 0, offset, bounds.high_watermark, bounds.log_start_offset, held))
    return answers


def _responses(
    asked: Sequence[RequestedPartition],
    answers: Sequence[FetchResult | TidelogError],
    terms: FetchOptions,
    bytes_max: int,
    decompressed_bytes_max: int,
) -> list[PartitionResponse]:
    """Makes the answers in the order of the request; with structured records as far as `bytes_max` reaches."""
    responses: list[PartitionResponse] = []
    records_max = RECORDS_MAX
    for (partition, topic, _, preferred), answer in zip(asked, answers, strict=True):
        head = log_pb2.FetchedPartition(topic=partition.topic, partition=partition.partition)
        if isinstance(answer, TidelogError):
            head.error.CopyFrom(to_status(named(answer, topic) if topic else answer))
            responses.append(PartitionResponse(head))
            continue
        head.high_watermark, head.log_start_offset = answer.high_watermark, answer.log_start_offset
        head.next_offset = answer.next_offset
        if preferred is not None:
            head.preferred_broker.broker_id = preferred.broker_id
            head.preferred_broker.grpc_address = preferred.grpc_address
            head.preferred_broker.http_address = preferred.http_address
        if answer.located is not None:
            head.locations.CopyFrom(encode_locations(answer.located))
            responses.append(PartitionResponse(head, leader_epoch=answer.leader_epoch))
        elif not terms.structured:
            responses.append(PartitionResponse(head, answer.batches, answer.size_bytes, leader_epoch=answer.leader_epoch))
        elif bytes_max <= 0 or records_max == 0:
            head.next_offset = partition.offset
            responses.append(PartitionResponse(head, leader_epoch=answer.leader_epoch))
        else:
            opened = decode_records(
                answer,
                partition.offset,
                partial(encode_records, partition=partition.partition),
                records_max=records_max,
                bytes_max=bytes_max,
                decompressed_bytes_max=decompressed_bytes_max,
            )
            head.next_offset = opened.next_offset
            responses.append(
                PartitionResponse(head, opened.pieces, opened.size_bytes, structured=True, leader_epoch=answer.leader_epoch)
            )
            bytes_max -= opened.size_bytes
            records_max -= opened.record_count
    return responses
