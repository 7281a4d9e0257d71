"""Streams records to one client as server-sent events or lines, from one partition or all.

    probe ─▶ nothing for a while: ping, or the end
      ▲  └─▶ records: reserve memory ─▶ fetch all partitions from their positions ─▶ send, and move the positions
      └────────────────────────────────────────────────────────────────────────────────────────┘

A stream ends when the client disconnects, the broker stops, `max_records` were sent, or no record came for `wait_ms`. A stream over
all partitions continues while some have no leader, does not end by silence meanwhile, and reads these once they have one. If a
partition has no leader for longer than a failover takes, the stream ends with that error.

Events carry ids (event_ids.py), so that a client resumes with Last-Event-ID and misses nothing. The first event has an id and no
data: a client that is disconnected before the first record resumes where its stream began, and not at a later end of the log.

Invariants: records of a partition come in order, each once. A stream reserves memory for one chunk while it sends it, and none
while it waits. A client that does not read is disconnected, and delays no other.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.http import paced_response
from gateway.http.problem_details import error_members
from gateway.http.records import encoding
from gateway.http.records.encoding import Formats
from gateway.http.records.event_ids import encode_event_id
from gateway.http.request import Request
from gateway.records.append import topic_named
from gateway.records.batch_decoder import RECORDS_MAX, Encode, decode_records, room_for
from gateway.records.response_budget import Reservation, ResponseBudget
from gateway.routing.cluster_fetch import may_succeed_elsewhere
from gateway.topics.names import named, partition_of
from metadata.errors import OutOfRange, Stopping, Throttled, TidelogError, UnknownTopic
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult

# Shorter than the idle timeout of common proxies.
PING_MS: Final = 15_000
# The longest probe of a stream that would end by silence, but for partitions without a leader.
LEADERLESS_PROBE_MS: Final = 500
LEADERLESS_PAUSE_S: Final = 0.02


class Limits(NamedTuple):
    """Holds the limits and formats of a read, within the broker's bounds. `records_max` None: no limit."""

    records_max: int | None
    bytes_max: int
    # None: a single answer does not wait, a stream does not end.
    wait_ms: int | None
    formats: Formats
    # The rack of the client: see LogService.locations_bytes_min.
    client_rack: str = ""


class Chunk(NamedTuple):
    """Holds encoded records, and the positions after them."""

    body: bytes
    # The next offset to read, for every partition.
    positions: dict[int, int]
    record_count: int


class RecordStream:
    """Streams the records of one topic to one client."""

    def __init__(
        self,
        broker: BrokerApi,
        waits: InterruptibleWaits,
        budget: ResponseBudget,
        topic: Topic,
        positions: dict[int, int],
        limits: Limits,
        *,
        one_partition: bool,
    ) -> None:
        """`positions` are the next offsets by partition. With `one_partition`, partitions that are added later are not read."""
        self._broker = broker
        self._waits = waits
        self._budget = budget
        self._topic = topic
        self._positions = positions
        self._limits = limits
        self._one_partition = one_partition
        self._records_left = limits.records_max
        # When each partition without a leader was first found so, on the loop's clock.
        self._leaderless_since_s: dict[int, float] = {}
        # Partitions that were added since, and not read yet.
        self._added: set[int] = set()

    async def send(self, request: Request, *, events: bool) -> None:
        """Streams until the end. Raises the errors of the first probe, before the answer begins; later errors end the stream."""
        found = await self._probe(wait_ms=0)
        content_type = b"text/event-stream" if events else b"application/x-ndjson"
        await request.begin_stream([(b"content-type", content_type)])
        await request.run_while_connected(self._send_on(request, found, events))
        await request.end_stream()

    async def _send_on(self, request: Request, found: bool, events: bool) -> None:
        idle_ms = 0
        try:
            if events:
                await self._stream(request, encoding.position_event(encode_event_id(self._topic.id, self._positions)))
            while True:
                if found:
                    await self._send_next(request, events)
                    idle_ms = 0
                wait_ms = PING_MS if self._limits.wait_ms is None else min(PING_MS, self._limits.wait_ms - idle_ms)
                if self._records_left == 0:
                    return
                if wait_ms <= 0 and not found:
                    if not self._leaderless_since_s:
                        return
                    wait_ms = LEADERLESS_PROBE_MS
                if idle_ms and events:
                    await self._stream(request, encoding.PING)
                self._follow_topic()
                async with self._waits.until_stop():
                    found = await self._probe(wait_ms=wait_ms)
                idle_ms += wait_ms
        except Stopping:
            return  # the client resumes at another broker
        except TidelogError as error:
            members = error_members(error)
            await self._stream(request, encoding.error_event(members) if events else encoding.error_line(members))

    async def _probe(self, *, wait_ms: int) -> bool:
        """Returns whether there are records. Holds none while it waits; they are fetched once memory is reserved."""
        return any(answer.size_bytes for answer in (await self._fetch(bytes_max=1, wait_ms=wait_ms)).values())

    async def _send_next(self, request: Request, events: bool) -> None:
        """Sends one chunk. If no memory is free in time, sends a ping instead, and the stream continues."""
        with self._budget.reserve() as reservation:
            try:
                await reservation.ask(room_for(self._limits.bytes_max), timeout_s=PING_MS / 1000)
            except Throttled:
                if events:
                    await self._stream(request, encoding.PING)
                return
            chunk = await self._next(reservation, events)
            reservation.keep(len(chunk.body))
            self._broker.metrics.traffic.http.fetched(records=chunk.record_count, answer_bytes=len(chunk.body))
            await self._stream(request, chunk.body)
        self._positions = chunk.positions
        if self._records_left is not None:
            self._records_left -= chunk.record_count
        first = next(iter(self._positions))
        self._positions[first] = self._positions.pop(first)  # rotates, so that no partition starves the others

    async def _next(self, reservation: Reservation, events: bool) -> Chunk:
        """Returns the next chunk; the fetched batches are released before it is sent."""
        fetched = await self._fetch(bytes_max=min(self._limits.bytes_max, reservation.bytes_held), wait_ms=0)
        decompressed_bytes_max = self._broker.cluster_log.settings.decompressed_bytes_max
        return await self._budget.opened(
            list(fetched.values()), lambda: self._encode(fetched, events, reservation.bytes_held, decompressed_bytes_max)
        )

    async def _fetch(self, *, bytes_max: int, wait_ms: int) -> dict[int, FetchResult]:
        """Fetches from each partition with a leader. Raises other errors, and those of partitions without a leader for too long."""
        locations_bytes_min = self._broker.cluster_log.locations_bytes_min(self._limits.client_rack)
        targets = [
            FetchTarget(partition_of(self._topic, partition), offset, bytes_max, locations_bytes_min=locations_bytes_min)
            for partition, offset in self._positions.items()
        ]
        answers = await self._broker.cluster_log.fetch(targets, bytes_max=bytes_max, wait_ms_max=wait_ms)
        fetched: dict[int, FetchResult] = {}
        for partition, answer in zip(self._positions, answers, strict=True):
            if isinstance(answer, FetchResult):
                self._leaderless_since_s.pop(partition, None)
                self._added.discard(partition)
                fetched[partition] = answer
                continue
            if isinstance(answer, OutOfRange) and partition in self._added:  # its first records were already deleted
                self._positions[partition] = int(answer.details["log_start_offset"])
                continue
            now_s = asyncio.get_running_loop().time()
            leaderless_s = now_s - self._leaderless_since_s.setdefault(partition, now_s)
            if (
                not may_succeed_elsewhere(answer)
                or leaderless_s >= self._broker.cluster_log.leader_wait_s
                or len(self._positions) == 1
            ):
                raise named(answer, self._topic)
        if wait_ms and self._leaderless_since_s and not any(answer.size_bytes for answer in fetched.values()):
            await asyncio.sleep(LEADERLESS_PAUSE_S)  # a fetch without any leader returns at once
        return fetched

    def _encode(self, fetched: dict[int, FetchResult], events: bool, bytes_max: int, decompressed_bytes_max: int) -> Chunk:
        """Encodes the records of one partition after the other, up to `bytes_max`. May run in a thread."""
        pieces: list[bytes] = []
        positions = dict(self._positions)
        record_count = 0
        records_max = RECORDS_MAX if self._records_left is None else self._records_left
        for partition, answer in fetched.items():
            if not answer.size_bytes or record_count == records_max or bytes_max <= 0:
                continue
            opened = decode_records(
                answer,
                positions[partition],
                self._as_events(partition, positions) if events else self._as_lines(partition),
                records_max=records_max - record_count,
                bytes_max=bytes_max,
                decompressed_bytes_max=decompressed_bytes_max,
            )
            pieces += opened.pieces
            positions[partition] = opened.next_offset
            record_count += opened.record_count
            bytes_max -= opened.size_bytes
        return Chunk(b"".join(pieces), positions, record_count)

    def _as_lines(self, partition: int) -> Encode:
        return lambda records: encoding.as_lines(records, partition, self._limits.formats)

    def _as_events(self, partition: int, positions: dict[int, int]) -> Encode:
        """Returns an encoder of events, whose ids name the position after each record, as encode_event_id does."""
        before = "".join(f"{at}:{next_offset}," for at, next_offset in sorted(positions.items()) if at < partition)
        after = "".join(f",{at}:{next_offset}" for at, next_offset in sorted(positions.items()) if at > partition)

        def event_id(offset: int) -> str:
            return f"{self._topic.id}/{before}{partition}:{offset + 1}{after}"

        return lambda records: encoding.as_events(records, partition, self._limits.formats, event_id)

    async def _stream(self, request: Request, chunk: bytes) -> None:
        await paced_response.stream_paced(request, chunk, pause_s=self._broker.settings.answer_timeout_ms / 1000)

    def _follow_topic(self) -> None:
        """Begins to read partitions that were added. Raises UnknownTopic if the topic was deleted."""
        topic = topic_named(self._broker, self._topic.name)
        if topic.id != self._topic.id:
            raise UnknownTopic(f"topic {topic.name} was deleted", topic=topic.name)
        self._topic = topic
        if not self._one_partition:
            for partition in range(len(self._positions), topic.partition_count):
                self._positions[partition] = 0
                self._added.add(partition)
