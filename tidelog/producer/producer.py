"""Sends records: finds their partition, gathers them into batches, and answers for each of them. The shell around accumulator.py.

    send ──▶ bytes ──▶ partition ──▶ room in the buffer? ──▶ accumulator ──▶ one Sender per way to a leader
     └─▶ Delivery ◀──────────────────────────────────────── acknowledged, or failed

Everything that can be wrong with one record is found before it is taken in, so that it can't spoil the batch that it would share.
Back-pressure: `send` waits, first come first served, while the buffer holds `buffer_bytes_max`. Idempotence, order and retries
are partition_queue.py's; which partitions there are, topic_partitions.py's. Invariant: each record that `send` took settles its
Delivery, at the latest with `delivery_timeout_ms`, or when the client closes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from copy import copy
from functools import partial
from typing import Any

import msgspec

from metadata.errors import InvalidArgument, Rejected, TidelogError, TooLarge, Unavailable
from segments.records.batch import BATCH_OVERHEAD_BYTES
from segments.records.columns import encode_records
from segments.records.compression import Codec
from tidelog.producer.accumulator import RecordAccumulator
from tidelog.producer.batch import ProducerBatch, RecordTuple
from tidelog.producer.buffer_pool import BufferPool
from tidelog.producer.outcomes import Outcomes
from tidelog.producer.partition_queue import PartitionQueue
from tidelog.producer.sender import Sender
from tidelog.producer.topic_metadata import ProducerMetadata
from tidelog.producer.topic_partitions import TopicPartitions
from tidelog.producer.trace_headers import traceparent_headers
from tidelog.records import Ack, Headers, HeadersLike, Message, to_bytes, to_headers
from tidelog.settings import ClientSettings
from tidelog.tasks import ClientTasks
from tidelog.transport.connection import Connection
from tidelog.transport.routes import RoutePath
from tidelog.transport.wire_sizes import RECORD_OVERHEAD_BYTES, record_bytes

# The latest that a record batch can hold: its distance to -1, which stands for none, has to be an int64.
TIMESTAMP_MS_MAX = 2**63 - 2


class Delivery(msgspec.Struct, gc=False):
    """The handle of one record that was sent. Awaiting it gives its Ack, or raises why it failed; also twice, also never."""

    batch: ProducerBatch
    index: int

    @property
    def done(self) -> bool:
        return self.batch.settled

    def when_done(self, call: Callable[[], None]) -> None:
        """Calls it once, as soon as the record has its outcome; at once where it has. What it raises goes to the event loop."""
        if self.batch.settled:
            call()
        else:
            self.batch.waiters[object()] = partial(asyncio.get_running_loop().call_soon, call)

    def __await__(self) -> Generator[Any, None, Ack]:
        if not self.batch.settled:
            yield from until_settled(self.batch).__await__()
        return self.batch.ack(self.index)


async def until_settled(batch: ProducerBatch) -> None:
    """Waits for the outcome of a batch. A cancelled waiter does not affect others."""
    if batch.settled:
        return
    waiter = asyncio.get_running_loop().create_future()

    def settled() -> None:
        if not waiter.done():
            waiter.set_result(None)

    batch.waiters[waiter] = settled
    try:
        await waiter
    finally:
        batch.waiters.pop(waiter, None)


class Producer:
    """Sends records: partitions them, batches them, and streams the batches to their leaders."""

    def __init__(self, connection: Connection, settings: ClientSettings, tasks: ClientTasks) -> None:
        self._connection = connection
        self._settings = settings
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._with_traceparent = traceparent_headers() if settings.trace_headers else None
        self._accumulator = RecordAccumulator(settings)
        self._topics = ProducerMetadata(
            connection, self._accumulator, settings, tasks, closed=self._queue_closed, learnt=self._route_learnt
        )
        self._room = BufferPool(
            self._accumulator, bytes_max=settings.buffer_bytes_max, timeout_s=settings.delivery_timeout_ms / 1000
        )
        self._streams: dict[RoutePath, tuple[Sender, asyncio.Task[None]]] = {}
        self._closed: TidelogError | None = None
        # The task that has opened a batch, until it gives way. A caller that has done so does not wait, or it would be overtaken.
        self._rolled_in: asyncio.Task[Any] | None = None
        self._has_work = asyncio.Event()
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
        """Takes one record in; waits only for room in the buffer (and, the first time, for the topic's partitions).

        Nothing is awaited once it is taken in: who is cancelled here has sent nothing.
        """
        if self._rolled_in is not None and self._rolled_in is asyncio.current_task():
            await asyncio.sleep(0)  # a loop that only sends must let the batches leave
        book = self._topics.books.get(topic)
        if book is None or book.is_gone:
            book = await self._topics.open(topic)
        if partition is not None and not book.has(partition):
            await self._topics.refresh_partitions(book)  # it may have been added
            if not book.has(partition):
                raise book.unknown_partition(partition)
        value_bytes = value if type(value) is bytes else to_bytes(value)
        key_bytes = None if key is None else key if type(key) is bytes else to_bytes(key)
        timestamp_ms = int(time.time() * 1000) if timestamp_ms is None else _checked_timestamp(timestamp_ms)
        if headers or self._with_traceparent is not None:
            header_pairs = _plain(to_headers(headers))
            if self._with_traceparent is not None:
                header_pairs = self._with_traceparent(header_pairs)
            size = record_bytes(key_bytes, value_bytes, header_pairs)
        else:
            header_pairs = ()
            size = RECORD_OVERHEAD_BYTES + (len(value_bytes) if value_bytes else 0) + (len(key_bytes) if key_bytes else 0)
        record = (key_bytes, value_bytes, header_pairs, timestamp_ms)
        if size > book.fill_bytes_max or size > self._record_bytes_max:
            await self._check_size(book, record, size)

        accumulator, room = self._accumulator, self._room
        if room.waiting or accumulator.buffered_bytes + size > room.bytes_max:
            await room.wait(size)
        else:
            accumulator.buffered_bytes += size
        if self._closed is not None:
            accumulator.buffered_bytes -= size
            raise copy(self._closed)
        try:
            queue = book.queue_for(partition, key_bytes, size)
        except TidelogError:  # the topic was recreated with fewer partitions, while this waited for room
            accumulator.buffered_bytes -= size
            room.admit()
            raise
        batch = queue.open
        if batch is None or batch.bytes + size > book.fill_bytes_max:
            batch = self._roll(book, queue)
        if partition is None and key_bytes is None:
            book.keyless_batch = batch
        batch.records.append(record)
        batch.bytes += size
        return Delivery(batch, len(batch.records) - 1)

    async def produce_many(self, topic: str, messages: Iterable[Any]) -> list[Ack]:
        """Sends them in order and waits for all. Raises the first failure, once every record that was taken has its outcome."""
        deliveries: list[Delivery] = []
        refusal: TidelogError | None = None
        try:
            for message in messages:
                deliveries.append(await self._send_message(topic, message))  # noqa: PERF401  # those before a refusal count
        except TidelogError as error:
            refusal = error
        for batch in dict.fromkeys(delivery.batch for delivery in deliveries):
            await until_settled(batch)
        acks = [delivery.batch.ack(delivery.index) for delivery in deliveries]
        if refusal is not None:
            if acks:
                refusal.add_note(f"The {len(acks)} records before it are acknowledged.")
            raise refusal
        return acks

    async def _send_message(self, topic: str, message: Any) -> Delivery:
        if not isinstance(message, Message):
            return await self.send(topic, message)
        return await self.send(
            topic,
            message.value,
            key=message.key,
            headers=message.headers,
            partition=message.partition,
            timestamp_ms=message.timestamp_ms,
        )

    async def flush(self) -> None:
        """Waits until all records sent before have an outcome. Raises the first failure that was not raised before."""
        self._accumulator.close_open_batches()
        for stream, _ in self._streams.values():
            stream.wake()
        for batch in self._accumulator.unsettled():
            await until_settled(batch)
        unseen = [batch for batch in self._accumulator.take_failures() if not batch.error_was_seen]
        if unseen:
            assert unseen[0].error is not None
            error = copy(unseen[0].error)
            if len(unseen) > 1:
                error.add_note(f"{len(unseen)} batches failed since the last flush; this is the first.")
            raise error

    @property
    def outcomes(self) -> Outcomes:
        return self._accumulator.outcomes

    def close(self) -> None:
        """Takes nothing more, and fails what has no outcome yet: flush first. The tasks end with their owner."""
        self._closed = Rejected("the client is closed", hint="Send inside of `async with tidelog.connect(…)`.")
        self._topics.stop()
        self._accumulator.abandon_all(Unavailable("the client was closed before the record was acknowledged"))
        self._room.close(self._closed)

    async def _check_size(self, book: TopicPartitions, record: RecordTuple, size: int) -> None:
        """Raises TooLarge if a large record does not fit the limits, even in a batch of its own."""
        if size > self._record_bytes_max:
            raise TooLarge(
                f"the record has about {size} bytes; at most {self._record_bytes_max} can be sent",
                hint="Send less in one record; the limits are request_bytes_max and buffer_bytes_max.",
                bytes_max=self._record_bytes_max,
            )
        if size + BATCH_OVERHEAD_BYTES <= book.batch_bytes_max:
            return
        batch_bytes = len(encode_records((record,), codec=Codec[self._settings.compression.upper()]))
        if batch_bytes > book.batch_bytes_max:
            await self._topics.learn_once_more(book)  # the limit may have been raised
        if batch_bytes > book.batch_bytes_max:
            raise TooLarge(
                f"the record takes {batch_bytes} bytes in a batch of its own; {book.name} takes {book.batch_bytes_max}",
                hint="Send less in one record, or raise max.message.bytes of the topic, and message_bytes_max of the broker.",
                bytes_max=book.batch_bytes_max,
            )

    # ── to the leaders ──

    def _roll(self, book: TopicPartitions, queue: PartitionQueue) -> ProducerBatch:
        now_s = book.used_s = self._loop.time()
        self._rolled_in = asyncio.current_task()
        self._loop.call_soon(self._gave_way)
        batch = self._accumulator.roll(queue, now_s)
        self._stream_to(queue.way).wake()
        self._has_work.set()
        self._topics.learn_by_age(book)
        return batch

    def _gave_way(self) -> None:
        """Notes that the loop has its turn, so the task that opened a batch awaits something now."""
        self._rolled_in = None

    def _queue_closed(self, queue: PartitionQueue) -> None:
        self._accumulator.closed(queue)
        self._stream_to(queue.way).wake()

    def _stream_to(self, way: RoutePath) -> Sender:
        if way not in self._streams:
            stream = Sender(
                way, self._connection, self._accumulator, self._settings, topics=self._topics, answered=self._after_answers
            )
            self._streams[way] = stream, self._tasks.start(stream.run(), name=f"produce stream to {way.address}")
        return self._streams[way][0]

    def _after_answers(self) -> None:
        """Goes on after batches have left: there may be room, and partitions may have moved. Streams that nothing goes over now
        end."""
        self._room.admit()
        if self._closed is not None:
            return
        for way in self._accumulator.take_gained():
            self._stream_to(way).wake()
        for way in self._accumulator.take_unused() & self._streams.keys():
            _, task = self._streams.pop(way)
            task.cancel()

    def _route_learnt(self) -> None:
        self._after_answers()
        for stream, _ in self._streams.values():
            stream.wake()  # queues may start again there, or limits may differ

    # ── time ──

    async def _watch_deadlines(self) -> None:
        pause_s = min(1.0, self._settings.delivery_timeout_ms / 20_000)
        while True:
            if not self._accumulator.ways:
                self._has_work.clear()
                await self._has_work.wait()
            await asyncio.sleep(pause_s)
            for way in self._accumulator.ways:
                if self._accumulator.expire(way, self._loop.time()):
                    self._stream_to(way).break_off()
            self._after_answers()


def _plain(headers: Headers) -> Headers:
    """Converts names to plain str, which the codec takes: a member of an enumeration becomes its text."""
    if all(type(name) is str for name, _ in headers):
        return headers
    return tuple((str.__str__(name), value) for name, value in headers)


def _checked_timestamp(timestamp_ms: object) -> int:
    if isinstance(timestamp_ms, int) and not isinstance(timestamp_ms, bool) and 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        return int(timestamp_ms)
    raise InvalidArgument(
        f"timestamp_ms is {timestamp_ms!r}", hint="Use milliseconds since 1970-01-01 UTC, a whole number below 2^63 - 1."
    )
