"""A compactor of the simulation: the real loop as one process that can freeze, thaw and die, with a wire of its own to the bucket.

It shares nothing with brokers but the bucket and the metadata, as `tidelog compact` does. What it waits for is short, so that
segments are compacted, trimmed and deleted, and files merged and collected, while brokers die and readers read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from compaction.compactor import Compactor
from compaction.context import CompactionContext
from compaction.manifest_cache import ManifestCache
from compaction.notifier import ManifestNotifier
from compaction.settings import CompactionSettings
from compaction.work_sharing import CompactorMembership
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.model import SessionId
from metadata.store.keys import KeyLayout
from metadata.topics.cache import TopicCache
from segments.object_store.decorator import ObjectStoreDecorator, Operation
from segments.object_store.interface import ObjectStore
from segments.object_store.store_clock import StoreClock
from segments.object_store.timeout import TimeoutObjectStore
from tests.kit.faulty_store import Faults, FaultyStore
from tests.simulation.appointments import Writer
from tests.simulation.broker_process import REQUEST_TIMEOUT_S, Site
from tests.simulation.metadata_wire import MetadataWire
from tests.simulation.simulated_process import BucketProcess
from tests.simulation.virtual_loop import virtual_loop

DAY_MS: Final = 86_400_000
_Answer = TypeVar("_Answer")


class _Dated(ObjectStoreDecorator):
    """Passes the time of each answer of `store` to the clock, as the answers of S3 do."""

    def __init__(self, store: ObjectStore, clock: StoreClock) -> None:
        super().__init__(store)
        self._clock = clock

    async def _call(self, operation: Operation, key: str, call: Awaitable[_Answer]) -> _Answer:
        asked_s = self._clock.steady_s()
        answer = await call
        self._clock.heard(virtual_loop().now_ms(), asked_s=asked_s)
        return answer


class CompactorProcess(BucketProcess):
    def __init__(self, name: str, site: Site, settings: CompactionSettings, *, faults: Faults) -> None:
        wire = random.Random(f"{site.seed}/{name}/wire")
        wired = FaultyStore(
            site.bucket, wire, faults, name=name, log=site.trace, reported=site.keep_trace, after_create=_notify_none
        )
        super().__init__(name, site.failures.append, wired)
        self._site = site
        self._chance = random.Random(f"{site.seed}/{name}")
        self.metadata = MetadataWire(
            site.metadata,
            random.Random(f"{site.seed}/{name}/metadata"),
            sender=lambda: Writer(name, SessionId(0)),
            wrote=site.recorder.wrote,
        )
        self.clock_skew_ms = self._chance.randint(-2000, 2000)
        clocks = random.Random(f"{site.seed}/{name}/clock")
        self.jump_ms = clocks.choice((0,) * 6 + (DAY_MS, -DAY_MS))
        """By which its clock jumps at `_jumps_at_s`; set to 0 when trouble is over. The store tells the right time."""
        self._jumps_at_s = virtual_loop().time() + clocks.choice((0.0, clocks.uniform(0.0, 20.0)))
        clock = StoreClock(self._now_ms, steady=virtual_loop().time)
        self._topics = TopicCache(self.metadata, KeyLayout())
        self._membership = CompactorMembership(self.metadata, KeyLayout(), name, version="1", ttl_s=3.0)
        store = _Dated(TimeoutObjectStore(self.store, timeout_s=REQUEST_TIMEOUT_S), clock)
        self._compaction = CompactionContext(
            store=store,
            topics=self._topics,
            manifests=ManifestCache(store, bytes_max=1 << 20, timeout_s=10.0),
            settings=settings,
            now_ms=clock.now_ms,
            new_nonce=lambda size: self._chance.randbytes(size).hex(),
            is_mine=self._membership.is_mine,
            segments=site.settings,
            store_clock=clock,
        )
        self.compactor = Compactor(self._compaction, ManifestNotifier(self.metadata, KeyLayout()), report=self._note)
        self._notices = ManifestNoticeCache(self.metadata, KeyLayout())
        self._notices.subscribe(self.compactor.hear)
        self._main = self.start(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._topics.run())
            tasks.create_task(self._membership.run())
            tasks.create_task(self._notices.run())
            while not self._topics.revision:  # noqa: ASYNC110  # no event shows it
                await asyncio.sleep(0.1)
            while True:  # as `run`, but that what it would only tell in the log fails the world
                await self.compactor.tick()
                await asyncio.sleep(self._compaction.settings.compaction_interval_ms / 1000)

    @property
    def counters(self) -> Any:
        return self._compaction.counters

    def _now_ms(self) -> int:
        jumped_ms = self.jump_ms if virtual_loop().time() >= self._jumps_at_s else 0
        return virtual_loop().now_ms() + self.clock_skew_ms + jumped_ms

    def _note(self, what: str) -> None:
        if self._site.keep_trace:
            self._site.trace.append(f"{virtual_loop().time():12.6f} {self.name} {what}")


def _notify_none(key: str) -> None:
    """Creates of a compactor need no record: the archive sees them all."""
