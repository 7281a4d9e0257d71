"""Compacts what waits in segments on Spark's executors: they make the files, and the driver commits.

    driver      LIST, footers ─▶ what waits ─▶ newest manifests ─▶ units ──────────────┐             create manifests n+1
                                                 ▲                                     │                      ▲
                                                 └──── the next wave, until none waits ─┼──────────────────────┤
    executors                                                                          └▶ segments ─▶ Parquet ─┘ uploaded

The bucket alone is asked. It is compaction's own code that plans, makes and commits, so it may run beside compactors, or twice at
the same moment: of two that made the next manifest one has lost, and plans again. A task that fails, and whatever is killed, leaves
files that no manifest names, which collectors delete. Segments are trimmed by the compactors of the cluster.

Invariant: only the driver creates manifests, and only of files that were read back where they were made.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from compaction.context import CompactionContext
from compaction.conversion.convert_unit import commit_history
from compaction.conversion.planner import CompactionUnit, straddling
from compaction.conversion.unit_files import MadeHistory, MadeUnit, make_history
from compaction.manifest_cache import ManifestCache
from compaction.settings import CompactionSettings
from compaction.wal.scanner import WalBacklog
from metadata.errors import Unavailable
from metadata.model import TopicPartition
from metadata.topics.topic import Topic
from segments.bucket.layout import proof_key
from segments.concurrency import gather_all
from segments.history.manifest import Manifest
from segments.object_store.conditional_put_check import check_conditional_put
from segments.object_store.interface import ObjectStore
from segments.object_store.store_clock import StoreClock
from spark.backfill.mirrored_topics import MirroredTopics
from spark.backfill.plan import plan_wave
from spark.runtime.bucket_thread import BucketThread
from spark.source.options import Topics
from spark.source.topic_catalog import find_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of batches that an executor's core compacts at a time: they lie on its local disk meanwhile.
UNIT_BYTES_MAX: Final = 2 << 30
SETTINGS: Final = CompactionSettings(compaction_threads=1)  # Spark runs a task on each core
# Waves in a row after which nothing was committed: others were faster, or the rest is damaged.
IN_VAIN_MAX: Final = 4
# Manifests that are created at the same time.
COMMITS_MAX: Final = 16
_MANIFESTS_BYTES_MAX: Final = 256 << 20


class MakingTask(NamedTuple):
    """The work of one executor: a compaction unit and what it needs to make the unit's files."""

    bucket: str
    unit: CompactionUnit
    topics: Mapping[TopicPartition, str]
    # Without their files: these are many, and nothing is made of them.
    manifests: Mapping[TopicPartition, Manifest]
    settings: CompactionSettings


# All at once; answers in any order. Raises Unavailable where one of them could not be done.
RunTasks = Callable[[Sequence[MakingTask]], list[MadeUnit]]


@dataclass(slots=True)
class BackfillReport:
    """The result of a backfill: what was compacted, and what stays in segments."""

    # Partitions with at least one compacted batch.
    partitions: int = 0
    records: int = 0
    bytes_read: int = 0
    files: int = 0
    bytes_written: int = 0
    manifests: int = 0
    # Manifests that another compactor created first.
    lost: int = 0
    # Partitions with data left in segments, and the reason.
    damaged: dict[TopicPartition, str] = field(default_factory=dict)
    # Bytes of batches that stay there: behind damage, behind a gap, or because another compactor was always faster.
    bytes_waiting: int = 0


def backfill(
    bucket: str,
    topics: Topics,
    run_tasks: RunTasks,
    *,
    units: int,
    unit_bytes_max: int = UNIT_BYTES_MAX,
    settings: CompactionSettings = SETTINGS,
    report: Callable[[str], None] = lambda line: None,
) -> BackfillReport:
    """Compacts all data of these topics that is still in segments.

    `units`: the number of cores that make files. `report` receives progress lines for people, one wave after the other.

    Raises UnknownTopic, UnknownPartition, InvalidArgument, Denied and Rejected before a task starts; Unavailable where a task or
    the bucket has failed: what was committed until then stays.
    """
    settings = replace(settings, scratch_bytes_max=unit_bytes_max)
    done: set[TopicPartition] = set()
    in_vain = 0
    with BucketThread(bucket) as opened:
        driver = opened.run(lambda store: _Driver.begin(store, topics, settings, opened.clock))
        report(f"{'' if driver.has_read_all else 'at least '}{_mb(driver.bytes_waiting)} of batches wait in segments")
        while in_vain < IN_VAIN_MAX and (planned := driver.plan(units)):
            size_bytes = sum(unit.size_bytes for unit in planned)
            report(f"making Parquet of {_mb(size_bytes)}, in {len(planned)} task{'s' * (len(planned) != 1)}")
            made = run_tasks([driver.task(bucket, unit) for unit in planned])
            committed = opened.run(lambda store, made=made: driver.commit(made, topics))  # type: ignore[misc]  # bound here
            in_vain = 0 if committed else in_vain + 1
            done |= committed
            report(f"partitions that have gone on: {len(committed)}; {_mb(driver.bytes_waiting)} wait still")
    counters = driver.context.counters
    return BackfillReport(
        partitions=len(done),
        records=counters.records,
        bytes_read=counters.bytes_in,
        files=counters.files,
        bytes_written=counters.bytes_out,
        manifests=counters.manifests,
        lost=counters.lost,
        damaged=driver.damaged,
        bytes_waiting=driver.bytes_waiting,
    )


class _Driver:
    """Knows what waits. Its coroutines run in the bucket's thread, one at a time."""

    def __init__(
        self, context: CompactionContext, topics: MirroredTopics, view: WalBacklog, wanted: Mapping[TopicPartition, str]
    ) -> None:
        self.context = context
        self.damaged: dict[TopicPartition, str] = {}
        self._topics = topics
        self._view = view
        self._wanted = wanted
        # The newest known manifest of each partition; files are made from these.
        self._manifests: dict[TopicPartition, Manifest] = {}

    @classmethod
    async def begin(cls, store: ObjectStore, topics: Topics, settings: CompactionSettings, clock: StoreClock) -> _Driver:
        wanted = await find_partitions(store, topics)
        await check_conditional_put(store, proof_key(secrets.token_hex(16)))
        known = MirroredTopics(wanted)
        view = WalBacklog(store, runs_max=settings.pending_runs_max, reads_max=settings.compaction_reads_max)
        driver = cls(_context(store, known, settings, clock), known, view, wanted)
        await driver._poll_wal()
        return driver

    async def _poll_wal(self) -> None:
        """Reads footers for as long as there is room for their runs; what is not wanted, or is history already, takes none."""
        state, room = self._view.state, self.context.settings.pending_runs_max
        while True:
            await self._view.poll(now_ms=_now_ms())
            for where in state.pending.keys() - self._wanted.keys():
                state.put_runs_aside(where)
            await self._read_manifests(set(state.without_floor()))
            if self.has_read_all or state.run_count >= room:
                return

    @property
    def has_read_all(self) -> bool:
        return self._view.has_read_all

    @property
    def bytes_waiting(self) -> int:
        """Returns the bytes of the wanted partitions that stay in segments."""
        return sum(runs.bytes_pending for where, runs in self._view.state.pending.items() if where in self._wanted)

    def plan(self, units: int) -> list[CompactionUnit]:
        state = self._view.state
        self.damaged |= {
            where: str(error) for where, error in (*straddling(state), *state.damaged.items()) if where in self._wanted
        }
        bytes_max = self.context.settings.scratch_bytes_max
        return plan_wave(state, self._manifests.keys(), units=units, unit_bytes_max=bytes_max, blocked=self.damaged)

    def task(self, bucket: str, unit: CompactionUnit) -> MakingTask:
        partitions = [one.partition for one in unit.partitions]
        bare = {
            where: msgspec.structs.replace(self._manifests[where], files=(), retired=(), superseded=(), key_passes=())
            for where in partitions
        }
        return MakingTask(bucket, unit, {where: self._wanted[where] for where in partitions}, bare, self.context.settings)

    async def commit(self, made: Sequence[MadeUnit], topics: Topics) -> set[TopicPartition]:
        """Commits manifests and returns the partitions that advanced. A lost manifest is planned again from the newest one."""
        self._topics.replace(await find_partitions(self.context.store, topics, absent_ok=True))
        committed, lost = set[TopicPartition](), set[TopicPartition]()
        commit_slots = asyncio.Semaphore(COMMITS_MAX)

        async def commit(history: MadeHistory) -> None:
            where = history.partition
            topic = Topic(id=where.topic_id, name=self._wanted[where], partition_count=0, settings={}, created_at_ms=0)
            async with commit_slots:
                won = await commit_history(self.context, self._view.state, topic, self._manifests[where], history)
                if won:
                    newest = await self.context.manifests.newest(topic.name, where)
                    self._manifests[where] = newest
                    self._view.state.advance(newest)  # it is another compactor's by now where the one that won is not in mind
            (committed if won else lost).add(where)

        await gather_all(commit(history) for unit in made for history in unit.histories)
        for unit in made:
            stuck = {where: why for where, why in unit.damaged.items() if where not in lost}
            if unit.gone:  # by another compactor, which has compacted them; or by hand
                lost |= stuck.keys()
                floors = {where: self._manifests[where].version for where in stuck}
                await self._read_manifests(stuck.keys())
                stuck = {where: why for where, why in stuck.items() if self._manifests[where].version == floors[where]}
            self.damaged |= stuck
        await self._read_manifests(lost)
        if not self.has_read_all:
            await self._poll_wal()
        return committed

    async def _read_manifests(self, partitions: Collection[TopicPartition]) -> None:
        """Reads the current manifests. Drops partitions whose topic is gone or whose manifest is damaged."""
        here = {where: self._wanted[where] for where in sorted(partitions) if self.context.topic(where.topic_id) is not None}
        for where in partitions - here.keys():
            self._manifests.pop(where, None)
        for where, found in (await self.context.manifests.read(here)).items():
            if isinstance(found, Manifest):
                self._manifests[where] = found
                self._view.state.advance(found)
            else:
                self.damaged[where] = str(found)


def on_executors(spark: SparkSession) -> RunTasks:
    """Runs each unit as a Spark task, which Spark retries elsewhere if it fails or its executor is lost."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    def run(tasks: Sequence[MakingTask]) -> list[MadeUnit]:
        try:
            return spark.sparkContext.parallelize(tasks, len(tasks)).map(make_files).collect()
        except (Py4JJavaError, PySparkException) as error:
            raise Unavailable(
                f"a task failed on the executors: {_cause(str(error))}",
                hint="What was committed stays; run it again for the rest. Collectors delete the files that nothing names.",
            ) from error

    return run


def make_files(task: MakingTask) -> MadeUnit:
    """Makes the files of one unit. Runs on an executor."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    settings = task.settings if task.settings.scratch_dir else replace(task.settings, scratch_dir=local)
    with BucketThread(task.bucket) as opened:
        return opened.run(
            lambda store: make_history(
                _context(store, MirroredTopics(task.topics), settings, opened.clock), task.unit, task.manifests
            )
        )


def _context(store: ObjectStore, topics: MirroredTopics, settings: CompactionSettings, clock: StoreClock) -> CompactionContext:
    manifests = ManifestCache(store, bytes_max=_MANIFESTS_BYTES_MAX)
    return CompactionContext(
        store, topics, manifests, settings, clock.now_ms, secrets.token_hex, lambda name: True, store_clock=clock
    )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _cause(trace: str) -> str:
    """Returns the innermost cause from a trace that mixes Python and Java."""
    raised = re.findall(r"^(?:\w+\.)+[A-Z]\w+: (.+)$", trace.partition("\n\tat ")[0], re.MULTILINE)
    return str(raised[-1]) if raised else trace.partition("\n")[0]
