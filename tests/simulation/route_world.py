"""One simulated world of routes: clients ask any broker, while views of topics lag and links between brokers fail.

    0 s ──────────── trouble ───────────▶ trouble_s ─ calm ─▶ all requests are decided ─▶ streams reach the ends ─▶ judge

Two or three brokers of routed_broker.py share a bucket and a metadata store. Each hears of topics later than of partitions, by a
time of its own. Topics grow, and one is deleted and made again, while requests are repeated through other brokers, and streams
read a whole topic. Same seed, same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Iterator
from unittest.mock import patch

from gateway.cluster.settings import ClusterSettings
from metadata.errors import TidelogError
from metadata.model import TopicPartition
from metadata.store.keys import KeyLayout
from segments.log.session_log import SessionLog
from tests.simulation.appointments import Recorder
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.broker_process import Site
from tests.simulation.bucket_reader import read_bucket
from tests.simulation.clone_world import CloneWorld
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.history_checker import History, Invariant, Violation, check
from tests.simulation.route_access import RouteAccess
from tests.simulation.route_blows import ACCESS_LAGS_S, TOPIC_LAGS_S, RouteBlows
from tests.simulation.route_broken_rules import BrokenRouteRule, in_force
from tests.simulation.route_clients import RouteClients
from tests.simulation.route_cluster import RouteCluster, segment_settings
from tests.simulation.route_load import ORDERS, RouteLoad
from tests.simulation.virtual_loop import run, virtual_loop
from tests.simulation.world import Outcome

TROUBLE_S = 5.0
# In so many worlds the metadata exist twice (clone_world.py).
CLONES = 0.2
# In so many of the others brokers ask for credentials (route_access.py).
ACCESS = 0.35
# In so many of those without a copy some clients speak Kafka's protocol (kafka_clients.py).
KAFKA = 0.4
# Between one blow and the next, from … to.
PAUSE_S = (0.1, 1.0)
CALM_S_MAX = 60.0
# Until streams have delivered all, once every request is decided.
STREAMS_S_MAX = 25.0
# After this time even the latest request to the bucket has landed.
ON_THE_WIRE_S_MAX = 3_600.0


def simulate_routes(
    seed: int,
    *,
    broken: BrokenRouteRule = BrokenRouteRule.NOTHING,
    trouble_s: float | None = None,
    keep_trace: bool = True,
) -> Outcome:
    """Runs one world to its end and judges it. Raises Stuck where nothing moves any more."""
    has_clone = random.Random(f"{seed}/clone").random() < CLONES
    kind = CloneWorld if has_clone else RouteWorld
    world = kind(seed, TROUBLE_S if trouble_s is None else trouble_s, keep_trace=keep_trace)
    with in_force(broken), _virtual_clocks(), _drawn_session_ids(seed):
        return run(world.run(), seed=seed, shuffled=seed % 2 == 1)


@contextlib.contextmanager
def _virtual_clocks() -> Iterator[None]:
    """The listeners date records by the wall clock, and share the event loop by the monotonic one."""
    with (
        patch.object(time, "time_ns", lambda: virtual_loop().now_ms() * 1_000_000),
        patch.object(time, "monotonic", lambda: virtual_loop().time()),
    ):
        yield


def _drawn_session_ids(seed: int) -> contextlib.AbstractContextManager[object]:
    """The ids of Kafka's fetch sessions come from the seed."""
    return patch.object(secrets, "randbelow", random.Random(f"{seed}/fetch sessions").randrange)


class RouteWorld:
    def __init__(self, seed: int, trouble_s: float, *, keep_trace: bool) -> None:
        self._seed = seed
        self._trouble_s = trouble_s
        self._keep_trace = keep_trace
        self._chance = random.Random(f"{seed}/routes")
        self._trace: list[str] = []
        self._failures: list[str] = []
        self._access: RouteAccess | None = None
        self._unserved: list[Violation] = []

    async def run(self) -> Outcome:
        chance = self._chance
        metadata, layout = EtcdModel(virtual_loop().time), KeyLayout()
        bucket = ArchiveStore(virtual_loop().now_ms, lambda topic, topic_id: True)
        recorder = Recorder(bucket, metadata, layout)
        settings = ClusterSettings(
            session_timeout_ms=chance.choice((1000, 3000)),
            bucket_timeout_ms=5000,
            release_timeout_ms=3000,
            drain_timeout_ms=2000,
        )
        site = Site(
            self._seed,
            bucket,
            metadata,
            segment_settings(chance),
            settings,
            recorder,
            self._trace,
            self._keep_trace,
            self._failures,
        )
        self._note(repr(site.settings))
        self._cluster = cluster = RouteCluster(site, chance, self._note)
        background = [asyncio.ensure_future(work.run()) for work in (metadata, recorder, cluster.partitions, cluster.registered)]
        self._clients = clients = RouteClients(
            self._seed, cluster.balanced_routed, lambda name: self._load.held.get(name), self._note
        )
        access_chance = random.Random(f"{self._seed}/keyring")
        if access_chance.random() < ACCESS:
            self._access = RouteAccess(self._seed, metadata, cluster, ORDERS)
            cluster.access = self._access.terms
            clients.shown = await self._access.begin()
        cluster.serves_kafka = random.Random(f"{self._seed}/kafka").random() < KAFKA
        settle_s = self._trouble_s + CALM_S_MAX
        kafka_at = cluster.at_address if cluster.serves_kafka else None
        self._load = load = RouteLoad(clients, metadata, chance, failures=self._failures, settle_s=settle_s, kafka_at=kafka_at)
        for number in range(chance.choice((2, 2, 3))):
            cluster.start(f"b{number + 1}")
        for broker in cluster.routed:
            broker.lag_behind_topics(chance.choice(TOPIC_LAGS_S))
            broker.lag_behind_access(access_chance.choice(ACCESS_LAGS_S))
        await self._live(background)
        await asyncio.sleep(ON_THE_WIRE_S_MAX)
        contents = await read_bucket(bucket.archive())
        deleted = set(map(str, load.deleted))
        history = History(
            clients.events,
            contents.log,
            contents.log,
            missing=contents.missing,
            deleted=deleted,
            topics=load.names,
            subscribed={stream.name: [str(partition) for partition in load.partitions_of(ORDERS)] for stream in load.streams},
        )
        violations = check(history)
        violations += [Violation(Invariant.TRUTHFUL, denied) for denied in clients.denied]
        violations += [
            Violation(Invariant.AUTHORIZED, f"a key that holds was refused: {reported}") for reported in clients.turned_away
        ]
        if self._access is not None:
            violations += [*self._access.judged(contents), *self._unserved]
        for task in background:
            task.cancel()
        await metadata.close()
        tallies = {
            "requests acknowledged": clients.acknowledged,
            "requests refused": clients.refused,
            "requests of unknown outcome": clients.unknown,
            "acknowledged requests repeated": clients.repeats,
            "streams begun": sum(stream.begun for stream in load.streams),
            "routed records": sum(map(len, contents.log.values())),
            "topics changed under routes": load.topics_changed,
            **(_kafka_tallies(clients) if cluster.serves_kafka else {}),
            **(self._access.tallies if self._access is not None else {}),
            **{f"times {name} under routes": count for name, count in sorted(self._blows.fallen.items())},
        }
        return Outcome(self._seed, violations, list(self._failures), list(self._trace), tallies)

    async def _live(self, background: list[asyncio.Task[None]]) -> None:
        cluster = self._cluster
        guests: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as tasks:
            await self._load.begin(tasks)
            if self._access is not None:
                guests = self._access.guests(tasks, self._clients)
            self._blows = RouteBlows(cluster, self._load, self._chance, self._note)
            await asyncio.sleep(self._chance.choice((0.0, 1.0)))
            await self._blows.rain(self._trouble_s, pause_s=PAUSE_S, linger_s=2.0)
            self._note("calm")
            cluster.calm_down()
            keeping_up = asyncio.ensure_future(cluster.keep_up())
            self._clients.finishing = True
            for guest in guests:
                guest.cancel()
        if self._access is not None:
            self._unserved = await self._access.unserved(self._clients)
        await self._read_to_the_ends()
        keeping_up.cancel()
        self._load.stop_streams()
        for broker in cluster.slots.values():
            broker.stop()
        for broker in cluster.slots.values():
            if not await broker.stopped(timeout_s=CALM_S_MAX):
                self._failures.append(f"{broker.name} does not stop")

    async def _read_to_the_ends(self) -> None:
        """Waits until no broker holds a batch, and all streams have delivered what is committed.

        A batch whose client gave up may still be forwarded, and is committed later. The judge finds what streams miss by
        STREAMS_S_MAX.
        """
        until_s = virtual_loop().time() + STREAMS_S_MAX
        while virtual_loop().time() < until_s:
            # First: a batch that is committed between the two would be in neither.
            holds_batches = any(broker.leadership.budget.bytes_used for broker in self._cluster.slots.values())
            ends = [(partition, await self._end(partition)) for partition in self._load.partitions_of(ORDERS)]
            if not holds_batches and all(
                end is not None and stream.positions.get(partition.partition, 0) >= end
                for stream in self._load.streams
                for partition, end in ends
            ):
                return
            await asyncio.sleep(0.5)

    async def _end(self, partition: TopicPartition) -> int | None:
        """The high watermark; None where no broker answers."""

        async def bounds(log: SessionLog) -> int:
            [found] = await log.reads.bounds_of([partition])
            if isinstance(found, TidelogError):
                raise found
            return found.high_watermark

        try:
            return await self._cluster.leader(partition).call(bounds, latency_s=0.001, timeout_s=2.0, hang_up=True)
        except TidelogError:
            return None

    def _note(self, what: str) -> None:
        if self._keep_trace:
            self._trace.append(f"{virtual_loop().time():12.6f} {what}")


def _kafka_tallies(clients: RouteClients) -> dict[str, int]:
    return {
        "batches of Kafka producers acknowledged": clients.kafka_acknowledged,
        "batches of Kafka producers without an answer": clients.kafka_unanswered,
        "epochs raised by Kafka producers": clients.kafka_epochs_raised,
        "partitions read from a broker of the reader's rack": clients.kafka_sent_to_rack,
    }
