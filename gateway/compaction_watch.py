"""Hears of newer manifests, and has the partitions that are led here follow them; tells of those that DeleteRecords wrote here.

    /compactions/{unit} ─ watch ─▶ NoticeCache ─▶ led here, and newer than what is held? ─▶ LIST, GET ─▶ Log.adopt
    Log.tell_of_deletion ─▶ TellDeletions ─▶ /compactions/{unit} ─▶ compactors, and whoever leads by now

A notice saves polling, and decides nothing: what is adopted is the newest manifest on the bucket. One that was missed is found out
by a reader, when a segment is gone. Invariant: a partition that comes to be led here follows notices that came before, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set

from compaction.notices import Notices
from metadata.compaction_notices import CompactionNotice
from metadata.errors import Corrupt, TidelogError, UnknownTopic
from metadata.model import TopicPartition
from metadata.notice_cache import NoticeCache
from metadata.topic_cache import TopicCache
from segments.log import Log
from segments.manifest_store import newest_manifests
from segments.object_store import ObjectStore

PAUSE_S = 1.0
"""Before manifests that could not be read are tried again."""
TOLD_EACH_S = 5.0
"""What is deleted meanwhile is told together: each notice is a lease, for ten minutes."""

log = logging.getLogger(__name__)


class FollowCompactions:
    """Of one session. Its owner runs `run()` as a task, and calls `look` for partitions that came to be led here with a manifest
    that is not the newest of which notices tell."""

    def __init__(self, session_log: Log, bucket: ObjectStore, topics: TopicCache, notices: NoticeCache, *, reads_max: int) -> None:
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
        unsubscribe = self._notices.subscribe(self._told_of)
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

    def _told_of(self, notices: Sequence[CompactionNotice]) -> None:
        self.look({notice.place for notice in notices})

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


class TellDeletions:
    """Of one broker, for as long as it lives: who deleted, and then lost its session, is the one whose successor has to hear of it.
    Its owner runs `run()` as a task."""

    def __init__(self, notices: Notices, *, new_nonce: Callable[[], bytes]) -> None:
        self._notices = notices
        self._new_nonce = new_nonce
        self._untold: dict[TopicPartition, int] = {}
        self._deleted = asyncio.Event()

    def tell(self, partition: TopicPartition, version: int) -> None:
        """That DeleteRecords sent this manifest to the bucket, whatever became of it."""
        self._untold[partition] = max(version, self._untold.get(partition, 0))
        self._deleted.set()

    async def run(self) -> None:
        while True:
            await self._deleted.wait()
            self._deleted.clear()
            untold, self._untold = self._untold, {}
            notices = [CompactionNotice(*partition, version, is_deletion=True) for partition, version in untold.items()]
            await self._notices.tell(self._new_nonce().hex(), notices)
            await asyncio.sleep(TOLD_EACH_S)
