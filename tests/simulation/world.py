"""One simulated world: brokers, clients, a bucket and a metadata store, and all that can befall them, drawn from one seed.

    0 s ────────────── trouble ──────────────▶ trouble_s ─ what is frozen wakes ─▶ calm ─▶ all settle ─▶ read back, and judge

While there is trouble, brokers are killed, frozen, drained and doubled, the bucket is slow, down or lies about outcomes, and the
metadata store fails. Then all is well again, and everything must come to rest within CALM_S_MAX: that the log lives on is looked
at too. Same seed, same run: the trace tells every request and every answer, and is the same byte for byte.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metadata.model import Partition, TopicPartition
from metadata.sqlite_store import SqliteStore
from metadata.topics import Topics
from segments.memory_store import MemoryStore
from segments.settings import SegmentSettings
from tests.faulty_store import CALM, STORMY, Faults, Outage, between
from tests.metadata.faulty_store import unavailable
from tests.simulation.broken_rules import BrokenRule, in_force
from tests.simulation.broker_process import BrokerProcess, Site
from tests.simulation.bucket_reader import BucketContents, read_bucket
from tests.simulation.clients import Clients, Kind, Producer, Reader
from tests.simulation.history_checker import History, RecordId, Sampled, Violation, check
from tests.simulation.virtual_loop import run, virtual_loop

TROUBLE_S = 60.0
BROKERS_AT_ONCE_MAX = 3
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
        self._brokers: list[BrokerProcess] = []
        self._started = 0
        self._zombies_woken = 0
        self._weather = CALM
        self._clients = Clients(seed, self._route, self._note)
        self._samples: list[Sampled] = []
        self._failures: list[str] = []

    async def run(self) -> Outcome:
        bucket = MemoryStore()
        metadata = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        site = Site(self._seed, bucket, metadata, _settings(self._chance), self._trace, self._failures)
        self._note(repr(site.settings))
        topics = Topics(metadata, new_id=lambda: f"{self._chance.getrandbits(128):032x}", now_ms=lambda: virtual_loop().now_ms())
        topic = await topics.create("orders", self._chance.randint(1, 3))
        partitions = [TopicPartition(topic.id, Partition(p)) for p in range(topic.partition_count)]
        self._start_broker(site)
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
        through_brokers = await self._read_to_the_end(partitions)
        last = self._brokers[-1]
        self._samples.append(Sampled(f"bytes that {last.name} holds though all is quiet", last.leadership.budget.bytes_used, 0))
        await self._drain_at_the_end(last)
        contents = await read_bucket(bucket)
        history = History(
            [*self._clients.events, *self._samples],
            {str(partition): contents.log.get(str(partition), []) for partition in partitions},
            through_brokers,
            contents.hidden,
            contents.missing,
        )
        await metadata.close()
        return Outcome(self._seed, check(history), list(self._failures), list(self._trace), self._tallies(contents))

    # Trouble

    async def _trouble(self, site: Site) -> None:
        blows: list[tuple[Callable[[Site], Awaitable[None]], int]] = [
            (self._kill, 4),
            (self._freeze, 4),
            (self._double, 2),
            (self._drain, 1),
            (self._bucket_down, 3),
            (self._weather_changes, 4),
            (self._bucket_slow, 3),
            (self._metadata_fails, 2),
        ]
        deadline_s = virtual_loop().time() + self._trouble_s
        async with asyncio.TaskGroup() as under_way:
            while virtual_loop().time() < deadline_s:
                (blow,) = self._chance.choices([blow for blow, _ in blows], [weight for _, weight in blows])
                self._note(blow.__name__.removeprefix("_").replace("_", " "))
                under_way.create_task(_called(blow, site))
                await asyncio.sleep(self._chance.uniform(0.5, 8.0))

    async def _kill(self, site: Site) -> None:
        victim = self._brokers[-1]
        await self._pile_up(victim)
        self._kill_broker(victim)
        await asyncio.sleep(self._chance.choice((0.0, 0.5, 3.0)))
        self._start_broker(site)

    async def _freeze(self, site: Site) -> None:
        """A zombie: its successor seals its session while it sleeps, and then it goes on as if nothing had happened."""
        zombie = self._brokers[-1]
        await self._pile_up(zombie)
        zombie.freeze(wire_too=self._chance.random() < 0.5)
        self._note(f"{zombie.name} is frozen")
        await asyncio.sleep(self._chance.choice((0.0, 1.0)))
        self._start_broker(site)
        await asyncio.sleep(self._chance.uniform(1.0, 30.0))
        self._wake(zombie)
        await asyncio.sleep(self._chance.uniform(1.0, 20.0))
        self._kill_broker(zombie)

    async def _pile_up(self, broker: BrokerProcess) -> None:
        """Lets several requests be on the wire when the blow falls, so that some land after the seal, and beyond it."""
        if self._chance.random() < 0.8:
            broker.store.slow_factor = self._chance.choice((50.0, 200.0))
            await asyncio.sleep(1.0)
            broker.store.slow_factor = 1.0

    async def _double(self, site: Site) -> None:
        """Two brokers that both believe they lead, until the older one dies."""
        older = self._brokers[-1]
        self._start_broker(site)
        await asyncio.sleep(self._chance.uniform(1.0, 20.0))
        self._kill_broker(older)

    async def _drain(self, site: Site) -> None:
        older = self._brokers[-1]
        older.stop()
        await asyncio.sleep(self._chance.choice((0.0, 2.0)))
        self._start_broker(site)
        await older.stopped(timeout_s=30.0)
        self._kill_broker(older)

    async def _bucket_down(self, site: Site) -> None:
        kind = self._chance.choice((Outage.REFUSES, Outage.HANGS, Outage.ERRORS))
        cut_off = list(self._brokers) if self._chance.random() < 0.7 else self._brokers[-1:]
        for broker in cut_off:
            broker.store.outage = kind
        await asyncio.sleep(self._chance.choice((0.5, 3.0, 12.0)))
        for broker in cut_off:
            broker.store.outage = Outage.NONE

    async def _weather_changes(self, site: Site) -> None:
        self._set_weather(self._chance.choice((CALM, STORMY, LOSSY, SLOW, Faults(error_503=0.7), Faults(conflict_409=0.5))))

    async def _bucket_slow(self, site: Site) -> None:
        slow = self._brokers[-1]
        slow.store.slow_factor = self._chance.choice((10.0, 50.0, 300.0))
        await asyncio.sleep(self._chance.uniform(1.0, 10.0))
        slow.store.slow_factor = 1.0

    async def _metadata_fails(self, site: Site) -> None:
        broker = self._brokers[-1]
        broker.metadata.lose_answers = self._chance.randint(0, 1)
        broker.metadata.lose_requests = self._chance.randint(0, 1)
        broker.metadata.down = unavailable() if self._chance.random() < 0.5 else None
        await asyncio.sleep(self._chance.uniform(1.0, 10.0))
        broker.metadata.down = None

    # Calm

    async def _calm_down(self, site: Site) -> None:
        self._note("calm")
        self._set_weather(CALM)
        for broker in self._brokers:
            broker.store.outage = Outage.NONE
            broker.store.slow_factor = 1.0
            self._wake(broker)
        await asyncio.sleep(self._chance.choice((0.0, 20.0)))
        self._start_broker(site)
        await asyncio.sleep(self._chance.choice((0.0, 5.0)))
        for broker in self._brokers[:-1]:
            self._kill_broker(broker)
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

    async def _read_to_the_end(self, partitions: Sequence[TopicPartition]) -> dict[str, list[tuple[int, RecordId]]]:
        reader = Reader(self._clients, "last reader", partitions)
        records: dict[str, list[tuple[int, RecordId]]] = {str(partition): [] for partition in partitions}
        ends: dict[str, int] = {}
        deadline_s = virtual_loop().time() + CALM_S_MAX
        while virtual_loop().time() < deadline_s:
            for fetched in await reader.poll(self._brokers[-1], bytes_max=50_000, wait_ms_max=0):
                records[fetched.partition] += fetched.records
                ends[fetched.partition] = fetched.high_watermark
            unread = [partition for partition, offset in reader.offsets.items() if offset < ends.get(str(partition), offset + 1)]
            if not unread:
                return records
        self._failures.append(
            f"not read to the end: {', '.join(f'{partition} at {reader.offsets[partition]}' for partition in unread)}"
        )
        return records

    async def _drain_at_the_end(self, last: BrokerProcess) -> None:
        last.stop()
        if not await last.stopped(timeout_s=CALM_S_MAX):
            self._failures.append(f"{last.name} does not stop")
        await asyncio.sleep(ON_THE_WIRE_S_MAX)
        for broker in self._brokers:
            self._sample(broker)

    # Brokers

    def _start_broker(self, site: Site) -> None:
        self._started += 1
        broker = BrokerProcess(f"broker{self._started}", site, faults=self._weather)
        self._note(f"{broker.name} starts")
        self._brokers.append(broker)
        alive = [broker for broker in self._brokers if broker.alive]
        for oldest in alive[:-BROKERS_AT_ONCE_MAX]:
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
        for broker in self._brokers:
            broker.store.faults = weather

    def _route(self, chance: random.Random) -> BrokerProcess:
        if chance.random() < 0.9:
            return self._brokers[-1]
        return chance.choice(self._brokers[-BROKERS_AT_ONCE_MAX:])

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
            "brokers": self._started,
            "zombies woken": self._zombies_woken,
            "acknowledged": clients.acknowledged,
            "repeats answered": clients.duplicates,
            "refused": clients.refused,
            "unknown": clients.unknown,
            "partitions left out of an answer": clients.left_out,
            "virtual seconds": int(virtual_loop().time()),
        }


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
        footer_reads_max=chance.choice((1, 4)),
    )


async def _called(blow: Callable[[Site], Awaitable[None]], site: Site) -> None:
    await blow(site)
