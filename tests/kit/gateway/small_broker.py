"""A broker of the real parts (log, topics, listeners) over a bucket in memory that can be held, for the tests of the listeners.

It leads every partition of every topic from the moment that the topic is made, and has one session, which a test may end.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from compaction.settings import CompactionSettings
from gateway.access.admin import AccessAdmin
from gateway.cluster.store_checks import StoreChecks
from gateway.cluster.view import BrokerDescription, DrainState
from gateway.console.console import load_console
from gateway.groups.service import GroupService
from gateway.grpc.server import GrpcServer
from gateway.http.server import HttpServer
from gateway.net.ports import take_port
from gateway.routing.local_log import LocalLog
from gateway.routing.log_service import LogService
from gateway.routing.peer_channels import PeerChannels
from gateway.settings import GatewaySettings
from gateway.telemetry.registry import MetricsRegistry
from gateway.telemetry.request_context import Tracer
from gateway.telemetry.settings import TelemetrySettings
from gateway.topics.usage.cost_forecast import CostSettings
from gateway.topics.usage.service import UsageService
from metadata.access.registry import AccessRegistry
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.cluster.id_allocation import ProducerIds
from metadata.errors import Corrupt, NotFound, Stopping
from metadata.groups.model import MemberId
from metadata.groups.settings import GroupSettings
from metadata.model import LeaderEpoch, Partition, Revision, SessionId, TopicId, TopicPartition
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import NO_REPLICATION_FACTOR, Topic
from segments.bucket.object_kinds import kind_of
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.log.session_log import SessionLog
from segments.object_store.health_tracking import StoreTrouble
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.object_store.interface import Buffer
from segments.object_store.memory import MemoryObjectStore
from segments.recovery.recovered_partition import empty_partition
from segments.settings import SegmentSettings
from segments.wal.session import Session, claim

NOW_MS = 1_750_000_000_000
FAST = SegmentSettings(linger_ms=0, puts_per_second_max=10_000)
GROUPS = GroupSettings(group_initial_rebalance_delay_ms=20, commit_linger_ms=0)
# For a whole test: it is there for what hangs, and less than the limit of pytest, which tells less.
PATIENCE_S = 240.0


class HeldStore(MemoryObjectStore):
    """Creates wait while it is held; so a test decides when a commit happens."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self.open.wait()
        await super().create(key, body, crc32c=crc32c)

    def hold(self) -> None:
        self.open.clear()

    def let_go(self) -> None:
        self.open.set()


class Alone:
    """A cluster of one broker, as its coordinators see it."""

    def __init__(self, broker: SmallBroker) -> None:
        self._broker = broker

    @property
    def brokers(self) -> Mapping[str, BrokerRegistration]:
        return {self._broker.broker_id: self._broker.registered}

    @property
    def revisions(self) -> Mapping[str, Revision]:
        """It is registered nowhere."""
        return {}

    @property
    def revision(self) -> Revision:
        return Revision(1)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class SmallBroker:
    cluster_id = "00000000-0000-4000-8000-000000000001"
    broker_id = "broker-1"
    version = "0.0.0+test"

    def __init__(
        self,
        metadata: SqliteStore,
        store: HeldStore,
        session: Session,
        settings: GatewaySettings,
        segments: SegmentSettings,
        groups: GroupSettings,
    ) -> None:
        self.store = store
        self.metadata = metadata
        self.http_address = self.grpc_address = ""
        self.bucket_url = store.url
        self.settings = settings
        self.group_settings = groups
        self.segments = segments
        self.started = self.serving = True
        self.draining = False
        self.bucket_trouble: StoreTrouble | None = None
        self.metadata_trouble: StoreTrouble | None = None
        self.metadata_age_ms = 0
        self.topics = TopicRegistry(metadata, max_message_bytes=settings.message_bytes_max)
        self.topic_cache = TopicCache(metadata)
        self.producer_ids = ProducerIds(lambda: self.session, secrets.token_bytes)
        self.budget = ByteBudget(segments.buffer_bytes_max)
        metered = InstrumentedObjectStore(store, kind_of)
        self.counters = LogCounters()
        self.present_log: SessionLog | None = SessionLog(
            metered, session, segments, budget=self.budget, now_ms=lambda: NOW_MS, counters=self.counters
        )
        self.local_log = LocalLog(lambda: self.log)
        self.cluster_log: LogService = self.local_log
        self.metrics = MetricsRegistry()
        self.tracing: Tracer | None = None
        self.guard = None
        self.access = AccessAdmin(AccessRegistry(metadata), None)
        # Added to the clock of the groups by a test.
        self.passed_ms = 0
        numbers = itertools.count(1)
        parts = GroupService(
            metadata,
            KeyLayout(),
            groups,
            Alone(self),
            self.topic_cache,
            self.cluster_log,
            PeerChannels(self.broker_id),
            self.metrics,
            broker_id=self.broker_id,
            session=lambda: self.session,
            is_stopping=lambda: False,
            now_ms=lambda: NOW_MS + self.passed_ms,
            new_member_id=lambda client: MemberId(f"{client}-{next(numbers)}"),
        )
        self.groups, self.coordinated_groups, self.group_operations = parts.routed, parts.coordinated, parts.operations
        self.group_view, self.group_figures, self.lag_history = parts.view, parts.figures, parts.lag_history
        self.check_stores = StoreChecks(store, metadata, KeyLayout(), None, now_ms=lambda: NOW_MS).check
        self.usage = UsageService(
            metered,
            metered.meter,
            self.counters,
            lambda: self.present_log,
            self.topic_cache,
            PeerChannels(self.broker_id),
            self.registrations,
            broker_id=self.broker_id,
            prices=TelemetrySettings(),
            settings=CostSettings.of(segments, CompactionSettings()),
            compacts=False,
            now_ms=lambda: NOW_MS,
        )
        self.http = HttpServer(self, load_pages=lambda app: load_console(self, app))
        self.grpc = GrpcServer(self)

    @property
    def session(self) -> int | None:
        return self.present_log.session.id if self.present_log else None

    @property
    def log(self) -> SessionLog:
        if self.present_log is None:
            raise Stopping("the broker is shutting down")
        return self.present_log

    @property
    def registered(self) -> BrokerRegistration:
        return BrokerRegistration(
            broker_id=self.broker_id,
            session=SessionId(self.session or 0),
            http_address=self.http_address,
            grpc_address=self.grpc_address,
        )

    def leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        return self.registered

    def last_leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        return self.registered

    def registrations(self) -> Sequence[BrokerRegistration]:
        return [self.registered]

    def registration(self, broker_id: str) -> BrokerRegistration | None:
        return self.registered if broker_id == self.broker_id else None

    def leader_epoch(self, partition: TopicPartition) -> int:
        return 7

    @property
    def refused(self) -> Mapping[TopicPartition, Corrupt]:
        return self.log.partitions.damaged

    def brokers(self) -> list[BrokerDescription]:
        draining = self.started and not self.serving
        return [
            BrokerDescription(
                self.broker_id, self.http_address, self.grpc_address, self.session, draining, "", self.version, 0, controller=True
            )
        ]

    @property
    def url(self) -> str:
        return f"http://{self.http_address}"

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        settings: Mapping[str, str] | None = None,
        *,
        replication_factor: int = NO_REPLICATION_FACTOR,
        validate_only: bool = False,
    ) -> Topic:
        topic = await self.topics.create(
            name, partition_count, settings, replication_factor=replication_factor, validate_only=validate_only
        )
        return topic if validate_only else await self._seen(topic)

    async def alter_topic(self, name: str, **changes: Any) -> Topic:
        topic = await self.topics.alter(name, **changes)
        return topic if changes.get("validate_only") else await self._seen(topic)

    async def delete_topic(self, name: str, *, topic_id: TopicId | None = None, validate_only: bool = False) -> Topic:
        topic = await self.topics.delete(name, topic_id=topic_id, validate_only=validate_only)
        if not validate_only:
            await self.topic_cache.wait_for(topic.revision, timeout_s=60)
            for partition in range(topic.partition_count):
                self.log.stop_leading(TopicPartition(topic.id, Partition(partition)))
        return topic

    async def drain(self, broker_id: str, *, draining: bool, validate_only: bool = False) -> DrainState:
        """Of one broker, which leads all and has no other to hand it to."""
        if broker_id != self.broker_id:
            raise NotFound(f"no broker {broker_id} is registered")
        if not validate_only:
            self.draining = draining
        return DrainState(broker_id, draining, 4)

    async def _seen(self, topic: Topic) -> Topic:
        assert await self.topic_cache.wait_for(topic.revision, timeout_s=60)
        for partition in (TopicPartition(topic.id, Partition(number)) for number in range(topic.partition_count)):
            if partition not in self.log.partitions:
                self.log.lead(empty_partition(partition, self.segments, topic=topic.name), LeaderEpoch(7))
        return topic


async def _left_alone(_: SessionId) -> None:
    raise AssertionError("the bucket of this test is empty")


@asynccontextmanager
async def small_broker(
    tmp_path: Path,
    *,
    settings: GatewaySettings | None = None,
    segments: SegmentSettings = FAST,
    groups: GroupSettings = GROUPS,
) -> AsyncIterator[SmallBroker]:
    """With both listeners open on free ports of the loopback, and the topics `orders` (3 partitions) and `single` (1)."""
    metadata = SqliteStore(tmp_path / "metadata.sqlite")
    metadata._history._all("PRAGMA synchronous = OFF")  # the disk takes longer than most tests, and far longer where others write
    store = HeldStore()
    try:
        session = await claim(
            store,
            next_number=_first_session,
            writer=b"writer of a test",
            broker_id="broker-1",
            now_ms=lambda: NOW_MS,
            pass_over=_left_alone,
        )
        broker = SmallBroker(metadata, store, session, patient(settings), segments, groups)
        async with asyncio.TaskGroup() as tasks:
            parts = (metadata, broker.topic_cache, broker.group_view, broker.coordinated_groups, broker.usage)
            background = [tasks.create_task(part.run()) for part in parts]
            log = broker.log
            writing = tasks.create_task(log.run())
            try:
                broker.http_address = await broker.http.start(await take_port("127.0.0.1:0", listener="HTTP"))
                broker.grpc_address = await broker.grpc.start(await take_port("127.0.0.1:0", listener="gRPC"))
                await broker.create_topic("orders", 3)
                await broker.create_topic("single", 1)
                yield broker
            finally:
                store.let_go()
                log.close()
                await asyncio.gather(broker.http.stop(2), broker.grpc.stop(2))
                await writing
                for task in background:
                    task.cancel()
    finally:
        await metadata.close()


def with_broker(
    tmp_path: Path,
    scenario: Callable[[SmallBroker], Awaitable[None]],
    *,
    settings: GatewaySettings | None = None,
    segments: SegmentSettings = FAST,
    groups: GroupSettings = GROUPS,
) -> None:
    """Runs the scenario against a small broker, in the loop that brokers run in."""

    async def run() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            small_broker(tmp_path, settings=settings, segments=segments, groups=groups) as broker,
        ):
            await scenario(broker)

    uvloop.run(run())


def patient(settings: GatewaySettings | None) -> GatewaySettings:
    """With calls that wait to be taken up for as long as it takes: who plays a client does not ask again where one was dropped."""
    return replace(settings or GatewaySettings(), grpc_queue_timeout_ms=round(1000 * PATIENCE_S))


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop go on until the condition holds."""
    while not condition():  # noqa: ASYNC110  # the broker has no event for what only a test looks at
        await asyncio.sleep(0.001)


async def _first_session() -> SessionId:
    return SessionId(1)
