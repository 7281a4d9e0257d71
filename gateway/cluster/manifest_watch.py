"""Hears of newer manifests, and has the partitions that are led here follow them; tells of those that DeleteRecords wrote here.

    /compactions/{unit} ─ watch ─▶ ManifestNoticeCache ─▶ led here, newer than held? ─▶ LIST, GET ─▶ ManifestFollower.adopt
    ManifestFollower: on_deletion ─▶ DeletionNotifier ─▶ /compactions/{unit} ─▶ compactors, and whoever leads by now

A notice saves polling, and decides nothing: what is adopted is the newest manifest on the bucket. One that was missed is found out
by a reader, when a segment is gone. Invariants: a partition that comes to be led here follows notices that came before, too; a
version that is not there yet, since DeleteRecords got no answer, is looked for as long as its notice stands; what was deleted here
is told, however long the metadata are away, unless the broker ends before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from compaction.notifier import ManifestNotifier
from metadata.cluster.manifest_notice import ManifestNotice
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.errors import Corrupt, TidelogError, UnknownTopic
from metadata.model import TopicPartition
from metadata.topics.cache import TopicCache
from segments.history.manifest import Manifest
from segments.history.manifest_store import newest_manifests
from segments.log.session_log import SessionLog
from segments.object_store.interface import ObjectStore

# Before manifests that could not be read are tried again.
PAUSE_S = 1.0
# Before one that was told of and is not there is looked for again: from PAUSE_S on twice as long each time, up to this.
AWAITED_PAUSE_S_MAX = 30.0
# What is deleted meanwhile is told together: each notice is a lease, for ten minutes.
TOLD_EACH_S = 5.0
# Where it can't be told, the pause grows up to this.
TOLD_EACH_S_MAX = 30.0
# A broker that stops takes so long at most to tell what it has not told yet.
LAST_WORD_S = 2.0

log = logging.getLogger(__name__)


class _Awaited(NamedTuple):
    """A manifest that was told of, and is not there: it may land late, or never."""

    # What is there.
    newest: Manifest | None
    pause_s: float
    due_s: float


class ManifestWatch:
    """Of one session. Its owner runs `run()` as a task, and calls `look` for partitions that came to be led here with a manifest
    that is not the newest of which notices tell."""

    def __init__(
        self, session_log: SessionLog, bucket: ObjectStore, topics: TopicCache, notices: ManifestNoticeCache, *, reads_max: int
    ) -> None:
        self._log = session_log
        self._bucket = bucket
        self._topics = topics
        self._notices = notices
        self._reads_max = reads_max
        self._heard: set[TopicPartition] = set()
        """Of which there may be newer manifests than are held."""
        self._awaited: dict[TopicPartition, _Awaited] = {}
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
                due = self._due()
                try:
                    await self._adopt(heard, due)
                except TidelogError as error:
                    log.info("newer manifests could not be read; trying again: %s", error)
                    self.look(heard | due)
                    await asyncio.sleep(PAUSE_S)
                await self._told_or_due()
        finally:
            unsubscribe()

    def _told_of(self, notices: Sequence[ManifestNotice]) -> None:
        self.look({notice.place for notice in notices})

    def _due(self) -> Set[TopicPartition]:
        now_s = asyncio.get_running_loop().time()
        return {partition for partition, awaited in self._awaited.items() if awaited.due_s <= now_s}

    async def _told_or_due(self) -> None:
        soonest_s = min((awaited.due_s for awaited in self._awaited.values()), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(soonest_s):
                await self._told.wait()

    async def _adopt(self, heard: Set[TopicPartition], due: Set[TopicPartition]) -> None:
        outdated = self._outdated(heard | due)
        awaited = {partition: self._awaited[partition] for partition in outdated if partition in self._awaited}
        known = {partition: before.newest for partition, before in awaited.items() if before.newest is not None}
        manifests = await newest_manifests(self._bucket, outdated, known=known, reads_max=self._reads_max)
        for partition, manifest in manifests.items():
            if isinstance(manifest, Corrupt):
                log.error("%s goes on with the manifest that it has: %s", partition, manifest)
            elif manifest is not None:
                self._log.manifests.adopt(manifest)
        now_s, still = asyncio.get_running_loop().time(), self._outdated(manifests.keys())
        for partition in heard | due:
            self._awaited.pop(partition, None)
            manifest = manifests.get(partition)
            if partition in still and not isinstance(manifest, Corrupt):
                pause_s = PAUSE_S if partition in heard else min(2 * awaited[partition].pause_s, AWAITED_PAUSE_S_MAX)
                self._awaited[partition] = _Awaited(manifest, pause_s, now_s + pause_s)

    def _outdated(self, heard: Set[TopicPartition]) -> dict[TopicPartition, str]:
        """What is led here and has a newer manifest, with the names of the topics."""
        outdated: dict[TopicPartition, str] = {}
        for partition in sorted(heard):
            held = self._log.manifests.version(partition)
            if held is not None and held < self._notices.version(partition):
                try:
                    outdated[partition] = self._topics.by_id(partition.topic_id).name
                except UnknownTopic:
                    continue  # deleted: nobody asks for it
        return outdated


class DeletionNotifier:
    """Of one broker, for as long as it lives: who deleted, and then lost its session, is the one whose successor has to hear of it.
    Its owner runs `run()` as a task, and after that `tell_at_last`."""

    def __init__(self, notices: ManifestNotifier, *, new_nonce: Callable[[], bytes]) -> None:
        self._notices = notices
        self._new_nonce = new_nonce
        self._untold: dict[TopicPartition, int] = {}
        self._deleted = asyncio.Event()

    @property
    def untold(self) -> int:
        """Partitions."""
        return len(self._untold)

    def tell(self, partition: TopicPartition, version: int) -> None:
        """That DeleteRecords sent this manifest to the bucket, and it may count."""
        self._untold[partition] = max(version, self._untold.get(partition, 0))
        self._deleted.set()

    async def run(self) -> None:
        pause_s = TOLD_EACH_S
        while True:
            await self._deleted.wait()
            self._deleted.clear()
            told = await self._tell_untold()
            pause_s = TOLD_EACH_S if told else min(2 * pause_s, TOLD_EACH_S_MAX)
            await asyncio.sleep(pause_s)

    async def tell_at_last(self) -> None:
        """What is left when the broker stops, if it can be told soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await self._tell_untold()
        if self._untold:
            some = ", ".join(map(str, sorted(self._untold)[:10]))
            log.warning("records of %d partitions were deleted, of which compactors were not told: %s", len(self._untold), some)

    async def _tell_untold(self) -> bool:
        untold, self._untold = self._untold, {}
        if not untold:
            return True
        notices = [ManifestNotice(*partition, version, is_deletion=True) for partition, version in untold.items()]
        told = False
        try:
            told = await self._notices.tell(self._new_nonce().hex(), notices)
        finally:
            if not told:
                for partition, version in untold.items():
                    self.tell(partition, version)
        return told
