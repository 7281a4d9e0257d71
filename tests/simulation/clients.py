"""Producers that retry and readers that poll, as clients of the field do, and write down all their answers.

idempotent   several batches in flight; whatever is not acknowledged is sent again with the same sequence, in order
keyed        one batch under one Idempotency-Key; sent again with the same key until it is acknowledged
plain        one batch at a time; sent again only when the answer was that nothing was written
hasty        the same, but content when the leader holds it in memory (acks=1): what it was acknowledged may be lost

Half of the readers know the leader epoch of their partition, and say it with each request (KIP-320): a leader of another epoch
refuses, since what it would answer may be older than what the reader has seen. The others say none, and ask any broker, as behind a
load balancer: a leader that was replaced has to find that out by itself before it answers them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from metadata.errors import FencedLeaderEpoch, OutOfOrderSequence, OutOfRange, TidelogError, UnknownLeaderEpoch
from metadata.model import LeaderEpoch, SessionId, TopicId, TopicPartition
from segments.log.session_log import Acks, FetchTarget, SessionLog
from segments.partition.partition_log import Appended
from segments.partition.producer_state import ONE_SHOT
from segments.read.log_reader import FetchResult as FetchedBatches
from segments.records.batch import check_produced, split_batches
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import encode_records
from tests.simulation.broker_process import BrokerProcess
from tests.simulation.bucket_reader import DECOMPRESSED_BYTES_MAX, ID_HEADER, record_value, records_of
from tests.simulation.history_checker import Acknowledged, Event, Fetched, RecordId, Refused, Sent, Unknown
from tests.simulation.policies import Payloads
from tests.simulation.policy_model import SentRecord
from tests.simulation.virtual_loop import virtual_loop

MESSAGE_BYTES_MAX = 1 << 16
IN_A_HURRY_S = 0.05
# Of a reader that names no epoch.
HURRIED_POLLS_PER_S = 10


class Kind(Enum):
    IDEMPOTENT = "idempotent"
    KEYED = "keyed"
    PLAIN = "plain"
    HASTY = "hasty"


@dataclass(slots=True)
class Clients:
    """What the clients of one run share."""

    seed: int
    # The broker that a client takes for the leader: mostly the present one, sometimes a former one.
    route: Callable[[random.Random, TopicPartition], BrokerProcess]
    # The broker that a load balancer takes: any that runs.
    balanced: Callable[[random.Random], BrokerProcess]
    # The leader epoch of a partition as the metadata tell it.
    epoch_of: Callable[[TopicPartition], LeaderEpoch]
    # Whether somebody has taken a session out of the cluster while its lease lived.
    removed_early: Callable[[SessionId], bool]
    note: Callable[[str], None]
    # Of each event, as it happens.
    reported: Callable[[Event], None]
    events: list[Event] = field(default_factory=list)
    operations: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    producer_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    # No new batches: producers end once everything that they sent is settled.
    finishing: bool = False
    # While it is above 0, producers send as fast as they can, so that much is on its way when a blow falls, and readers that name
    # no epoch hurry, too.
    in_a_hurry: int = 0
    # Whether records have keys, and some no value.
    with_policies: bool = False
    # What was sent besides ids, where topics have policies.
    sent_records: dict[RecordId, SentRecord] = field(default_factory=dict)
    # Topics that are no more: producers of theirs end, and leave open what became of their last batches.
    deleted: set[TopicId] = field(default_factory=set)
    # Answers to readers that name none.
    fetched_without_epoch: int = 0
    # Fetches that a leader of another epoch than the reader knew has refused.
    stale_epochs: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    # Repeats that were answered with the place of the first time.
    duplicates: int = 0
    # Partitions of which an answer brought nothing, though there was something to read.
    left_out: int = 0

    def record(self, event: Event) -> None:
        self.events.append(event)
        self.reported(event)


@dataclass(slots=True)
class _Batch:
    producer_id: int
    base_sequence: int
    # (producer, number) of each.
    records: list[tuple[str, int]]
    padding: int
    # (key, whether it is a tombstone) of each.
    payloads: list[tuple[bytes | None, bool]]
    attempts: int = 0
    settled: bool = False


class Producer:
    def __init__(self, clients: Clients, name: str, partition: TopicPartition, kind: Kind) -> None:
        self._clients = clients
        self._name = name
        self._partition = partition
        self._kind = kind
        self._chance = random.Random(f"{clients.seed}/{name}")
        self._producer_id = next(clients.producer_ids) if kind is Kind.IDEMPOTENT else -1
        self._next_number = 0
        self._window: deque[_Batch] = deque()
        self._window_max = self._chance.randint(1, 5) if kind is Kind.IDEMPOTENT else 1
        self._pace_s = self._chance.choice((0.01, 0.1, 0.5))
        self._payloads = Payloads(clients.seed, name) if clients.with_policies else None
        self._idle_s = 0.0
        """How long it waits for an answer that was lost; meanwhile what it has sent may be compacted, and led by another."""

    async def run(self) -> None:
        chance = self._chance
        while (self._window or not self._clients.finishing) and self._partition.topic_id not in self._clients.deleted:
            while len(self._window) < self._window_max and not self._clients.finishing:
                self._window.append(self._new_batch())
            broker = self._clients.route(chance, self._partition)
            latency_s = chance.uniform(0.0005, 0.005)
            reordered = chance.random() < 0.05
            unsettled = [(index, batch) for index, batch in enumerate(self._window) if not batch.settled]
            if len(unsettled) == 1:
                await self._attempt(unsettled[0][1], broker, latency_s)
            else:
                async with asyncio.TaskGroup() as attempts:
                    for index, batch in unsettled:
                        jitter_s = chance.uniform(0, 0.05) if reordered else index * 1e-6
                        attempts.create_task(self._attempt(batch, broker, latency_s + jitter_s))
            while self._window and self._window[0].settled:
                self._window.popleft()
            pace_s = IN_A_HURRY_S if self._clients.in_a_hurry else self._pace_s
            await asyncio.sleep(self._idle_s + (chance.uniform(0.05, 1.0) if self._window else chance.expovariate(1 / pace_s)))
            self._idle_s = 0.0

    @property
    def _is_idempotent(self) -> bool:
        return self._kind in {Kind.IDEMPOTENT, Kind.KEYED}

    def _new_batch(self) -> _Batch:
        count, padding = self._chance.randint(1, 4), self._chance.choice((0, 10, 200, 600))
        first, self._next_number = self._next_number, self._next_number + count
        numbers = range(first, first + count)
        payloads = [self._payloads.draw() if self._payloads else (None, False) for _ in numbers]
        if self._kind is Kind.KEYED:
            key = f"{self._name}-{first}"
            return _Batch(
                ONE_SHOT + next(self._clients.producer_ids), first, [(key, n - first) for n in numbers], padding, payloads
            )
        sequence = first if self._kind is Kind.IDEMPOTENT else -1
        return _Batch(self._producer_id, sequence, [(self._name, n) for n in numbers], padding, payloads)

    async def _attempt(self, batch: _Batch, broker: BrokerProcess, latency_s: float) -> None:
        batch.attempts += 1
        comes_next = next(each for each in self._window if not each.settled) is batch
        operation = next(self._clients.operations)
        records = tuple(RecordId(producer, number, batch.attempts) for producer, number in batch.records)
        body = encode_records(
            self._contents(batch, records),
            producer_id=batch.producer_id,
            producer_epoch=0 if self._is_idempotent else -1,
            base_sequence=batch.base_sequence,
        )
        timeout_s = self._chance.choice((2.0, 10.0, 30.0))

        async def produce(log: SessionLog) -> Appended:
            header = check_produced(body, message_bytes_max=MESSAGE_BYTES_MAX, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            return await log.produce(self._partition, body, header, acks=acks, timeout_s=timeout_s)

        acks = Acks.LEADER if self._kind is Kind.HASTY else Acks.ALL
        self._clients.record(Sent(operation, str(self._partition), records, self._is_idempotent, acks is Acks.ALL))
        try:
            appended = await broker.call(
                produce, latency_s=latency_s, timeout_s=timeout_s + 0.5, hang_up=self._chance.random() < 0.5
            )
        except TidelogError as error:
            self._refused(operation, batch, error, comes_next=comes_next)
        else:
            if self._payloads is not None and self._is_idempotent and (idle_s := self._payloads.answer_is_lost()):
                self._idle_s = max(self._idle_s, idle_s)
                self._clients.unknown += 1
                self._clients.record(Unknown(operation, "the answer was lost"))
                return
            batch.settled = True
            self._clients.acknowledged += 1
            self._clients.duplicates += appended.duplicate
            self._clients.record(Acknowledged(operation, appended.base_offset))

    def _contents(self, batch: _Batch, records: Sequence[RecordId]) -> list[NewRecordTuple]:
        now_ms = virtual_loop().now_ms()
        dated_ms = self._payloads.dated_ms(now_ms) if self._payloads else now_ms
        contents: list[NewRecordTuple] = []
        for record, (key, is_tombstone) in zip(records, batch.payloads, strict=True):
            value = record_value(record, batch.padding)
            contents.append((key, None, ((ID_HEADER, value),), dated_ms) if is_tombstone else (key, value, (), dated_ms))
            if self._payloads is not None:
                self._clients.sent_records[record] = SentRecord(key, is_tombstone, dated_ms)
        return contents

    def _refused(self, operation: int, batch: _Batch, error: TidelogError, *, comes_next: bool) -> None:
        """`comes_next`: whether all batches before it had been acknowledged when it was sent."""
        if error.nothing_was_written:
            self._clients.refused += 1
            got_gap_error = comes_next and self._kind is Kind.IDEMPOTENT and isinstance(error, OutOfOrderSequence)
            self._clients.record(Refused(operation, error.code, got_gap_error))
        else:
            self._clients.unknown += 1
            self._clients.record(Unknown(operation, error.code))
            batch.settled = not self._is_idempotent


class Reader:
    """Polls its partitions, all in one fetch. Those that brought records are asked for last the next time, as in Kafka."""

    def __init__(self, clients: Clients, name: str, partitions: Sequence[TopicPartition], *, names_epoch: bool) -> None:
        self._clients = clients
        self._name = name
        self._names_epoch = names_epoch
        self._chance = random.Random(f"{clients.seed}/{name}")
        self._leader_epochs: dict[TopicPartition, LeaderEpoch] = {}
        self.offsets: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
        """Where it reads on, by partition."""

    async def run(self) -> None:
        """Until a topic of its is deleted. Now and then it begins one again at 0, and so reads what only the bucket still holds."""
        chance = self._chance
        while not any(partition.topic_id in self._clients.deleted for partition in self.offsets):
            partition = chance.choice(sorted(self.offsets))
            knows = self._names_epoch or chance.random() < 0.5
            broker = self._clients.route(chance, partition) if knows else self._clients.balanced(chance)
            await self.poll(
                broker,
                bytes_max=chance.choice((1, 500, 5000)) if self._names_epoch else 5000,
                bytes_min=chance.choice((1, 1, 2000)),
                wait_ms_max=0 if self._clients.in_a_hurry else chance.choice((0, 500)),
            )
            if chance.random() < 0.02:
                self.offsets[chance.choice(sorted(self.offsets))] = 0
            hurries = self._clients.in_a_hurry and not self._names_epoch
            await asyncio.sleep(chance.expovariate(HURRIED_POLLS_PER_S if hurries else 2))

    async def poll(self, broker: BrokerProcess, *, bytes_max: int, bytes_min: int = 1, wait_ms_max: int) -> list[Fetched]:
        """One fetch, written down; without the partitions that failed."""
        targets = [
            FetchTarget(partition, offset, bytes_max, self._leader_epochs.get(partition) if self._names_epoch else None)
            for partition, offset in self.offsets.items()
        ]

        async def fetch(log: SessionLog) -> tuple[SessionId, list[FetchedBatches | TidelogError]]:
            return log.session.id, await log.reads.fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)

        asked_ms = virtual_loop().now_ms()
        try:
            session, answers = await broker.call(fetch, latency_s=self._chance.uniform(0.0005, 0.005), timeout_s=10.0, hang_up=True)
        except TidelogError as error:
            self._clients.note(f"{self._name} was answered {error.code}")
            return []
        return [
            fetched
            for target, answer in zip(targets, answers, strict=True)
            if (fetched := self._take_in(target, answer, session, asked_ms)) is not None
        ]

    def _take_in(
        self, target: FetchTarget, answer: FetchedBatches | TidelogError, session: SessionId, asked_ms: int
    ) -> Fetched | None:
        partition = target.partition
        if isinstance(answer, TidelogError):
            self._clients.note(f"{self._name} was answered {answer.code} for {partition}")
            if isinstance(answer, FencedLeaderEpoch | UnknownLeaderEpoch):
                self._clients.stale_epochs += 1
                self._learn(partition, self._clients.epoch_of(partition))
            if isinstance(answer, OutOfRange):  # it tells a high watermark and a log start as well
                start = int(answer.details["log_start_offset"])
                reported = Fetched(self._name, str(partition), target.offset, (), int(answer.details["high_watermark"]), session)
                self._reported(reported._replace(log_start_offset=start, asked_ms=asked_ms))
                if start > target.offset:
                    self.offsets[partition] = start
            return None
        self._learn(partition, answer.leader_epoch)
        records = [held for held in records_of(split_batches(b"".join(answer.batches))) if held[0] >= target.offset]
        reported = Fetched(self._name, str(partition), target.offset, tuple(records), answer.high_watermark, session)
        reported = self._reported(
            reported._replace(next_offset=answer.next_offset, log_start_offset=answer.log_start_offset, asked_ms=asked_ms)
        )
        self._clients.left_out += answer.next_offset == target.offset and target.offset < answer.high_watermark
        if answer.next_offset > target.offset:
            del self.offsets[partition]
            self.offsets[partition] = answer.next_offset
        return reported

    def _reported(self, fetched: Fetched) -> Fetched:
        early = self._clients.removed_early(SessionId(fetched.answered_by))
        reported = fetched._replace(
            reported_ms=virtual_loop().now_ms(), may_be_old=early and not self._names_epoch, removed_early=early
        )
        self._clients.fetched_without_epoch += not self._names_epoch
        self._clients.record(reported)
        return reported

    def _learn(self, partition: TopicPartition, epoch: LeaderEpoch) -> None:
        self._leader_epochs[partition] = max(self._leader_epochs.get(partition, epoch), epoch)
