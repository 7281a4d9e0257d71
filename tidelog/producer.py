"""Sends records: finds their partition, gathers them into batches, and answers for each of them. The shell around accumulator.py.

    send ──▶ bytes ──▶ partition ──▶ room in the buffer? ──▶ accumulator ──▶ one ProduceStream per leader
     └─▶ Delivery ◀──────────────────────────────────────── acknowledged, or failed

Back-pressure: `send` waits, first come first served, while the buffer holds `buffer_bytes_max`. Idempotence, order and retries
are lane.py's. Invariant: each record that `send` took settles its Delivery, at the latest with `delivery_timeout_ms`, or when the
client closes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

import msgspec

from metadata.errors import InvalidArgument, Rejected, Throttled, TidelogError, TooLarge, Unavailable, UnknownPartition
from tidelog.accumulator import Accumulator
from tidelog.batch import RECORD_OVERHEAD_BYTES, Batch
from tidelog.connection import Connection, TopicRoute
from tidelog.lane import Lane
from tidelog.outcomes import Outcomes
from tidelog.owned_tasks import OwnedTasks
from tidelog.partitioning import Partitioning
from tidelog.produce_stream import ProduceStream
from tidelog.records import Ack, Headers, HeadersLike, Message, to_bytes, to_headers
from tidelog.settings import ClientSettings

TIMESTAMP_MS_MAX = 2**63 - 1


class Delivery(msgspec.Struct, gc=False):
    """The handle of one record that was sent. Awaiting it gives its Ack, or raises why it failed; also twice, also never."""

    batch: Batch
    index: int

    @property
    def done(self) -> bool:
        return self.batch.settled

    def when_done(self, call: Callable[[], None]) -> None:
        """Calls it once, as soon as the record has its outcome; at once where it has."""
        if self.batch.settled:
            call()
        else:
            self.batch.waiters.add(call)

    def __await__(self) -> Generator[Any, None, Ack]:
        if not self.batch.settled:
            yield from until_settled(self.batch).__await__()
        return self.batch.ack(self.index)


async def until_settled(batch: Batch) -> None:
    """A waiter that is cancelled stops nobody else."""
    if batch.settled:
        return
    waiter = asyncio.get_running_loop().create_future()

    def settled() -> None:
        if not waiter.done():
            waiter.set_result(None)

    batch.waiters.add(settled)
    try:
        await waiter
    finally:
        batch.waiters.discard(settled)


class TopicBook:
    """What the producer holds for one topic."""

    __slots__ = ("batch_bytes_max", "keyless_batch", "lanes", "name", "partitioning", "refresh_at_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: list[Lane] = []
        """By partition."""
        self.partitioning = Partitioning(1, start=0)
        self.keyless_batch: Batch | None = None
        """Where the last record without a key went."""
        self.batch_bytes_max = 0
        self.refresh_at_s = 0.0


class Producer:
    def __init__(self, connection: Connection, settings: ClientSettings, tasks: OwnedTasks) -> None:
        self._connection = connection
        self._settings = settings
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._accumulator = Accumulator(settings)
        self._books: dict[str, TopicBook] = {}
        self._streams: dict[str, ProduceStream] = {}
        self._room: deque[tuple[asyncio.Future[None], int]] = deque()
        """Who waits for room in the buffer, and for how many bytes."""
        self._closed: TidelogError | None = None
        self._has_work = asyncio.Event()
        self._buffer_bytes_max = settings.buffer_bytes_max
        self._record_bytes_max = min(settings.request_bytes_max, settings.buffer_bytes_max)
        self._tasks.start(self._watch_deadlines(), name="deadlines of the producer")

    # ── sending ──

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Takes one record in; waits only for room in the buffer (and, the first time, for the topic's partitions)."""
        book = self._books.get(topic)
        if book is None:
            book = await self._open_book(topic)
        if partition is not None and not (isinstance(partition, int) and 0 <= partition < len(book.lanes)):
            raise _unknown_partition(book, partition)
        value_bytes = value if type(value) is bytes else to_bytes(value)
        key_bytes = None if key is None else key if type(key) is bytes else to_bytes(key)
        header_pairs = to_headers(headers) if headers else ()
        timestamp_ms = int(time.time() * 1000) if timestamp_ms is None else _checked_timestamp(timestamp_ms)
        size = RECORD_OVERHEAD_BYTES + (len(value_bytes) if value_bytes else 0) + (len(key_bytes) if key_bytes else 0)
        if header_pairs:
            size += _header_bytes(header_pairs)

        accumulator = self._accumulator
        if self._room or accumulator.buffered_bytes + size > self._buffer_bytes_max or size > self._record_bytes_max:
            await self._wait_for_room(size)
        else:
            accumulator.buffered_bytes += size
        if self._closed is not None:
            accumulator.buffered_bytes -= size
            raise self._closed

        if partition is not None:
            lane = book.lanes[partition]
        elif key_bytes is not None:
            lane = book.lanes[book.partitioning.of_key(key_bytes)]
        else:
            lane = self._keyless_lane(book, size)
        batch = lane.open
        rolled = batch is None or batch.bytes + size > book.batch_bytes_max
        if rolled:
            batch = self._roll(book, lane)
        assert batch is not None
        if partition is None and key_bytes is None:
            book.keyless_batch = batch
        batch.records.append((key_bytes, value_bytes, header_pairs, timestamp_ms))
        batch.bytes += size
        delivery = Delivery(batch, len(batch.records) - 1)
        if rolled:
            await asyncio.sleep(0)  # a loop that only sends must let the batches leave
        return delivery

    async def produce_many(self, topic: str, messages: Iterable[Any]) -> list[Ack]:
        """Sends them in order and waits for all. Raises the first failure, once every record has its outcome."""
        deliveries = []
        for message in messages:
            if isinstance(message, Message):
                delivery = await self.send(
                    topic,
                    message.value,
                    key=message.key,
                    headers=message.headers,
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
            else:
                delivery = await self.send(topic, message)
            deliveries.append(delivery)
        for batch in dict.fromkeys(delivery.batch for delivery in deliveries):
            await until_settled(batch)
        return [delivery.batch.ack(delivery.index) for delivery in deliveries]

    async def flush(self) -> None:
        """Waits until everything that was sent before has its outcome. Raises the first failure that nobody has seen yet."""
        self._accumulator.close_open_batches()
        for stream in self._streams.values():
            stream.wake()
        for batch in self._accumulator.unsettled():
            await until_settled(batch)
        unseen = [batch for batch in self._accumulator.take_failures() if not batch.error_was_seen]
        if unseen:
            error = unseen[0].error
            assert error is not None
            if len(unseen) > 1:
                error.add_note(f"{len(unseen)} batches failed since the last flush; this is the first.")
            raise error.with_traceback(None)

    @property
    def outcomes(self) -> Outcomes:
        return self._accumulator.outcomes

    def close(self) -> None:
        """Takes nothing more, and fails what has no outcome yet: flush first. The tasks end with their owner."""
        self._closed = Rejected("the client is closed", hint="Send inside of `async with tidelog.connect(…)`.")
        self._accumulator.abandon(Unavailable("the client was closed before the record was acknowledged"))
        for waiter, _ in self._room:
            if not waiter.done():
                waiter.set_exception(self._closed)
        self._room.clear()

    # ── where a record goes ──

    def _keyless_lane(self, book: TopicBook, size: int) -> Lane:
        """The present lane until its batch has left or is full; then the next."""
        lane = book.lanes[book.partitioning.keyless_partition]
        if lane.open is book.keyless_batch and (lane.open is None or lane.open.bytes + size <= book.batch_bytes_max):
            return lane
        if lane.open is not None and lane.open is book.keyless_batch:
            lane.close()
            self._stream_to(lane.leader).wake()
        return book.lanes[book.partitioning.next_keyless()]

    def _roll(self, book: TopicBook, lane: Lane) -> Batch:
        now_s = self._loop.time()
        batch = self._accumulator.roll(lane, now_s)
        self._stream_to(lane.leader).wake()
        self._has_work.set()
        if now_s >= book.refresh_at_s:
            self._learn_leaders_again({book.name})
        return batch

    def _stream_to(self, leader: str) -> ProduceStream:
        stream = self._streams.get(leader)
        if stream is None:
            stream = self._streams[leader] = ProduceStream(
                leader,
                self._connection,
                self._accumulator,
                self._settings,
                answered=self._after_answers,
                leaders_changed=self._learn_leaders_again,
            )
            self._tasks.start(stream.run(), name=f"produce stream to {leader}")
        return stream

    def _after_answers(self) -> None:
        """Batches have left: there may be room, and partitions may have moved."""
        self._admit()
        if self._closed is not None:
            return
        for leader in self._accumulator.take_gained():
            self._stream_to(leader).wake()

    # ── room in the buffer ──

    async def _wait_for_room(self, size: int) -> None:
        """Reserves `size` bytes, when it is this record's turn. Raises TooLarge, Throttled."""
        if size > self._record_bytes_max:
            raise TooLarge(
                f"the record has about {size} bytes; at most {self._record_bytes_max} can be sent",
                hint="Send less in one record; the limits are request_bytes_max and buffer_bytes_max.",
                bytes_max=self._record_bytes_max,
            )
        waiter = self._loop.create_future()
        self._room.append((waiter, size))
        self._admit()
        try:
            async with asyncio.timeout(self._settings.delivery_timeout_ms / 1000):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._accumulator.buffered_bytes -= size
            self._room = deque(entry for entry in self._room if entry[0] is not waiter)
            self._admit()
            if isinstance(error, TimeoutError):
                raise Throttled(
                    f"the buffer ({self._buffer_bytes_max} bytes) stayed full for {self._settings.delivery_timeout_ms:g} ms",
                    hint="Send slower, or raise buffer_bytes_max.",
                ) from None
            raise

    def _admit(self) -> None:
        """Gives room to those who wait, in their order."""
        while self._room:
            waiter, size = self._room[0]
            if self._accumulator.buffered_bytes + size > self._buffer_bytes_max:
                return
            self._room.popleft()
            if not waiter.done():
                self._accumulator.buffered_bytes += size
                waiter.set_result(None)

    # ── topics and leaders ──

    async def _open_book(self, topic: str) -> TopicBook:
        if not isinstance(topic, str):
            raise InvalidArgument(f"the topic is {topic!r}, which is not a name")
        route = await self._connection.route(topic)
        if (book := self._books.get(topic)) is None:
            book = self._books[topic] = TopicBook(topic)
            self._fill(book, route)
        return book

    def _fill(self, book: TopicBook, route: TopicRoute) -> None:
        book.lanes = [self._accumulator.lane(route.name, p, leader=leader) for p, leader in enumerate(route.leaders)]
        for lane, leader in zip(book.lanes, route.leaders, strict=True):
            self._accumulator.lead(lane, leader)
        if book.partitioning.partition_count != route.partition_count or not book.batch_bytes_max:
            salt_count = self._settings.salt_count if self._settings.partitioner == "salted" else 1
            book.partitioning = Partitioning(route.partition_count, start=random.randrange(1 << 30), salt_count=salt_count)
        topic_limit = int(route.settings.get("max.message.bytes", self._settings.batch_bytes_max))
        book.batch_bytes_max = min(self._settings.batch_bytes_max, topic_limit)
        book.refresh_at_s = self._loop.time() + self._settings.topic_age_ms_max / 1000

    def _learn_leaders_again(self, topics: set[str]) -> None:
        if self._closed is not None:
            return  # the owner of the tasks takes no more
        for topic in topics:
            book = self._books.get(topic)
            if book is not None:
                book.refresh_at_s = self._loop.time() + self._settings.retry_pause_ms_max / 1000  # nobody else asks meanwhile
                self._tasks.start(self._refresh(book), name=f"leaders of {topic}")

    async def _refresh(self, book: TopicBook) -> None:
        try:
            route = await self._connection.route(book.name, fresh=True)
        except TidelogError:
            return  # the batches themselves meet what is wrong, and say so
        self._fill(book, route)
        self._after_answers()

    # ── time ──

    async def _watch_deadlines(self) -> None:
        pause_s = min(1.0, self._settings.delivery_timeout_ms / 20_000)
        while True:
            if not self._accumulator.leaders:
                self._has_work.clear()
                await self._has_work.wait()
            await asyncio.sleep(pause_s)
            for leader in self._accumulator.leaders:
                if self._accumulator.expire(leader, self._loop.time()):
                    self._stream_to(leader).break_off()
            self._after_answers()


def _unknown_partition(book: TopicBook, partition: int) -> UnknownPartition:
    return UnknownPartition(
        f"{book.name} has the partitions 0 to {len(book.lanes) - 1}; {partition} was asked for",
        topic=book.name,
        partition=partition,
        partition_count=len(book.lanes),
    )


def _checked_timestamp(timestamp_ms: object) -> int:
    if isinstance(timestamp_ms, int) and not isinstance(timestamp_ms, bool) and 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        return timestamp_ms
    raise InvalidArgument(f"timestamp_ms is {timestamp_ms!r}", hint="Use milliseconds since 1970-01-01 UTC, as a whole number.")


def _header_bytes(headers: Headers) -> int:
    return sum(12 + 4 * len(name) + (len(value) if value else 0) for name, value in headers)
