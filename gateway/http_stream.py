"""Records as they come, to one client: server-sent events or lines, of one partition or of all.

    fetch all partitions from their positions ─▶ nothing: ping, or the end ─▶ records: send, and move the positions

A stream goes on until the client hangs up, the broker stops, `max_records` were sent, or nothing new came for `wait_ms`. Its
events carry ids, so that a client that lost it resumes with Last-Event-ID and misses nothing:

    one partition   17                the offset of the record
    all             0:18,1:4,2:0      of each partition, where to read on

Invariants: within a partition records come in order, each once; a reader that does not take what is sent holds one answer of
`max_bytes`, and stops nobody else.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from gateway import record_answers
from gateway.doors import Broker, named, partition_of
from gateway.http_request import Request
from gateway.long_waits import LongWaits
from gateway.problem_details import error_members
from gateway.produce import topic_named
from gateway.reads import THREAD_BYTES, records_from
from gateway.record_answers import Formats
from metadata.errors import Stopping, TidelogError, UnknownTopic
from metadata.topic import Topic
from segments.batch_kernel import RecordTuple
from segments.log import FetchTarget
from segments.log_reader import Fetched

PING_MS: Final = 15_000
"""Below the idle time-out of common proxies."""


class Limits(NamedTuple):
    """What a reader asks for, within the broker's bounds."""

    records_max: int | None
    bytes_max: int
    wait_ms: int | None
    """None: a single answer does not wait, a stream does not end."""
    formats: Formats


class RecordStream:
    def __init__(
        self,
        broker: Broker,
        waits: LongWaits,
        topic: Topic,
        positions: dict[int, int],
        limits: Limits,
        *,
        one_partition: bool,
    ) -> None:
        """`positions`: the offset to read next, by partition."""
        self._broker = broker
        self._waits = waits
        self._topic = topic
        self._positions = positions
        self._limits = limits
        self._one_partition = one_partition
        self._records_left = limits.records_max

    async def send(self, request: Request, *, events: bool) -> None:
        """Raises what the first look meets (OutOfRange and so on), before the answer begins; later errors end the stream."""
        answers = await self._fetch(wait_ms=0)
        for answer in answers.values():
            if isinstance(answer, TidelogError):
                raise named(answer, self._topic)
        content_type = b"text/event-stream" if events else b"application/x-ndjson"
        await request.begin_stream([(b"content-type", content_type)])
        await request.attended(self._send_on(request, answers, events))
        await request.end_stream()

    async def _send_on(self, request: Request, answers: dict[int, Fetched | TidelogError], events: bool) -> None:
        idle_ms = 0
        try:
            while True:
                sent = [await self._send_one(request, partition, answer, events) for partition, answer in answers.items()]
                idle_ms = 0 if any(sent) else idle_ms
                wait_ms = PING_MS if self._limits.wait_ms is None else min(PING_MS, self._limits.wait_ms - idle_ms)
                if self._records_left == 0 or (wait_ms <= 0 and not any(sent)):
                    return
                if idle_ms and events:
                    await request.stream(record_answers.PING)
                self._follow_topic()
                async with self._waits.until_stop():
                    answers = await self._fetch(wait_ms=wait_ms)
                idle_ms += wait_ms
        except Stopping:
            return  # the client resumes at another broker
        except TidelogError as error:
            members = error_members(error)
            await request.stream(record_answers.error_event(members) if events else record_answers.error_line(members))

    async def _fetch(self, *, wait_ms: int) -> dict[int, Fetched | TidelogError]:
        """One answer for each partition. The partitions take turns at being first, so that none starves the others."""
        partitions = list(self._positions)
        log = self._broker.log
        targets = [
            FetchTarget(partition_of(self._topic, partition), self._positions[partition], self._limits.bytes_max)
            for partition in partitions
        ]
        self._positions[partitions[0]] = self._positions.pop(partitions[0])
        answers = await log.fetch(targets, bytes_max=self._limits.bytes_max, wait_ms_max=wait_ms)
        return dict(zip(partitions, answers, strict=True))

    async def _send_one(self, request: Request, partition: int, answer: Fetched | TidelogError, events: bool) -> bool:
        if isinstance(answer, TidelogError):
            raise named(answer, self._topic)
        if not answer.size_bytes or self._records_left == 0:
            return False
        decompressed_bytes_max = self._broker.log.settings.decompressed_bytes_max
        start = self._positions[partition]
        records, next_offset = await records_from(answer, start, decompressed_bytes_max=decompressed_bytes_max)
        if self._records_left is not None:
            records = records[: self._records_left]
            self._records_left -= len(records)
        if not records:
            self._positions[partition] = next_offset
            return False
        if answer.size_bytes > THREAD_BYTES:
            chunk = await asyncio.to_thread(self._encode, partition, records, events)
        else:
            chunk = self._encode(partition, records, events)
        self._positions[partition] = records[-1][0] + 1
        await request.stream(chunk)
        return True

    def _encode(self, partition: int, records: list[RecordTuple], events: bool) -> bytes:
        if not events:
            return record_answers.as_lines(records, partition, self._limits.formats)
        if self._one_partition:
            return record_answers.as_events(records, partition, self._limits.formats, str)
        before = "".join(f"{at}:{next_offset}," for at, next_offset in sorted(self._positions.items()) if at < partition)
        after = "".join(f",{at}:{next_offset}" for at, next_offset in sorted(self._positions.items()) if at > partition)
        return record_answers.as_events(
            records, partition, self._limits.formats, lambda offset: f"{before}{partition}:{offset + 1}{after}"
        )

    def _follow_topic(self) -> None:
        """Partitions that were added since are read from their beginning. UnknownTopic where the topic was deleted."""
        topic = topic_named(self._broker, self._topic.name)
        if topic.id != self._topic.id:
            raise UnknownTopic(f"topic {topic.name} was deleted", topic=topic.name)
        self._topic = topic
        if not self._one_partition:
            for partition in range(len(self._positions), topic.partition_count):
                self._positions[partition] = 0
