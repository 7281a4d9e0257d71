"""Maintains history: retention, merges, key compaction, and the deletion of what manifests have retired.

    a manifest was read or committed here ──▶ due now
    a pass found nothing more to do ────────▶ due when a file expires, a grace ends, tombstones may go …, or never
    a topic's settings were changed ────────▶ all its partitions are due
    a leader has deleted records ───────────▶ due now, by a manifest that is read again

So an idle cluster costs no request: time decides in memory which of the partitions has something due. Changes of another compactor
are noticed when its manifest is read, at the latest by the daily listing (gc/collector.py); deletions of a leader, by
its notice. A decision from an outdated manifest has no effect: its commit loses. A decision by outdated settings would let records
go, so the metadata store confirms the settings before; while it does not answer, nothing expires and no key is compacted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from compaction.context import CompactionContext
from compaction.deletion_policy import collection_due, due_for_collection, next_collection_ms
from compaction.maintenance.key_compaction import next_key_pass_ms, plan_key_pass
from compaction.maintenance.key_pass import run_key_pass
from compaction.maintenance.merge import merge_files
from compaction.maintenance.merge_plan import MergeBounds, plan_merge
from compaction.maintenance.record_dates import retention_date_ms
from compaction.maintenance.retention import HeldBack, next_retention_ms, plan_retention
from metadata.errors import Corrupt, Rejected, TidelogError, UnknownTopic
from metadata.model import Offset, TopicId, TopicPartition
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from segments.bucket.layout import history_file_key, manifest_key
from segments.history.manifest import Manifest
from segments.history.manifest_edits import with_collected, with_log_start

# Bytes that one call reads to merge and compact keys, about; the rest is due at the next.
REWRITTEN_AT_ONCE: Final = 1 << 30
# Versions of one manifest that one call writes.
STEPS_MAX: Final = 64
AFTER_FAILURE_MS: Final = 60_000
AFTER_DAMAGE_MS: Final = 3_600_000
HELD_BACK_LOGGED_MAX: Final = 10_000
# Time limit for the present settings of a topic.
CATCH_UP_S: Final = 5.0
# Pause between two searches for another copy of the metadata, while records expire.
OVERTAKEN_CHECK_MS: Final = 60_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    due_ms: float
    # The compactor that wrote its manifest maintains it, as it knows its own changes; other partitions are shared.
    is_ours: bool = False


class HistoryMaintainer:
    """Maintains history for one compactor, all its life. Its owner calls `run` from time to time, one call at a time."""

    def __init__(self, context: CompactionContext, *, pending_bytes: Callable[[TopicPartition, Offset], int]) -> None:
        """`pending_bytes` returns the known bytes of a partition's runs in segments from an offset on."""
        self._context = context
        self._pending_bytes = pending_bytes
        self._known: dict[TopicPartition, _Known] = {}
        self._altered: set[TopicId] = set()
        self._logged: set[tuple[TopicPartition, str]] = set()
        self._rewritten = 0
        # When the metadata store is asked again for the settings of a topic, after it did not answer.
        self._confirms_from_ms: float = 0
        # When no other copy of the metadata had gone on.
        self._overtaken_checked_ms: float = -inf
        self._forget_manifests = context.manifests.subscribe(self._heard_of)
        self._forget_topics = context.topics.subscribe(self._topic_changed)

    def close(self) -> None:
        self._forget_topics()
        self._forget_manifests()

    async def run(self) -> int:
        """Does what is due, and returns how many manifests it wrote. Failures are logged, and due again later.

        Raises an ExceptionGroup of unexpected errors, after the other partitions were maintained.
        """
        context = self._context
        now_ms, self._rewritten = context.now_ms(), 0
        if self._altered:
            for partition, known in self._known.items():
                if partition.topic_id in self._altered:
                    known.due_ms = now_ms
            self._altered.clear()
        written, unforeseen = 0, list[Exception]()
        for partition in [partition for partition, known in self._known.items() if known.due_ms <= now_ms]:
            if self._rewritten >= REWRITTEN_AT_ONCE:
                break
            known = self._known[partition]
            if not known.is_ours and not context.is_mine(str(partition)):
                known.due_ms = now_ms + AFTER_FAILURE_MS  # it may be ours then
                continue
            try:
                written += await self._maintain(partition)
            except Exception as error:  # noqa: BLE001  # a bug with one partition must not stop retention of all others
                error.add_note(f"It happened to {partition}, which is skipped for now.")
                unforeseen.append(error)
                known.due_ms = now_ms + AFTER_DAMAGE_MS
        if unforeseen:
            raise ExceptionGroup("partitions that were maintained", unforeseen)
        return written

    def reread_manifest(self, partition: TopicPartition) -> None:
        """Makes the compactor that maintains the partition read its manifest at the next `run`, as a newer one exists."""
        context = self._context
        known = self._known.get(partition)
        if (known is not None and known.is_ours) or context.is_mine(str(partition)):
            context.manifests.forget(partition)
            self._known.setdefault(partition, _Known(inf)).due_ms = context.now_ms()

    async def _maintain(self, partition: TopicPartition) -> int:
        context = self._context
        known = self._known[partition]
        topic = context.topic(partition.topic_id)
        if topic is None:
            del self._known[partition]  # the collector handles what is left of a deleted topic
            return 0
        steps = 0
        try:
            settings = context.topics.settings(topic.id)
            while True:
                manifest = await context.retry(lambda: context.manifests.newest(topic.name, partition))
                if await self._step(topic.name, manifest, settings):
                    steps += 1
                    if self._rewritten < REWRITTEN_AT_ONCE and steps < STEPS_MAX:
                        continue
                    known.due_ms = context.now_ms()
                elif context.manifests.kept(partition) is manifest:
                    known.due_ms = next_check_ms(manifest, settings, context)
                    if context.now_ms() < self._confirms_from_ms:  # due work may not have been done
                        known.due_ms = min(known.due_ms, self._confirms_from_ms)
                else:
                    known.due_ms = context.now_ms()  # another writer was faster: plan again at the next pass
                return steps
        except TidelogError as error:
            context.counters.failures += 1
            damaged = isinstance(error, Corrupt)
            level = logging.ERROR if damaged else logging.WARNING
            log.log(level, "maintenance failed partition=%s topic=%s: %s; retrying later", partition, topic.name, error)
            context.manifests.forget(partition)
            known.due_ms = context.now_ms() + (AFTER_DAMAGE_MS if damaged else AFTER_FAILURE_MS)
        return steps

    async def _step(self, topic: str, manifest: Manifest, settings: TopicSettings) -> bool:
        """Does the first thing that is due. Returns False where nothing was, or another writer was faster."""
        return manifest.version > 0 and (
            await self._expire(topic, manifest, settings)
            or await self._compact_keys(topic, manifest, settings)
            or await self._merge(topic, manifest, settings)
            or await self._collect(topic, manifest)
        )

    async def _expire(self, topic: str, manifest: Manifest, settings: TopicSettings) -> bool:
        context = self._context
        if context.clock.is_doubted:
            return False
        now_ms = context.now_ms()
        pending_bytes = self._pending_bytes(
            manifest.topic_partition, manifest.compacted_to
        )  # other compactors' work is in the files
        plan = plan_retention(manifest, settings, pending_bytes=pending_bytes, now_ms=now_ms)
        if plan.held_back is not None:
            self._log_held_back(topic, manifest, plan.held_back)
        if plan.log_start_offset is None or not await self._are_current(topic, manifest.topic_id, settings):
            return False
        stamp_ms = context.clock.stamp_ms()
        following = with_log_start(
            manifest, plan.log_start_offset, cause="retention", writer=context.new_nonce(16), now_ms=stamp_ms
        )
        if not await context.manifests.commit(topic, following):
            return False
        context.counters.files_expired += plan.files
        log.info(
            "retention removed files partition=%s topic=%s log_start_offset=%d files=%d bytes=%d",
            manifest.topic_partition,
            topic,
            plan.log_start_offset,
            plan.files,
            plan.size_bytes,
        )
        return True

    async def _are_current(self, topic: str, topic_id: TopicId, settings: TopicSettings) -> bool:
        """Returns whether the topic has these settings now, as the metadata store says. False where that can't be found out.

        What settings let go is lost. This compactor's view of them may be hours old if its watch is cut off, or belong to a copy of
        the metadata that has lost. After a failure all partitions wait for AFTER_FAILURE_MS.
        """
        context = self._context
        if context.now_ms() < self._confirms_from_ms:
            return False
        try:
            await context.topics.catch_up(topic, timeout_s=CATCH_UP_S)
            await self._check_not_overtaken()
            return context.topics.settings(topic_id) == settings
        except UnknownTopic:
            return False
        except TidelogError as error:
            self._confirms_from_ms = context.now_ms() + AFTER_FAILURE_MS
            level = logging.ERROR if isinstance(error, Rejected) else logging.WARNING
            log.log(level, "settings of topics not confirmed topic=%s: %s; nothing expires for now", topic, error)
            return False

    async def _check_not_overtaken(self) -> None:
        """Raises Rejected where another copy of the metadata has gone on; looks once in OVERTAKEN_CHECK_MS."""
        context = self._context
        if context.now_ms() < self._overtaken_checked_ms + OVERTAKEN_CHECK_MS:
            return
        if await context.is_overtaken():
            raise Rejected(
                f"another copy of the metadata has appointed leaders on {context.store.url}: topics of this one may be outdated",
                hint="Give this compactor the metadata of the brokers (--etcd).",
            )
        self._overtaken_checked_ms = context.now_ms()

    async def _compact_keys(self, topic: str, manifest: Manifest, settings: TopicSettings) -> bool:
        context = self._context
        if context.clock.is_doubted:  # tombstones, and min.compaction.lag.ms, would be judged by it
            return False
        plan = plan_key_pass(manifest, settings, dirty_ratio_min=context.settings.dirty_ratio_min, now_ms=context.now_ms())
        if plan is None or not await self._are_current(topic, manifest.topic_id, settings):
            return False
        outcome = await run_key_pass(context, topic, manifest.topic_partition, manifest, plan)
        self._rewritten += outcome.bytes_read
        context.counters.records_superseded += outcome.removed
        context.counters.key_passes += outcome.is_over
        return outcome.is_over

    async def _merge(self, topic: str, manifest: Manifest, settings: TopicSettings) -> bool:
        context = self._context
        configured = context.settings
        bounds = MergeBounds(configured.merge_bytes_min, configured.merge_bytes_max, configured.merge_files_min).for_topic(settings)
        files = plan_merge(manifest, bounds)
        if not files:
            return False
        self._rewritten += sum(file.size_bytes for file in files)
        if await merge_files(context, topic, manifest.topic_partition, files) is None:
            return False
        context.counters.merges += 1
        context.counters.merged_bytes += sum(file.size_bytes for file in files)
        return True

    async def _collect(self, topic: str, manifest: Manifest) -> bool:
        """Deletes what the manifest has retired, and whose grace is over; then removes it from the next version."""
        context = self._context
        now_ms, grace_ms = context.now_ms(), context.settings.delete_grace_ms
        if context.deletions.are_on_hold or not collection_due(manifest, grace_ms=grace_ms, now_ms=now_ms):
            return False
        files, versions = due_for_collection(manifest, grace_ms=grace_ms, now_ms=now_ms)
        keys = {history_file_key(topic, manifest.topic_partition, name): name for name in files}
        old = {manifest_key(topic, manifest.topic_partition, version): version for version in versions}
        gone = await context.deletions.delete([*keys, *old])
        context.counters.objects_collected += len(gone)
        if not gone:
            return False
        following = with_collected(
            manifest,
            files={name for key, name in keys.items() if key in gone},
            versions={version for key, version in old.items() if key in gone},
            writer=context.new_nonce(16),
            now_ms=context.clock.stamp_ms(),
        )
        return await context.manifests.commit(topic, following)

    def _heard_of(self, topic: str, manifest: Manifest, committed: bool) -> None:
        if manifest.version:
            known = self._known.setdefault(manifest.topic_partition, _Known(inf))
            known.due_ms = self._context.now_ms()
            known.is_ours = committed

    def _topic_changed(self, old: Topic | None, new: Topic | None) -> None:
        if old is not None:
            self._altered.add(old.id)  # those of a deleted topic are dropped when they are looked at

    def _log_held_back(self, topic: str, manifest: Manifest, held: HeldBack) -> None:
        if (manifest.topic_partition, held.file.name) in self._logged:
            return
        if len(self._logged) >= HELD_BACK_LOGGED_MAX:
            self._logged.clear()
        self._logged.add((manifest.topic_partition, held.file.name))
        log.warning(
            "retention held back partition=%s topic=%s first_offset=%d last_offset=%d files_behind=%d newest_ms=%s: the newest "
            "record is dated so late. The files expire when that is past; DeleteRecords removes them at once",
            manifest.topic_partition,
            topic,
            held.file.base_offset,
            held.file.last_offset,
            held.due_behind,
            retention_date_ms(held.file),
        )


def next_check_ms(manifest: Manifest, settings: TopicSettings, context: CompactionContext) -> float:
    """Returns when a partition without due work may have some, for the same manifest; infinity for never."""
    now_ms = context.now_ms()
    times = (
        next_retention_ms(manifest, settings),
        next_key_pass_ms(manifest, settings, now_ms=now_ms),
        next_collection_ms(manifest, grace_ms=context.settings.delete_grace_ms),
    )
    soonest = min((time_ms for time_ms in times if time_ms is not None), default=inf)
    if context.clock.is_doubted:  # due work was not done
        soonest = min(soonest, now_ms + AFTER_FAILURE_MS)
    return soonest if soonest > now_ms else now_ms + AFTER_FAILURE_MS
