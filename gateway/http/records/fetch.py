"""Serves GET …/records: committed records, in one answer or as a stream. Reading changes nothing, so requests may be repeated.

    GET /v1/topics/{t}/partitions/{p}/records     JSON, NDJSON, Arrow: one answer (a long poll with wait_ms); events: a stream
    GET /v1/topics/{t}/records                    NDJSON, events: a stream over all partitions

A read begins at `offset` (a number, earliest, latest), `timestamp` or `tail`, by default at the earliest record. A stream of events
resumes at its Last-Event-ID instead (event_ids.py), and is refused if the topic was deleted or recreated since.
Invariant: the answer begins at the requested offset, or is 416 with the range.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.http import paced_response
from gateway.http.records import encoding
from gateway.http.records.encoding import Formats
from gateway.http.records.event_ids import decode_event_id
from gateway.http.records.produce import ARROW, JSON, NDJSON
from gateway.http.records.stream import Limits, RecordStream
from gateway.http.request import INT64_MAX, TRUE_OR_FALSE, Headers, Query, Request
from gateway.records.append import why_made_again
from gateway.records.batch_decoder import RECORDS_MAX, decode_records, room_for
from gateway.records.response_budget import Reservation, ResponseBudget
from gateway.routing.log_service import LogService
from gateway.settings import GatewaySettings
from gateway.topics.describe import fresh_topic
from gateway.topics.names import LOOKUP_S, check_topic_id, naming, partition_of, topic_heard_of, topic_with
from metadata.errors import InvalidArgument, OutOfRange, Stopping, TidelogError, UnknownTopic
from metadata.model import TopicPartition, check_client_rack
from metadata.topics.topic import Topic
from segments.deadline import Deadline
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult
from segments.records.json_values import JsonFormat

EVENTS: Final = "text/event-stream"
BYTES_MAX_DEFAULT: Final = 1 << 20
EPOCH_MAX: Final = 2**31 - 1

_FORMATS: Final = {form.value: form for form in JsonFormat}
_WHERE: Final = frozenset({"offset", "timestamp", "tail"})
_QUERY: Final = _WHERE | {"max_records", "max_bytes", "wait_ms", "key_format", "value_format", "client_rack"}
_PARTITION_QUERY: Final = _QUERY | {"current_leader_epoch"}
_TOPIC_QUERY: Final = _QUERY | {"refuse_outdated"}


class HttpFetch:
    """Answers fetch requests over HTTP. All responses of the listener share the memory of `budget`."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits) -> None:
        self._broker = broker
        self._waits = waits
        self.budget = ResponseBudget(broker.settings, waits)

    async def partition(self, request: Request, topic_name: str, partition_text: str) -> None:
        number = _partition_number(partition_text)
        topic = await topic_with(self._broker, topic_name, number)
        partition = partition_of(topic, number)
        query = request.query(_PARTITION_QUERY)
        limits = limits_of(query, self._broker.settings)
        current_leader_epoch = query.integer("current_leader_epoch", least=0, most=EPOCH_MAX)
        answer_type = request.accepted((JSON, NDJSON, ARROW, EVENTS))
        if answer_type == EVENTS and current_leader_epoch is not None:
            raise InvalidArgument(
                "a stream of events continues across changes of leader",
                hint="Leave current_leader_epoch out, or request a single answer with Accept: application/json.",
            )
        resumed: dict[int, int] = {}
        if answer_type == EVENTS:
            topic, resumed = await self._resume(request, topic, partition.partition)
        with naming(topic), _with_query_hints():
            start = resumed[partition.partition] if resumed else await self._start(query, topic, partition)
            if answer_type == EVENTS:
                positions: dict[int, int] = {partition.partition: start}
                stream = RecordStream(self._broker, self._waits, self.budget, topic, positions, limits, one_partition=True)
                await stream.send(request, events=True)
            else:
                locations_bytes_min = self._broker.cluster_log.locations_bytes_min(limits.client_rack)
                target = FetchTarget(partition, start, limits.bytes_max, current_leader_epoch, locations_bytes_min)
                async with self._of_present_topic(query, topic):
                    await self._send_once(request, answer_type, target, limits)

    async def topic(self, request: Request, topic_name: str) -> None:
        topic = await topic_with(self._broker, topic_name)
        query = request.query(_TOPIC_QUERY)
        limits = limits_of(query, self._broker.settings)
        refuses_outdated = query.choice("refuse_outdated", TRUE_OR_FALSE) or False
        answer_type = request.accepted((NDJSON, EVENTS))
        if query.is_integer("offset"):
            raise InvalidArgument(
                "an offset belongs to one partition", hint="Use offset=earliest or latest, timestamp or tail here."
            )
        if limits.wait_ms is not None:  # the stream may end before this broker hears of partitions that were just added
            topic = await fresh_topic(self._broker, topic_name, refuses_outdated=refuses_outdated)
        positions: dict[int, int] = {}
        if answer_type == EVENTS:
            topic, positions = await self._resume(request, topic, None)
        is_resumed = bool(positions)
        with naming(topic), _with_query_hints():
            for number in range(len(positions), topic.partition_count):
                partition = partition_of(topic, number)
                if is_resumed:  # added since: `latest` of the query would skip its first records
                    positions[number] = (await self._broker.cluster_log.bounds(partition)).log_start_offset
                else:
                    positions[number] = await self._start(query, topic, partition)
            stream = RecordStream(self._broker, self._waits, self.budget, topic, positions, limits, one_partition=False)
            await stream.send(request, events=answer_type == EVENTS)

    # ── start offset ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _start(self, query: Query, topic: Topic, partition: TopicPartition) -> int:
        """Returns the offset that the query names; by default the log start. Raises as _of_present_topic does."""
        async with self._of_present_topic(query, topic):
            return await self._offset_named(query, partition)

    @asynccontextmanager
    async def _of_present_topic(self, query: Query, topic: Topic) -> AsyncIterator[None]:
        """Replaces UnknownTopic by a retryable error where the topic was deleted and made again, which the client can't know.

        It does not where the query has the number of an offset, which belongs to the former topic.
        """
        try:
            yield
        except UnknownTopic:
            if query.is_integer("offset"):
                raise
            why = await why_made_again(self._broker, topic.name, topic.id, Deadline.after(LOOKUP_S))
            if why is None:
                raise
            raise why from None

    async def _offset_named(self, query: Query, partition: TopicPartition) -> int:
        if sum(name in query for name in _WHERE) > 1:
            raise InvalidArgument("offset, timestamp and tail exclude each other")
        log = self._broker.cluster_log
        bounds = await log.bounds(partition)
        timestamp_ms = query.timestamp_ms("timestamp")
        if timestamp_ms is not None:
            found = await log.offset_for_timestamp(partition, timestamp_ms)
            return bounds.high_watermark if found is None else found.offset
        tail = query.integer("tail", least=0, most=INT64_MAX)
        if tail is not None:
            return max(bounds.log_start_offset, bounds.high_watermark - tail)
        if query.is_integer("offset"):
            return query.integer("offset", least=0, most=INT64_MAX) or 0
        named = {"earliest": bounds.log_start_offset, "latest": bounds.high_watermark}
        chosen = query.choice("offset", named, or_else="a number from 0")
        return bounds.log_start_offset if chosen is None else chosen

    async def _resume(self, request: Request, topic: Topic, partition: int | None) -> tuple[Topic, dict[int, int]]:
        """Returns the positions after the event that Last-Event-ID names; none without this header.

        Raises UnknownTopic for a position in a topic that was deleted, even if it was recreated, since offsets in the new topic
        differ. Raises Unavailable if this broker does not know the topic or partition of the id yet.
        """
        last = request.headers.get(b"last-event-id", b"").decode("latin-1")
        if not last:
            return topic, {}
        event_id = decode_event_id(last, partition=partition)
        if event_id.topic_id != topic.id or len(event_id.positions) > topic.partition_count:
            topic = await topic_heard_of(self._broker, topic.name)
            check_topic_id(topic, event_id.topic_id)
        for number in event_id.positions:
            partition_of(topic, number)
        return topic, event_id.positions

    # ── single answers ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _send_once(self, request: Request, answer_type: str, target: FetchTarget, limits: Limits) -> None:
        with self.budget.reserve() as reservation:
            body, headers = await self._answer(request, answer_type, target, limits, reservation)
            await paced_response.send_paced(request, body, headers, pause_s=self._broker.settings.answer_timeout_ms / 1000)

    async def _answer(
        self, request: Request, answer_type: str, target: FetchTarget, limits: Limits, reservation: Reservation
    ) -> tuple[bytes, Headers]:
        """Returns the body and its headers; the fetched batches are released before they are sent."""
        log = self._broker.cluster_log
        began_s = asyncio.get_running_loop().time()
        reading = self._read(log, target, limits, reservation)
        fetched = await (request.run_while_connected(reading) if limits.wait_ms else reading)
        decompressed_bytes_max = log.settings.decompressed_bytes_max
        body, next_offset = await self.budget.opened(
            [fetched],
            lambda: _body(answer_type, fetched, target, limits, reservation.bytes_held, decompressed_bytes_max),
        )
        if reservation.bytes_held:
            reservation.keep(len(body))
        if next_offset > target.offset:
            traffic = self._broker.metrics.traffic.http
            traffic.fetched(records=next_offset - target.offset, answer_bytes=len(body))
            traffic.fetch_took([fetched], began_s=began_s, could_wait=bool(limits.wait_ms))
        return body, [
            (b"content-type", answer_type.encode()),
            (b"cache-control", b"no-store"),
            (b"tidelog-next-offset", b"%d" % next_offset),
            (b"tidelog-high-watermark", b"%d" % fetched.high_watermark),
            (b"tidelog-log-start-offset", b"%d" % fetched.log_start_offset),
            (b"tidelog-leader-epoch", b"%d" % fetched.leader_epoch),
        ]

    async def _read(self, log: LogService, target: FetchTarget, limits: Limits, reservation: Reservation) -> FetchResult:
        """Fetches batches that fit the reservation, which is made only if there are any."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + (limits.wait_ms or 0) / 1000
        probed = await self._probe(log, target, limits.wait_ms)
        if not probed.size_bytes:
            return probed
        del probed  # holds no records while it waits for memory
        await reservation.ask(room_for(limits.bytes_max), timeout_s=ends_s - loop.time())
        return await _fetch(log, target, bytes_max=min(target.bytes_max, reservation.bytes_held))

    async def _probe(self, log: LogService, target: FetchTarget, wait_ms: int | None) -> FetchResult:
        """Fetches one batch, or none after `wait_ms`, so that a long poll holds no records."""
        if wait_ms:
            try:
                async with self._waits.until_stop():
                    return await _fetch(log, target, bytes_max=1, wait_ms=wait_ms)
            except Stopping:
                pass  # answers with the present records
        return await _fetch(log, target, bytes_max=1)


def limits_of(query: Query, settings: GatewaySettings) -> Limits:
    """Returns max_records, max_bytes, wait_ms, key_format, value_format and client_rack, within the broker's bounds."""
    bytes_max = query.integer("max_bytes", least=1, most=settings.fetch_bytes_max)
    return Limits(
        query.integer("max_records", least=1, most=RECORDS_MAX),
        min(BYTES_MAX_DEFAULT, settings.fetch_bytes_max) if bytes_max is None else bytes_max,
        query.integer("wait_ms", least=0, most=settings.fetch_wait_ms_max),
        Formats(query.choice("key_format", _FORMATS) or JsonFormat.AUTO, query.choice("value_format", _FORMATS) or JsonFormat.AUTO),
        check_client_rack(query.text("client_rack")),
    )


async def _fetch(log: LogService, target: FetchTarget, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
    (answer,) = await log.fetch([target._replace(bytes_max=bytes_max)], bytes_max=bytes_max, wait_ms_max=wait_ms)
    if isinstance(answer, TidelogError):
        raise answer
    return answer


def _body(
    answer_type: str, fetched: FetchResult, target: FetchTarget, limits: Limits, bytes_max: int, decompressed_bytes_max: int
) -> tuple[bytes, int]:
    """Encodes the body, and returns it with the next offset to read."""
    partition, start = target.partition.partition, target.offset
    records_max = limits.records_max or RECORDS_MAX
    if answer_type == ARROW:
        return encoding.as_arrow(
            fetched,
            partition,
            offset=start,
            records_max=records_max,
            bytes_max=bytes_max,
            decompressed_bytes_max=decompressed_bytes_max,
        )
    encode = encoding.as_lines if answer_type == NDJSON else encoding.as_objects
    opened = decode_records(
        fetched,
        start,
        lambda records: encode(records, partition, limits.formats),
        records_max=records_max,
        bytes_max=bytes_max,
        decompressed_bytes_max=decompressed_bytes_max,
    )
    if answer_type == NDJSON:
        return b"".join(opened.pieces), opened.next_offset
    return encoding.as_page(opened.pieces, fetched, opened.next_offset), opened.next_offset


@contextmanager
def _with_query_hints() -> Iterator[None]:
    """Adds the valid offsets to the hint of OutOfRange."""
    try:
        yield
    except OutOfRange as error:
        start, end = error.details.get("log_start_offset"), error.details.get("high_watermark")
        error.hint = f"Read from offset=earliest ({start}), or from offset=latest ({end}) for new records only."
        raise


def _partition_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidArgument(f"{text[:60]!r} is not a partition: partitions are numbered from 0")
    return int(text)
