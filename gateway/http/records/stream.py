"""Records as they come, to one client: server-sent events or lines, of one partition or of all.

    look: one batch ─▶ nothing for a while: ping, or the end
       ▲        └────▶ records: ask for room ─▶ fetch all partitions from their positions ─▶ send, and move the positions
       └────────────────────────────────────────────────────────────────────────────────────────┘

A stream goes on until the client hangs up, the broker stops, `max_records` were sent, or nothing new came for `wait_ms`. Over all
partitions it goes on with the others while some have no leader, and with these once they have one; it does not end by silence
meanwhile. Where a failover would be over and there is none, that is told, and ends it. Its events carry ids
(event_ids.py), so that a client that lost it resumes with Last-Event-ID and misses nothing. The first event has an id and no data:
a client that is cut off before the first record resumes where its stream began, and not at a later end of the log.

Invariants: within a partition records come in order, each once; a stream holds room for one answer while that is on its way, and
none while it waits; a reader that does not take what is sent is cut off, and stops nobody else.
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

# Below the idle time-out of common proxies.
PING_MS: Final = 15_000
# Between looks of a stream that ends once it has seen the partitions that have no leader at the moment.
LEADERLESS_PROBE_MS: Final = 500
LEADERLESS_PAUSE_S: Final = 0.02


class Limits(NamedTuple):
    """What a reader asks for, within the broker's bounds."""

    records_max: int | None
    bytes_max: int
    # None: a single answer does not wait, a stream does not end.
    wait_ms: int | None
    formats: Formats
    # Of the reader: see cluster_log.places_bytes_min.
    client_rack: str = ""


class Chunk(NamedTuple):
    """What was fetched, as it goes out."""

    chunk: bytes
    # Of every partition: where to read on.
    positions: dict[int, int]
    record_count: int


class RecordStream:
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
        """`positions`: the offset to read next, by partition. `one_partition`: partitions that are added are not read."""
        self._broker = broker
        self._waits = waits
        self._budget = budget
        self._topic = topic
        self._positions = positions
        self._limits = limits
        self._one_partition = one_partition
        self._records_left = limits.records_max
        self._leaderless_since_s: dict[int, float] = {}
        """Partitions that nobody leads at the moment."""
        self._added: set[int] = set()
        """Partitions that were added since, of which nothing was answered yet."""

    async def send(self, request: Request, *, events: bool) -> None:
        """Raises what the first look meets (OutOfRange and so on), before the answer begins; later errors end the stream."""
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
        """Whether there are records to send. Who waits for them holds none: they are fetched when there is room for them."""
        return any(answer.size_bytes for answer in (await self._fetch(bytes_max=1, wait_ms=wait_ms)).values())

    async def _send_next(self, request: Request, events: bool) -> None:
        """What there is, as much as there is room for. Where there is no room in time, a sign of life: the stream goes on."""
        with self._budget.place() as reservation:
            try:
                await reservation.ask(room_for(self._limits.bytes_max), timeout_s=PING_MS / 1000)
            except Throttled:
                if events:
                    await self._stream(request, encoding.PING)
                return
            chunk = await self._next(reservation, events)
            reservation.keep(len(chunk.chunk))
            self._broker.metrics.traffic.http.fetched(records=chunk.record_count, answer_bytes=len(chunk.chunk))
            await self._stream(request, chunk.chunk)
        self._positions = chunk.positions
        if self._records_left is not None:
            self._records_left -= chunk.record_count
        first = next(iter(self._positions))
        self._positions[first] = self._positions.pop(first)  # the next comes first, so that none starves the others

    async def _next(self, reservation: Reservation, events: bool) -> Chunk:
        """The next chunk. The batches that it was made from are let go before it is sent."""
        fetched = await self._fetch(bytes_max=min(self._limits.bytes_max, reservation.bytes_held), wait_ms=0)
        decompressed_bytes_max = self._broker.cluster_log.settings.decompressed_bytes_max
        return await self._budget.opened(
            list(fetched.values()), lambda: self._encode(fetched, events, reservation.bytes_held, decompressed_bytes_max)
        )

    async def _fetch(self, *, bytes_max: int, wait_ms: int) -> dict[int, FetchResult]:
        """One answer for each partition that has a leader. Raises other errors, and that there was none for too long."""
        places_bytes_min = self._broker.cluster_log.places_bytes_min(self._limits.client_rack)
        targets = [
            FetchTarget(partition_of(self._topic, partition), offset, bytes_max, places_bytes_min=places_bytes_min)
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
            if isinstance(answer, OutOfRange) and partition in self._added:  # its first records were deleted already
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
            await asyncio.sleep(LEADERLESS_PAUSE_S)  # who has nobody to wait for answers at once
        return fetched

    def _encode(self, fetched: dict[int, FetchResult], events: bool, bytes_max: int, decompressed_bytes_max: int) -> Chunk:
        """The records of one partition after the other, up to `bytes_max`. May run in a thread: nothing here changes meanwhile."""
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
        """With the ids that resume behind each of the records, as encode_event_id makes them."""
        before = "".join(f"{at}:{next_offset}," for at, next_offset in sorted(positions.items()) if at < partition)
        after = "".join(f",{at}:{next_offset}" for at, next_offset in sorted(positions.items()) if at > partition)

        def event_id(offset: int) -> str:
            return f"{self._topic.id}/{before}{partition}:{offset + 1}{after}"

        return lambda records: encoding.as_events(records, partition, self._limits.formats, event_id)

    async def _stream(self, request: Request, chunk: bytes) -> None:
        await paced_response.stream_paced(request, chunk, pause_s=self._broker.settings.answer_timeout_ms / 1000)

    def _follow_topic(self) -> None:
        """Partitions that were added since are read from their beginning. UnknownTopic where the topic was deleted."""
        topic = topic_named(self._broker, self._topic.name)
        if topic.id != self._topic.id:
            raise UnknownTopic(f"topic {topic.name} was deleted", topic=topic.name)
        self._topic = topic
        if not self._one_partition:
            for partition in range(len(self._positions), topic.partition_count):
                self._positions[partition] = 0
                self._added.add(partition)
