"""What goes to the client of one Consume stream, and when: one message at a time, what is told of the group before records.

    told ─────────▶ written first, in order
    credit left ──▶ look at what is placed, until there are records ─▶ ask for room ─▶ fetch, open ─▶ write, hold the room
    nothing came ─▶ progress

A look waits for records and holds none; whatever else there is to do ends it. What was begun to be delivered is written before
what is told next: so records of a partition never come behind the word that it was revoked.

Invariants: no records without credit; at most one answer of a stream is in memory; records go out only of partitions that are
owned by the clock, too, at the moment of writing, and positions move then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from gateway.api import BrokerApi
from gateway.grpc.calls import Context, write_wholly
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

# Partitions that are looked at in one step, and read for one answer: more would hold the event loop for long.
PART: Final = 1_000
# A look ends when progress is due, but not before this: what comes from the bucket, or another broker, may take so long.
LOOK_S_LEAST: Final = 1.0
# Before a look that found nobody to ask is made again.
PAUSE_S: Final = 0.05

_Found = TypeVar("_Found")
_NOTHING: Final[frozenset[TopicPartitionName]] = frozenset()


class Ownership(Protocol):
    """Whose the partitions are that a stream reads: the client's alone, or a member's of a group."""

    def owns(self, name: TopicPartitionName) -> bool: ...

    async def committed(self) -> StoredOffsets:
        """By the group."""
        ...

    async def keep(self, ends: Mapping[ConsumedPartition, int]) -> Collection[ConsumedPartition]:
        """Remembers that these begin there, at the ends of their logs. Answers those of which it did."""
        ...

    def waits(self) -> None:
        """The client waits for records."""
        ...

    def took(self) -> None:
        """It was handed some, or has said something."""
        ...

    def failed(self, error: TidelogError) -> None:
        """A partition can't be read any more, as the client is told."""
        ...


class _Told(NamedTuple):
    message: log_pb2.ConsumeResponse
    of_assignment: bool
    assigned: frozenset[TopicPartitionName]


class _There(NamedTuple):
    """That there are records."""

    # The first has some.
    partitions: Sequence[ConsumedPartition]
    bytes_seen: int


class DeliveryLoop:
    """Its owner runs `run()` as a task."""

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
        """`used_up` is called where there is no credit left, and there will be none."""
        self._broker = broker
        self._fetch = fetch
        self._context = context
        self._terms = terms
        self._partitions = partitions
        self._used_up = used_up
        self.ownership: Ownership
        """Set by who owns this, before it runs."""
        self.credit_bytes = 0
        self.is_closed = False
        """The client sends nothing more."""
        self.drained = asyncio.Event()
        """All that was told is written."""
        self._outbox: deque[_Told] = deque()
        self._failed: list[tuple[ConsumedPartition, TidelogError]] = []
        """That the client was not told of yet."""
        self._is_ending = self._is_finishing = False
        self._wait: asyncio.Timeout | None = None
        self._written_s = 0.0
        self.placing = StartOffsets(
            broker,
            terms,
            partitions,
            committed=lambda: self.ownership.committed(),
            keep=lambda ends: self.ownership.keep(ends),
            refused=self._refused,
            placed=self._wake,
        )
        """Run by who owns this."""
        self._singly = 0
        """So many deliveries are of one partition each: one of several was damaged, and it is to be found which."""

    # ── what its owner tells ────────────────────────────────────────────────────────────────────────────────────────────

    def tell(
        self,
        message: log_pb2.ConsumeResponse,
        *,
        of_assignment: bool = False,
        assigned: frozenset[TopicPartitionName] = _NOTHING,
    ) -> None:
        self._outbox.append(_Told(message, of_assignment, assigned))
        self.drained.clear()
        self.changed()

    def withdraw_assignments(self) -> frozenset[TopicPartitionName]:
        """What was told of them and is not written yet. Answers the partitions that the client has not heard to be its own."""
        withdrawn = [told for told in self._outbox if told.of_assignment]
        self._outbox = deque(told for told in self._outbox if not told.of_assignment)
        return _NOTHING.union(*(told.assigned for told in withdrawn))

    def changed(self) -> None:
        """There is something to do, perhaps something to be placed: a look ends."""
        self.placing.wanted.set()
        self._wake()

    def _wake(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    def end(self) -> None:
        """No records any more, but what is told is written."""
        self._is_ending = True
        self.changed()

    def finish(self) -> None:
        """run() returns once all that was told is written."""
        self._is_finishing = True
        self.changed()

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        self._written_s = clock()
        while True:
            self._tell_failed()
            while self._outbox:
                await self._write(self._outbox.popleft().message.SerializeToString())
            self.drained.set()
            if self._is_finishing:
                return
            due_s = self._written_s + self._terms.heartbeat_s
            if await self._pushed(due_s) or self._outbox or self._failed:
                continue
            if clock() >= due_s or any(each.is_seen and each.told[1] < 0 for each in self._partitions):
                await self._write(wire.progress(self._partitions.progress()).SerializeToString())

    async def _pushed(self, due_s: float) -> bool:
        """Whether records were; waits for them until then, where there is credit."""
        if self.credit_bytes <= 0 or self._is_ending:
            if self.is_closed and not self._is_ending:
                self._used_up()
            await self._undisturbed(asyncio.sleep(self._terms.heartbeat_s), due_s)
            return False
        self.ownership.waits()
        limit_s = max(due_s, asyncio.get_running_loop().time() + LOOK_S_LEAST)
        there = await self._undisturbed(self._look(due_s), limit_s)
        return there is not None and await self._deliver(there)

    async def _undisturbed(self, work: Coroutine[Any, Any, _Found], until_s: float) -> _Found | None:
        """What it finds; None where there is something else to do, or it is time."""
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
        await write_wholly(self._context, message)  # so that a slow client, too, is told why its stream ends
        self._written_s = asyncio.get_running_loop().time()

    # ── look ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _look(self, until_s: float) -> _There | None:
        """Waits for records until then, unless something has to be told before."""
        readable = self._partitions.readable()
        clock = asyncio.get_running_loop().time
        if not readable:
            await asyncio.sleep(until_s - clock())
            return None
        for start in range(0, len(readable), PART):
            part = readable[start : start + PART]
            if (there := await self._looked_at(part, wait_ms=0)) is not None or self._failed:
                return there
            await asyncio.sleep(0)  # others get their turn
        if any(each.is_seen and each.told[1] < 0 for each in readable):
            return None
        return await self._looked_at(readable, wait_ms=max(0.0, 1000 * (until_s - clock())))

    async def _looked_at(self, partitions: Sequence[ConsumedPartition], *, wait_ms: float) -> _There | None:
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
                consumed.place_anew(self._terms.reset)
                self.placing.wanted.set()
                is_unled = True
            else:
                is_unled |= not self._refused(consumed, answer)
        if first is not None:
            return _There(partitions[first : first + PART], bytes_seen)
        if is_unled:
            await asyncio.sleep(PAUSE_S)
        return None

    def _targets(self, partitions: Sequence[ConsumedPartition], bytes_max: int) -> list[FetchTarget]:
        places_bytes_min = self._broker.cluster_log.places_bytes_min(self._terms.client_rack)
        return [FetchTarget(each.partition, each.offset, bytes_max, places_bytes_min=places_bytes_min) for each in partitions]

    def _refused(self, consumed: ConsumedPartition, error: TidelogError) -> bool:
        """Whether that is final; then the client is told, and the partition is not read any more."""
        if may_succeed_elsewhere(error) or error.retryable:
            return False
        self.fail(consumed, error)
        return True

    def fail(self, consumed: ConsumedPartition, error: TidelogError) -> None:
        """It is not read any more, and the client is told when it is the turn of that."""
        error = error.with_traceback(None)
        error.message = error.message.replace(consumed.topic_id, consumed.topic)
        consumed.error = error
        self._failed.append((consumed, error))
        self.ownership.failed(error)
        self.changed()

    def _tell_failed(self) -> None:
        for consumed, error in self._failed:
            if self._partitions.holds(consumed):
                self.tell(wire.failed(consumed, error, self._partitions.delivered([], remembered=False)))
        self._failed.clear()

    # ── deliver ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _deliver(self, there: _There) -> bool:
        """Whether records went out."""
        log = self._broker.cluster_log
        partitions = there.partitions[:1] if self._singly else there.partitions
        terms = FetchOptions(min(self._terms.bytes_max, self.credit_bytes), 0, 0, self._terms.structured)
        with self._fetch.room.place() as place:
            targets = self._targets(partitions, terms.bytes_max)
            try:
                answers = await self._fetch.admitted(targets, there.bytes_seen, terms, place, log, timeout_s=0)
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
                message = await self._fetch.laid_out(asked, [told for _, _, told in read], terms, place, log, laid.encode)
            except Corrupt as error:
                self._find_damaged(laid.partitions, error)
                return False
            del answers, read  # the batches that it was made from
            if not all(self._partitions.holds(each) and self.ownership.owns(each.name) for each in laid.partitions):
                await asyncio.sleep(PAUSE_S)  # where that is so by the clock alone, it is about to be told
                return False
            for each, offset in laid.passed:
                each.offset = offset
            if not laid.positions:
                await asyncio.sleep(0 if laid.passed else PAUSE_S)
                return False
            self._singly = max(0, self._singly - 1)
            self._partitions.delivered(laid.positions, remembered=bool(self._terms.group))
            for each, _, _ in laid.positions:
                each.told = each.offset, laid.high_watermarks[each]
                each.high_watermark = laid.high_watermarks[each]
            self.credit_bytes -= len(message)
            await self._send(message)
        return True

    async def _send(self, message: bytes) -> None:
        self.ownership.took()  # a client that takes nothing is away from here on
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
        self.passed: list[tuple[ConsumedPartition, int]] = []
        """Where there was nothing to deliver up to an offset."""
        self._delivery_id = delivery_id

    def encode(self, answers: Sequence[PartitionResponse]) -> bytes:
        """May run in a thread: nothing of the stream is changed here."""
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
