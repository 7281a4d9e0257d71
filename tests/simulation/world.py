"""One simulated world: a cluster, its clients, a bucket and a metadata store, and all that can befall them, drawn from one seed.

    0 s ────────────── trouble ──────────────▶ trouble_s ─ what is frozen wakes ─▶ calm ─▶ all settle ─▶ rest ─▶ read back, judge

Up to three brokers share the bucket and the metadata, one of them as controller. While there is trouble (blows.py) they are
killed, frozen, doubled, drained by signal and by command, cut off from their clients, from the metadata or from the bucket, their
wall clocks jump; the bucket is slow, down or lies about outcomes; the metadata store fails, restarts, forgets its history, tells of
changes late, and ends leases early or late; topics grow, go and come again. In half of the worlds one or two compactors
(compactors.py) work beside them, are killed, frozen and doubled as well, and the bucket (archive_store.py) looks at each delete.
Then all is well again, and within CALM_S_MAX everything must be answered, led, in balance, and silent: a cluster at rest writes
nothing. Same seed, same run: the trace tells every request and every answer, and is the same byte for byte.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from gateway.cluster.bucket_isolation import CHECK_INTERVAL_S, PROOFS
from gateway.cluster.settings import ClusterSettings
from gateway.cluster.write_notes import NOTE_INTERVAL_S
from gateway.controller.write_proofs import PROOF_INTERVAL_S
from metadata.errors import TidelogError
from metadata.model import TopicId, TopicPartition
from metadata.store.keys import KeyLayout
from metadata.topics.topic import decode_topic
from segments.settings import SegmentSettings
from tests.simulation.appointments import Recorder
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.blows import PAUSE_S, Blows
from tests.simulation.broken_rules import BrokenRule, in_force
from tests.simulation.broker_process import REQUEST_TIMEOUT_S, BrokerProcess, Site
from tests.simulation.bucket_reader import BucketContents, read_bucket
from tests.simulation.clients import Clients, Reader
from tests.simulation.cluster import BROKERS_MAX, Cluster
from tests.simulation.compactors import Compactors
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.history_checker import Event, History, Invariant, RecordId, Sampled, Violation, check
from tests.simulation.load import Load
from tests.simulation.policies import Policies
from tests.simulation.policy_evidence import PolicyEvidence
from tests.simulation.policy_model import Gone
from tests.simulation.remembered_codecs import remembered_codecs
from tests.simulation.virtual_loop import run, virtual_loop

CALM_S_MAX = 120.0
# Of the metadata in one world, ten times what is usual: what changes more often never comes to rest, and is ended.
CHANGES_MAX = 1000
# After this time even the latest request of the slowest bucket has landed.
ON_THE_WIRE_S_MAX = 36_000.0


class Length(NamedTuple):
    """How long a world lasts, and how close its blows fall."""

    trouble_s: float
    # Between one blow and the next, from … to.
    pause_s: tuple[float, float] = PAUSE_S
    # How long a blow may go on when no other falls any more.
    linger_s: float = math.inf
    # How long no process may write anything, once the cluster has come to rest.
    rest_s: float = 30.0


SHORT = Length(10.0, (0.2, 2.0), linger_s=5.0, rest_s=10.0)
LONG = Length(40.0)
# One of them, by the seed. Most of what can go wrong does so within a few blows, and a short world costs a third of a long one;
# the long ones are there for what needs many blows, or a history.
LENGTHS = (SHORT, SHORT, SHORT, SHORT, SHORT, LONG)


def length_of(seed: int) -> Length:
    return random.Random(f"{seed}/length").choice(LENGTHS)


def is_long(seed: int) -> bool:
    return length_of(seed) is LONG


@dataclass(slots=True)
class Outcome:
    seed: int
    violations: list[Violation] = field(default_factory=list)
    # Brokers that failed by themselves, and what did not come to rest though all was well again.
    failures: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    # What happened in the run, to see that it was worth the while.
    tallies: dict[str, int] = field(default_factory=dict)


def simulate(
    seed: int, *, broken: BrokenRule = BrokenRule.NOTHING, trouble_s: float | None = None, keep_trace: bool = True
) -> Outcome:
    """Runs one world to its end and judges it; with `trouble_s`, not of the length that its seed gives it. Raises Stuck where
    nothing moves any more.
    """
    length = length_of(seed) if trouble_s is None else Length(trouble_s)
    with in_force(broken), remembered_codecs():
        return run(World(seed, length, keep_trace=keep_trace).run(), seed=seed, shuffled=seed % 2 == 1)


class World:
    def __init__(self, seed: int, length: Length, *, keep_trace: bool) -> None:
        self._seed = seed
        self._keep_trace = keep_trace
        self._length = length
        self._chance = random.Random(f"{seed}/world")
        self._trace: list[str] = []
        self._samples: list[Sampled] = []
        self._failures: list[str] = []

    async def run(self) -> Outcome:
        chance = self._chance
        metadata, layout = EtcdModel(virtual_loop().time), KeyLayout()

        def is_registered(topic: str, topic_id: TopicId) -> bool:
            kept = metadata.peek(layout.topic(topic))
            return kept is not None and decode_topic(kept).id == topic_id

        self._bucket = bucket = ArchiveStore(virtual_loop().now_ms, is_registered)
        recorder = Recorder(bucket, metadata, layout)
        settings = ClusterSettings(
            session_timeout_ms=chance.choice((2000, 5000)),
            bucket_timeout_ms=chance.choice((2000, 5000)),
            release_timeout_ms=5000,
            drain_timeout_ms=5000,
        )
        site = Site(
            self._seed, bucket, metadata, _settings(chance), settings, recorder, self._trace, self._keep_trace, self._failures
        )
        self._note(repr(site.settings))
        self._cluster = cluster = Cluster(site, chance, self._note)
        background = [asyncio.ensure_future(work.run()) for work in (metadata, recorder, cluster.partitions, cluster.registered)]
        self._clients = Clients(
            self._seed,
            cluster.route,
            cluster.balanced,
            cluster.epoch_of,
            recorder.removed_early.__contains__,
            self._note,
            self._note_event,
        )
        self._compactors = Compactors(site, self._note)
        bucket.grace_ms = self._compactors.settings.delete_grace_ms
        policies = Policies(self._seed, compacting=self._compactors.count > 0)
        self._clients.with_policies = policies.are_there
        load = Load(self._clients, metadata, chance, policies, self._failures, settle_s=self._length.trouble_s + CALM_S_MAX)
        for number in range(chance.choice((1, 2, BROKERS_MAX, BROKERS_MAX))):
            cluster.start(f"b{number + 1}")
        self._compactors.start()
        living = asyncio.ensure_future(self._live(load, background))
        storm = asyncio.ensure_future(self._storm(metadata))
        await asyncio.wait((living, storm), return_when=asyncio.FIRST_COMPLETED)
        storm.cancel()
        if living.done():
            await asyncio.sleep(ON_THE_WIRE_S_MAX)
            for broker in cluster.processes:
                self._sample(broker)
        else:
            living.cancel()
            await asyncio.wait((living,))
            for broker in cluster.processes:
                cluster.kill(broker)
        self._compactors.kill_all()
        through_brokers = None if living.cancelled() else living.result()
        contents = await read_bucket(bucket.archive())
        policed = PolicyEvidence(bucket, contents, load.lives, self._clients)
        violations = policed.judged(load.deleter)
        if through_brokers is None:
            through_brokers = {str(partition): contents.log.get(str(partition), []) for partition in load.partitions}
        deleted = {str(partition) for partition in load.deleted}
        history = History(
            [*self._clients.events, *self._samples],
            {partition: contents.log.get(partition, []) for partition in sorted({*through_brokers, *deleted})},
            through_brokers,
            contents.hidden,
            contents.missing,
            deleted,
            policed.gone,
        )
        violations += [*check(history), *await recorder.judged(contents.runs)]
        violations += await self._judge_compaction(contents, load, policed.gone)
        tallies = self._tallies(contents, load) | policed.tallies()
        for task in background:
            task.cancel()
        await metadata.close()
        return Outcome(self._seed, violations, list(self._failures), list(self._trace), tallies)

    async def _live(self, load: Load, background: list[asyncio.Task[None]]) -> dict[str, list[tuple[int, RecordId]]]:
        """Trouble, calm, rest and the end of all brokers. Answers what is read through them, by partition."""
        async with asyncio.TaskGroup() as clients:
            await load.begin(clients)
            self._blows = Blows(self._cluster, load, self._chance, self._note)
            raining = clients.create_task(self._compactors.rain())
            await self._blows.rain(self._length.trouble_s, pause_s=self._length.pause_s, linger_s=self._length.linger_s)
            raining.cancel()
            await self._calm_down()
            background.append(asyncio.ensure_future(self._cluster.keep_up()))
            self._clients.finishing = True
            load.stop_reading()
        await self._rest(load)
        background.pop().cancel()
        until_s = virtual_loop().time() + CALM_S_MAX
        through_brokers = {str(partition): await self._read_to_the_end(partition, until_s) for partition in load.partitions}
        self._compactors.kill_all()
        for broker in self._cluster.slots.values():
            held = broker.leadership.budget.bytes_used
            self._samples.append(Sampled(f"bytes that {broker.name} holds though all is quiet", held, 0))
        await self._drain_at_the_end()
        return through_brokers

    async def _calm_down(self) -> None:
        self._note("calm")
        self._cluster.calm_down()
        self._compactors.calm_down()
        await asyncio.sleep(self._chance.choice((0.0, 8.0)))

    async def _storm(self, metadata: EtcdModel) -> None:
        """Returns where the metadata never stop changing: then the world is ended, and what lies on the bucket is judged."""
        while metadata.revision <= CHANGES_MAX:  # noqa: ASYNC110  # a world that ends well has no need to hear of each change
            await asyncio.sleep(0.5)
        self._failures.append(f"the metadata were changed more than {CHANGES_MAX} times")

    async def _rest(self, load: Load) -> None:
        """Waits until everything is led and in balance, and what hung on the bucket has ended; from then on, none may write."""
        began_s = virtual_loop().time()
        until_s = began_s + CALM_S_MAX
        while unrest := self._cluster.unrest(load.partitions):
            if virtual_loop().time() > until_s:
                self._failures += [f"it does not come to rest: {what}" for what in unrest]
                return
            await asyncio.sleep(0.5)
        proofs_s = PROOFS * CHECK_INTERVAL_S + 1.0  # a broker that proves to itself that it can write comes to an end with it
        await asyncio.sleep(max(proofs_s, began_s + REQUEST_TIMEOUT_S + 1.0 - virtual_loop().time()))
        await asyncio.sleep(NOTE_INTERVAL_S + PROOF_INTERVAL_S + 1.0)  # batches of appointments follow the last records
        self._note("rest")
        before = self._cluster.work_done()
        await asyncio.sleep(self._length.rest_s)
        if (done := self._cluster.work_done() - before) > 0:
            self._failures.append(f"{done} writes in {self._length.rest_s:g} s, though all is at rest")

    async def _read_to_the_end(self, partition: TopicPartition, until_s: float) -> list[tuple[int, RecordId]]:
        """Reads a partition until its end or `until_s`, but looks at least once."""
        reader = Reader(self._clients, f"last reader of {partition}", [partition], names_epoch=True)
        records: list[tuple[int, RecordId]] = []
        pause_s = 0.01
        while True:
            for fetched in await reader.poll(self._cluster.leader(partition), bytes_max=50_000, wait_ms_max=0):
                records += fetched.records
                if reader.offsets[partition] >= fetched.high_watermark:
                    return records
            if virtual_loop().time() > until_s:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        self._failures.append(f"{partition} can't be read beyond offset {reader.offsets[partition]}")
        return records

    async def _drain_at_the_end(self) -> None:
        for broker in self._cluster.slots.values():
            broker.stop()
            if not await broker.stopped(timeout_s=CALM_S_MAX):
                self._failures.append(f"{broker.name} does not stop")

    async def _judge_compaction(self, archived: BucketContents, load: Load, gone: Mapping[str, Gone]) -> list[Violation]:
        """reachable and equivalent: `archived` is what all segments together say that there ever were, `gone` what was let go."""
        found = [Violation(Invariant.REACHABLE, evidence) for evidence in self._bucket.wrongly_deleted]
        try:
            present = await read_bucket(self._bucket)
        except TidelogError as error:
            return [*found, Violation(Invariant.REACHABLE, str(error))]
        except AssertionError as error:  # of the reader: history and segments contradict each other
            return [*found, Violation(Invariant.EQUIVALENT, str(error))]
        for partition in map(str, load.partitions):
            before, after = archived.log.get(partition, []), present.log.get(partition, [])
            before = [held for held in before if not gone[partition].is_gone(held[0])]
            if before != after:
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
                evidence = f"record {same} of {partition}: of {len(before)} that segments held, {len(after)} are on the bucket"
                found.append(Violation(Invariant.EQUIVALENT, evidence))
        return found + [Violation(Invariant.REACHABLE, evidence) for evidence in present.missing]

    # ── what is written down ────────────────────────────────────────────────────────────────────────────────────────────

    def _note(self, what: str) -> None:
        if self._keep_trace:
            self._trace.append(f"{virtual_loop().time():12.6f} {what}")

    def _note_event(self, event: Event) -> None:
        if self._keep_trace:
            self._note(repr(event))

    def _sample(self, broker: BrokerProcess) -> None:
        budget = broker.leadership.budget
        self._samples.append(Sampled(f"bytes buffered or in flight at {broker.name}", budget.bytes_used_peak, budget.bytes_max))

    def _tallies(self, contents: BucketContents, load: Load) -> dict[str, int]:
        clients, cluster = self._clients, self._cluster
        states = [state for state, _ in cluster.partitions.states.values()]
        return {
            "records": sum(map(len, contents.log.values())),
            "sessions": contents.sessions,
            "segments": contents.segments,
            "segments after a seal": contents.hidden_segments,
            "seals": contents.seals,
            "seals of the own session": contents.own_seals,
            "brokers": len(cluster.processes),
            "handovers": sum(span.released_at_seq is not None for state in states for span in state.sessions),
            "leader epochs": sum(state.leader_epoch for state in states),
            "zombies woken": cluster.zombies_woken,
            "topics changed": load.topics_changed,
            "acknowledged": clients.acknowledged,
            "repeats answered": clients.duplicates,
            "refused": clients.refused,
            "unknown": clients.unknown,
            "answers to readers without an epoch": clients.fetched_without_epoch,
            "stale epochs refused": clients.stale_epochs,
            "partitions left out of an answer": clients.left_out,
            **self._compactors.tallies(),
            "objects deleted": self._bucket.deletes,
            "virtual seconds": int(virtual_loop().time()),
            **{f"times {name}": count for name, count in sorted(self._blows.fallen.items())},
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
        tail_cache_bytes_max=chance.choice((1, 4000, 50_000)),
        read_cache_bytes_max=chance.choice((1, 4000, 50_000)),
        history_read_bytes_max=50_000,
        index_every_segments=chance.choice((2, 5, 32)),
        footer_reads_max=chance.choice((1, 4)),
    )
