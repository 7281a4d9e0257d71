"""Brokers without listeners under virtual time: each is a process that can die, on links to bucket and metadata that can fail.

    b1 ─┬─ link ─▶ bucket        Each request takes its time, fails, hangs, or has its answer lost, as the test sets the link.
        └─ link ─▶ metadata      `before` is called with the name of each request: a test strikes at any of them.
    producers ─▶ the leader that the metadata name, again and again until they are answered

The same run each time: chance has no part in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from enum import Enum
from pathlib import Path
from typing import TypeVar

from gateway.cluster.identity import identify_cluster
from gateway.cluster.session_manager import SessionManager
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.view import ClusterView, partitions_of
from metadata.cluster.broker_registry import BrokerRegistration, read_brokers
from metadata.cluster.leadership import LeadershipChange, PartitionState, moving, read_all, write
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import Offset, Partition, Revision, SessionId, TopicPartition
from metadata.store.interface import (
    NOW,
    Compare,
    KeyValue,
    LeaseId,
    MetadataStore,
    Operation,
    RangeResult,
    TransactionResult,
    WatchBatch,
)
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.interface import Buffer, ListPage, ObjectStore, Tail
from segments.object_store.memory import MemoryObjectStore
from segments.object_store.timeout import TimeoutObjectStore
from segments.read.log_reader import FetchResult
from segments.settings import SegmentSettings
from tests.kit.segments.batches import TIMESTAMP_MS, header_of, records_in, sequenced_batch
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
SEGMENTS = SegmentSettings(index_every_segments=8, retry_pause_ms_max=500)
SETTINGS = ClusterSettings(session_timeout_ms=3000, drain_timeout_ms=5000, bucket_timeout_ms=2000, release_timeout_ms=8000)
READY_S = 60.0
REQUEST_TIMEOUT_S = 12.0
_Answer = TypeVar("_Answer")


class Fault(Enum):
    """What becomes of one request."""

    REFUSED = "refused, with nothing done"
    REQUEST_LOST = "lost on its way"
    ANSWER_LOST = "done, and its answer lost"
    HANGS = "without an answer, and not done"


class Link:
    """What all requests of one broker to one store pass through."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.down: Fault | None = None
        """Of every request while it is set."""
        self.calls: list[tuple[float, str, str]] = []
        """When, what, and of which key."""
        self.before: Callable[[str], Fault | None] = lambda what: None
        """Called for every request; what it answers becomes of this one."""

    async def carry(self, what: str, key: str, request: Callable[[], Awaitable[_Answer]], *, is_write: bool = False) -> _Answer:
        self.calls.append((virtual_loop().time(), what, key))
        fault = self.before(what) or self.down
        await asyncio.sleep(self.latency_s / 2)
        if fault is Fault.HANGS:
            await asyncio.sleep(REQUEST_TIMEOUT_S)
        if fault is Fault.REFUSED or (fault is not None and not is_write):
            raise Unavailable(f"{what}: the link is down")
        if fault in (Fault.REQUEST_LOST, Fault.HANGS):
            raise OutcomeUnknown(f"{what}: the request was lost")
        answer = await request()
        await asyncio.sleep(self.latency_s / 2)
        if fault is Fault.ANSWER_LOST:
            raise OutcomeUnknown(f"{what}: the answer was lost")
        return answer


class LinkedBucket:
    def __init__(self, store: ObjectStore, link: Link) -> None:
        self._store = store
        self._link = link
        self.bytes_max: int | None = None
        """A full disk: larger objects are refused."""

    @property
    def url(self) -> str:
        return self._store.url

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if self.bytes_max is not None and sum(map(len, body)) > self.bytes_max:
            raise Unavailable("no space left on device")
        await self._link.carry("create", key, lambda: self._store.create(key, body, crc32c=crc32c), is_write=True)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return await self._link.carry("get", key, lambda: self._store.get(key, start=start, end=end))

    async def tail(self, key: str, bytes_max: int) -> Tail:
        return await self._link.carry("tail", key, lambda: self._store.tail(key, bytes_max))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        return await self._link.carry("list", prefix, lambda: self._store.list(prefix, start_after=start_after, limit=limit))

    async def delete(self, key: str) -> None:
        await self._link.carry("delete", key, lambda: self._store.delete(key), is_write=True)

    async def close(self) -> None:
        pass


class LinkedMetadata:
    def __init__(self, store: MetadataStore, link: Link) -> None:
        self._store = store
        self._link = link
        self.reported_after_s = 0.0
        """How late watches tell."""

    async def get(self, key: str) -> KeyValue | None:
        return await self._link.carry("metadata get", key, lambda: self._store.get(key))

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        def ask() -> Awaitable[RangeResult]:
            return self._store.range(prefix, start_after=start_after, limit=limit, revision=revision)

        return await self._link.carry("metadata range", prefix, ask)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        return await self._link.carry("transact", "", lambda: self._store.transact(compares, operations), is_write=True)

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        return await self._link.carry("grant lease", "", lambda: self._store.grant_lease(ttl_s), is_write=True)

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._link.carry("keep alive", "", lambda: self._store.keep_alive(lease))

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._link.carry("revoke lease", "", lambda: self._store.revoke_lease(lease), is_write=True)

    async def compact(self, to_revision: Revision) -> None:
        await self._link.carry("compact", "", lambda: self._store.compact(to_revision), is_write=True)

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        async for batch in self._store.watch(prefix, from_revision):
            await asyncio.sleep(self._link.latency_s / 2 + self.reported_after_s)
            if self._link.down is not None:
                raise Unavailable("the link is down")
            yield batch

    async def close(self) -> None:
        pass


class Process:
    """One broker's life, from its start to its end or its death."""

    def __init__(self, world: World, broker_id: str, settings: ClusterSettings) -> None:
        self.broker_id = broker_id
        self.name = f"{broker_id}.{next(world.numbers)}"
        self.to_bucket, self.to_metadata = Link(world.bucket_latency_s), Link(0.004)
        self.bucket = LinkedBucket(world.bucket, self.to_bucket)
        self.metadata = LinkedMetadata(world.metadata, self.to_metadata)
        self.watched = HealthTrackingObjectStore(TimeoutObjectStore(self.bucket, timeout_s=REQUEST_TIMEOUT_S))
        self.view = ClusterView(self.metadata, LAYOUT)
        self.leadership = SessionManager(
            self.watched,
            self.metadata,
            self.view,
            world.segments,
            settings,
            layout=LAYOUT,
            registration=BrokerRegistration(broker_id=broker_id, session=SessionId(0)),
            new_writer=lambda: next(world.writers).to_bytes(16, "big"),
            now_ms=lambda: TIMESTAMP_MS,
        )
        self.main = virtual_loop().create_task(self._run(), context=virtual_loop().context_of(self.name))

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self.view.run())
            try:
                while not await self.view.read(timeout_s=1.0):
                    pass
                await self.leadership.run()
            finally:
                following.cancel()

    @property
    def session(self) -> int | None:
        return self.leadership.session

    def leads(self, partition: TopicPartition) -> bool:
        try:
            return not self.main.done() and partition in self.leadership.log.partitions
        except TidelogError:
            return False

    def kill(self) -> None:
        """SIGKILL: not one more step."""
        virtual_loop().freeze(self.name)

    def stop(self) -> None:
        """SIGTERM."""
        self.leadership.stop()

    async def ends(self, within_s: float) -> None:
        """Comes to its end by itself; raises what it ended with."""
        done, _ = await asyncio.wait((self.main,), timeout=within_s)
        assert done, f"{self.name} has not ended within {within_s} s"
        if not self.main.cancelled() and (error := self.main.exception()) is not None:
            raise innermost(error)


class World:
    def __init__(self, *, segments: SegmentSettings = SEGMENTS, bucket_latency_s: float = 0.03) -> None:
        self.bucket = MemoryObjectStore()
        self.metadata = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        self.topics = TopicRegistry(self.metadata, LAYOUT)
        self.segments = segments
        self.bucket_latency_s = bucket_latency_s
        self.numbers, self.writers = itertools.count(1), itertools.count(1)
        self.processes: list[Process] = []
        self.acknowledged: dict[TopicPartition, dict[int, bytes]] = {}
        self.waits_s: list[tuple[float, float]] = []
        """Of every acknowledgement: when its record was sent, and how long it took."""
        self._sequences: dict[tuple[TopicPartition, int], int] = {}

    async def start(self, *broker_ids: str, settings: ClusterSettings = SETTINGS) -> list[Process]:
        """Brokers that have joined."""
        await identify_cluster(self.bucket, self.metadata, LAYOUT, new_id="the-cluster-under-test", now_ms=TIMESTAMP_MS)
        started = [self.begin(broker_id, settings) for broker_id in broker_ids]
        await self.until(lambda: all(process.session is not None for process in started))
        return started

    def begin(self, broker_id: str, settings: ClusterSettings = SETTINGS) -> Process:
        process = Process(self, broker_id, settings)
        self.processes.append(process)
        return process

    async def topic(self, name: str, partitions: int = 1) -> list[TopicPartition]:
        topic = await self.topics.create(name, partitions)
        await self.until_led(topic)
        return partitions_of(topic)

    async def until_led(self, topic: Topic) -> None:
        numbers = [TopicPartition(topic.id, Partition(number)) for number in range(topic.partition_count)]
        await self.until(lambda: all(self.leader(partition) is not None for partition in numbers))

    def leader(self, partition: TopicPartition) -> Process | None:
        return next((process for process in reversed(self.processes) if self.is_alive(process) and process.leads(partition)), None)

    def is_alive(self, process: Process) -> bool:
        return process.name not in virtual_loop()._frozen

    async def states(self) -> dict[TopicPartition, tuple[PartitionState, Revision]]:
        return await read_all(self.metadata, LAYOUT)

    async def state(self, partition: TopicPartition) -> PartitionState:
        return (await self.states())[partition][0]

    async def registered(self) -> dict[str, BrokerRegistration]:
        return {name: found.registration for name, found in (await read_brokers(self.metadata, LAYOUT)).items()}

    async def ask_to_move(self, partitions: Iterable[TopicPartition], to: int | None) -> float:
        """As the controller asks. When it was asked."""
        states = await self.states()
        asked = [
            LeadershipChange(p, states[p][1], moving(states[p][0], None if to is None else SessionId(to)))
            for p in partitions
            if states[p][0].leader_session != to
        ]
        await write(self.metadata, asked, LAYOUT)
        return virtual_loop().time()

    async def until(self, holds: Callable[[], bool], within_s: float = READY_S, *, each_s: float = 0.002) -> float:
        """When it began to hold, looked at so often."""
        until_s = virtual_loop().time() + within_s
        while not holds():
            assert virtual_loop().time() < until_s, f"it does not hold after {within_s} s"
            await asyncio.sleep(each_s)
        return virtual_loop().time()

    # ── producers and readers ───────────────────────────────────────────────────────────────────────────────────────────

    async def produce(self, partition: TopicPartition, producer_id: int = 1, *, timeout_s: float = 30.0) -> None:
        """One record of an idempotent producer, sent again until it is acknowledged."""
        sequence = self._sequences.get((partition, producer_id), 0)
        self._sequences[partition, producer_id] = sequence + 1
        batch = sequenced_batch(producer_id, sequence)
        began_s = virtual_loop().time()
        while True:
            assert virtual_loop().time() < began_s + 2 * READY_S, f"{partition} takes no records"
            leader = self.leader(partition)
            if leader is not None:
                serving = self._at(leader, leader.leadership.log.produce(partition, batch, header_of(batch), timeout_s=timeout_s))
                try:
                    offset = (await serving).base_offset
                    break
                except TidelogError:
                    pass
            await asyncio.sleep(0.01)
        held = self.acknowledged.setdefault(partition, {})
        assert offset not in held, f"{partition} {offset} was given out twice"
        held[offset] = f"p{producer_id}-s{sequence}".encode()
        self.waits_s.append((began_s, virtual_loop().time() - began_s))

    async def _at(self, process: Process, work: Awaitable[_Answer]) -> _Answer:
        """Runs on the broker's side; where it dies, the connection breaks."""
        serving = virtual_loop().create_task(_of(work), context=virtual_loop().context_of(process.name))
        while not serving.done():
            await asyncio.wait((serving,), timeout=0.05)
            if not self.is_alive(process):
                raise OutcomeUnknown(f"{process.name} closed the connection")
        return serving.result()

    async def keep_producing(self, partitions: Iterable[TopicPartition], *, each_s: float = 0.05, for_s: float = 1e9) -> None:
        """A producer for each partition, one record after the other, until cancelled or for `for_s`."""
        until_s = virtual_loop().time() + for_s

        async def one(partition: TopicPartition) -> None:
            while virtual_loop().time() < until_s:
                await self.produce(partition)
                await asyncio.sleep(each_s)

        async with asyncio.TaskGroup() as producers:
            for partition in partitions:
                producers.create_task(one(partition))

    def longest_wait_s(self, *, sent_since_s: float = 0.0) -> float:
        return max(waited_s for sent_s, waited_s in self.waits_s if sent_s >= sent_since_s)

    async def check(self) -> None:
        """Every acknowledged record is read at its offset, once, and nothing else but unanswered records."""
        for partition, held in self.acknowledged.items():
            found = await self._read(partition)
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert len({value for _, value in found}) == len(found), f"{partition} holds a record twice"
            assert dict(found).items() >= held.items(), str(partition)

    async def _read(self, partition: TopicPartition) -> list[tuple[int, bytes | None]]:
        """All that is committed, from the present leader."""
        found: list[tuple[int, bytes | None]] = []
        why: object = "it has no leader"
        until_s = virtual_loop().time() + READY_S
        while virtual_loop().time() < until_s:
            leader = self.leader(partition)
            if leader is not None:
                log = leader.leadership.log
                if len(found) == log.partitions.bounds(partition).high_watermark:
                    return found
                target = FetchTarget(partition, Offset(len(found)), 1 << 24)
                [fetched] = await log.reads.fetch([target], bytes_max=1 << 24, bytes_min=0)
                why = fetched
                if isinstance(fetched, FetchResult):
                    found += records_in(fetched.batches, from_offset=len(found))
                    continue
            await asyncio.sleep(0.01)
        raise AssertionError(f"{partition} can't be read beyond offset {len(found)}: {why}")


def innermost(error: BaseException) -> BaseException:
    return innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _of(work: Awaitable[_Answer]) -> _Answer:
    return await work


def in_a_world(scenario: Callable[[World], Awaitable[None]], **how: float | SegmentSettings) -> None:
    async def main() -> None:
        world = World(**how)  # type: ignore[arg-type]
        housekeeping = virtual_loop().create_task(world.metadata.run(), context=Context())
        await scenario(world)
        for process in world.processes:
            if world.is_alive(process) and process.main.done() and not process.main.cancelled():
                process.main.exception()  # looked at: whatever is expected, a scenario checks
        housekeeping.cancel()

    run(main())
