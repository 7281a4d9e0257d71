"""Serves the log of the whole cluster, so that any broker answers any request.

    led here ─▶ the SessionLog of this session      led elsewhere ─▶ its leader: reads by peer_reader.py, produce by forwarder.py

A batch for a partition that this broker leads costs one look-up more than without routing. Requests wait for a partition between
two leaders: produce until the deadline of the request, reads for the duration of a failover (`leader_wait_s`). A call to a leader
that does not answer ends when another broker leads.

Invariants: batches of a partition never overtake each other, whichever broker leads. Answers of another broker hold only committed
records. An answer with an older leader epoch than the known one is rejected, because its high watermark may be stale. When a client
disconnects, the calls that were made for it end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from gateway.cluster.view import ClusterView
from gateway.routing.cluster_fetch import SLOW_LEADER_S, ClusterFetch, may_succeed_elsewhere
from gateway.routing.follower_fetch import FollowerFetch
from gateway.routing.forward_queue import NOT_AWAITED, NOT_LED, ForwardedAppend
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.leader_lookup import PAUSE_S_MAX, PAUSE_S_MIN, LeaderLookup, identity
from gateway.routing.local_log import LocalLog
from gateway.routing.log_service import EpochQuestion, Pending, WrittenOnce
from gateway.routing.peer_reader import PeerReader
from gateway.routing.preferred_replica import PreferredReplica
from gateway.routing.silent_leaders import SilentLeaders
from gateway.telemetry.request_context import remaining_s
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import FencedLeaderEpoch, TidelogError
from metadata.model import Offset, ProducerId, Revision, TopicPartition
from segments.byte_budget import Admission, ByteBudget
from segments.concurrency import gather_all
from segments.deadline import Deadline
from segments.log.session_log import Acks, FetchTarget, SessionLog
from segments.object_store.interface import Buffer
from segments.partition.partition_log import AS_PRODUCED, Appended, Bounds, TimestampPolicy
from segments.partition.producer_state import SequencedBatch
from segments.read.log_reader import FetchResult
from segments.read.record_lookup import Explanation, FoundRecord
from segments.records.header import BatchHeader
from segments.settings import SegmentSettings
from segments.wal.run_index import EpochEnd

Found = TypeVar("Found")
Item = TypeVar("Item")


class ClusterLog:
    """Implements LogService for the whole cluster: answers from this broker's own log, or calls the leader of a partition."""

    def __init__(
        self,
        local: LocalLog,
        view: ClusterView,
        forwarding: ProduceForwarder,
        peers: PeerReader,
        *,
        broker_id: str,
        settings: SegmentSettings,
        budget: ByteBudget,
        leader_wait_s: float,
        rack: str = "",
        rack_read_bytes_min: int = 1,
    ) -> None:
        """`settings` and `budget` are those of every session's SessionLog. `leader_wait_s` bounds the wait of a read for a leader.

        `rack` is this broker's; for clients of its rack it reads records of at least `rack_read_bytes_min` from the bucket.
        """
        self._local = local
        self._session_log = local.session_log
        self._view = view
        self._forwarding = forwarding
        self._peers = peers
        self._budget = budget
        self.settings = settings
        self.leader_wait_s = leader_wait_s
        self._leaders = LeaderLookup(self._session_log, view, broker_id=broker_id)
        # Of questions. Fetches have another one: a leader may be slow for the one kind and prompt for the other.
        self._silence = SilentLeaders()
        self.follower_fetch = FollowerFetch(peers.fetch, self._session_log, rack=rack, part_bytes_min=rack_read_bytes_min)
        self.preferred = PreferredReplica(view.brokers, rack=rack)
        self._fetch = ClusterFetch(
            local.fetch,
            view,
            self._leaders,
            self.follower_fetch,
            SilentLeaders(),
            leader_wait_s=leader_wait_s,
            is_hopeless=lambda: forwarding.no_leader_reason() is not None,
        )

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        return self._budget.admit(bytes_count, timeout_s=timeout_s)

    def admit_now(self, bytes_count: int) -> Admission | None:
        return self._budget.admit_now(bytes_count)

    # ── produce ───────────────────────────────────────────────────────────────────────────────────────────────────────

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
    ) -> Pending:
        """Appends at once where this broker leads and nothing waits before the batch; else queues the batch for its leader."""
        if not self._forwarding.has_queued(partition):
            try:
                return self._session_log().append(
                    partition, batch, header, admission, expected_offset=expected_offset, dates=dates, continues=continues
                )
            except NOT_LED:
                if (final := self._forwarding.no_leader_reason()) is not None:
                    raise final from None
        return self._forwarding.append(
            partition,
            batch,
            header,
            admission,
            acks=acks,
            deadline_s=deadline_s,
            expected_offset=expected_offset,
            dates=dates,
            continues=continues,
        )

    async def outcome(self, pending: Pending, *, acks: Acks, deadline: Deadline) -> Appended:
        if isinstance(pending, ForwardedAppend):
            if acks is Acks.NONE:
                return NOT_AWAITED
            decided = await self._forwarding.outcome(pending, deadline)
            if isinstance(decided, Appended):
                return decided
            pending = decided
        return pending.appended if acks is not Acks.ALL else await pending.committed(deadline)

    def written_here(self, partitions: Iterable[TopicPartition], producer_id: ProducerId) -> dict[TopicPartition, SequencedBatch]:
        try:
            return self._local.written_here(partitions, producer_id)
        except NOT_LED:
            return {}  # this broker leads no partition

    async def written_once(
        self, partitions: Sequence[TopicPartition], producer_id: ProducerId, *, topic_revision: Revision
    ) -> WrittenOnce:
        """Asks the leaders of all the partitions, including this broker."""

        async def ask(leader: BrokerRegistration | None, asked: Sequence[TopicPartition]) -> WrittenOnce:
            if leader is None:
                return await self._local.written_once(asked, producer_id, topic_revision=topic_revision)
            topic = self._leaders.topic_name(asked[0])
            answer = self._peers.written_once(leader, topic, asked, producer_id, topic_revision=topic_revision)
            return await self._leaders.ask_leader(leader, asked, answer)

        async def ask_all() -> WrittenOnce:
            parts = await gather_all(ask(leader, asked) for leader, asked in self._leaders.group_by_leader(partitions, identity))
            batches = {partition: batch for part in parts for partition, batch in part.batches.items()}
            return WrittenOnce(batches, max(part.topic_revision for part in parts))

        return await self._retry_until_led(ask_all)

    async def check_not_sealed(self) -> None:
        """Checks only this broker's own session: the leaders elsewhere have checked theirs when they answered."""
        await self._local.check_not_sealed()

    # ── reads ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def bounds(self, partition: TopicPartition) -> Bounds:
        [found] = await self.bounds_of([partition])
        if isinstance(found, TidelogError):
            raise found
        return found

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float = math.inf) -> list[Bounds | TidelogError]:
        async def ask(leader: BrokerRegistration | None, asked: Sequence[TopicPartition]) -> Sequence[Bounds | TidelogError]:
            if leader is None:
                return await self._local.bounds_of(asked)
            found = await self._leaders.ask_each(leader, asked, identity, lambda named: self._peers.bounds(leader, named))
            return [self._leaders.reject_stale_epoch(at, bounds) for at, bounds in zip(asked, found, strict=True)]

        return await self._ask_each(partitions, identity, ask, wait_s=wait_s)

    async def ends_of_epochs(
        self, questions: Sequence[EpochQuestion], *, wait_s: float = math.inf
    ) -> list[EpochEnd | TidelogError]:
        async def ask(leader: BrokerRegistration | None, asked: Sequence[EpochQuestion]) -> Sequence[EpochEnd | TidelogError]:
            if leader is None:
                return await self._local.ends_of_epochs(asked)
            return await self._leaders.ask_each(
                leader, asked, lambda question: question.partition, lambda named: self._peers.ends_of_epochs(leader, named)
            )

        return await self._ask_each(questions, lambda question: question.partition, ask, wait_s=wait_s)

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        return await self._ask_leader(
            partition,
            lambda log: log.reads.offset_for_timestamp(partition, timestamp_ms),
            lambda leader, topic: self._peers.offset_for_timestamp(leader, topic, partition, timestamp_ms),
        )

    async def offset_of_max_timestamp(self, partition: TopicPartition) -> FoundRecord | None:
        return await self._ask_leader(
            partition,
            lambda log: log.reads.offset_of_max_timestamp(partition),
            lambda leader, topic: self._peers.offset_of_max_timestamp(leader, topic, partition),
        )

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool = False) -> Offset:
        return await self._ask_leader(
            partition,
            lambda log: log.manifests.delete_records(partition, before_offset, validate_only=validate_only),
            lambda leader, topic: self._peers.delete_records(leader, topic, partition, before_offset, validate_only=validate_only),
        )

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        return await self._ask_leader(
            partition,
            lambda log: log.reads.explain(partition, offset),
            lambda leader, topic: self._peers.explain(leader, topic, partition, offset),
        )

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[FetchResult | TidelogError]:
        return await self._fetch.fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)

    def locations_bytes_min(self, client_rack: str) -> int | None:
        return self.follower_fetch.locations_bytes_min(client_rack)

    def preferred_broker(self, partition: TopicPartition, client_rack: str) -> BrokerRegistration | None:
        return self.preferred.broker_for(partition, client_rack, self._view.leader(partition)) if client_rack else None

    def fenced(self, partition: TopicPartition, error: FencedLeaderEpoch) -> FencedLeaderEpoch:
        return self._local.fenced(partition, error)

    # ── waiting for a leader ──────────────────────────────────────────────────────────────────────────────────────────

    async def _ask_each(
        self,
        items: Sequence[Item],
        partition_of: Callable[[Item], TopicPartition],
        ask: Callable[[BrokerRegistration | None, Sequence[Item]], Awaitable[Sequence[Found | TidelogError]]],
        *,
        wait_s: float = math.inf,
    ) -> list[Found | TidelogError]:
        """Calls `ask` for all leaders at once, and returns an answer or error for each item.

        Items without a leader are asked again for up to `wait_s`, and so are leaders that did not answer the last question in time.
        Other leaders have up to SLOW_LEADER_S.
        """
        clock = asyncio.get_running_loop().time
        longest_s = min(self.leader_wait_s, remaining_s())
        ends_s, pause_s = clock() + min(wait_s, longest_s), PAUSE_S_MIN
        slow_ends_s = max(ends_s, clock() + min(SLOW_LEADER_S, longest_s))

        async def at(leader: BrokerRegistration | None, indexes: Sequence[int]) -> Sequence[Found | TidelogError]:
            asked = [items[index] for index in indexes]
            try:
                if leader is None:  # local reads have their own time limits
                    return await ask(None, asked)
                left_s = (ends_s if self._silence.is_silent(leader.session) else slow_ends_s) - clock()
                limit_s = max(PAUSE_S_MIN, min(SLOW_LEADER_S, left_s))
                return await self._silence.ask(leader, ask(leader, asked), limit_s=limit_s)
            except TidelogError as error:
                return [error.with_traceback(None)] * len(indexes)

        found: dict[int, Found | TidelogError] = {}
        missing = list(range(len(items)))
        while True:
            parts = self._leaders.group_by_leader(missing, lambda index: partition_of(items[index]))
            answers = await gather_all(at(leader, indexes) for leader, indexes in parts)
            for (_, indexes), part in zip(parts, answers, strict=True):
                found.update(zip(indexes, part, strict=True))
            missing = [index for index in missing if may_succeed_elsewhere(found[index])]
            left_s = ends_s - clock()
            if not missing or left_s <= 0 or self._forwarding.no_leader_reason():
                return [found[index] for index in range(len(items))]
            await self._view.changed(timeout_s=min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _ask_leader(
        self,
        partition: TopicPartition,
        local: Callable[[SessionLog], Awaitable[Found]],
        remote: Callable[[BrokerRegistration, str], Awaitable[Found]],
    ) -> Found:
        """Returns the answer of this broker's own log, or of the leader elsewhere, which gets the name of the topic as well."""

        async def ask() -> Found:
            leader = self._leaders.remote_leader(partition)
            if leader is None:
                return await local(self._session_log())
            return await self._leaders.ask_leader(leader, [partition], remote(leader, self._leaders.topic_name(partition)))

        return await self._retry_until_led(ask)

    async def _retry_until_led(self, ask: Callable[[], Awaitable[Found]]) -> Found:
        """Repeats `ask` while the partition is between two leaders, for up to `leader_wait_s`."""
        clock = asyncio.get_running_loop()
        ends_s, pause_s = clock.time() + min(self.leader_wait_s, remaining_s()), PAUSE_S_MIN
        while True:
            try:
                return await ask()
            except TidelogError as error:
                if not may_succeed_elsewhere(error) or ends_s <= clock.time() or self._forwarding.no_leader_reason():
                    raise
            await self._view.changed(timeout_s=min(pause_s, max(0.0, ends_s - clock.time())))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
