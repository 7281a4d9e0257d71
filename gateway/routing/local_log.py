"""The log as a door meets it, of the partitions that this broker leads: for requests that another broker has forwarded.

Nothing is sent on from here: a partition that is led elsewhere is refused as NotLeader, which names who leads. cluster_log.py is
the same for the whole cluster. Invariant: no state of the log is held, since a session that ends takes its Log with it; so the
present one is asked for each time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.cluster.view import ClusterView
from gateway.routing.forward_queue import ForwardedAppend
from metadata.cluster.broker_registry import Registration
from metadata.errors import FencedLeaderEpoch, NoLeader, NotLeader, Stopping, TidelogError, Unavailable
from metadata.model import Offset, ProducerId, Revision, TopicPartition
from segments.byte_budget import Admission
from segments.log.session_log import Acks, FetchTarget, PendingAppend, SessionLog
from segments.object_store.interface import Buffer
from segments.partition.partition_log import AS_PRODUCED, Appended, Bounds, Dates
from segments.partition.producer_state import NOT_ROUTED, SequencedBatch
from segments.read.log_reader import Explanation, Fetched, TimestampedOffset
from segments.records.header import BatchHeader
from segments.settings import SegmentSettings
from segments.wal.run_index import EpochEnd

Pending = PendingAppend | ForwardedAppend

TAKEOVER_S: Final = 0.5
"""So long a forwarded message waits for a takeover that has begun."""


# How long a leader waits for its watch to tell of the topic as the asking broker knows it.
HEARD_S: Final = 2.0
# How long, and how often, a leader looks whether a batch is committed that an earlier routing of a keyed request has written.
COMMITTED_S: Final = 5.0
COMMITTED_PAUSE_S: Final = 0.02


class TakenOver(Protocol):
    def __call__(self, partitions: Collection[TopicPartition], *, timeout_s: float) -> Awaitable[None]: ...


class EpochQuestion(NamedTuple):
    """Where do the records of this leader epoch end?"""

    partition: TopicPartition
    leader_epoch: int
    current_leader_epoch: int | None = None
    """As in FetchTarget."""


class WrittenOnce(NamedTuple):
    """What a one-shot producer has written to the partitions that were asked for, as their leaders know."""

    batches: Mapping[TopicPartition, SequencedBatch]
    topic_revision: Revision
    """The newest revision of the topic that one of the leaders knows. From now on the leaders take no new batch of the producer
    that was routed over fewer partitions than they knew when they answered."""


class LocalLog:
    leader_wait_s = 0.0
    """How long a read waits for a partition to have a leader."""

    def __init__(self, log: Callable[[], SessionLog], view: ClusterView | None = None, taken_over: TakenOver | None = None) -> None:
        """`log`: of the present session; raises NoLeader or Stopping while there is none. Without a view nobody else is known;
        `taken_over` waits as Leadership's does.
        """
        self._log = log
        self._view = view
        self._taken_over = taken_over
        self._appended_to: SessionLog | None = None

    @property
    def settings(self) -> SegmentSettings:
        return self._log().settings

    @staticmethod
    def memory_bytes(batch_bytes: int, *, batches: int = 1) -> int:
        """As SessionLog.memory_bytes."""
        return SessionLog.memory_bytes(batch_bytes, batches=batches)

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        """As SessionLog.admit."""
        return self._log().admit(bytes_count, timeout_s=timeout_s)

    async def taken_over(self, partitions: Collection[TopicPartition], *, deadline_s: float) -> None:
        """Waits a moment where all of these are about to be served here: who forwards hears of an appointment as soon as this
        broker does. Refused, their batches would come again and again until they are. `deadline_s`: of the loop's clock.
        """
        if self._taken_over is not None:
            left_s = deadline_s - asyncio.get_running_loop().time()
            await self._taken_over(partitions, timeout_s=min(TAKEOVER_S, left_s))

    def append(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        admission: Admission,
        *,
        acks: Acks = Acks.ALL,
        deadline_s: float,
        expected_offset: int | None = None,
        dates: Dates = AS_PRODUCED,
        continues: bool = False,
    ) -> Pending:
        """As SessionLog.append. `deadline_s`, of the loop's clock: until when a batch may wait for the leader of its partition."""
        log = self._log()
        try:
            pending = log.append(
                partition, batch, header, admission, expected_offset=expected_offset, dates=dates, continues=continues
            )
        except NoLeader as error:
            raise self.not_led(partition, error) from None
        self._appended_to = log
        return pending

    async def outcome(self, pending: Pending, *, acks: Acks, timeout_s: float) -> Appended:
        """Where the batch lies: at the commit for Acks.ALL, else as soon as its leader has it. Raises as SessionLog.committed."""
        assert isinstance(pending, PendingAppend), "nothing is forwarded from here"
        if acks is not Acks.ALL:
            return pending.appended
        assert self._appended_to is not None, "it was appended"
        return await self._appended_to.committed(pending, timeout_s=timeout_s)  # whichever: the batch knows its segment

    def written_here(self, partitions: Iterable[TopicPartition], producer_id: ProducerId) -> dict[TopicPartition, SequencedBatch]:
        """As SessionLog.written_once: at once, of those of the partitions that are led here."""
        return self._log().written_once(partitions, producer_id)

    async def written_once(
        self, partitions: Sequence[TopicPartition], producer_id: ProducerId, *, topic_revision: Revision
    ) -> WrittenOnce:
        """What a one-shot producer has written to partitions of one topic, of which the caller knows this revision.

        A batch that was routed over another number of partitions than the topic has now is told only once it is committed: then the
        routing of its request is fixed. Raises NoLeader, NotLeader, SessionFenced, Unavailable, UnknownTopic.
        """
        log = self._log()
        topics = self._view.topics if self._view is not None else None
        if topics is not None and not await topics.wait_for(topic_revision, timeout_s=HEARD_S):
            raise NoLeader(f"the leader of {partitions[0]} has not read its topic at revision {topic_revision} yet")
        committed_by_s = asyncio.get_running_loop().time() + COMMITTED_S
        try:
            while True:
                while not all(map(log.routing.is_proven, partitions)):
                    await log.routing.prove(partitions)
                topic = topics.by_id(partitions[0].topic_id) if topics is not None else None
                found = await log.surely_written_once(partitions, producer_id)
                if topic is None:
                    return WrittenOnce(found, topic_revision)
                usual = (NOT_ROUTED, topic.partition_count)
                rerouted = {at: batch for at, batch in found.items() if batch.producer_epoch not in usual}
                if all(batch.last_offset < log.bounds(at).high_watermark for at, batch in rerouted.items()):
                    return WrittenOnce(found, topic.revision)
                if asyncio.get_running_loop().time() >= committed_by_s:
                    raise Unavailable(f"a part of the request is still being written to {next(iter(rerouted))}")
                await asyncio.sleep(COMMITTED_PAUSE_S)
        except NoLeader as error:
            raise self.not_led(partitions[0], error) from None

    async def check_not_sealed(self) -> None:
        """As SessionLog.check_not_sealed, where there is a session."""
        try:
            log = self._log()
        except (NoLeader, Stopping):
            return
        await log.check_not_sealed()

    async def bounds(self, partition: TopicPartition) -> Bounds:
        [found] = await self.bounds_of([partition])
        if isinstance(found, TidelogError):
            raise found
        return found

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float = math.inf) -> list[Bounds | TidelogError]:
        """Of each; the error of a partition stands in its place. `wait_s`: for leaders, where the whole cluster is asked."""
        try:
            found = await self._log().bounds_of(partitions)
        except TidelogError as error:
            found = [error.with_traceback(None)] * len(partitions)
        return [
            self._told(partition, bounds) if isinstance(bounds, TidelogError) else bounds
            for partition, bounds in zip(partitions, found, strict=True)
        ]

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[Fetched | TidelogError]:
        """As SessionLog.fetch."""
        answers = await self._log().fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
        return [
            self._told(target.partition, answer) if isinstance(answer, TidelogError) else answer
            for target, answer in zip(targets, answers, strict=True)
        ]

    def places_bytes_min(self, client_rack: str) -> int | None:
        """Of the targets of a reader of this rack, as in FetchTarget: what others lead is read here where it is this broker's."""
        return None

    def preferred_broker(self, partition: TopicPartition, client_rack: str) -> Registration | None:
        """To which a reader of this rack is sent; None: it is answered."""
        return None

    async def ends_of_epochs(self, questions: Sequence[EpochQuestion]) -> list[EpochEnd | TidelogError]:
        """As SessionLog.end_of_epoch, for each; the error of a question stands in its place."""
        found: list[EpochEnd | TidelogError] = []
        try:
            log = self._log()
            await log.check_appointed()
        except TidelogError as error:
            return [self._told(question.partition, error.with_traceback(None)) for question in questions]
        for partition, leader_epoch, current in questions:
            try:
                found.append(log.end_of_epoch(partition, leader_epoch, current_leader_epoch=current))
            except TidelogError as error:
                found.append(self._told(partition, error.with_traceback(None)))
        return found

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> TimestampedOffset | None:
        try:
            return await self._log().offset_for_timestamp(partition, timestamp_ms)
        except NoLeader as error:
            raise self.not_led(partition, error) from None

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool = False) -> Offset:
        """As SessionLog.delete_records: answers where the log starts now."""
        try:
            return await self._log().delete_records(partition, before_offset, validate_only=validate_only)
        except NoLeader as error:
            raise self.not_led(partition, error) from None

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        try:
            return await self._log().explain(partition, offset)
        except NoLeader as error:
            raise self.not_led(partition, error) from None

    def _told(self, partition: TopicPartition, error: TidelogError) -> TidelogError:
        """The error of a read, with who leads, where that is known."""
        if isinstance(error, NoLeader):
            return self.not_led(partition, error)
        return self.fenced(partition, error) if isinstance(error, FencedLeaderEpoch) else error

    def fenced(self, partition: TopicPartition, error: FencedLeaderEpoch) -> FencedLeaderEpoch:
        """The error, with the addresses of the leader that the reader does not know yet."""
        leader = self._view.leader(partition) if self._view is not None else None
        if leader is not None:
            addresses = {"grpc_address": leader.grpc_address, "http_address": leader.http_address}
            error.details = {**error.details, "broker_id": leader.broker_id, **addresses}
        return error

    def not_led(self, partition: TopicPartition, error: NoLeader) -> NoLeader | NotLeader:
        """The error, or that another leads, where that is known."""
        leader = self._view.leader(partition) if self._view is not None else None
        state = self._view.partitions.get(partition) if self._view is not None else None
        try:
            mine = self._log().session.id
        except TidelogError:
            mine = None
        if leader is None or state is None or leader.session == mine:
            return error
        return NotLeader(
            f"broker {leader.broker_id} leads {partition}, not this one",
            hint="Ask the broker that leads.",
            broker_id=leader.broker_id,
            grpc_address=leader.grpc_address,
            http_address=leader.http_address,
            leader_epoch=state.leader_epoch,
        )
