"""Decides what is written to the client of one Consume stream, and when: one message at a time, group events before records.

  messages queued ─▶ written first, in order
  credit left ─────▶ wait for the quota ─▶ poll positioned partitions until there are records ─▶ ask for room ─▶ fetch, open
                     ─▶ write, hold the room
  nothing came ────▶ progress

A poll waits for records and holds none; any other work ends it. A delivery that has begun is written before the next message, so
records of a partition never follow its revocation.

Invariants: no records without credit. At most one answer of a stream is in memory. Records are sent only of partitions that are
owned
at the moment of writing, also by the clock, and positions move then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from gateway.api import BrokerApi
from gateway.grpc.calls import Context, own_pace, write_wholly
from gateway.grpc.consume import messages as wire
from gateway.grpc.consume.messages import ConsumeOptions
from gateway.grpc.consume.partitions import ConsumedPartition, ConsumedPartitions, Position
from gateway.grpc.consume.start_offsets import StartOffsets
from gateway.grpc.fetch.response_encoder import PartitionResponse, encode_consumed_data
from gateway.grpc.fetch.service import FetchOptions, GrpcFetch, RequestedPartition
from gateway.proto import log_pb2
from gateway.routing.cluster_fetch import may_succeed_elsewhere
from metadata.errors import Corrupt, OutOfRange, Throttled, TidelogError
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.offsets import StoredOffsets
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult

# Partitions that are polled in one step, and read for one answer: more would hold the event loop for long.
PART: Final = 1_000
# Shortest duration of a poll: a read from the bucket or another broker may take this long. A longer one ends when progress is due.
POLL_S_MIN: Final = 1.0
# Pause before a poll that found no leader is repeated.
PAUSE_S: Final = 0.05

_Found = TypeVar("_Found")
_NOTHING: Final[frozenset[TopicPartitionName]] = frozenset()


class Ownership(Protocol):
    """Says which partitions a stream reads: all of a client that reads alone, or a group member's."""

    def owns(self, name: TopicPartitionName) -> bool: ...

    async def committed(self) -> StoredOffsets:
        """Returns the offsets that the group has committed."""
        ...

    async def keep(self, ends: Mapping[ConsumedPartition, int]) -> Collection[ConsumedPartition]:
        """Commits that these partitions begin at the ends of their logs. Returns those for which it did."""
        ...

    def waits(self) -> None:
        """Notes that the client waits for records."""
        ...

    def took(self) -> None:
        """Notes that the client was handed records or has sent a message."""
        ...

    def failed(self, error: TidelogError) -> None:
        """Notes that a partition cannot be read any more; the client receives the error."""
        ...


class _Event(NamedTuple):
    message: log_pb2.ConsumeResponse
    of_assignment: bool
    assigned: frozenset[TopicPartitionName]


class _There(NamedTuple):
    """Names the partitions that have records to deliver."""

    # The first has records.
    partitions: Sequence[ConsumedPartition]
    bytes_seen: int


class DeliveryLoop:
    """Writes group events, records within credit, and progress to one stream. Its owner runs `run()` as a task."""

    def __init__(
        self,
        broker: BrokerApi,
        fetch: GrpcFetch,
        context: Context,
        terms: ConsumeOptions,
        partitions: ConsumedPartitions,
        *,
        used_up: Callable[[], None],
    ) -> None:
        """`used_up` is called when no credit is left and none can come."""
        self._broker = broker
        self._fetch = fetch
        self._context = context
        self._terms = terms
        self._partitions = partitions
        self._used_up = used_up
        # Set by the owner before it calls run().
        self.ownership: Ownership
        self.credit_bytes = 0
        # The client has closed its side of the stream.
        self.is_closed = False
        # Set while every queued message is written.
        self.drained = asyncio.Event()
        self._outbox: deque[_Event] = deque()
        # Failed partitions that the client has not received yet.
        self._failed: list[tuple[ConsumedPartition, TidelogError]] = []
        self._is_ending = self._is_finishing = False
        self._wait: asyncio.Timeout | None = None
        self._wait_for_quota = own_pace(context)
        self._written_s = 0.0
        # Run by the owner as a task.
        self.start_offsets = StartOffsets(
            broker,
            terms,
            partitions,
            committed=lambda: self.ownership.committed(),
            keep=lambda ends: self.ownership.keep(ends),
            refused=self._refused,
            positioned=self._wake,
        )
        # Deliveries left that hold one partition each, to find the damaged one among several.
        self._singly = 0

    # ── called by its owner ─────────────────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        message: log_pb2.ConsumeResponse,
        *,
        of_assignment: bool = False,
        assigned: frozenset[TopicPartitionName] = _NOTHING,
    ) -> None:
        self._outbox.append(_Event(message, of_assignment, assigned))
        self.drained.clear()
        self.changed()

    def withdraw_assignments(self) -> frozenset[TopicPartitionName]:
        """Removes the unwritten messages about assignments. Returns the partitions that the client has not received as assigned."""
        withdrawn = [event for event in self._outbox if event.of_assignment]
        self._outbox = deque(event for event in self._outbox if not event.of_assignment)
        return _NOTHING.union(*(event.assigned for event in withdrawn))

    def changed(self) -> None:
        """Ends the current poll: there is work to do, perhaps a partition to place."""
        self.start_offsets.wanted.set()
        self._wake()

    def _wake(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    def end(self) -> None:
        """Stops delivering records; queued messages are still written."""
        self._is_ending = True
        self.changed()

    def finish(self) -> None:
        """Makes run() return once all queued messages are written."""
        self._is_finishing = True
        self.changed()

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        self._written_s = clock()
        while True:
            self._send_failed()
            while self._outbox:
                await self._write(self._outbox.popleft().message.SerializeToString())
            self.drained.set()
            if self._is_finishing:
                return
            due_s = self._written_s + self._terms.heartbeat_s
            if await self._pushed(due_s) or self._outbox or self._failed:
                continue
            if clock() >= due_s or any(each.is_seen and each.reported[1] < 0 for each in self._partitions):
                await self._write(wire.progress(self._partitions.progress()).SerializeToString())

    async def _pushed(self, due_s: float) -> bool:
        """Delivers records if there is credit, waiting until `due_s` at most. Returns whether it did."""
        if self.credit_bytes <= 0 or self._is_ending:
            if self.is_closed and not self._is_ending:
                self._used_up()
            await self._undisturbed(asyncio.sleep(self._terms.heartbeat_s), due_s)
            return False
        self.ownership.waits()
        if self._wait_for_quota is not None and not await self._undisturbed(self._within_quota(self._wait_for_quota), due_s):
            return False
        limit_s = max(due_s, asyncio.get_running_loop().time() + POLL_S_MIN)
        there = await self._undisturbed(self._poll(due_s), limit_s)
        return there is not None and await self._deliver(there)

    async def _within_quota(self, wait: Callable[[], Awaitable[None]]) -> bool:
        await wait()
        return True

    async def _undisturbed(self, work: Coroutine[Any, Any, _Found], until_s: float) -> _Found | None:
        """Returns the result of the work; None if other work came up or the time passed."""
        try:
            async with asyncio.timeout_at(until_s) as self._wait:
                return await work
        except TimeoutError:
            if self._wait is None or not self._wait.expired():
                raise
            return None
        finally:
            self._wait = None

    async def _write(self, message: bytes) -> None:
        await write_wholly(self._context, message)  # a slow client must receive the status of its stream, too
        self._written_s = asyncio.get_running_loop().time()

    # ── poll ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _poll(self, until_s: float) -> _There | None:
        """Waits for records until `until_s`, unless a message must be written before."""
        readable = self._partitions.readable()
        clock = asyncio.get_running_loop().time
        if not readable:
            await asyncio.sleep(until_s - clock())
            return None
        for start in range(0, len(readable), PART):
            part = readable[start : start + PART]
            if (there := await self._poll_once(part, wait_ms=0)) is not None or self._failed:
                return there
            await asyncio.sleep(0)  # others get their turn
        if any(each.is_seen and each.reported[1] < 0 for each in readable):
            return None
        return await self._poll_once(readable, wait_ms=max(0.0, 1000 * (until_s - clock())))

    async def _poll_once(self, partitions: Sequence[ConsumedPartition], *, wait_ms: float) -> _There | None:
        targets = self._targets(partitions, 1)
        answers = await self._broker.cluster_log.fetch(targets, bytes_max=1, wait_ms_max=wait_ms)
        first: int | None = None
        bytes_seen = 0
        is_unled = False
        for at, (consumed, answer) in enumerate(zip(partitions, answers, strict=True)):
            if isinstance(answer, FetchResult):
                consumed.high_watermark = answer.high_watermark
                if answer.size_bytes:
                    first = at if first is None else first
                    bytes_seen += answer.size_bytes
                else:
                    consumed.offset = max(consumed.offset, answer.next_offset)
            elif isinstance(answer, OutOfRange) and self._terms.reset is not StartPolicy.ERROR:
                consumed.restart(self._terms.reset)
                self.start_offsets.wanted.set()
                is_unled = True
            else:
                is_unled |= not self._refused(consumed, answer)
        if first is not None:
            return _There(partitions[first : first + PART], bytes_seen)
        if is_unled:
            await asyncio.sleep(PAUSE_S)
        return None

    def _targets(self, partitions: Sequence[ConsumedPartition], bytes_max: int) -> list[FetchTarget]:
        locations_bytes_min = self._broker.cluster_log.locations_bytes_min(self._terms.client_rack)
        return [FetchTarget(each.partition, each.offset, bytes_max, locations_bytes_min=locations_bytes_min) for each in partitions]

    def _refused(self, consumed: ConsumedPartition, error: TidelogError) -> bool:
        """Returns whether the error is final; then the client receives it and the partition is not read any more."""
        if may_succeed_elsewhere(error) or error.retryable:
            return False
        self.fail(consumed, error)
        return True

    def fail(self, consumed: ConsumedPartition, error: TidelogError) -> None:
        """Stops reading a partition, and queues the error for the client."""
        error = error.with_traceback(None)
        error.message = error.message.replace(consumed.topic_id, consumed.topic)
        consumed.error = error
        self._failed.append((consumed, error))
        self.ownership.failed(error)
        self.changed()

    def _send_failed(self) -> None:
        for consumed, error in self._failed:
            if self._partitions.holds(consumed):
                self.send(wire.failed(consumed, error, self._partitions.delivered([], remembered=False)))
        self._failed.clear()

    # ── deliver ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _deliver(self, there: _There) -> bool:
        """Delivers records. Returns whether any went out."""
        log = self._broker.cluster_log
        partitions = there.partitions[:1] if self._singly else there.partitions
        terms = FetchOptions(min(self._terms.bytes_max, self.credit_bytes), 0, 0, self._terms.structured)
        with self._fetch.room.reserve() as reservation:
            targets = self._targets(partitions, terms.bytes_max)
            try:
                answers = await self._fetch.admitted(targets, there.bytes_seen, terms, reservation, log, timeout_s=0)
            except Throttled:
                return False  # others take theirs too slowly; meanwhile this client hears that the stream lives
            read = [
                (each, target, answer)
                for each, target, answer in zip(partitions, targets, answers, strict=True)
                if isinstance(answer, FetchResult) and answer.size_bytes
            ]
            asked = [RequestedPartition(_named(each), None, target) for each, target, _ in read]
            laid = _Laid([each for each, _, _ in read], self._partitions.last_delivery_id + 1)
            try:
                message = await self._fetch.laid_out(asked, [found for _, _, found in read], terms, reservation, log, laid.encode)
            except Corrupt as error:
                self._find_damaged(laid.partitions, error)
                return False
            del answers, read  # the batches that it was made from
            if not all(self._partitions.holds(each) and self.ownership.owns(each.name) for each in laid.partitions):
                await asyncio.sleep(PAUSE_S)  # ownership ended by the clock alone: the message about it follows
                return False
            for each, offset in laid.passed:
                each.offset = offset
            if not laid.positions:
                await asyncio.sleep(0 if laid.passed else PAUSE_S)
                return False
            self._singly = max(0, self._singly - 1)
            self._partitions.delivered(laid.positions, remembered=bool(self._terms.group))
            for each, _, _ in laid.positions:
                each.reported = each.offset, laid.high_watermarks[each]
                each.high_watermark = laid.high_watermarks[each]
            self.credit_bytes -= len(message)
            await self._send(message)
        return True

    async def _send(self, message: bytes) -> None:
        self.ownership.took()  # a client that reads nothing counts as away from here on
        taken = self._fetch.under_way(self._context, len(message))
        try:
            await self._write(message)
        finally:
            taken()
        self.ownership.took()

    def _find_damaged(self, partitions: Sequence[ConsumedPartition], error: Corrupt) -> None:
        if len(partitions) == 1:
            self.fail(partitions[0], error)
            self._singly = max(0, self._singly - 1)
        else:
            self._singly = len(partitions)


class _Laid:
    """One delivery as it was laid out."""

    def __init__(self, partitions: Sequence[ConsumedPartition], delivery_id: int) -> None:
        self.partitions = partitions
        self.positions: list[Position] = []
        self.high_watermarks: dict[ConsumedPartition, int] = {}
        # The partitions of which no record is delivered, with the offset that reading has passed.
        self.passed: list[tuple[ConsumedPartition, int]] = []
        self._delivery_id = delivery_id

    def encode(self, answers: Sequence[PartitionResponse]) -> bytes:
        """Encodes the delivery. May run in a thread: it changes nothing of the stream."""
        for each, answer in zip(self.partitions, answers, strict=True):
            next_offset = answer.partition.next_offset
            if answer.size_bytes:
                self.positions.append(Position(each, next_offset, answer.leader_epoch))
                self.high_watermarks[each] = answer.partition.high_watermark
            elif next_offset > each.offset:
                self.passed.append((each, next_offset))
        return encode_consumed_data([answer for answer in answers if answer.size_bytes], self._delivery_id)


def _named(consumed: ConsumedPartition) -> log_pb2.FetchPartition:
    return log_pb2.FetchPartition(topic=consumed.topic, partition=consumed.number, offset=consumed.offset)
