"""Defines the log as listeners use it: one protocol with two implementations.

    LocalLog     local_log.py     the partitions that this broker leads, for requests that another broker has forwarded
    ClusterLog   cluster_log.py   the partitions of the whole cluster, for requests of clients

A listener holds no state of the log. Both implementations look up the SessionLog of the present session for each request, because
a session that ends discards its SessionLog.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.routing.forward_queue import ForwardedAppend
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import FencedLeaderEpoch, TidelogError
from metadata.model import Offset, ProducerId, Revision, TopicPartition
from segments.byte_budget import Admission
from segments.deadline import Deadline
from segments.log.session_log import Acks, FetchTarget, PendingAppend
from segments.object_store.interface import Buffer
from segments.partition.partition_log import AS_PRODUCED, Appended, Bounds, TimestampPolicy
from segments.partition.producer_state import SequencedBatch
from segments.read.log_reader import FetchResult
from segments.read.record_lookup import Explanation, FoundRecord
from segments.records.header import BatchHeader
from segments.settings import SegmentSettings
from segments.wal.run_index import EpochEnd

# An uncommitted batch: appended at this broker, or queued for another one.
Pending = PendingAppend | ForwardedAppend


class EpochQuestion(NamedTuple):
    """Asks where the records of a leader epoch end."""

    partition: TopicPartition
    leader_epoch: int
    # As in FetchTarget.
    current_leader_epoch: int | None = None


class WrittenOnce(NamedTuple):
    """The batches that a one-shot producer has written to the partitions in question, as their leaders know them."""

    batches: Mapping[TopicPartition, SequencedBatch]
    # The newest revision of the topic that one of the leaders knows. From now on the leaders take no new batch of the producer that
    # was routed over fewer partitions than they knew when they answered.
    topic_revision: Revision


class LogService(Protocol):
    """Appends to partitions and reads from them.

    Where a method takes several partitions, the error of a partition stands in its place in the result.
    """

    @property
    def settings(self) -> SegmentSettings: ...

    @property
    def leader_wait_s(self) -> float:
        """Returns how long a read waits for a partition to get a leader."""
        ...

    def admit(self, bytes_count: int, *, timeout_s: float) -> Admission:
        """Reserves room in the buffer, as a context manager: see ByteBudget.admit."""
        ...

    def admit_now(self, bytes_count: int) -> Admission | None:
        """Reserves room in the buffer, which the caller releases; None where there is none at the moment."""
        ...

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
        """Takes a checked batch without waiting, as SessionLog.append.

        `deadline_s`, on the loop's clock, is the end of a batch's wait for the leader of its partition.
        """
        ...

    async def outcome(self, pending: Pending, *, acks: Acks, deadline: Deadline) -> Appended:
        """Returns where the batch lies: after the commit for Acks.ALL, else as soon as its leader has it.

        Raises what PendingAppend.committed and ProduceForwarder.outcome raise.
        """
        ...

    def written_here(self, partitions: Iterable[TopicPartition], producer_id: ProducerId) -> dict[TopicPartition, SequencedBatch]:
        """Returns at once what a one-shot producer has written to those of the partitions that this broker leads."""
        ...

    async def written_once(
        self, partitions: Sequence[TopicPartition], producer_id: ProducerId, *, topic_revision: Revision
    ) -> WrittenOnce:
        """Returns what a one-shot producer has written to partitions of one topic. The caller knows this revision of the topic.

        A batch that was routed over another number of partitions than the topic has now is returned only once it is committed: then
        the routing of its request is fixed. Raises NoLeader, NotLeader, SessionFenced, Unavailable, UnknownTopic.
        """
        ...

    async def check_not_sealed(self) -> None:
        """Checks on the bucket that this broker's own session is not sealed; returns at once where it has none.

        Raises SessionFenced, Unavailable.
        """
        ...

    async def bounds(self, partition: TopicPartition) -> Bounds:
        """Returns the bounds of one partition, or raises its error."""
        ...

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float = math.inf) -> list[Bounds | TidelogError]:
        """Returns the bounds of each partition.

        `wait_s` bounds the wait for partitions without a leader, and for leaders that were silent a moment ago. Other leaders have
        a few seconds to answer.
        """
        ...

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[FetchResult | TidelogError]:
        """Reads from each target, as ReadPath.fetch."""
        ...

    def locations_bytes_min(self, client_rack: str) -> int | None:
        """Returns FetchTarget.locations_bytes_min for a client of this rack: None unless this broker reads the bucket for it."""
        ...

    def preferred_broker(self, partition: TopicPartition, client_rack: str) -> BrokerRegistration | None:
        """Returns the broker that a client of this rack should read from instead; None where this one answers."""
        ...

    async def ends_of_epochs(
        self, questions: Sequence[EpochQuestion], *, wait_s: float = math.inf
    ) -> list[EpochEnd | TidelogError]:
        """Answers each question, as LeaderPartition.end_of_epoch. `wait_s`: as in bounds_of."""
        ...

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        """Returns the first record at or after `timestamp_ms`; None where there is none yet."""
        ...

    async def offset_of_max_timestamp(self, partition: TopicPartition) -> FoundRecord | None:
        """Returns the record with the largest timestamp, of several the first; None where no record has a timestamp."""
        ...

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool = False) -> Offset:
        """Raises the log start, and never lowers it, so that it may be repeated. Returns where the log starts now."""
        ...

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        """Returns where the record lies on the bucket."""
        ...

    def fenced(self, partition: TopicPartition, error: FencedLeaderEpoch) -> FencedLeaderEpoch:
        """Adds the addresses of the present leader, which the client does not know yet, to the error."""
        ...
