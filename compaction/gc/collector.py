"""Deletes unneeded objects that listings show: what crashes left, and what deleted topics leave.

    at the start, once a day: LIST topics/ ──▶ partitions ──▶ newest manifests ──▶ orphans, leftover versions
                                         └──▶ lives that are marked as deleted, and left something ─┐
    a topic is gone from the metadata ──▶ LIST its markers ─────────────────────────────────────────┤
        ┌───────────────────────────────────────────────────────────────────────────────────────────┘
        └──▶ swept after the grace, and once more after it
    scratch of start-up proofs that two listings show; rows that Spark staged and never sent

compaction/deletion_policy.py decides what goes, and when. The listing continues where it stopped, some pages at each call,
so that other work comes in between; it is never whole in memory. A topic that the metadata do not name is left alone unless it is
marked as deleted on the bucket. A topic that is both marked and registered is left alone, too: the metadata were restored to an
earlier time.

The marker of a deleted topic is kept forever: a restore from a snapshot that is older than the deletion needs it. So their number
grows, and one without other objects costs nothing. A topic that was restored and deleted again has several: the newest counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from compaction.context import CompactionContext
from compaction.deletion_policy import fate_of_file, is_leftover_version, is_stale
from metadata.errors import Corrupt, TidelogError, Unavailable
from metadata.model import TopicPartition
from metadata.topics.topic import Topic
from segments.bucket.deleted_topic import parse_deleted_topic
from segments.bucket.layout import (
    PROOFS,
    STAGED,
    TOPICS,
    HistoryKey,
    TopicIncarnation,
    deleted_topic_key,
    end_of_topic,
    history_file_key,
    manifest_key,
    parse_staged_key,
    parse_topic_key,
    topic_prefix,
)
from segments.bucket.topic_catalog import read_records
from segments.bucket.topic_listing import ListedPartition, Remains, TopicListing
from segments.history.manifest import Manifest
from segments.history.manifest_edits import with_collected

# Pages of a listing in one call.
PAGES_AT_ONCE: Final = 20
PARTITIONS_AT_ONCE: Final = 256
FILES_AT_ONCE: Final = 20_000
# Bound on orphans that wait in memory; the next listing finds more.
WAITING_MAX: Final = 10_000
# How long a marker is looked for after a topic left the metadata; later the daily listing finds it.
MARKER_SEARCH_MS: Final = 3_600_000
# Markers read in one call.
MARKERS_READ_AT_ONCE: Final = 50
PROOFS_MAX: Final = 1_000

log = logging.getLogger(__name__)


class _Marked(NamedTuple):
    """Holds what is known of a deletion before its marker is read."""

    # The key of the newest marker that was seen.
    marker: str
    # When the metadata dropped the topic, if this process saw it: readers may have begun until then.
    gone_ms: float


@dataclass(slots=True)
class _Sweep:
    at_ms: float
    marker: str
    is_last: bool = False


class GarbageCollector:
    """Collects garbage for one compactor. Its owner calls `run` from time to time, one call at a time."""

    def __init__(self, context: CompactionContext) -> None:
        self._context = context
        self._next_listing_ms: float = 0
        self._listing: TopicListing | None = None
        self._listed_to = ""
        self._batch: list[ListedPartition] = []
        # Orphans that a writer may still name, by topic and partition, with the time when they may go.
        self._waiting: dict[str, dict[TopicPartition, dict[HistoryKey, float]]] = {}
        self._waiting_count = 0
        # Topics that the metadata do not name any more, and since when.
        self._gone: dict[TopicIncarnation, float] = {}
        # Deleted topics whose markers are to be read.
        self._marked: dict[TopicIncarnation, _Marked] = {}
        self._sweeps: dict[TopicIncarnation, _Sweep] = {}
        self._proofs: set[str] = set()
        self._forget_topics = context.topics.subscribe(self._topic_changed)

    def close(self) -> None:
        self._forget_topics()

    async def run(self) -> int:
        """Deletes what is due, and returns how many objects went. Failures are logged and retried later."""
        if self._context.clock.is_doubted:  # graces can't be measured by it
            return 0
        before = self._context.deletions.deleted
        steps = self._go_on_listing, self._find_markers, self._read_markers, self._sweep_deleted, self._delete_orphans
        for step in steps:
            try:
                await step()
            except TidelogError as error:
                self._context.counters.failures += 1
                log.warning("garbage collection failed: %s; retrying later", error)
        deleted = self._context.deletions.deleted - before
        self._context.counters.objects_collected += deleted
        return deleted

    # ── the listing ──

    async def _go_on_listing(self) -> None:
        context = self._context
        if self._listing is None:
            if context.now_ms() < self._next_listing_ms:
                return
            self._listing, self._listed_to = TopicListing(), ""
            self._next_listing_ms = context.now_ms() + context.settings.bucket_listing_interval_ms
            await self._delete_stale_proofs()
            await self._delete_stale_rows()
        for _ in range(PAGES_AT_ONCE):
            page = await context.retry(lambda: context.store.list(TOPICS, start_after=self._listed_to))
            for info in page.objects:
                self._listed_to = info.key
                parsed = parse_topic_key(info.key)
                if parsed is None:
                    continue
                await self._judge_when_enough([*self._listing.take_in(parsed, info.size)])
            if not page.more:
                await self._judge_when_enough(self._listing.end())
                await self._judge()
                self._listing = None
                return

    async def _judge_when_enough(self, complete: Iterable[ListedPartition | Remains]) -> None:
        for listed in complete:
            if isinstance(listed, Remains):
                self._is_marked(listed.topic, deleted_topic_key(*listed.topic, listed.deleted))
            elif self._context.is_mine(str(listed.partition)):
                self._batch.append(listed)
            if len(self._batch) >= PARTITIONS_AT_ONCE or sum(len(one.files) for one in self._batch) >= FILES_AT_ONCE:
                await self._judge()

    async def _judge(self) -> None:
        """Deletes what the manifests of the listed partitions do not need. Reading those also informs the other subscribers."""
        context = self._context
        batch, self._batch = self._batch, []
        old = {one.partition: one.topic for one in batch if _is_behind(context.manifests.kept(one.partition), one)}
        read = await context.retry(lambda: context.manifests.read(old)) if old else {}
        for listed in batch:
            manifest = read.get(listed.partition) or context.manifests.kept(listed.partition)
            if manifest is None:
                continue  # it was evicted meanwhile; the next listing comes to it
            if isinstance(manifest, Corrupt):
                log.error("garbage collection skips partition=%s topic=%s: %s", listed.partition, listed.topic, manifest)
                continue
            if context.topic(listed.partition.topic_id) is not None:
                await self._judge_one(listed, manifest)

    async def _judge_one(self, listed: ListedPartition, manifest: Manifest) -> None:
        context = self._context
        unneeded = [
            manifest_key(listed.topic, listed.partition, version)
            for version in listed.versions
            if is_leftover_version(version, manifest)
        ]
        for found, _ in listed.files:
            fate = fate_of_file(found, manifest)
            if fate == "delete":
                unneeded.append(history_file_key(listed.topic, listed.partition, found.file_name))
            elif fate != "named" and self._waiting_count < WAITING_MAX:
                of_partition = self._waiting.setdefault(listed.topic, {}).setdefault(listed.partition, {})
                if found not in of_partition:
                    of_partition[found] = context.now_ms() + context.settings.delete_grace_ms
                    self._waiting_count += 1
        if unneeded:
            log.info(
                "deleting leftovers of crashes partition=%s topic=%s objects=%d", listed.partition, listed.topic, len(unneeded)
            )
            await context.deletions.delete(unneeded)

    async def _delete_stale_proofs(self) -> None:
        """Deletes objects of start-up checks whose broker died: those that two listings in a row show."""
        context = self._context
        page = await context.retry(lambda: context.store.list(PROOFS, limit=PROOFS_MAX))
        seen = {info.key for info in page.objects}
        await context.deletions.delete(sorted(seen & self._proofs))
        self._proofs = seen

    async def _delete_stale_rows(self) -> None:
        """Deletes staged rows of Spark drivers that died, and whose query was never run again."""
        context, start_after = self._context, ""
        while True:
            page = await context.retry(partial(context.store.list, STAGED, start_after=start_after))
            parsed = [(info.key, parse_staged_key(info.key)) for info in page.objects]
            stale = [key for key, staged in parsed if staged is not None and is_stale(staged, now_ms=context.now_ms())]
            if stale:
                log.info("deleting staged rows that Spark never sent files=%d", len(stale))
                await context.deletions.delete(stale)
            if not page.more:
                return
            start_after = page.objects[-1].key

    # ── orphans that a writer may still name ──

    async def _delete_orphans(self) -> None:
        context = self._context
        now_ms = context.now_ms()
        if context.deletions.are_on_hold:
            return
        for topic, partitions in list(self._waiting.items()):
            for partition, found in list(partitions.items()):
                due = [file for file, at_ms in found.items() if at_ms <= now_ms]
                if not due:
                    continue
                for file in due:
                    del found[file]
                self._waiting_count -= len(due)
                if not found:
                    del partitions[partition]
                if context.topic(partition.topic_id) is not None:
                    await self._fence_and_delete(topic, partition, due)
            if not partitions:
                del self._waiting[topic]

    async def _fence_and_delete(self, topic: str, partition: TopicPartition, files: list[HistoryKey]) -> None:
        context = self._context
        manifest = await context.retry(lambda: context.manifests.read_one(topic, partition))
        if any(fate_of_file(file, manifest) == "wait" for file in files):
            fence = with_collected(manifest, writer=context.new_nonce(16), now_ms=context.clock.stamp_ms())
            await context.manifests.commit(topic, fence)
            manifest = await context.retry(lambda: context.manifests.read_one(topic, partition))
        for file in files:
            if fate_of_file(file, manifest) == "odd":
                log.error(
                    "file stays key=%s version=%d: the newest manifest is %d. Were manifests deleted by hand?",
                    history_file_key(topic, partition, file.file_name),
                    file.version,
                    manifest.version,
                )
        orphans = [file for file in files if fate_of_file(file, manifest) == "delete"]
        if orphans:
            log.info("deleting files of interrupted compactions partition=%s topic=%s files=%d", partition, topic, len(orphans))
            await context.deletions.delete(history_file_key(topic, partition, file.file_name) for file in orphans)

    # ── topics that were deleted ──

    def _topic_changed(self, old: Topic | None, new: Topic | None) -> None:
        if old is not None and new is None:
            life = TopicIncarnation(old.name, old.id)
            self._gone[life] = self._context.now_ms()
            self._sweeps.pop(life, None)  # planned for an earlier deletion, which was undone: this one has its own grace

    async def _find_markers(self) -> None:
        for life, since_ms in list(self._gone.items()):
            marks = (await self._context.retry(partial(read_records, self._context.store, life))).deleted
            if marks:
                self._is_marked(life, deleted_topic_key(*life, max(marks)))
            if marks or self._context.now_ms() - since_ms > MARKER_SEARCH_MS:
                self._gone.pop(life, None)

    def _is_marked(self, life: TopicIncarnation, marker: str) -> None:
        """Schedules the topic to be swept; a plan for an earlier marker waits until this one is read."""
        planned = self._sweeps.get(life)
        if not self._context.is_mine(life.topic_id) or (planned is not None and planned.marker >= marker):
            return
        self._sweeps.pop(life, None)
        known = self._marked.get(life, _Marked("", 0))
        self._marked[life] = _Marked(max(known.marker, marker), max(known.gone_ms, self._gone.get(life, 0)))

    async def _read_markers(self) -> None:
        """Reads when each grace began. Some at each call, so that many deleted topics delay nothing else."""
        for life in list(islice(self._marked, MARKERS_READ_AT_ONCE)):
            found = self._marked.pop(life)
            try:
                marked_at_ms = await self._marked_at_ms(found.marker)
            except Unavailable:
                self._marked[life] = found  # behind the others
                raise
            since_ms = max(marked_at_ms, found.gone_ms, self._gone.get(life, 0))
            self._sweeps[life] = _Sweep(since_ms + self._context.settings.delete_grace_ms, found.marker)

    async def _marked_at_ms(self, marker: str) -> int:
        """Returns the marker's time; now where it has none, or lies in the future."""
        try:
            mark = parse_deleted_topic(await self._context.store.get(marker))
        except Unavailable:
            raise
        except TidelogError as error:
            log.warning("reading a deletion marker failed key=%s: %s; the grace of its topic begins now", marker, error)
            mark = None
        now_ms = self._context.now_ms()
        return now_ms if mark is None or mark.marked_at_ms is None else min(mark.marked_at_ms, now_ms)

    async def _sweep_deleted(self) -> None:
        context = self._context
        for life, sweep in list(self._sweeps.items()):
            if sweep.at_ms > context.now_ms() or context.deletions.are_on_hold:
                continue
            if context.topic(life.topic_id) is not None:
                log.error(
                    "topic kept topic=%s topic_id=%s: it is registered, and marked as deleted on the bucket; no object of it is "
                    "deleted",
                    *life,
                )
                self._sweeps.pop(life, None)
                continue
            left = await self._sweep(life)
            if left or not sweep.is_last:  # a stalled compactor may write after the first sweep
                at_ms = context.now_ms() + context.settings.delete_grace_ms
                self._sweeps[life] = _Sweep(at_ms, sweep.marker, is_last=not left)
            else:
                self._sweeps.pop(life, None)

    async def _sweep(self, life: TopicIncarnation) -> int:
        """Deletes all objects of this life of the topic but its marker; returns how many could not be deleted."""
        context = self._context
        prefix, start_after, left, gone = topic_prefix(*life), "", 0, 0
        while start_after < end_of_topic(*life):
            page = await context.retry(partial(context.store.list, prefix, start_after=start_after))
            keys = [info.key for info in page.objects if not _is_marker(info.key)]
            deleted = await context.deletions.delete(keys)
            gone += len(deleted)
            left += len(keys) - len(deleted)
            if not page.more:
                break
            start_after = page.objects[-1].key
        if gone:
            log.info("topic deleted topic=%s topic_id=%s objects=%d", *life, gone)
        return left


def _is_behind(kept: Manifest | None, listed: ListedPartition) -> bool:
    return kept is None or (bool(listed.versions) and kept.version < listed.versions[-1])


def _is_marker(key: str) -> bool:
    parsed = parse_topic_key(key)
    return parsed is not None and parsed.deleted is not None
