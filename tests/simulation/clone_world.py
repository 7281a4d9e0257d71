"""One simulated world in which the metadata exist twice: two clusters with one cluster id on one bucket.

    the older one ── runs ──────────────────────────────────────▶
                        └ copy ── … ── the clone starts beside it ──▶          the copy may be older than the clone's start

Both give out the same session numbers, both appoint leaders of the same partitions, and clients write to both. Nothing that one of
them acknowledged may be lost, or have the offset of something that the other acknowledged: brokers of one of them have to end.
Which of the two goes on, and whether any does, is not judged. Metadata are copied before a broker of the older one begins, or at
any moment of the first two seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator

from gateway.cluster.settings import ClusterSettings
from metadata.errors import TidelogError
from metadata.store.keys import KeyLayout
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from tests.kit.faulty_store import Outage
from tests.simulation.appointments import Recorder
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.broker_process import Site
from tests.simulation.bucket_reader import BucketContents, read_bucket
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.history_checker import History, Invariant, Violation, check
from tests.simulation.route_clients import KeyedClient, PlainClient, RouteClient, RouteClients, SequencedClient
from tests.simulation.route_cluster import RouteCluster, segment_settings
from tests.simulation.virtual_loop import virtual_loop
from tests.simulation.world import Outcome

ORDERS = "orders"
PRODUCER_IDS_OF_CLONE = 10_000
ON_THE_WIRE_S_MAX = 3_600.0


class CloneWorld:
    def __init__(self, seed: int, trouble_s: float, *, keep_trace: bool) -> None:
        self._seed = seed
        self._trouble_s = trouble_s
        self._keep_trace = keep_trace
        self._chance = random.Random(f"{seed}/clones")
        self._trace: list[str] = []
        self._failures: list[str] = []
        self._background: list[asyncio.Task[None]] = []
        self._operations = itertools.count(1)

    async def run(self) -> Outcome:
        chance = self._chance
        self._bucket = ArchiveStore(virtual_loop().now_ms, lambda topic, topic_id: True)
        self._settings = segment_settings(chance)
        self._cluster_settings = ClusterSettings(
            session_timeout_ms=1000, bucket_timeout_ms=5000, release_timeout_ms=3000, drain_timeout_ms=2000
        )
        metadata = EtcdModel(virtual_loop().time)
        topics = TopicRegistry(metadata, new_id=lambda: f"{chance.getrandbits(128):032x}", now_ms=lambda: virtual_loop().now_ms())
        brokers = chance.choice((1, 1, 2))
        topic = await topics.create(ORDERS, brokers + chance.randint(0, 2))
        older = self._cluster(metadata, "")
        copied = metadata.copy()  # before the first broker of the older one has begun
        for number in range(brokers):
            older.start(f"b{number + 1}")
        clients = self._clients(older, topic, itertools.count(1))
        writing = [self._write(clients, topic, "", delay_s=chance.choice((0.0, 1.0, 3.0, 4.0)))]
        await asyncio.sleep(chance.choice((0.0, 0.05, 0.1, 0.5, 2.0)))
        if chance.random() < 0.7:
            copied = metadata.copy()
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.1, 1.0)))
        clone = self._cluster(copied, "clone-")
        clone.beside, older.beside = older, clone
        self._note("the clone starts")
        for number in range(chance.choice((1, 1, 2))):
            clone.start(f"b{number + 1}")
        clients_of_clone = self._clients(clone, topic, itertools.count(PRODUCER_IDS_OF_CLONE))
        writing.append(self._write(clients_of_clone, topic, "clone-", delay_s=chance.choice((0.0, 0.5, 3.0))))
        await self._trouble([older, clone])
        for tasks in writing:
            tasks.cancel()
        await asyncio.wait(writing)
        ended = sum(broker.ended for cluster in (older, clone) for broker in cluster.routed)
        for cluster in (older, clone):
            for broker in cluster.processes:
                cluster.kill(broker)
        await asyncio.sleep(ON_THE_WIRE_S_MAX)
        violations = await self._judged(clients, clients_of_clone, topic)
        for task in self._background:
            task.cancel()
        tallies = {
            "clones of metadata": 1,
            "requests acknowledged by the older": clients.acknowledged,
            "requests acknowledged by the clone": clients_of_clone.acknowledged,
            "brokers of two clusters that ended": ended,
        }
        return Outcome(self._seed, violations, list(self._failures), list(self._trace), tallies)

    def _cluster(self, metadata: EtcdModel, prefix: str) -> RouteCluster:
        recorder = Recorder(self._bucket, metadata, KeyLayout())
        site = Site(
            self._seed,
            self._bucket,
            metadata,
            self._settings,
            self._cluster_settings,
            recorder,
            self._trace,
            self._keep_trace,
            self._failures,
        )
        cluster = RouteCluster(site, self._chance, self._note)
        cluster.prefix = prefix
        work = (metadata, recorder, cluster.partitions, cluster.registered)
        self._background += [asyncio.ensure_future(each.run()) for each in work]
        return cluster

    def _clients(self, cluster: RouteCluster, topic: Topic, producer_ids: Iterator[int]) -> RouteClients:
        clients = RouteClients(self._seed, cluster.balanced_routed, lambda name: topic, self._note)
        clients.operations, clients.producer_ids = self._operations, producer_ids
        return clients

    def _write(self, clients: RouteClients, topic: Topic, prefix: str, *, delay_s: float) -> asyncio.Task[None]:
        """Clients that begin after a while: until then their cluster has claimed sessions, and may have written nothing."""
        writers: list[RouteClient] = [
            KeyedClient(clients, f"{prefix}keyed", topic.name),
            SequencedClient(clients, f"{prefix}sequenced", topic.name),
            PlainClient(clients, f"{prefix}plain", topic.name),
        ]

        async def write() -> None:
            await asyncio.sleep(delay_s)
            async with asyncio.TaskGroup() as tasks:
                for writer in writers:
                    tasks.create_task(writer.run())

        return asyncio.ensure_future(write())

    async def _trouble(self, clusters: list[RouteCluster]) -> None:
        chance = self._chance
        until_s = virtual_loop().time() + self._trouble_s
        while virtual_loop().time() < until_s:
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            cluster = chance.choice(clusters)
            broker = cluster.any_routed()
            match chance.choice(("nothing", "kill", "lease", "slow", "again", "again")):
                case "kill":
                    cluster.kill(broker)
                    cluster.start(broker.broker_id)
                case "lease":
                    held = await cluster.site.metadata.get(KeyLayout().broker(broker.broker_id))
                    if held is not None:
                        await cluster.site.metadata.revoke_lease(held.lease)
                case "slow":
                    broker.store.slow_factor = chance.choice((1.0, 10.0, 50.0))
                case "again":
                    for broker_id, ended in list(cluster.slots.items()):
                        if ended.ended:
                            cluster.start(broker_id)
        for cluster in clusters:
            for broker in cluster.routed:
                broker.store.outage, broker.store.slow_factor = Outage.NONE, 1.0

    async def _judged(self, clients: RouteClients, clients_of_clone: RouteClients, topic: Topic) -> list[Violation]:
        contents: BucketContents
        try:
            contents = await read_bucket(self._bucket.archive())
        except AssertionError as error:
            return [Violation(Invariant.UNIQUE, f"what lies on the bucket contradicts itself: {error}")]
        except TidelogError as error:
            return [Violation(Invariant.REACHABLE, str(error))]
        events = [*clients.events, *clients_of_clone.events]
        return check(History(events, contents.log, contents.log, missing=contents.missing, topics={topic.id: topic.name}))

    def _note(self, what: str) -> None:
        if self._keep_trace:
            self._trace.append(f"{virtual_loop().time():12.6f} {what}")
