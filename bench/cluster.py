"""The cluster under test: real `tidelog serve` processes on one etcd and one bucket, and what etcd tells of them, with its time.

Invariant: times are those of the monotonic clock, which all processes of the machine share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import psutil

from bench.etcd_server import Etcd, etcd
from bench.run import Run
from gateway.cluster.view import ClusterView
from metadata.cluster.broker_registry import read_brokers
from metadata.controller.placement import is_balanced
from metadata.errors import Unavailable
from metadata.model import Revision, SessionId, TopicPartition
from metadata.store.etcd.settings import EtcdSettings
from metadata.store.etcd.store import EtcdStore
from metadata.store.interface import Event, KeyValue, Put
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch
from tidelog import connect_sync
from tidelog.tasks import ClientTasks
from tidelog.testing.broker_process import BrokerProcess

BROKERS = ("b1", "b2", "b3")
# The broker's default, which nothing here changes: the lease that etcd must see end before anybody takes over.
SESSION_TIMEOUT_S = 9.0
SETTLE_TIMEOUT_S = 90.0
# What a broker does by default on S3: so a session on this disk has as many segments as it would have there.
LIKE_S3 = ("--linger-ms", "100", "--puts-per-second-max", "20")


class ServedCluster:
    def __init__(self, name: str, brokers: dict[str, BrokerProcess], etcd: Etcd, bucket: Path) -> None:
        self.layout = KeyLayout(name)
        self.brokers = brokers
        self.etcd = etcd
        self.bucket = bucket

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(broker.http_url for broker in self.brokers.values())

    def cpu_seconds(self) -> float:
        """That the brokers have used since they run."""
        times = [psutil.Process(broker.pid).cpu_times() for broker in self.brokers.values()]
        return sum(used.user + used.system for used in times)

    def restart(self, broker_id: str) -> None:
        """Of one that has ended. On other ports: somebody may have taken the old ones meanwhile."""
        broker = self.brokers[broker_id]
        broker.http_address = broker.grpc_address = "127.0.0.1:0"
        broker.start()

    def create_topic(self, name: str, partitions: int) -> float:
        """Seconds until it was answered: the broker waits until the partitions are led."""
        with connect_sync(*self.urls, request_timeout_ms=60_000.0) as log:
            started_s = time.perf_counter()
            log.topics.create(name, partitions=partitions)
            return time.perf_counter() - started_s

    def topic_id(self, name: str) -> str:
        with connect_sync(*self.urls) as log:
            return log.topics.describe(name).id


@contextmanager
def cluster(
    run: Run,
    name: str,
    *,
    broker_ids: Sequence[str] = BROKERS,
    flags: Sequence[str] = (),
    shared: Etcd | None = None,
    kafka: bool = False,
) -> Iterator[ServedCluster]:
    """Brokers that serve, on an etcd of their own unless they share one; with `kafka`, Kafka clients as well.

    Raises what the benchmark met, with what the brokers said.
    """
    with run.new_directory(name) as directory, ExitStack() as parts:
        on = shared or parts.enter_context(etcd(directory))
        bucket = directory / "bucket"
        bucket.mkdir()
        brokers: dict[str, BrokerProcess] = {}
        for broker_id in broker_ids:
            own = ["--etcd", on.url, "--cluster", name, "--bucket", bucket.as_uri(), "--broker-id", broker_id, *flags]
            brokers[broker_id] = parts.enter_context(BrokerProcess(directory / broker_id, flags=own, command="serve"))
        try:
            for broker in brokers.values():
                if kafka:
                    broker.kafka_address = "127.0.0.1:0"
                broker.start()
            yield ServedCluster(name, brokers, on, bucket)
        except Exception as error:
            for broker_id, broker in brokers.items():
                if broker.log_path.exists():  # else it was not started yet
                    error.add_note(f"{broker_id} said: {broker.said()}")
            raise


class ClusterWatch:
    """What etcd's watchers learn of the cluster, and when: `watched` runs it."""

    def __init__(self, store: EtcdStore, layout: KeyLayout) -> None:
        self.store = store
        self.layout = layout
        self.view = ClusterView(store, layout)
        self.controller: str | None = None
        """Id of the broker that is it."""
        self.controller_at_s = 0.0
        """Since when."""
        self.left_at_s: dict[str, float] = {}
        """When a broker's registration ended, by id."""
        self.led_at_s: dict[TopicPartition, float] = {}
        """Since when each partition has its present leader, by what etcd says."""
        self._registered: Set[str] = frozenset()
        self._leaders: dict[TopicPartition, SessionId] = {}
        self._changed = asyncio.Event()
        self._holder = RangeWatch(store, layout.controller, replace=self._controller_is, apply=self._controller_changed)
        self.view.partitions.subscribe(self._partitions_changed)
        self.view.brokers.subscribe(self._brokers_changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as watches:
            watches.create_task(self.view.run())
            watches.create_task(self._holder.run())

    async def read(self, timeout_s: float) -> bool:
        """Whether everything was read once in time."""
        return await self.view.read(timeout_s) and await self._holder.wait_for(Revision(1), timeout_s)

    async def until(self, holds: Callable[[], bool], what: str, *, timeout_s: float = SETTLE_TIMEOUT_S) -> float:
        """When it was seen to hold. Raises Unavailable where it does not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(f"after {timeout_s:g} s it is still not so that {what}") from None
        return time.monotonic()

    async def balanced(self, partitions: int, brokers: int) -> float:
        """Waits until so many brokers lead so many partitions, evenly, and nothing moves."""
        return await self.until(lambda: self._is_balanced(partitions, brokers), f"{brokers} brokers lead {partitions:,} partitions")

    async def make_controller(self, broker_id: str) -> None:
        """Gives it what an election gives to the first candidate: the key, under its own lease."""
        registered = (await read_brokers(self.store, self.layout))[broker_id]
        name = f"{broker_id} {registered.registration.session}".encode()
        await self.store.transact([], [Put(self.layout.controller, name, registered.lease)])
        await self.until(lambda: self.controller == broker_id, f"{broker_id} is the controller")

    def led_by(self, broker_id: str) -> frozenset[TopicPartition]:
        registration = self.view.brokers.brokers.get(broker_id)
        return frozenset(self.view.partitions.led_by(registration.session)) if registration is not None else frozenset()

    def _is_balanced(self, partitions: int, brokers: int) -> bool:
        candidates = [registration.candidate for registration in self.view.brokers.brokers.values()]
        led = {candidate.session: len(self.view.partitions.led_by(candidate.session)) for candidate in candidates}
        return (
            len(candidates) == brokers
            and sum(led.values()) == partitions
            and not self.view.partitions.moving
            and is_balanced(led, candidates)
        )

    def _partitions_changed(self, changed: Set[TopicPartition]) -> None:
        now_s = time.monotonic()
        for partition in changed:
            state = self.view.partitions.get(partition)
            if state is not None and self._leaders.get(partition) != state.leader_session:
                self._leaders[partition] = state.leader_session
                self.led_at_s[partition] = now_s
        self._changed.set()

    def _brokers_changed(self) -> None:
        now_s, registered = time.monotonic(), frozenset(self.view.brokers.brokers)
        self.left_at_s |= dict.fromkeys(self._registered - registered, now_s)
        self._registered = registered
        self._changed.set()

    def _controller_is(self, items: Sequence[KeyValue]) -> None:
        for item in items:
            self._elected(item.value)

    def _controller_changed(self, events: Sequence[Event]) -> None:
        for event in events:
            self._elected(event.value if event.kind == "put" else None)

    def _elected(self, value: bytes | None) -> None:
        self.controller = value.decode().partition(" ")[0] if value is not None else None  # its id and session
        self.controller_at_s = time.monotonic()
        self._changed.set()


@asynccontextmanager
async def watched(served: ServedCluster) -> AsyncIterator[ClusterWatch]:
    store = EtcdStore(EtcdSettings(etcd=served.etcd.url))
    try:
        async with ClientTasks() as tasks:
            watch = ClusterWatch(store, served.layout)
            tasks.start(store.run(), name="etcd")
            tasks.start(watch.run(), name="watches")
            if not await watch.read(SETTLE_TIMEOUT_S):
                raise Unavailable("etcd could not be read")
            yield watch
    finally:
        await store.close()
