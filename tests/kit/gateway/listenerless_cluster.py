"""Brokers without listeners, on a bucket and metadata that outlive them or get lost; producers that remember their answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from gateway.cluster.identity import identify_cluster
from gateway.cluster.session_manager import SessionManager
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.view import ClusterView, partitions_of
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.cluster.leadership import PartitionState, read_all
from metadata.errors import NoLeader, NotLeader, SessionFenced
from metadata.model import SessionId, TopicPartition
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.object_store.health_tracking import HealthTrackingObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.read.log_reader import FetchResult
from segments.settings import SegmentSettings
from tests.kit.segments.batches import TIMESTAMP_MS, header_of, records_in, sequenced_batch

LAYOUT = KeyLayout()
READY_S = 60.0
CLUSTER_ID = "the-cluster-under-test"
_writers = itertools.count(1)


def now_ms() -> int:
    return TIMESTAMP_MS


class Broker:
    def __init__(self, bucket: MemoryObjectStore, metadata: MetadataStore, broker_id: str, cluster: ClusterSettings) -> None:
        self.view = ClusterView(metadata, LAYOUT)
        self.leadership = SessionManager(
            HealthTrackingObjectStore(bucket),
            metadata,
            self.view,
            SegmentSettings(linger_ms=0, index_every_segments=4),
            cluster,
            layout=LAYOUT,
            registration=BrokerRegistration(broker_id=broker_id, session=SessionId(0)),
            new_writer=lambda: next(_writers).to_bytes(16, "big"),
            now_ms=now_ms,
        )

    @property
    def session(self) -> SessionId:
        session = self.leadership.session
        assert session is not None
        return session


@dataclass
class Cluster:
    """What some brokers serve, until they are stopped."""

    bucket: MemoryObjectStore
    metadata: MetadataStore
    brokers: list[Broker] = field(default_factory=list)

    @property
    def topics(self) -> TopicRegistry:
        return TopicRegistry(self.metadata, LAYOUT)

    async def create(self, name: str, partitions: int = 1) -> Topic:
        topic = await self.topics.create(name, partitions)
        await self.until_led(topic)
        return topic

    async def until_led(self, *topics: Topic) -> None:
        for broker in self.brokers:
            for topic in topics:
                await broker.view.topics.wait_for(topic.revision, timeout_s=READY_S)
                assert await broker.leadership.led(topic, timeout_s=READY_S)

    async def states(self) -> dict[TopicPartition, PartitionState]:
        return {partition: state for partition, (state, _) in (await read_all(self.metadata, LAYOUT)).items()}

    def leader(self, partition: TopicPartition) -> Broker:
        for broker in self.brokers:
            if broker.leadership.session is not None and partition in broker.leadership.log.partitions:
                return broker
        raise NoLeader(f"{partition} has no leader")

    async def produce(self, partition: TopicPartition, producer_id: int, sequence: int) -> int:
        """The offset of one record; tried again while there is no leader, as a client would."""
        batch = sequenced_batch(producer_id, sequence)
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    log = self.leader(partition).leadership.log
                    return (await log.produce(partition, batch, header_of(batch))).base_offset
                except (NoLeader, NotLeader, SessionFenced):
                    await asyncio.sleep(0.01)

    async def read(self, partition: TopicPartition) -> list[tuple[int, bytes | None]]:
        """All records; tried again while there is no leader."""
        target = FetchTarget(partition, 0, 1 << 24)
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    [fetched] = await self.leader(partition).leadership.log.reads.fetch([target], bytes_max=1 << 24, bytes_min=0)
                    if isinstance(fetched, FetchResult):
                        return records_in(fetched.batches)
                    raise fetched
                except (NoLeader, NotLeader):
                    await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster_of(
    bucket: MemoryObjectStore, metadata: MetadataStore, broker_ids: Iterable[str], *, killed: bool = False
) -> AsyncIterator[Cluster]:
    """Brokers that lead what there is; stopped in order at the end, or, when `killed`, with no chance to flush, seal or copy."""
    await identify_cluster(bucket, metadata, LAYOUT, new_id=CLUSTER_ID, now_ms=now_ms())
    cluster = Cluster(bucket, metadata)
    async with AsyncExitStack() as running:
        for broker_id in broker_ids:
            broker = Broker(bucket, metadata, broker_id, ClusterSettings(session_timeout_ms=3000, drain_timeout_ms=2000))
            cluster.brokers.append(await running.enter_async_context(_runs(broker, killed=killed)))
        yield cluster


@asynccontextmanager
async def _runs(broker: Broker, *, killed: bool) -> AsyncIterator[Broker]:
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(broker.view.run())
        leading = tasks.create_task(broker.leadership.run())
        await broker.view.read(timeout_s=READY_S)
        await broker.leadership.first_session(READY_S)
        try:
            yield broker
        finally:
            if not killed:
                broker.leadership.stop()
                await asyncio.wait((leading,))
            leading.cancel()
            following.cancel()


class Acknowledged:
    """What producers were answered: by partition, the value at each offset."""

    def __init__(self) -> None:
        self.records: dict[TopicPartition, dict[int, bytes]] = {}
        self.sequences: dict[tuple[TopicPartition, int], int] = {}

    async def produce(self, cluster: Cluster, topics: Iterable[Topic], *, producer_ids: Iterable[int], rounds: int) -> None:
        """One record of each producer to each partition, so many times."""
        ids = list(producer_ids)
        for _ in range(rounds):
            for partition in (partition for topic in topics for partition in partitions_of(topic)):
                for producer_id in ids:
                    sequence = self.sequences.get((partition, producer_id), 0)
                    offset = await cluster.produce(partition, producer_id, sequence)
                    held = self.records.setdefault(partition, {})
                    assert offset not in held, f"{partition} {offset} was given out twice"
                    held[offset] = f"p{producer_id}-s{sequence}".encode()
                    self.sequences[partition, producer_id] = sequence + 1

    async def check(self, cluster: Cluster) -> None:
        """Each is read at its offset, once, and nothing else."""
        for partition, held in self.records.items():
            assert await cluster.read(partition) == sorted(held.items()), str(partition)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(READY_S):
        while not await holds():  # noqa: ASYNC110  # no event shows it
            await asyncio.sleep(0.01)


def epochs(states: Mapping[TopicPartition, PartitionState]) -> dict[TopicPartition, int]:
    return {partition: state.leader_epoch for partition, state in states.items()}
