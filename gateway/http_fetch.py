"""GET …/records: committed records, once or as a stream. Reading changes nothing, so any request may be sent again.

    GET /v1/topics/{t}/partitions/{p}/records     JSON, NDJSON, Arrow: one answer (a long poll with wait_ms); events: a stream
    GET /v1/topics/{t}/records                    NDJSON, events: a stream over all partitions

Where to begin: `offset` (a number, earliest, latest), `timestamp` or `tail`; the earliest, where nothing is said. A stream of
events resumes at its Last-Event-ID instead (http_stream.py). Invariant: the answer begins at the asked offset, or is 416 with
the range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from gateway import record_answers
from gateway.doors import Broker, naming, partition_of
from gateway.http_produce import ARROW, JSON, NDJSON
from gateway.http_request import INT64_MAX, Headers, Query, Request
from gateway.http_stream import Limits, RecordStream
from gateway.long_waits import LongWaits
from gateway.produce import topic_named
from gateway.reads import THREAD_BYTES, records_from
from gateway.record_answers import Formats
from metadata.errors import InvalidArgument, Stopping, TidelogError
from metadata.model import TopicPartition
from metadata.topic import Topic
from segments.json_values import JsonFormat
from segments.log import FetchTarget, Log
from segments.log_reader import Fetched

EVENTS: Final = "text/event-stream"
BYTES_MAX_DEFAULT: Final = 1 << 20
RECORDS_MAX: Final = 100_000

_FORMATS: Final = {form.value: form for form in JsonFormat}
_QUERY: Final = frozenset({"offset", "timestamp", "tail", "max_records", "max_bytes", "wait_ms", "key_format", "value_format"})
_T = TypeVar("_T")


class HttpFetch:
    def __init__(self, broker: Broker, waits: LongWaits) -> None:
        self._broker = broker
        self._waits = waits

    async def partition(self, request: Request, topic_name: str, partition_text: str) -> None:
        topic = topic_named(self._broker, topic_name)
        partition = partition_of(topic, _partition_number(partition_text))
        query = request.query(_QUERY)
        limits = self._limits(query)
        answer_type = request.accepted((JSON, NDJSON, ARROW, EVENTS))
        resumed_at = _resumed_at(request) if answer_type == EVENTS else None
        with naming(topic):
            start = await self._start(query, partition) if resumed_at is None else resumed_at
        if answer_type == EVENTS:
            stream = RecordStream(self._broker, self._waits, topic, {partition.partition: start}, limits, one_partition=True)
            await stream.send(request, events=True)
            return
        log = self._broker.log
        polling = self._poll(log, partition, start, limits)
        with naming(topic):
            fetched = await (request.attended(polling) if limits.wait_ms else polling)
        body, next_offset = await self._once(answer_type, fetched, partition.partition, start, limits, log)
        headers: Headers = [
            (b"content-type", answer_type.encode()),
            (b"cache-control", b"no-store"),
            (b"tidelog-next-offset", b"%d" % next_offset),
            (b"tidelog-high-watermark", b"%d" % fetched.high_watermark),
            (b"tidelog-log-start-offset", b"%d" % fetched.log_start_offset),
        ]
        await request.answer(200, body, headers)

    async def topic(self, request: Request, topic_name: str) -> None:
        topic = topic_named(self._broker, topic_name)
        query = request.query(_QUERY)
        limits = self._limits(query)
        answer_type = request.accepted((NDJSON, EVENTS))
        if query.is_integer("offset"):
            raise InvalidArgument("an offset is of one partition", hint="Use offset=earliest or latest, timestamp or tail here.")
        positions = _resumed_positions(request, topic) if answer_type == EVENTS else {}
        for number in range(topic.partition_count):
            if number not in positions:
                with naming(topic):
                    positions[number] = await self._start(query, partition_of(topic, number))
        stream = RecordStream(self._broker, self._waits, topic, positions, limits, one_partition=False)
        await stream.send(request, events=answer_type == EVENTS)

    # ── where to begin ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _limits(self, query: Query) -> Limits:
        settings = self._broker.settings
        bytes_max = query.integer("max_bytes", least=1, most=settings.fetch_bytes_max)
        return Limits(
            query.integer("max_records", least=1, most=RECORDS_MAX),
            min(BYTES_MAX_DEFAULT, settings.fetch_bytes_max) if bytes_max is None else bytes_max,
            query.integer("wait_ms", least=0, most=settings.fetch_wait_ms_max),
            Formats(
                query.choice("key_format", _FORMATS) or JsonFormat.AUTO, query.choice("value_format", _FORMATS) or JsonFormat.AUTO
            ),
        )

    async def _start(self, query: Query, partition: TopicPartition) -> int:
        """The offset that the query means: the earliest, where it says nothing."""
        if sum(name in query for name in ("offset", "timestamp", "tail")) > 1:
            raise InvalidArgument("offset, timestamp and tail exclude each other")
        log = self._broker.log
        bounds = log.bounds(partition)
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
        chosen = query.choice("offset", named)
        return bounds.log_start_offset if chosen is None else chosen

    # ── one answer ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _poll(self, log: Log, partition: TopicPartition, start: int, limits: Limits) -> Fetched:
        targets = [FetchTarget(partition, start, limits.bytes_max)]
        answers: list[Fetched | TidelogError] = []
        if limits.wait_ms:
            try:
                async with self._waits.until_stop():
                    answers = await log.fetch(targets, bytes_max=limits.bytes_max, wait_ms_max=limits.wait_ms)
            except Stopping:
                log = self._broker.log  # what there is, then
        answer = (answers or await log.fetch(targets, bytes_max=limits.bytes_max))[0]
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    async def _once(
        self, answer_type: str, fetched: Fetched, partition: int, start: int, limits: Limits, log: Log
    ) -> tuple[bytes, int]:
        """(body, next offset)"""
        decompressed_bytes_max = log.settings.decompressed_bytes_max
        records_max = limits.records_max or RECORDS_MAX
        if answer_type == ARROW:
            return await _maybe_in_thread(
                fetched.size_bytes,
                lambda: record_answers.as_arrow(
                    fetched, partition, offset=start, records_max=records_max, decompressed_bytes_max=decompressed_bytes_max
                ),
            )
        records, next_offset = await records_from(fetched, start, decompressed_bytes_max=decompressed_bytes_max)
        if len(records) > records_max:
            next_offset = records[records_max][0]
            records = records[:records_max]
        if answer_type == NDJSON:
            body = await _maybe_in_thread(fetched.size_bytes, lambda: record_answers.as_lines(records, partition, limits.formats))
        else:
            body = await _maybe_in_thread(
                fetched.size_bytes, lambda: record_answers.as_page(records, partition, limits.formats, fetched, next_offset)
            )
        return body, next_offset


def _partition_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidArgument(f"{text[:60]!r} is not a partition: partitions are numbered from 0")
    return int(text)


def _resumed_at(request: Request) -> int | None:
    """Where a stream over one partition goes on, after the event that Last-Event-ID names."""
    last = request.headers.get(b"last-event-id", b"")
    if not last:
        return None
    if not last.isdigit() or len(last) > 18:
        raise InvalidArgument(
            "the Last-Event-ID is not one of this stream", hint="It is the offset of the last record that was read."
        )
    return int(last) + 1


def _resumed_positions(request: Request, topic: Topic) -> dict[int, int]:
    """The same over all partitions, by partition; empty where there is no Last-Event-ID."""
    last = request.headers.get(b"last-event-id", b"").decode("latin-1")
    positions: dict[int, int] = {}
    for pair in last.split(",") if last else ():
        partition, _, offset = pair.partition(":")
        if not (partition.isdecimal() and offset.isdecimal() and pair.isascii() and len(pair) <= 30):
            raise InvalidArgument(
                "the Last-Event-ID is not one of this stream", hint="Give back the id of the last event as it came."
            )
        partition_of(topic, int(partition))
        positions[int(partition)] = int(offset)
    return positions


async def _maybe_in_thread(size_bytes: int, work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work) if size_bytes > THREAD_BYTES else work()
