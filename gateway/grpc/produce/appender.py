"""The appends of one gRPC message, one after the other: each is checked, encoded where it is structured, and appended as a whole.

    append 0 of partition 7 ─▶ refused ─▶ its error
    append 1 of partition 7 ─▶ refused ─▶ else its records would come before those of append 0, when these are sent again
    append 2 of partition 8 ─▶ appended

Invariants: nothing of an append is written before all of it was checked and encoded. After an append was refused, nothing of its
message is written to the same partition; nor to the same topic, where it was not yet known which partitions it would have gone to.
But for what another broker forwards (a message of many clients) and is refused alone: see gateway/routing/forward_queue.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gateway.api import BrokerApi
from gateway.concurrency.offload import BoundedExecutor
from gateway.grpc.produce.record_decoder import RecordLimits, decode_records, takes_long
from gateway.grpc.produce.request_decoder import AppendRequest
from gateway.records.append import (
    AppendTarget,
    CheckedBatch,
    append,
    check_dates,
    check_ready_batch,
    limit_named,
    target_caught_up,
    target_named,
)
from gateway.records.partitioning import RECORDS_MAX, Plan, plan_batches, route_records, single_partition
from gateway.routing.forward_queue import refuses_alone
from gateway.routing.log_service import LogService, Pending
from gateway.topics.names import check_topic_id, partition_of
from metadata.errors import InvalidArgument, InvalidName, NoLeader, TidelogError, Unavailable, UnknownPartition, UnknownTopic
from metadata.model import TopicId, TopicPartition
from metadata.topics.settings import MESSAGE_BYTES_LIMIT
from segments.byte_budget import Admission
from segments.log.append_result import UnverifiedRejection
from segments.log.session_log import Acks
from segments.object_store.interface import Buffer
from segments.records.batch import parse_header


class Taken(NamedTuple):
    """An append whose batches were appended, or refused one by one."""

    log: LogService
    pending: list[Pending | TidelogError]
    # Of a ready batch.
    partition: int
    # Of structured records.
    plan: Plan | None
    topic: str = ""


class RefusedBatch(NamedTuple):
    at: int
    error: TidelogError


class MessageAppender:
    def __init__(
        self,
        broker: BrokerApi,
        log: LogService,
        admission: Admission,
        *,
        acks: Acks,
        deadline_s: float,
        is_forwarded: bool,
        turns: Iterator[int],
        threads: BoundedExecutor,
    ) -> None:
        """`turns` choose the partition of records without a key; `threads` take apart what takes long.

        What is forwarded was held against the limits of its topic by the broker that it came to, and may be a repeat from a time
        when these were larger.
        """
        self._acks = acks
        self._deadline_s = deadline_s
        self._is_forwarded = is_forwarded
        self._broker = broker
        self._log = log
        self._admission = admission
        self._turns = turns
        self._threads = threads
        self._targets: dict[str, AppendTarget | TidelogError] = {}
        self._caught_up: dict[str, TidelogError | None] = {}
        """Topics that were read from the metadata store for this message; why they could not be, where that is so."""
        self._refused: dict[TopicPartition | TopicId, RefusedBatch] = {}
        self._records_left = RECORDS_MAX

    async def take(self, at: int, request: AppendRequest) -> Taken | TidelogError:
        """The append number `at` of the message. They are given in their order."""
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
            return error.with_traceback(None)  # the frames in there hold the message
        return Taken(self._log, self._append(at, request, target, batches), batches[0].partition.partition, plan, request.topic)

    def _check_key(self, key_id: str) -> None:
        """Raises Unauthenticated where this broker knows that the client's API key was revoked. Only that append is refused: a
        forwarded message carries the appends of many clients."""
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
            with limit_named(target):
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
        """Whether this broker knows the topic better than a moment ago, when it did not know it, or one of its partitions.

        A client's topic is read from the metadata store, once for a message: it may have been created, or have grown, through
        another broker. What a broker forwards is refused as NoLeader where that broker knows the topic better, and comes again.
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
            self._targets[topic] = await target_caught_up(self._broker, topic, deadline_s=self._deadline_s)
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
                decompressed_bytes_max=self._log.settings.decompressed_bytes_max,
                is_forwarded=self._is_forwarded,
                threads=self._threads,
            )
            return None, [CheckedBatch(partition, alone_in_memory(request.record_batch), header)]
        if request.records is None:
            raise InvalidArgument(f"append {at} carries neither a record batch nor records", field=f"appends[{at}].payload")
        limits = RecordLimits(target.batch_bytes_max, self._broker.settings.record_headers_max, self._records_left)
        turn = next(self._turns)
        if takes_long(request.records):
            plan = await self._threads.run(lambda: _plan(at, request, target, limits, turn))
        else:
            plan = _plan(at, request, target, limits, turn)
        self._records_left -= len(plan.partitions)
        return plan, [
            CheckedBatch(partition_of(target.topic, planned.partition), planned.batch, parse_header(planned.batch))
            for planned in plan.batches
        ]

    def _append(
        self, at: int, request: AppendRequest, target: AppendTarget, batches: list[CheckedBatch]
    ) -> list[Pending | TidelogError]:
        """An error stands in the place of its batch."""
        following = {
            batch.partition: _following(at, self._refused[batch.partition]) for batch in batches if batch.partition in self._refused
        }
        free = [batch for batch in batches if batch.partition not in following]
        pending = append(
            self._log,
            target,
            free,
            self._admission,
            acks=self._acks,
            deadline_s=self._deadline_s,
            expected_offset=request.expected_offset,
            continues=request.continues and self._is_forwarded,
        )
        for batch, outcome in zip(free, pending, strict=True):
            if isinstance(outcome, TidelogError) and not (self._is_forwarded and refuses_alone(outcome)):
                self._refused.setdefault(batch.partition, RefusedBatch(at, outcome.with_traceback(None)))
        in_turn = iter(pending)
        return [following[batch.partition] if batch.partition in following else next(in_turn) for batch in batches]


def alone_in_memory(batch: memoryview) -> Buffer:
    """The batch, copied where it is the lesser part of its message, which would be kept as long as the batch is."""
    return bytes(batch) if 2 * len(batch) < memoryview(batch.obj).nbytes else batch


def _plan(at: int, request: AppendRequest, target: AppendTarget, limits: RecordLimits, turn: int) -> Plan:
    """The batches of structured records. Runs in a thread where they are many: it touches nothing that changes."""
    assert request.records is not None
    decoded = decode_records(
        request.records,
        partition=request.partition,
        now_ms=time.time_ns() // 1_000_000,
        limits=limits,
        field=f"appends[{at}].records",
    )
    partition_count = target.topic.partition_count
    routes = route_records(
        decoded.records, decoded.own_partitions, partition_count=partition_count, keyless_partition=turn % partition_count
    )
    if request.expected_offset is not None:
        single_partition(list(routes.records), because="expected_offset")
    plan = plan_batches(routes, batch_bytes_max=target.batch_bytes_max, request_bytes=len(request.records), producer=None)
    return Plan(np.asarray(plan.partitions, np.int64), plan.batches)  # kept until the commit: a quarter of a list's memory


def _following(at: int, refused: RefusedBatch) -> TidelogError:
    """What an append is told that comes behind a refused one: the same, where that may pass, else that it was not at fault."""
    if refused.error.retryable and not isinstance(refused.error, UnverifiedRejection):
        return refused.error
    return Unavailable(
        f"append {at} was not looked at, since append {refused.at}, which comes before it in the same partition, was refused: "
        f"{refused.error.message}",
        hint=f"Send it again, behind what becomes of append {refused.at}.",
    )
