"""Serves the partitions that this broker leads, for requests that another broker has forwarded.

LocalLog forwards nothing: it answers a request for a partition that another broker leads with NotLeader, which names that broker.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from gateway.cluster.view import ClusterView
from gateway.routing.log_service import EpochQuestion, Pending, WrittenOnce
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import FencedLeaderEpoch, NoLeader, NotLeader, Stopping, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, ProducerId, Revision, TopicPartition
from segments.byte_budget import Admission
from segments.deadline import Deadline
from segments.log.session_log import Acks, FetchTarget, PendingAppend, SessionLog
from segments.object_store.interface import Buffer
from segments.partition.partition_log import AS_PRODUCED, Appended, Bounds, TimestampPolicy
from segments.partition.producer_state import NOT_ROUTED, SequencedBatch
from segments.read.log_reader import FetchResult
from segments.read.record_lookup import Explanation, FoundRecord
from segments.records.header import BatchHeader
from segments.settings import SegmentSettings
from segments.wal.run_index import EpochEnd

# Upper bound for the wait of a forwarded message for a takeover that has begun.
TAKEOVER_S: Final = 0.5
# Upper bound for a leader's wait until its watch shows the topic as the asking broker knows it.
TOPIC_WAIT_S: Final = 2.0
# How long, and how often, a leader checks whether a batch is committed that an earlier routing of a keyed request has written.
COMMITTED_S: Final = 5.0
COMMITTED_PAUSE_S: Final = 0.02


class AwaitTakeover(Protocol):
    """Waits while all of the partitions are appointed to this broker and it serves none of them yet."""

    def __call__(self, partitions: Collection[TopicPartition], *, timeout_s: float) -> Awaitable[None]: ...


class LocalLog:
    """Implements LogService for the partitions that the present session of this broker leads."""

    # A request that this broker can't answer is answered at once: the broker that forwarded it waits for the next leader.
    leader_wait_s = 0.0

    def __init__(
        self, session_log: Callable[[], SessionLog], view: ClusterView | None = None, await_takeover: AwaitTakeover | None = None
    ) -> None:
        """`session_log` returns the log of the present session; it raises NoLeader or Stopping while there is none.

        Without a view no other broker is known.
        """
        self.session_log = session_log
        self._view = view
        self._await_takeover = await_takeover

    @property
    def settings(self) -> SegmentSettings:
        return self.session_log().settings

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        return self.session_log().admit(bytes_count, timeout_s=timeout_s)

    def admit_now(self, bytes_count: int) -> Admission | None:
        return self.session_log().budget.admit_now(bytes_count)

    async def await_takeover(self, partitions: Collection[TopicPartition], *, deadline_s: float) -> None:
        """Waits up to TAKEOVER_S while this broker takes all of these partitions over. `deadline_s` is on the loop's clock.

        The forwarding broker may read of an appointment before this one has acted on it, and would retry refused batches.
        """
        if self._await_takeover is not None:
            left_s = deadline_s - asyncio.get_running_loop().time()
            await self._await_takeover(partitions, timeout_s=min(TAKEOVER_S, left_s))

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
        dates: TimestampPolicy = AS_PRODUCED,
        continues: bool = False,
    ) -> PendingAppend:
        try:
            return self.session_log().append(
                partition, batch, header, admission, expected_offset=expected_offset, dates=dates, continues=continues
            )
        except NoLeader as error:
            raise self._with_leader(partition, error) from None

    async def outcome(self, pending: Pending, *, acks: Acks, deadline: Deadline) -> Appended:
        assert isinstance(pending, PendingAppend), "nothing is forwarded from here"
        return pending.appended if acks is not Acks.ALL else await pending.committed(deadline)

    def written_here(self, partitions: Iterable[TopicPartition], producer_id: ProducerId) -> dict[TopicPartition, SequencedBatch]:
        return self.session_log().written_once(partitions, producer_id)

    async def written_once(
        self, partitions: Sequence[TopicPartition], producer_id: ProducerId, *, topic_revision: Revision
    ) -> WrittenOnce:
        log = self.session_log()
        topics = self._view.topics if self._view is not None else None
        if topics is not None and not await topics.wait_for(topic_revision, timeout_s=TOPIC_WAIT_S):
            raise NoLeader(f"the leader of {partitions[0]} has not read its topic at revision {topic_revision} yet")
        committed_by_s = asyncio.get_running_loop().time() + COMMITTED_S
        try:
            while True:
                while unproven := _unproven(log, partitions):
                    await log.routing.prove(unproven)
                topic = topics.by_id(partitions[0].topic_id) if topics is not None else None
                found = await log.verified_written_once(partitions, producer_id)
                if topic is None:
                    return WrittenOnce(found, topic_revision)
                usual = (NOT_ROUTED, topic.partition_count)
                rerouted = {at: batch for at, batch in found.items() if batch.producer_epoch not in usual}
                if all(batch.last_offset < log.partitions.bounds(at).high_watermark for at, batch in rerouted.items()):
                    return WrittenOnce(found, topic.revision)
                if asyncio.get_running_loop().time() >= committed_by_s:
                    raise Unavailable(f"a part of the request is still being written to {next(iter(rerouted))}")
                await asyncio.sleep(COMMITTED_PAUSE_S)
        except NoLeader as error:
            raise self._with_leader(partitions[0], error) from None

    async def check_not_sealed(self) -> None:
        try:
            log = self.session_log()
        except (NoLeader, Stopping):
            return
        await log.leadership.check_not_sealed()

    async def bounds(self, partition: TopicPartition) -> Bounds:
        [found] = await self.bounds_of([partition])
        if isinstance(found, TidelogError):
            raise found
        return found

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float = math.inf) -> list[Bounds | TidelogError]:
        try:
            found = await self.session_log().reads.bounds_of(partitions)
        except TidelogError as error:
            found = [error.with_traceback(None)] * len(partitions)
        return [
            self._completed(partition, bounds) if isinstance(bounds, TidelogError) else bounds
            for partition, bounds in zip(partitions, found, strict=True)
        ]

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[FetchResult | TidelogError]:
        answers = await self.session_log().reads.fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
        return [
            self._completed(target.partition, answer) if isinstance(answer, TidelogError) else answer
            for target, answer in zip(targets, answers, strict=True)
        ]

    def locations_bytes_min(self, client_rack: str) -> int | None:
        return None

    def preferred_broker(self, partition: TopicPartition, client_rack: str) -> BrokerRegistration | None:
        return None

    async def ends_of_epochs(
        self, questions: Sequence[EpochQuestion], *, wait_s: float = math.inf
    ) -> list[EpochEnd | TidelogError]:
        found: list[EpochEnd | TidelogError] = []
        try:
            log = self.session_log()
            await log.leadership.verify()
        except TidelogError as error:
            return [self._completed(question.partition, error.with_traceback(None)) for question in questions]
        for partition, leader_epoch, current in questions:
            try:
                found.append(log.reads.end_of_epoch(partition, leader_epoch, current_leader_epoch=current))
            except TidelogError as error:
                found.append(self._completed(partition, error.with_traceback(None)))
        return found

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        with self._naming_leader(partition):
            return await self.session_log().reads.offset_for_timestamp(partition, timestamp_ms)

    async def offset_of_max_timestamp(self, partition: TopicPartition) -> FoundRecord | None:
        with self._naming_leader(partition):
            return await self.session_log().reads.offset_of_max_timestamp(partition)

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool = False) -> Offset:
        with self._naming_leader(partition):
            return await self.session_log().manifests.delete_records(partition, before_offset, validate_only=validate_only)

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        with self._naming_leader(partition):
            return await self.session_log().reads.explain(partition, offset)

    @contextmanager
    def _naming_leader(self, partition: TopicPartition) -> Iterator[None]:
        """Raises NotLeader in place of the body's NoLeader where this broker knows another leader of the partition."""
        try:
            yield
        except NoLeader as error:
            raise self._with_leader(partition, error) from None

    def _completed(self, partition: TopicPartition, error: TidelogError) -> TidelogError:
        """Returns the error of a read, completed with the present leader where this broker knows it."""
        if isinstance(error, NoLeader):
            return self._with_leader(partition, error)
        return self.fenced(partition, error) if isinstance(error, FencedLeaderEpoch) else error

    def fenced(self, partition: TopicPartition, error: FencedLeaderEpoch) -> FencedLeaderEpoch:
        leader = self._view.leader(partition) if self._view is not None else None
        if leader is not None:
            addresses = {"grpc_address": leader.grpc_address, "http_address": leader.http_address}
            error.details = {**error.details, "broker_id": leader.broker_id, **addresses}
        return error

    def _with_leader(self, partition: TopicPartition, error: NoLeader) -> NoLeader | NotLeader:
        """Returns NotLeader in place of the error where this broker knows another leader of the partition."""
        leader = self._view.leader(partition) if self._view is not None else None
        state = self._view.partitions.get(partition) if self._view is not None else None
        try:
            mine = self.session_log().session.id
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


def _unproven(log: SessionLog, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeaderEpoch]:
    """Returns the leader epochs of the partitions whose routing is not proven. Raises NoLeader, Corrupt, SessionFenced."""
    epochs = {partition: log.partitions.at(partition).log.leader_epoch for partition in partitions}
    return {partition: epoch for partition, epoch in epochs.items() if not log.routing.is_proven(partition, epoch)}
