"""Brokers without a network, and a bucket that fails where a test says: for what the sink decides and does.

The brokers have Kafka's sequence rules and check what they take as real ones do; they refuse, lose answers, and forget as a test
wants. Every step that a driver takes outside of itself (a call of the bucket, a request) can be the last one before a crash.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from metadata.errors import AlreadyExists, TidelogError, Unavailable
from metadata.model import Offset, ProducerId
from segments.bucket.layout import staged_rows_key
from segments.object_store.interface import Buffer, ListPage
from segments.object_store.memory import MemoryObjectStore
from segments.partition.producer_state import ProducerStates, SequencedBatch
from segments.records.batch import check_produced
from segments.records.columns import iterate_records
from segments.records.compression import Codec
from spark.sink.brokers import Append, StagedTopicGone
from spark.sink.commit import BatchCommit
from spark.sink.row_encoder import Encoded, TopicFacts, encode_rows, rows_of
from spark.sink.staged_files import Done, StagedFile, StagedPartition, encode_file

HOUR_MS = 3_600_000
EXPIRY_MS = 24 * HOUR_MS
WRITE = "0f" * 16
TOPIC_ID = "a" * 32
BYTES_MAX = 64 << 20


def total_records(done: Done) -> int:
    return sum(count.records for count in done.total)


class CrashError(Exception):
    """The driver is gone."""


@contextmanager
def killed() -> Iterator[None]:
    """The block must end by a crash."""
    try:
        yield
    except CrashError:
        return
    except BaseExceptionGroup as group:
        if group.subgroup(CrashError) is None:
            raise
        return
    raise AssertionError("it was not killed")


@dataclass
class Clock:
    now: int = 1_767_225_600_000

    def __call__(self) -> int:
        return self.now


class CrashingStore(MemoryObjectStore):
    """Counts what is done, and does nothing more from step `crash_at` on: before it, or with `after`, right after it."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        async with self._steps.step(f"create {key}"):
            await super().create(key, body, crc32c=crc32c)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        async with self._steps.step(f"get {key}"):
            return await super().get(key, start=start, end=end)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        async with self._steps.step(f"list {prefix}"):
            return await super().list(prefix, start_after=start_after, limit=limit)

    async def delete(self, key: str) -> None:
        async with self._steps.step(f"delete {key}"):
            await super().delete(key)


@dataclass
class Steps:
    taken: list[str] = field(default_factory=list)
    crash_at: int | None = None
    crash_after: bool = False
    # By step: the driver that does not live to see it, or its end, whichever driver takes it.
    kills: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[None]:
        number = len(self.taken)
        self.taken.append(name)
        if (driver := self.kills.pop(number, None)) is not None:
            driver.cancel()
        if self.crash_at is not None and number >= self.crash_at and not (self.crash_after and number == self.crash_at):
            raise CrashError(name)
        await asyncio.sleep(0)
        yield
        if number == self.crash_at:
            raise CrashError(name)


@dataclass
class Held:
    """What a partition holds."""

    values: list[bytes | None] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=lambda: ProducerStates(producers_max=1000, expiry_ms=EXPIRY_MS))
    batches: int = 0


class ModelBrokers:
    def __init__(self, clock: Clock, steps: Steps) -> None:
        self.clock = clock
        self.steps = steps
        self.topic_ids = {"orders": TOPIC_ID, "payments": "b" * 32}
        self.held: defaultdict[tuple[str, int], Held] = defaultdict(Held)
        self.faults: list[Callable[[Append], TidelogError | None]] = []
        """Each is asked for one append: what is answered in place of taking it."""
        self.lost_answers: list[TidelogError] = []
        """Of the next requests: they are taken, and so answered."""
        self.asked_afresh = 0
        self.requests: list[list[StagedPartition]] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ModelBrokers]:
        yield self

    async def leader_of(self, where: StagedPartition, *, fresh: bool = False) -> str:
        self.asked_afresh += fresh
        if self.topic_ids.get(where.topic) != where.topic_id:
            raise StagedTopicGone(f"topic {where.topic} was deleted and made again", hint="Begin a new checkpoint.")
        return "a" if where.partition % 2 else "b"

    async def check_present(self, where: StagedPartition) -> None:
        await self.leader_of(where, fresh=True)

    async def produce(self, address: str, appends: Sequence[Append]) -> list[TidelogError | None]:
        async with self.steps.step(f"produce {len(appends)}"):
            self.requests.append([append.where for append in appends])
            outcomes = self._take(appends)
            if self.lost_answers:
                return [self.lost_answers.pop(0)] * len(appends)
            return outcomes

    def _take(self, appends: Sequence[Append]) -> list[TidelogError | None]:
        outcomes: list[TidelogError | None] = []
        refused: dict[StagedPartition, TidelogError] = {}
        for append in appends:
            error = refused.get(append.where) or (self.faults.pop(0)(append) if self.faults else None)
            if error is None:
                try:
                    self._append(append)
                except TidelogError as refusal:
                    error = refusal
            if error is not None:
                refused[append.where] = error
            outcomes.append(error)
        return outcomes

    def _append(self, append: Append) -> None:
        if self.topic_ids.get(append.where.topic) != append.where.topic_id:
            raise Unavailable(f"there is no topic {append.where.topic_id}")
        held = self.held[append.where.topic, append.where.partition]
        header = check_produced(append.batch, message_bytes_max=1 << 20, decompressed_bytes_max=BYTES_MAX)
        producer_id = ProducerId(header.producer_id)
        repeated = held.producers.check(
            producer_id=producer_id,
            epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            last_sequence=header.last_sequence,
            now_ms=self.clock(),
            high_watermark=len(held.values),
        )
        if repeated is not None:
            return
        base = Offset(len(held.values))
        held.values += [record[3] for record in iterate_records(append.batch, decompressed_bytes_max=BYTES_MAX)]
        held.batches += 1
        last = Offset(len(held.values) - 1)
        taken = SequencedBatch(producer_id, header.producer_epoch, header.base_sequence, header.last_sequence, base, last)
        held.producers.remember(taken, now_ms=self.clock())

    def values(self, topic: str = "orders") -> list[bytes | None]:
        return [value for (name, _), held in sorted(self.held.items()) if name == topic for value in held.values]


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.steps = Steps()
        self.store = CrashingStore(self.steps)
        self.brokers = ModelBrokers(self.clock, self.steps)
        self.facts = {name: TopicFacts(name, topic_id, 3, 1 << 20) for name, topic_id in self.brokers.topic_ids.items()}
        self._attempts = 0

    def recreate(self, topic: str = "orders") -> None:
        """Deletes the topic, and makes it again under another id."""
        made = f"{int(self.brokers.topic_ids[topic], 16) + 1:032x}"
        self.brokers.topic_ids[topic] = made
        self.facts[topic] = TopicFacts(topic, made, 3, 1 << 20)
        for partition in range(3):
            self.brokers.held.pop((topic, partition), None)

    def revive(self) -> None:
        """From now on no step is the last."""
        self.steps.crash_at = None

    async def stage(self, values: Sequence[str], *, batch: int = 0, topic: str = "orders", rows_per_batch: int = 4) -> StagedFile:
        """As a task does: its rows in a file of its own, in as many record batches as a test wants."""
        self._attempts += 1
        key = staged_rows_key(WRITE, batch, self.clock(), f"{self._attempts:016x}", 0)
        rows = rows_of([pa.record_batch({"key": pa.array(values), "value": pa.array(values)})], now_ms=self.clock())
        parts: list[tuple[StagedPartition, list[Encoded]]] = []
        for at in range(0, len(values), rows_per_batch):
            part = rows._replace(
                keys=rows.keys.slice(at, rows_per_batch),
                values=rows.values.slice(at, rows_per_batch),
                timestamps_ms=rows.timestamps_ms[at : at + rows_per_batch],
            )
            parts += encode_rows(part, self.facts, topic=topic, codec=Codec.NONE, first_keyless=0)
        wheres = sorted({where for where, _ in parts})
        file, body = encode_file(
            key, [(where, [e for found, encoded in parts if found == where for e in encoded]) for where in wheres]
        )
        try:
            await MemoryObjectStore.create(self.store, key, body)
        except AlreadyExists:
            raise AssertionError(key) from None
        return file

    async def commit(self, files: Sequence[StagedFile], *, batch: int = 0, **options: Any) -> Done | None:
        return await BatchCommit(
            self.store,
            self.brokers.connect,
            WRITE,
            batch,
            f"batch {batch} of query q",
            "Run the query again from its checkpoint",
            self.clock,
            producer_expiry_ms=EXPIRY_MS,
            patience_s=1.0,
            **options,
        ).commit(files)

    def keys(self) -> list[str]:
        return sorted(self.store._objects)


def expected(*values: str) -> list[bytes]:
    return sorted(value.encode() for value in values)
