"""The topics of a world of routes, and the clients and streams that use them while topics grow, go and come again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence

from gateway.cluster.view import partitions_of
from metadata.model import TopicPartition
from metadata.store.interface import MetadataStore
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from tests.simulation.kafka_clients import ALL, LEADER, NONE, KafkaProducer
from tests.simulation.kafka_readers import KafkaReader
from tests.simulation.route_clients import KeyedClient, PlainClient, RouteClient, RouteClients, SequencedClient
from tests.simulation.route_streams import ConsumeStream, EventStream, RouteStream
from tests.simulation.routed_broker import RoutedBroker
from tests.simulation.simulated_process import innermost
from tests.simulation.virtual_loop import virtual_loop

# A topic that stays, and one that is deleted and made again.
ORDERS, CHURN = "orders", "churn"
PARTITIONS_MAX = 9
# So that long records of one request need several batches.
MESSAGE_BYTES_MAX = {"max.message.bytes": "4096"}


class RouteLoad:
    def __init__(
        self,
        clients: RouteClients,
        metadata: MetadataStore,
        chance: random.Random,
        *,
        failures: list[str],
        settle_s: float,
        kafka_at: Callable[[str], RoutedBroker | None] | None = None,
    ) -> None:
        """A client that has not come to its end by `settle_s` is a failure. `kafka_at`: the process at an address; None where no
        client speaks Kafka's protocol."""
        self._clients = clients
        self._kafka_at = kafka_at
        self._chance = chance
        self._failures = failures
        self._settle_s = settle_s
        self._topics = TopicRegistry(
            metadata, new_id=lambda: f"{chance.getrandbits(128):032x}", now_ms=lambda: virtual_loop().now_ms()
        )
        self.held: dict[str, Topic] = {}
        self.names: dict[str, str] = {}
        """Of every topic that there ever was, by its id."""
        self.deleted: list[TopicPartition] = []
        self.topics_changed = 0
        self._bursts = 0
        self.streams: list[RouteStream] = [ConsumeStream(clients, "consume", ORDERS), EventStream(clients, "events", ORDERS)]
        if kafka_at is not None:
            rack = random.Random(f"{clients.seed}/kafka readers").choice(("", "rack-b1", "rack-b2"))
            self.streams.append(KafkaReader(clients, kafka_at, "kafka reader", ORDERS, rack=rack))
        self._streaming: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()

    @property
    def partitions(self) -> list[TopicPartition]:
        """Of all topics that there are."""
        return [partition for topic in self.held.values() for partition in partitions_of(topic)]

    def partitions_of(self, name: str) -> list[TopicPartition]:
        return partitions_of(self.held[name])

    def burst(self, requests: int) -> None:
        """So many keyed requests at once, each of a client of its own."""
        for _ in range(requests):
            self._bursts += 1
            client = KeyedClient(self._clients, f"burst{self._bursts}", ORDERS, requests_max=1)
            self._tasks.create_task(self._settles(f"burst {self._bursts}", client))

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        await self._create(ORDERS)
        if self._chance.random() < 0.5:
            await self._create(CHURN)
        for number, client in enumerate(self._chosen()):
            tasks.create_task(self._settles(f"client {number}", client))
        self._streaming = [asyncio.ensure_future(self._reads(stream)) for stream in self.streams]

    def stop_streams(self) -> None:
        for stream in self._streaming:
            stream.cancel()

    def _chosen(self) -> Sequence[RouteClient]:
        clients = self._clients
        chosen: list[RouteClient] = [KeyedClient(clients, "keyed1", ORDERS), KeyedClient(clients, "keyed2", ORDERS)]
        if CHURN in self.held:
            chosen += [KeyedClient(clients, "keyed3", CHURN), SequencedClient(clients, "sequenced3", CHURN)]
        chosen += [SequencedClient(clients, f"sequenced{number}", ORDERS) for number in (1, 2)]
        if self._kafka_at is None:
            return [*chosen, *(PlainClient(clients, f"plain{number}", ORDERS) for number in (1, 2))]
        for number in (1, 2):
            # Each of a stream of its own: these draws came later, and take nothing from the others.
            acks = random.Random(f"{clients.seed}/kafka/acks").choice((ALL, LEADER, NONE)) if number == 2 else ALL
            raises_epoch = random.Random(f"{clients.seed}/kafka{number}/epochs").random() < 0.5
            chosen.append(
                KafkaProducer(clients, self._kafka_at, f"kafka{number}", ORDERS, by_id=False, acks=acks, raises_epoch=raises_epoch)
            )
        if CHURN in self.held:
            raises_epoch = random.Random(f"{clients.seed}/kafka3/epochs").random() < 0.5
            chosen.append(KafkaProducer(clients, self._kafka_at, "kafka3", CHURN, by_id=True, raises_epoch=raises_epoch))
        return chosen

    @contextlib.contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """While it lasts, clients send as fast as they can."""
        self._clients.in_a_hurry += 1
        try:
            yield
        finally:
            self._clients.in_a_hurry -= 1

    async def grow(self) -> None:
        """One partition more, or two, for a topic."""
        async with self._changing:
            name = self._chance.choice(list(self.held))
            count = self.held[name].partition_count + self._chance.choice((1, 1, 2))
            if count <= PARTITIONS_MAX:
                self.held[name] = await self._topics.alter(name, partition_count=count)
                self.topics_changed += 1

    async def make_again(self) -> None:
        """Deletes a topic while it is produced to, and makes one of the same name."""
        async with self._changing:
            old = self.held.pop(CHURN, None)
            if old is None:
                return
            await self._topics.delete(CHURN)
            self.deleted += partitions_of(old)
            self._clients.deleted.add(old.id)
            await asyncio.sleep(self._chance.choice((0.0, 0.1, 1.0)))
            await self._create(CHURN)
            self.topics_changed += 1

    async def _create(self, name: str) -> None:
        self.held[name] = topic = await self._topics.create(name, self._chance.randint(1, 3), MESSAGE_BYTES_MAX)
        self.names[topic.id] = name

    async def _reads(self, stream: RouteStream) -> None:
        """A reader that fails fails the world: the judge would take it for one that was given too little."""
        try:
            await stream.run()
        except Exception as error:  # noqa: BLE001  # a bug of the reader
            self._failures.append(f"{stream.name} failed: {innermost(error)!r}")

    async def _settles(self, name: str, client: RouteClient) -> None:
        running = asyncio.ensure_future(client.run())
        try:
            await asyncio.wait((running,), timeout=max(0.0, self._settle_s - virtual_loop().time()))
            if running.done():
                await running
            else:
                self._failures.append(f"{name} still has no answer")
        finally:
            running.cancel()
