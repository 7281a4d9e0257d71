"""One simulated world: a cluster, its clients, a bucket and a metadata store, and all that can befall them, drawn from one seed.

    0 s ────────────── trouble ──────────────▶ trouble_s ─ what is frozen wakes ─▶ calm ─▶ all settle ─▶ read back, and judge

Up to three brokers share the bucket and the metadata, one of them as controller. While there is trouble they are killed, frozen,
drained and doubled, cut off from the metadata or from the bucket, their wall clocks jump; the bucket is slow, down or lies about
outcomes; the metadata store fails, restarts, tells of changes late, and ends leases early. Then all is well again, and everything
must come to rest within CALM_S_MAX: that the log lives on is looked at too. Same seed, same run: the trace tells every request and
every answer, and is the same byte for byte.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.cluster_settings import ClusterSettings
from metadata.etcd_layout import EtcdLayout
from metadata.model import Partition, TopicPartition
from metadata.partition_cache import PartitionCache
from metadata.sqlite_store import SqliteStore
from metadata.topics import Topics
from segments.memory_store import MemoryStore
from segments.settings import SegmentSettings
from tests.faulty_store import CALM, STORMY, Faults, Outage, between
from tests.simulation.broken_rules import BrokenRule, in_force
from tests.simulation.broker_process import BrokerProcess, Site
from tests.simulation.bucket_reader import BucketContents, read_bucket
from tests.simulation.clients import Clients, Kind, Producer, Reader
from tests.simulation.history_checker import History, RecordId, Sampled, Violation, check
from tests.simulation.virtual_loop import run, virtual_loop

TROUBLE_S = 60.0
BROKERS_MAX = 3
ZOMBIES_MAX = 2
CALM_S_MAX = 120.0
ON_THE_WIRE_S_MAX = 36_000.0
"""After so long even the latest request of the slowest bucket has landed."""
LOSSY = Faults(answer_lost=0.3, request_lost=0.1, late=0.2, lands_after_cancel=0.9)
SLOW = Faults(request_s=between(0.5, 3.0), answer_s=between(0.2, 2.0), late=0.1, late_s=between(5.0, 60.0))


@dataclass(slots=True)
class Outcome:
    seed: int
    violations: list[Violation] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Brokers that failed by themselves, and what did not come to rest though all was well again."""
    trace: list[str] = field(default_factory=list)
    tallies: dict[str, int] = field(default_factory=dict)
    """What happened in the run, to see that it was worth the while."""


def simulate(seed: int, *, broken: BrokenRule = BrokenRule.NOTHING, trouble_s: float = TROUBLE_S) -> Outcome:
    """Runs one world to its end and judges it. Raises Stuck where nothing moves any more."""
    with in_force(broken):
        return run(World(seed, trouble_s).run(), seed=seed, shuffled=seed % 2 == 1)


class World:
    def __init__(self, seed: int, trouble_s: float) -> None:
        self._seed = seed
        self._trouble_s = trouble_s
        self._chance = random.Random(f"{seed}/world")
        self._trace: list[str] = []
        self._processes: list[BrokerProcess] = []
        self._slots: dict[str, BrokerProcess] = {}
        """By broker id, the process that runs under it, or ran last."""
        self._zombies_woken = 0
        self._weather = CALM
        self._clients = Clients(seed, self._route, self._note)
        self._samples: list[Sampled] = []
        self._failures: list[str] = []

    async def run(self) -> Outcome:
        bucket = MemoryStore()
        metadata = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        housekeeping = asyncio.ensure_future(metadata.run())
        cluster = ClusterSettings(
            session_timeout_ms=self._chance.choice((2000, 5000)), release_timeout_ms=5000, drain_timeout_ms=5000
        )
        site = Site(self._seed, bucket, metadata, _settings(self._chance), cluster, self._trace, self._failures)
        self._note(repr(site.settings))
        self._truth = PartitionCache(metadata, EtcdLayout())
        following = asyncio.ensure_future(self._truth.run())
        topics = Topics(metadata, new_id=lambda: f"{self._chance.getrandbits(128):032x}", now_ms=lambda: virtual_loop().now_ms())
        topic = await topics.create("orders", self._chance.randint(1, 4))
        partitions = [TopicPartition(topic.id, Partition(p)) for p in range(topic.partition_count)]
        for number in range(self._chance.randint(1, BROKERS_MAX)):
            self._start_broker(site, f"b{number + 1}")
        async with asyncio.TaskGroup() as readers:
            of_one = [Reader(self._clients, f"reader{n}", [self._chance.choice(partitions)]) for n in range(3)]
            reading = [
                readers.create_task(reader.run()) for reader in (*of_one, Reader(self._clients, "reader of all", partitions))
            ]
            async with asyncio.TaskGroup() as producers:
                for n, kind in enumerate([Kind.IDEMPOTENT] * 3 + [Kind.KEYED, Kind.PLAIN, Kind.PLAIN]):
                    producer = Producer(self._clients, f"{kind.value}{n}", self._chance.choice(partitions), kind)
                    producers.create_task(self._settles(f"{kind.value}{n}", producer.run()))
                await self._trouble(site)
                await self._calm_down(site)
            for reader in reading:
                reader.cancel()
        through_brokers = {str(partition): await self._read_to_the_end(partition) for partition in partitions}
        for broker in self._slots.values():
            held = broker.leadership.budget.bytes_used
            self._samples.append(Sampled(f"bytes that {broker.name} holds though all is quiet", held, 0))
        await self._drain_at_the_end()
        contents = await read_bucket(bucket)
        history = History(
            [*self._clients.events, *self._samples],
            {str(partition): contents.log.get(str(partition), []) for partition in partitions},
            through_brokers,
            contents.hidden,
            contents.missing,
        )
        housekeeping.cancel()
        following.cancel()
        await metadata.close()
        return Outcome(self._seed, check(history), list(self._failures), list(self._trace), self._tallies(contents))

    # Trouble

    async def _trouble(self, site: Site) -> None:
        blows: list[tuple[Callable[[Site], Awaitable[None]], int]] = [
            (self._kill, 4),
            (self._freeze, 4),
            (self._double, 1),
            (self._drain, 2),
            (self._comes_back, 3),
            (self._bucket_down, 2),
            (self._cut_from_bucket, 2),
            (self._cut_from_metadata, 3),
            (self._metadata_restarts, 1),
            (self._metadata_slow, 2),
            (self._metadata_loses_answers, 2),
            (self._lease_ends_early, 2),
            (self._clock_jumps, 1),
            (self._weather_changes, 4),
            (self._bucket_slow, 3),
        ]
        deadline_s = virtual_loop().time() + self._trouble_s
        async with asyncio.TaskGroup() as under_way:
            while virtual_loop().time() < deadline_s:
                (blow,) = self._chance.choices([blow for blow, _ in blows], [weight for _, weight in blows])
                self._note(blow.__name__.removeprefix("_").replace("_", " "))
                under_way.create_task(_called(blow, site))
                await asyncio.sleep(self._chance.uniform(0.5, 8.0))

    def _victim(self) -> BrokerProcess:
        return self._chance.choice(list(self._slots.values()))

    async def _kill(self, site: Site) -> None:
        victim = self._victim()
        await self._pile_up(victim)
        self._kill_broker(victim)
        await asyncio.sleep(self._chance.choice((0.0, 0.5, 10.0)))
        self._start_broker(site, victim.broker_id)

    async def _freeze(self, site: Site) -> None:
        """A zombie: its session is sealed while it sleeps, and then it goes on as if nothing had happened."""
        zombie = self._victim()
        await self._pile_up(zombie)
        zombie.freeze(wire_too=self._chance.random() < 0.5)
        self._note(f"{zombie.name} is frozen")
        if self._chance.random() < 0.5:
            self._start_broker(site, zombie.broker_id)
        await asyncio.sleep(self._chance.uniform(1.0, 30.0))
        self._wake(zombie)

    async def _pile_up(self, broker: BrokerProcess) -> None:
        """Lets several requests be on the wire when the blow falls, so that some land after the seal, and beyond it."""
        if self._chance.random() < 0.8:
            broker.store.slow_factor = self._chance.choice((50.0, 200.0))
            await asyncio.sleep(1.0)
            broker.store.slow_factor = 1.0

    async def _double(self, site: Site) -> None:
        """Two processes under one broker id, until the older one dies or gives way."""
        older = self._victim()
        self._start_broker(site, older.broker_id)
        await asyncio.sleep(self._chance.uniform(1.0, 20.0))
        self._kill_broker(older)

    async def _drain(self, site: Site) -> None:
        older = self._victim()
        older.stop()
        await older.stopped(timeout_s=self._chance.choice((1.0, 30.0)))
        self._kill_broker(older)
        await asyncio.sleep(self._chance.choice((0.0, 2.0, 10.0)))
        self._start_broker(site, older.broker_id)

    async def _comes_back(self, site: Site) -> None:
        """A broker that joins the others, or one that had ended by itself."""
        for number in range(BROKERS_MAX):
            broker_id = f"b{number + 1}"
            if broker_id not in self._slots or self._slots[broker_id].ended:
                self._start_broker(site, broker_id)
                return

    async def _bucket_down(self, site: Site) -> None:
        await self._bucket_out_for(list(self._processes))

    async def _cut_from_bucket(self, site: Site) -> None:
        await self._bucket_out_for([self._victim()])

    async def _bucket_out_for(self, brokers: list[BrokerProcess]) -> None:
        kind = self._chance.choice((Outage.REFUSES, Outage.HANGS, Outage.ERRORS))
        for broker in brokers:
            broker.store.outage = kind
        await asyncio.sleep(self._chance.choice((0.5, 3.0, 12.0)))
        for broker in brokers:
            broker.store.outage = Outage.NONE

    async def _cut_from_metadata(self, site: Site) -> None:
        cut_off = self._victim()
        cut_off.metadata.cut()
        await asyncio.sleep(self._chance.choice((0.5, 3.0, 12.0)))
        cut_off.metadata.mend()

    async def _metadata_restarts(self, site: Site) -> None:
        cut_off = list(self._processes)
        for broker in cut_off:
            broker.metadata.cut()
        await asyncio.sleep(self._chance.choice((0.5, 3.0)))
        for broker in cut_off:
            broker.metadata.mend()

    async def _metadata_slow(self, site: Site) -> None:
        slow = self._victim()
        slow.metadata.latency_s, slow.metadata.watch_delay_s = self._chance.choice(((0.5, 0.0), (0.01, 3.0), (0.2, 1.0)))
        await asyncio.sleep(self._chance.uniform(1.0, 20.0))
        slow.metadata.latency_s, slow.metadata.watch_delay_s = 0.001, 0.0

    async def _metadata_loses_answers(self, site: Site) -> None:
        deaf = self._victim()
        deaf.metadata.answer_lost = self._chance.choice((0.1, 0.5))
        await asyncio.sleep(self._chance.uniform(1.0, 10.0))
        deaf.metadata.answer_lost = 0.0

    async def _lease_ends_early(self, site: Site) -> None:
        leases = [item.lease for item in (await site.metadata.range(EtcdLayout().brokers)).items]
        if leases:
            await site.metadata.revoke_lease(self._chance.choice(leases))

    async def _clock_jumps(self, site: Site) -> None:
        self._victim().clock_skew_ms += self._chance.choice((-60_000, 60_000))

    async def _weather_changes(self, site: Site) -> None:
        self._set_weather(self._chance.choice((CALM, STORMY, LOSSY, SLOW, Faults(error_503=0.7), Faults(conflict_409=0.5))))

    async def _bucket_slow(self, site: Site) -> None:
        slow = self._victim()
        slow.store.slow_factor = self._chance.choice((10.0, 50.0, 300.0))
        await asyncio.sleep(self._chance.uniform(1.0, 10.0))
        slow.store.slow_factor = 1.0

    # Calm

    async def _calm_down(self, site: Site) -> None:
        self._note("calm")
        self._set_weather(CALM)
        for broker in self._processes:
            broker.store.outage = Outage.NONE
            broker.store.slow_factor = 1.0
            broker.metadata.mend()
            broker.metadata.latency_s, broker.metadata.watch_delay_s, broker.metadata.answer_lost = 0.001, 0.0, 0.0
            self._wake(broker)
        await asyncio.sleep(self._chance.choice((0.0, 20.0)))
        for broker in self._processes:
            if broker is not self._slots[broker.broker_id]:
                self._kill_broker(broker)
        for broker_id, broker in list(self._slots.items()):
            if broker.ended:
                self._start_broker(site, broker_id)
        self._clients.finishing = True

    async def _settles(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A producer has CALM_S_MAX from the end of the trouble on."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task,), timeout=self._trouble_s + CALM_S_MAX)
            if task.done():
                await task
            else:
                self._failures.append(f"{name} still has no answer")
        finally:
            task.cancel()

    async def _read_to_the_end(self, partition: TopicPartition) -> list[tuple[int, RecordId]]:
        reader = Reader(self._clients, f"last reader of {partition.partition}", [partition])
        records: list[tuple[int, RecordId]] = []
        deadline_s = virtual_loop().time() + CALM_S_MAX
        while virtual_loop().time() < deadline_s:
            for fetched in await reader.poll(self._leader(partition), bytes_max=50_000, wait_ms_max=0):
                records += fetched.records
                if reader.offsets[partition] >= fetched.high_watermark:
                    return records
            await asyncio.sleep(0.01)
        self._failures.append(f"{partition} can't be read beyond offset {reader.offsets[partition]}")
        return records

    async def _drain_at_the_end(self) -> None:
        for broker in self._slots.values():
            broker.stop()
            if not await broker.stopped(timeout_s=CALM_S_MAX):
                self._failures.append(f"{broker.name} does not stop")
        await asyncio.sleep(ON_THE_WIRE_S_MAX)
        for broker in self._processes:
            self._sample(broker)

    # Brokers

    def _start_broker(self, site: Site, broker_id: str) -> None:
        name = f"{broker_id}.{len(self._processes) + 1}"
        broker = BrokerProcess(name, site, broker_id=broker_id, rack=f"rack-{broker_id}", faults=self._weather)
        self._note(f"{name} starts")
        self._processes.append(broker)
        self._slots[broker_id] = broker
        alive = [broker for broker in self._processes if broker.alive and broker is not self._slots[broker.broker_id]]
        for oldest in alive[:-ZOMBIES_MAX]:
            self._kill_broker(oldest)

    def _kill_broker(self, broker: BrokerProcess) -> None:
        if broker.alive:
            self._note(f"{broker.name} is killed")
            broker.kill()
            broker.store.outage = Outage.NONE
            broker.store.thaw()

    def _wake(self, broker: BrokerProcess) -> None:
        if broker.frozen and broker.alive:
            self._note(f"{broker.name} wakes")
            self._zombies_woken += 1
            broker.thaw()

    def _set_weather(self, weather: Faults) -> None:
        self._weather = weather
        for broker in self._processes:
            broker.store.faults = weather

    def _leader(self, partition: TopicPartition) -> BrokerProcess:
        """The broker that the metadata name; any where they name none that runs."""
        state = self._truth.get(partition)
        if state is not None:
            for broker in self._processes:
                if broker.alive and broker.leadership.session == state.leader_session:
                    return broker
        return next(reversed(self._slots.values()))

    def _route(self, chance: random.Random, partition: TopicPartition) -> BrokerProcess:
        if chance.random() < 0.8:
            return self._leader(partition)
        return chance.choice(self._processes[-2 * BROKERS_MAX :])

    # What is written down

    def _note(self, what: str) -> None:
        self._trace.append(f"{virtual_loop().time():12.6f} {what}")

    def _sample(self, broker: BrokerProcess) -> None:
        budget = broker.leadership.budget
        self._samples.append(Sampled(f"bytes buffered or in flight at {broker.name}", budget.bytes_used_peak, budget.bytes_max))

    def _tallies(self, contents: BucketContents) -> dict[str, int]:
        clients = self._clients
        return {
            "records": sum(map(len, contents.log.values())),
            "sessions": contents.sessions,
            "segments": contents.segments,
            "segments after a seal": contents.hidden_segments,
            "seals": contents.seals,
            "seals of the own session": contents.own_seals,
            "brokers": len(self._processes),
            "handovers": self._handovers(),
            "leader epochs": self._epochs(),
            "zombies woken": self._zombies_woken,
            "acknowledged": clients.acknowledged,
            "repeats answered": clients.duplicates,
            "refused": clients.refused,
            "unknown": clients.unknown,
            "partitions left out of an answer": clients.left_out,
            "virtual seconds": int(virtual_loop().time()),
        }

    def _epochs(self) -> int:
        return sum(state.leader_epoch for state, _ in self._truth.states.values())

    def _handovers(self) -> int:
        return sum(span.released_at_seq is not None for state, _ in self._truth.states.values() for span in state.sessions)


def _settings(chance: random.Random) -> SegmentSettings:
    """Small enough that every bound is met within a minute."""
    segment_bytes_max = chance.choice((1500, 4000, 20_000))
    return SegmentSettings(
        segment_bytes_max=segment_bytes_max,
        linger_ms=chance.choice((0, 5, 100, 250)),
        puts_per_second_max=chance.choice((0, 5, 20)),
        puts_in_flight_max=chance.choice((1, 2, 4, 4)),
        put_timeout_ms=chance.choice((1000, 3000)),
        put_deadline_ms=chance.choice((2000, 5000, 8000)),
        hedge_after_ms=chance.choice((50, 300, 1500)),
        retry_pause_ms=20,
        retry_pause_ms_max=500,
        buffer_bytes_max=segment_bytes_max * chance.choice((2, 5)) + 8000,
        hot_pool_bytes_max=chance.choice((1, 4000, 50_000)),
        cold_pool_bytes_max=chance.choice((1, 4000, 50_000)),
        catch_up_bytes_max=50_000,
        index_every_segments=chance.choice((2, 5, 32)),
        footer_reads_max=chance.choice((1, 4)),
    )


async def _called(blow: Callable[[Site], Awaitable[None]], site: Site) -> None:
    await blow(site)
