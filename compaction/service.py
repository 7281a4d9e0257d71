"""Assembles a compactor with all its parts, as a broker or a process of its own runs it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial

from compaction.compactor import Compactor, TickReport
from compaction.context import CompactionContext
from compaction.manifest_cache import ManifestCache
from compaction.metadata_copies import is_overtaken
from compaction.metrics import times
from compaction.notifier import ManifestNotifier
from compaction.settings import CompactionSettings
from compaction.work_sharing import CompactorMembership
from metadata.backup.restore_state import read_skipped_sessions
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.errors import OutcomeUnknown, Unavailable
from metadata.retry import PAUSE_S, PAUSE_S_MAX, RetryPauses, retry
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.cache import TopicCache
from segments.object_store.interface import ObjectStore
from segments.object_store.store_clock import StoreClock
from segments.settings import MIB, SegmentSettings

# Newest manifests kept in memory; others are read again.
MANIFESTS_BYTES_MAX = 64 * MIB

log = logging.getLogger(__name__)


class CompactionService:
    """Runs a compactor. Its owner runs `run()` as a task, or `once`, feeds `topics` and `notices`, and has read `topics`."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        layout: KeyLayout,
        topics: TopicCache,
        notices: ManifestNoticeCache,
        settings: CompactionSettings,
        segments: SegmentSettings,
        *,
        compactor_id: str,
        version: str,
        now_ms: Callable[[], int],
        clock: StoreClock | None = None,
        report: Callable[[str], None] = lambda text: log.info("%s", text),
    ) -> None:
        """`now_ms` is the wall clock; `clock` is fed by `store`, where it gives the time."""
        clock = clock or StoreClock(now_ms)
        self._ttl_s = settings.compactor_ttl_ms / 1000
        self._membership = CompactorMembership(metadata, layout, compactor_id, version=version, ttl_s=self._ttl_s)
        context = CompactionContext(
            store,
            topics,
            ManifestCache(store, bytes_max=MANIFESTS_BYTES_MAX),
            settings,
            clock.now_ms,
            secrets.token_hex,
            self._membership.is_mine,
            segments,
            is_overtaken=partial(is_overtaken, store, metadata, layout),
            store_clock=clock,
        )
        self.compactor = Compactor(context, ManifestNotifier(metadata, layout), report=report)
        self._read_skipped = partial(read_skipped_sessions, metadata, layout)
        self._heard = notices
        self._counters = context.counters
        self._clock = clock

    def measure(self) -> tuple[object, ...]:
        """Returns what it tells Prometheus, from memory."""
        return self._counters, self.compactor.metrics, times(self.compactor.metrics, self._clock)

    async def run(self) -> None:
        """Joins the other compactors, then compacts until cancelled."""
        unsubscribe = self._heard.subscribe(self.compactor.hear)
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(self._membership.run(), name="compactors")
            try:
                await self._joined()
                pauses = RetryPauses(PAUSE_S, PAUSE_S_MAX)
                skipped = await retry(self._read_skipped, on=(Unavailable, OutcomeUnknown), pauses=pauses, failed=_not_read)
                self.compactor.skip(skipped)
                await self.compactor.run()
            finally:
                unsubscribe()
                joining.cancel()

    async def once(self, *, everything: bool) -> TickReport:
        """Runs one pass and what is due; `everything`: all that waits.

        It does not join the others: they would leave it a share of the work, though it ends at once. Raises Unavailable, Corrupt
        if the metadata cannot be read.
        """
        self.compactor.skip(await self._read_skipped())
        return await self.compactor.tick(everything=everything)

    async def _joined(self) -> None:
        """Waits until the others are known, for at most the time of a lease: they only share the work."""
        try:
            async with asyncio.timeout(self._ttl_s):
                await self._membership.joined.wait()
        except TimeoutError:
            log.warning("joining the other compactors timed out; starting without them")


def _not_read(error: Exception, failing_s: float) -> None:
    log.warning("sessions that a restore has not seen could not be read from the metadata: %s; retrying", error)
