"""Topics of one simulated world, and the clients that produce to them and read them while topics grow, go and come again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from metadata.model import Partition, TopicPartition
from metadata.sqlite_store import SqliteStore
from metadata.topic import Topic
from metadata.topics import Topics
from tests.simulation.clients import Clients, Kind, Producer, Reader
from tests.simulation.virtual_loop import virtual_loop

ORDERS, CHURN = "orders", "churn"
"""A topic that stays, and one that is deleted and made again."""
PARTITIONS_MAX = 8
KINDS = (Kind.IDEMPOTENT, Kind.IDEMPOTENT, Kind.IDEMPOTENT, Kind.KEYED, Kind.PLAIN, Kind.PLAIN, Kind.HASTY)
KINDS_OF_MORE = (Kind.IDEMPOTENT, Kind.PLAIN)
"""Of the producers of partitions that come later."""
PRODUCERS_MAX = 16


class Load:
    """Its owner enters `begin` with a group for its tasks, which end by themselves once the clients are `finishing`."""

    def __init__(self, clients: Clients, metadata: SqliteStore, chance: random.Random, failures: list[str], settle_s: float) -> None:
        """A producer that has not come to its end `settle_s` after the beginning is a failure."""
        self._clients = clients
        self._chance = chance
        self._failures = failures
        self._settle_s = settle_s
        self._topics = Topics(
            metadata, new_id=lambda: f"{chance.getrandbits(128):032x}", now_ms=lambda: virtual_loop().now_ms()
        )
        self._held: dict[str, Topic] = {}
        self._producers = 0
        self.deleted: list[TopicPartition] = []
        self.topics_changed = 0

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
            self._read(self._chance.choice(orders))
        if self._chance.random() < 0.7:
            await self.make_again()

    async def grow(self) -> None:
        """One partition more for a topic, and producers for it."""
        name = self._chance.choice(list(self._held))
        count = self._held[name].partition_count + 1
        if count <= PARTITIONS_MAX:
            self._held[name] = await self._topics.alter(name, partition_count=count)
            self.topics_changed += 1
            self._produce_more(TopicPartition(self._held[name].id, Partition(count - 1)))

    async def make_again(self) -> None:
        """Deletes a topic while it is produced to, and makes one of the same name."""
        old = self._held.pop(CHURN, None)
        if old is not None:
            await self._topics.delete(CHURN)
            self.deleted += _partitions(old)
            self._clients.deleted.add(old.id)
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 5.0)))
        if CHURN in self._held:
            return  # it was made again meanwhile
        new = _partitions(await self._create(CHURN))
        self.topics_changed += 1
        self._produce_more(self._chance.choice(new))

    async def _create(self, name: str) -> Topic:
        count = self._chance.randint(1, 4)
        self._held[name] = topic = Topic(name=name, partition_count=count)  # nobody makes it a second time while this is under way
        self._held[name] = topic = await self._topics.create(name, count)
        return topic

    def _produce_more(self, partition: TopicPartition) -> None:
        for kind in KINDS_OF_MORE:
            self._produce(partition, kind)
        self._read(partition)

    def _produce(self, partition: TopicPartition, kind: Kind) -> None:
        if self._producers < PRODUCERS_MAX and not self._clients.finishing:
            self._producers += 1
            name = f"{kind.value}{self._producers}"
            self._tasks.create_task(self._settles(name, Producer(self._clients, name, partition, kind)))

    def _read(self, partition: TopicPartition) -> None:
        self._producers += 0
        self._tasks.create_task(Reader(self._clients, f"reader of {partition}", partition).run())

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
