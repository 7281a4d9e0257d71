"""Appends the entries of one gRPC message one after the other: each is checked, encoded if structured, and appended as a whole.

    append 0 of partition 7 ─▶ refused ─▶ its error
    append 1 of partition 7 ─▶ refused ─▶ else its records would come before those of append 0, when the client sends these again
    append 2 of partition 8 ─▶ appended

Invariants: an append is checked and encoded completely before any of it is written. After a refused append, nothing of its message
is written to the same partition, or to the same topic if its partitions were not yet known. The exception is an append that another
broker forwards (in a message of many clients) and that is refused alone: see gateway/routing/forward_queue.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from gateway.api import BrokerApi
from gateway.concurrency.offload import BoundedExecutor
from gateway.grpc.produce.record_decoder import RecordLimits, decode_records, takes_long
from gateway.grpc.produce.request_decoder import AppendRequest
from gateway.records.append import (
    AppendTarget,
    ProduceRequest,
    check_dates,
    check_ready_batch,
    explaining_limit,
    target_caught_up,
    target_named,
)
from gateway.records.partitioning import (
    RECORDS_MAX,
    CheckedBatch,
    Plan,
    Routing,
    check_single_partition,
    plan_batches,
    route_records,
)
from gateway.routing.forward_queue import refuses_alone
from gateway.routing.log_service import Pending
from gateway.topics.names import check_topic_id, partition_of
from metadata.errors import InvalidArgument, InvalidName, NoLeader, TidelogError, Unavailable, UnknownPartition, UnknownTopic
from metadata.model import TopicId, TopicPartition
from metadata.topics.settings import MESSAGE_BYTES_LIMIT
from metadata.topics.topic import Topic
from segments.byte_budget import Admission
from segments.log.append_result import UnverifiedRejection, was_written_before
from segments.object_store.interface import Buffer


class Taken(NamedTuple):
    """Says which entries of ProduceRequest.pending belong to an append: its batches, or the error that refused it as a whole.

    `partition` is that of a ready batch, `plan` that of structured records, `by_name` the topic of a client that named no id of it.
    """

    batch_count: int
    partition: int = -1
    plan: Plan | None = None
    by_name: Topic | None = None


class RefusedBatch(NamedTuple):
    """The first error of a partition or topic in a message, and the number (`at`) of the append that met it."""

    at: int
    error: TidelogError


class MessageAppender:
    """Appends the entries of one message, in order, to the log that `produce` names."""

    def __init__(
        self,
        broker: BrokerApi,
        produce: ProduceRequest,
        admission: Admission,
        *,
        is_forwarded: bool,
        round_robin: Iterator[int],
        threads: BoundedExecutor,
    ) -> None:
        """`round_robin` chooses the partition of records without a key; `threads` decode large payloads.

        Forwarded batches are not checked against the limits of their topic: the forwarding broker has done that, and they may be
        repeats from a time when these limits were larger.
        """
        self._produce = produce
        self._is_forwarded = is_forwarded
        self._broker = broker
        self._admission = admission
        self._round_robin = round_robin
        self._threads = threads
        self._targets: dict[str, AppendTarget | TidelogError] = {}
        # Topics that this message made the broker read from the metadata store, with the error if that failed.
        self._caught_up: dict[str, TidelogError | None] = {}
        self._refused: dict[TopicPartition | TopicId, RefusedBatch] = {}
        self._records_left = RECORDS_MAX

    async def take(self, at: int, request: AppendRequest) -> Taken:
        """Appends number `at` of the message, and adds its results to `produce.pending`. The caller passes appends in order."""
        try:
            if self._is_forwarded:
                self._check_key(request.key_id)
            try:
                target, plan, batches = await self._checked(at, request)
            except (UnknownTopic, UnknownPartition):
                if not await self._knows_more(at, request):
                    raise
                target, plan, batches = await self._checked(at, request)
        except TidelogError as error:
            self._produce.pending.append(error.with_traceback(None))  # its frames hold the message
            return Taken(1)
        self._produce.pending += self._append(at, request, target, batches)
        by_name = None if request.topic_id or self._is_forwarded else target.topic
        return Taken(len(batches), batches[0].partition.partition, plan, by_name)

    def _check_key(self, key_id: str) -> None:
        """Raises Unauthenticated if this broker knows that the client's API key was revoked.

        It refuses only that append, since a forwarded message carries the appends of many clients.
        """
        guard = self._broker.guard
        if key_id and guard is not None:
            guard.check_forwarded_key(key_id)

    async def _checked(self, at: int, request: AppendRequest) -> tuple[AppendTarget, Plan | None, list[CheckedBatch]]:
        target = self._target(request.topic)
        check_topic_id(target.topic, request.topic_id)
        partition = None if request.partition is None else partition_of(target.topic, request.partition)
        for destination in (target.topic.id, partition):
            if destination in self._refused:
                raise _following(at, self._refused[destination])
        try:
            with explaining_limit(target):
                plan, batches = await self._batches(at, request, target, partition)
            if not self._is_forwarded:
                check_dates(batches, target)
        except TidelogError as error:
            may_know_more = isinstance(error, UnknownPartition) and not self._is_forwarded and request.topic not in self._caught_up
            if not may_know_more:
                self._refused[partition or target.topic.id] = RefusedBatch(at, error)
            raise
        return target, plan, batches

    async def _knows_more(self, at: int, request: AppendRequest) -> bool:
        """Reads a client's topic from the metadata store once for a message; returns whether the append should be checked again.

        Another broker may have created or enlarged the topic. A forwarded append raises NoLeader if the forwarding broker knows a
        later revision of the topic; that broker then sends it again.
        """
        topic = request.topic
        if self._is_forwarded:
            if self._broker.topic_cache.revision < request.topic_revision:
                raise NoLeader(f"this broker has not read the topic {topic} at revision {request.topic_revision} yet")
            return False
        if topic in self._caught_up:
            if (error := self._caught_up[topic]) is not None:
                raise error
            return False
        try:
            self._targets[topic] = await target_caught_up(self._broker, topic, self._produce.deadline)
            self._caught_up[topic] = None
        except (UnknownTopic, InvalidName) as error:
            self._targets[topic] = error
            self._caught_up[topic] = None
        except TidelogError as error:
            self._caught_up[topic] = error
            target = self._targets[topic]
            if isinstance(target, AppendTarget) and request.partition is None:
                self._refused[target.topic.id] = RefusedBatch(at, error)
            raise
        return True

    def _target(self, topic: str) -> AppendTarget:
        target = self._targets.get(topic)
        if target is None:
            try:
                target = target_named(self._broker, topic)
            except TidelogError as error:
                target = error
            self._targets[topic] = target
        if isinstance(target, TidelogError):
            raise target
        return target

    async def _batches(
        self, at: int, request: AppendRequest, target: AppendTarget, partition: TopicPartition | None
    ) -> tuple[Plan | None, list[CheckedBatch]]:
        if request.record_batch is not None:
            if partition is None:
                raise InvalidArgument(f"append {at} is a record batch without its partition", field=f"appends[{at}].partition")
            header = await check_ready_batch(
                request.record_batch,
                batch_bytes_max=MESSAGE_BYTES_LIMIT if self._is_forwarded else target.batch_bytes_max,
                decompressed_bytes_max=self._produce.log.settings.decompressed_bytes_max,
                is_forwarded=self._is_forwarded,
                threads=self._threads,
            )
            return None, [CheckedBatch(partition, alone_in_memory(request.record_batch), header)]
        if request.records is None:
            raise InvalidArgument(f"append {at} carries neither a record batch nor records", field=f"appends[{at}].payload")
        limits = RecordLimits(target.batch_bytes_max, self._broker.settings.record_headers_max, self._records_left)
        turn = next(self._round_robin)
        if takes_long(request.records):
            plan = await self._threads.run(lambda: _plan(at, request, target, limits, turn))
        else:
            plan = _plan(at, request, target, limits, turn)
        self._records_left -= len(plan.partitions)
        return plan.without_records(), plan.batches  # the answer waits for the commit

    def _append(
        self, at: int, request: AppendRequest, target: AppendTarget, batches: list[CheckedBatch]
    ) -> list[Pending | TidelogError]:
        """Appends the batches whose partitions have met no error yet. A refused batch has its error in its place.

        A repeat that is in the log already counts as written.
        """
        following = {
            batch.partition: _following(at, self._refused[batch.partition]) for batch in batches if batch.partition in self._refused
        }
        free = [batch for batch in batches if batch.partition not in following]
        pending = self._produce.append(
            target,
            free,
            self._admission,
            expected_offset=request.expected_offset,
            continues=request.continues and self._is_forwarded,
        )
        for batch, outcome in zip(free, pending, strict=True):
            if not isinstance(outcome, TidelogError) or was_written_before(outcome):
                continue
            if not (self._is_forwarded and refuses_alone(outcome)):
                self._refused.setdefault(batch.partition, RefusedBatch(at, outcome.with_traceback(None)))
        in_turn = iter(pending)
        return [following[batch.partition] if batch.partition in following else next(in_turn) for batch in batches]


def alone_in_memory(batch: memoryview) -> Buffer:
    """Returns the batch, copied if it is the smaller part of its message, since a view would keep the whole message in memory."""
    return bytes(batch) if 2 * len(batch) < memoryview(batch.obj).nbytes else batch


def _plan(at: int, request: AppendRequest, target: AppendTarget, limits: RecordLimits, turn: int) -> Plan:
    """Plans the batches of structured records. May run in a thread, because it reads nothing that changes."""
    assert request.records is not None
    decoded = decode_records(
        request.records,
        partition=request.partition,
        now_ms=time.time_ns() // 1_000_000,
        limits=limits,
        field=f"appends[{at}].records",
    )
    topic = target.topic
    routing = Routing(topic.id, topic.partition_count, turn % topic.partition_count, target.batch_bytes_max)
    routes = route_records(decoded.records, decoded.own_partitions, routing)
    if request.expected_offset is not None:
        check_single_partition(routes.records, because="expected_offset")
    return plan_batches(routes, routing, request_bytes=len(request.records))


def _following(at: int, refused: RefusedBatch) -> TidelogError:
    """Returns the error of an append behind a refused one: the same error if retryable, else Unavailable."""
    if refused.error.retryable and not isinstance(refused.error, UnverifiedRejection):
        return refused.error
    return Unavailable(
        f"append {at} was not checked, since append {refused.at}, which comes before it in the same partition, was refused: "
        f"{refused.error.message}",
        hint=f"Send it again after append {refused.at} is resolved.",
    )
