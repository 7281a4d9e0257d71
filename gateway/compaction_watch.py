"""Hears of what compactors did, and has the partitions that are led here follow it.

    /compactions/{unit} ─ watch ─▶ CompactionNotices ─▶ led here, and newer than what is held? ─▶ LIST, GET ─▶ Log.adopt

A notice saves polling, and decides nothing: what is adopted is the newest manifest on the bucket. One that was missed is found out
by a reader, when a segment is gone. Invariant: a partition that comes to be led here follows notices that came before, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set

from metadata.compaction_notices import CompactionNotice, decode_notices
from metadata.errors import Corrupt, TidelogError, UnknownTopic
from metadata.etcd_layout import EtcdLayout
from metadata.model import TopicPartition
from metadata.store import Event, KeyValue, MetadataStore
from metadata.topic_cache import TopicCache
from metadata.watched_range import WatchedRange
from segments.log import Log
from segments.manifest_store import newest_manifests
from segments.object_store import ObjectStore

PAUSE_S = 1.0
"""Before manifests that could not be read are tried again."""

log = logging.getLogger(__name__)


class CompactionNotices:
    """Those that still stand, from a watch. Its owner runs `run()` as a task."""

    def __init__(self, metadata: MetadataStore, layout: EtcdLayout) -> None:
        self._told: dict[str, tuple[CompactionNotice, ...]] = {}
        self._versions: dict[TopicPartition, int] = {}
        self._subscribers: list[Callable[[Set[TopicPartition]], None]] = []
        self.run = WatchedRange(metadata, layout.compactions, replace=self._replace, apply=self._apply).run

    def version(self, partition: TopicPartition) -> int:
        """Of the newest manifest that was told of; 0 where none was, a short while ago."""
        return self._versions.get(partition, 0)

    def subscribe(self, told: Callable[[Set[TopicPartition]], None]) -> Callable[[], None]:
        """Calls it with the partitions that have newer manifests; answers how to end that. It must not block, nor raise."""
        self._subscribers.append(told)
        return lambda: self._subscribers.remove(told)

    def _replace(self, items: Sequence[KeyValue]) -> None:
        for key in self._told.keys() - {item.key for item in items}:
            self._forget(key)
        self._hear(items)

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "delete":
                self._forget(event.key)
        puts = [event for event in events if event.kind != "delete"]
        self._hear([KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1) for event in puts])

    def _hear(self, items: Sequence[KeyValue]) -> None:
        newer: set[TopicPartition] = set()
        for item in items:
            try:
                notices = decode_notices(item)
            except Corrupt as error:
                log.error("%s", error)
                continue
            self._forget(item.key)
            self._told[item.key] = notices
            for notice in notices:
                if notice.version > self.version(notice.place):
                    self._versions[notice.place] = notice.version
                    newer.add(notice.place)
        if newer:
            for told in tuple(self._subscribers):
                told(newer)

    def _forget(self, key: str) -> None:
        for notice in self._told.pop(key, ()):
            if self._versions.get(notice.place) == notice.version:
                del self._versions[notice.place]


class FollowCompactions:
    """Of one session. Its owner runs `run()` as a task, and calls `look` for partitions that came to be led here with a manifest
    that is not the newest of which notices tell."""

    def __init__(
        self, session_log: Log, bucket: ObjectStore, topics: TopicCache, notices: CompactionNotices, *, reads_max: int
    ) -> None:
        self._log = session_log
        self._bucket = bucket
        self._topics = topics
        self._notices = notices
        self._reads_max = reads_max
        self._heard: set[TopicPartition] = set()
        """Of which there may be newer manifests than are held."""
        self._told = asyncio.Event()

    def look(self, partitions: Set[TopicPartition]) -> None:
        self._heard |= partitions
        self._told.set()

    async def run(self) -> None:
        unsubscribe = self._notices.subscribe(self.look)
        try:
            while True:
                self._told.clear()
                heard, self._heard = self._heard, set()
                try:
                    await self._adopt(heard)
                except TidelogError as error:
                    log.info("newer manifests could not be read; trying again: %s", error)
                    self.look(heard)
                    await asyncio.sleep(PAUSE_S)
                await self._told.wait()
        finally:
            unsubscribe()

    async def _adopt(self, heard: Set[TopicPartition]) -> None:
        manifests = await newest_manifests(self._bucket, self._outdated(heard), reads_max=self._reads_max)
        for partition, manifest in manifests.items():
            if isinstance(manifest, Corrupt):
                log.error("%s goes on with the manifest that it has: %s", partition, manifest)
            elif manifest is not None:
                self._log.adopt(manifest)

    def _outdated(self, heard: Set[TopicPartition]) -> dict[TopicPartition, str]:
        """What is led here and has a newer manifest, with the names of the topics."""
        outdated: dict[TopicPartition, str] = {}
        for partition in sorted(heard):
            held = self._log.manifest_version(partition)
            if held is not None and held < self._notices.version(partition):
                try:
                    outdated[partition] = self._topics.by_id(partition.topic_id).name
                except UnknownTopic:
                    continue  # deleted: nobody asks for it
        return outdated
