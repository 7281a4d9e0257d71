"""The topics of one simulated world, and the clients that produce to them and read them while topics grow, go and come again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

from metadata.model import Partition, TopicPartition
from metadata.store.interface import MetadataStore
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from tests.simulation.clients import Clients, Kind, Producer, Reader
from tests.simulation.policies import Policies
from tests.simulation.record_deleter import RecordDeleter
from tests.simulation.virtual_loop import virtual_loop

# A topic that stays, and one that is deleted and made again.
ORDERS, CHURN = "orders", "churn"
PARTITIONS_MAX = 6
KINDS = (Kind.IDEMPOTENT, Kind.IDEMPOTENT, Kind.IDEMPOTENT, Kind.KEYED, Kind.PLAIN, Kind.PLAIN, Kind.HASTY)
# The producers of partitions that come later.
KINDS_OF_MORE = (Kind.IDEMPOTENT, Kind.PLAIN)
PRODUCERS_MAX = 14


class Load:
    """`begin` starts its tasks in the owner's group; producers end by themselves once the clients are `finishing`."""

    def __init__(
        self,
        clients: Clients,
        metadata: MetadataStore,
        chance: random.Random,
        policies: Policies,
        failures: list[str],
        *,
        settle_s: float,
    ) -> None:
        """A producer that has not come to its end by `settle_s` is a failure."""
        self.deleted: list[TopicPartition] = []
        self.topics_changed = 0
        self.lives: dict[str, Topic] = {}
        """Every topic that there ever was, by its id."""
        self._policies = policies
        self.deleter = RecordDeleter(clients, lambda: self.partitions, each_s=policies.delete_records_each_s)
        self._deleting: list[asyncio.Task[None]] = []
        self._clients = clients
        self._chance = chance
        self._failures = failures
        self._settle_s = settle_s
        self._topics = TopicRegistry(
            metadata, new_id=lambda: f"{chance.getrandbits(128):032x}", now_ms=lambda: virtual_loop().now_ms()
        )
        self._held: dict[str, Topic] = {}
        self._changing = asyncio.Lock()
        self._producers = 0
        self._readers: list[asyncio.Task[None]] = []

    @property
    def partitions(self) -> list[TopicPartition]:
        """Of all topics that there are."""
        return [partition for topic in self._held.values() for partition in _partitions(topic)]

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        orders = _partitions(await self._create(ORDERS))
        for kind in KINDS:
            self._produce(self._chance.choice(orders), kind)
        for _ in range(3):
            self._read([self._chance.choice(orders)])
        self._read(orders)
        if self._chance.random() < 0.7:
            self._produce_more(self._chance.choice(_partitions(await self._create(CHURN))))
        if self._policies.delete_records_each_s:
            self._deleting.append(tasks.create_task(self.deleter.run()))

    @contextlib.contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """While it lasts, producers send as fast as they can."""
        self._clients.in_a_hurry += 1
        try:
            yield
        finally:
            self._clients.in_a_hurry -= 1

    def stop_reading(self) -> None:
        for client in (*self._readers, *self._deleting):
            client.cancel()

    async def grow(self) -> None:
        """One partition more for a topic, and producers for it."""
        async with self._changing:
            name = self._chance.choice(list(self._held))
            count = self._held[name].partition_count + 1
            if count <= PARTITIONS_MAX:
                topic = await self._topics.alter(name, partition_count=count)
                self._held[name] = self.lives[topic.id] = topic
                self.topics_changed += 1
                self._produce_more(TopicPartition(topic.id, Partition(count - 1)))

    async def make_again(self) -> None:
        """Deletes a topic while it is produced to, and makes one of the same name."""
        async with self._changing:
            old = self._held.pop(CHURN, None)
            if old is not None:
                await self._topics.delete(CHURN)
                self.deleted += _partitions(old)
                await asyncio.sleep(self._chance.choice((0.0, 0.5, 5.0)))  # its producers don't know it yet
                self._clients.deleted.add(old.id)
            self.topics_changed += 1
            self._produce_more(self._chance.choice(_partitions(await self._create(CHURN))))

    async def _create(self, name: str) -> Topic:
        topic = await self._topics.create(name, self._chance.randint(1, 4), self._policies.draw())
        self._held[name] = self.lives[topic.id] = topic
        return topic

    def _produce_more(self, partition: TopicPartition) -> None:
        for kind in KINDS_OF_MORE:
            self._produce(partition, kind)
        self._read([partition])

    def _produce(self, partition: TopicPartition, kind: Kind) -> None:
        if self._producers < PRODUCERS_MAX and not self._clients.finishing:
            self._producers += 1
            name = f"{kind.value}{self._producers}"
            self._tasks.create_task(self._settles(name, Producer(self._clients, name, partition, kind)))

    def _read(self, partitions: list[TopicPartition]) -> None:
        number = len(self._readers)
        reader = Reader(self._clients, f"reader{number}", partitions, names_epoch=number % 2 == 0)
        self._readers.append(self._tasks.create_task(reader.run()))

    async def _settles(self, name: str, producer: Producer) -> None:
        running = asyncio.ensure_future(producer.run())
        try:
            await asyncio.wait((running,), timeout=max(0.0, self._settle_s - virtual_loop().time()))
            if running.done():
                await running
            else:
                self._failures.append(f"{name} still has no answer")
        finally:
            running.cancel()


def _partitions(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.id, Partition(p)) for p in range(topic.partition_count)]
