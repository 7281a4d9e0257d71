"""Follows notices of newer manifests for the partitions led here, and publishes those that DeleteRecords wrote here.

  /compactions/{unit} ─ watch ─▶ ManifestNoticeCache ─▶ led here, newer than held? ─▶ LIST, GET ─▶ ManifestFollower.adopt
  ManifestFollower: on_deletion ─▶ DeletionNotifier ─▶ /compactions/{unit} ─▶ compactors, and the present leader

A notice saves polling, and decides nothing: the newest manifest on the bucket is adopted. A reader finds out about a missed one
when a
segment is gone. Invariants: a partition that comes to be led here also follows earlier notices. A version that is not there yet,
because DeleteRecords got no answer, is looked for while its notice stands. Deletions are published however long the metadata are
away,
unless the broker ends before.
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

# Pause before manifests that could not be read are tried again.
PAUSE_S = 1.0
# Longest pause before an announced manifest that is not there is looked for again; it doubles from PAUSE_S on.
AWAITED_PAUSE_S_MAX = 30.0
# Interval over which deletions are published together: each notice is a lease, for ten minutes.
PUBLISH_PAUSE_S = 5.0
# Longest pause while deletions cannot be published.
PUBLISH_PAUSE_S_MAX = 30.0
# Longest time that a stopping broker takes to publish deletions.
LAST_WORD_S = 2.0

log = logging.getLogger(__name__)


class _Awaited(NamedTuple):
    """Describes an announced manifest that is not there: it may land late, or never."""

    # The newest manifest that is there.
    newest: Manifest | None
    pause_s: float
    due_s: float


class ManifestWatch:
    """Adopts newer manifests for one session. Its owner runs `run()` as a task, and calls `wake` for partitions newly led here
    whose manifest is older than a notice says."""

    def __init__(
        self, session_log: SessionLog, bucket: ObjectStore, topics: TopicCache, notices: ManifestNoticeCache, *, reads_max: int
    ) -> None:
        self._log = session_log
        self._bucket = bucket
        self._topics = topics
        self._notices = notices
        self._reads_max = reads_max
        # Partitions that may have newer manifests than are held.
        self._heard: set[TopicPartition] = set()
        self._awaited: dict[TopicPartition, _Awaited] = {}
        self._wake = asyncio.Event()

    def wake(self, partitions: Set[TopicPartition]) -> None:
        self._heard |= partitions
        self._wake.set()

    async def run(self) -> None:
        unsubscribe = self._notices.subscribe(self._on_notices)
        try:
            while True:
                self._wake.clear()
                heard, self._heard = self._heard, set()
                due = self._due()
                try:
                    await self._adopt(heard, due)
                except TidelogError as error:
                    log.info("manifest read failed: %s; retrying", error)
                    self.wake(heard | due)
                    await asyncio.sleep(PAUSE_S)
                await self._wait_until_due()
        finally:
            unsubscribe()

    def _on_notices(self, notices: Sequence[ManifestNotice]) -> None:
        self.wake({notice.topic_partition for notice in notices})

    def _due(self) -> Set[TopicPartition]:
        now_s = asyncio.get_running_loop().time()
        return {partition for partition, awaited in self._awaited.items() if awaited.due_s <= now_s}

    async def _wait_until_due(self) -> None:
        soonest_s = min((awaited.due_s for awaited in self._awaited.values()), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(soonest_s):
                await self._wake.wait()

    async def _adopt(self, heard: Set[TopicPartition], due: Set[TopicPartition]) -> None:
        outdated = self._outdated(heard | due)
        awaited = {partition: self._awaited[partition] for partition in outdated if partition in self._awaited}
        known = {partition: before.newest for partition, before in awaited.items() if before.newest is not None}
        manifests = await newest_manifests(self._bucket, outdated, known=known, reads_max=self._reads_max)
        for partition, manifest in manifests.items():
            if isinstance(manifest, Corrupt):
                log.error("manifest corrupt partition=%s: %s; the held one stays in use", partition, manifest)
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
        """Returns the partitions led here that have a newer manifest, with the names of their topics."""
        outdated: dict[TopicPartition, str] = {}
        for partition in sorted(heard):
            held = self._log.manifests.version(partition)
            if held is not None and held < self._notices.version(partition):
                try:
                    outdated[partition] = self._topics.by_id(partition.topic_id).name
                except UnknownTopic:
                    continue  # deleted: no client reads it
        return outdated


class DeletionNotifier:
    """Publishes deletions of one broker for its whole life: after a lost session, the session's successor must learn of its
    deletions.

    Its owner runs `run()` as a task, and after that `publish_remaining`.
    """

    def __init__(self, notices: ManifestNotifier, *, new_nonce: Callable[[], bytes]) -> None:
        self._notices = notices
        self._new_nonce = new_nonce
        self._pending: dict[TopicPartition, int] = {}
        self._deleted = asyncio.Event()

    @property
    def pending(self) -> int:
        """Returns the number of partitions with unpublished deletions."""
        return len(self._pending)

    def notify(self, partition: TopicPartition, version: int) -> None:
        """Notes that DeleteRecords sent this manifest to the bucket, where it may take effect."""
        self._pending[partition] = max(version, self._pending.get(partition, 0))
        self._deleted.set()

    async def run(self) -> None:
        pause_s = PUBLISH_PAUSE_S
        while True:
            await self._deleted.wait()
            self._deleted.clear()
            published = await self._publish_pending()
            pause_s = PUBLISH_PAUSE_S if published else min(2 * pause_s, PUBLISH_PAUSE_S_MAX)
            await asyncio.sleep(pause_s)

    async def publish_remaining(self) -> None:
        """Publishes the remaining deletions when the broker stops, within LAST_WORD_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await self._publish_pending()
        if self._pending:
            some = ", ".join(map(str, sorted(self._pending)[:10]))
            log.warning(
                "deletions not published partitions=%d: no answer of the metadata store for %s; the broker stops",
                len(self._pending),
                some,
            )

    async def _publish_pending(self) -> bool:
        pending, self._pending = self._pending, {}
        if not pending:
            return True
        notices = [ManifestNotice(*partition, version, is_deletion=True) for partition, version in pending.items()]
        published = False
        try:
            published = await self._notices.notify(self._new_nonce().hex(), notices)
        finally:
            if not published:
                for partition, version in pending.items():
                    self.notify(partition, version)
        return published
