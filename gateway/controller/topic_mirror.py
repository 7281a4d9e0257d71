"""Copies the registration of each topic to the bucket, for readers without the metadata store: Spark, and a restore.

    topic created ──▶ topic-{revision}.json ─▶ its partitions get leaders ─▶ records
    topic altered ──▶ topic-{revision}.json    of a higher revision
    topic deleted ──▶ deleted-{revision} ────▶ the states of its partitions are deleted

The controller runs it from its election on. Each change is a create-only object of its own, named by the revision that made it, and
the highest revision counts. A controller that was replaced, and has not noticed, can only write objects that exist already.
segments/bucket/topic_catalog.py writes and reads these objects.

A copy of the metadata that has lost must not register its topics. So the controller creates a batch of appointments first: each
copy that appoints later was made after that, and holds the same topics (appointment_log.py).

Invariants: every topic with records on the bucket is mirrored; a topic whose partitions had leaders is marked as deleted before
their states are deleted. So a new controller mirrors only the changes since the last snapshot: a topic whose partitions have states
was mirrored before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from gateway.controller.metadata_snapshots import current_position, list_snapshots
from metadata.backup.restore_state import read_revision_base
from metadata.errors import TidelogError
from metadata.model import Revision, TopicId
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic, encode_topic
from segments.bucket.layout import TopicIncarnation
from segments.bucket.topic_catalog import mark_deleted, names_of, write_registration
from segments.concurrency import gather_all
from segments.object_store.interface import ObjectStore

# PUTs that run at the same time.
PUTS_MAX = 16
# Delay after an election, so that its appointments come first: registrations need a batch of appointments before them.
CATCH_UP_AFTER_S = 1.0
# Pause after a failure.
PAUSE_S = 1.0

log = logging.getLogger(__name__)


class TopicMirror:
    """Mirrors topics during one election. Its owner runs `run()` as a task while this broker is the controller."""

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        topics: TopicCache,
        layout: KeyLayout,
        *,
        now_ms: Callable[[], int],
        prove: Callable[[], Awaitable[None]],
    ) -> None:
        """`now_ms` is the wall clock. `prove` creates a batch of appointments, as for MetadataSnapshots."""
        self._prove = prove
        self._bucket = bucket
        self._now_ms = now_ms
        self._metadata = metadata
        self._topics = topics
        self._layout = layout
        self._base: int | None = None
        # The revisions that are on the bucket, and those that a batch of appointments has shown to be of the copy that goes on.
        self._mirrored: dict[TopicId, Revision] = {}
        self._proven: dict[TopicId, Revision] = {}
        self._names: dict[TopicId, str] = {}
        self._due: dict[TopicId, Topic] = {}
        self._caught_up = False
        self._changed = asyncio.Event()
        self._ensuring = asyncio.Lock()  # so that no topic is written twice at the same time
        self._puts = asyncio.Semaphore(PUTS_MAX)

    async def run(self) -> None:
        """Mirrors every alteration of a topic until cancelled, including earlier ones that no snapshot contains."""
        forget = self._topics.subscribe(self._topic_changed)
        try:
            await asyncio.sleep(CATCH_UP_AFTER_S)
            while True:
                self._changed.clear()
                try:
                    errors = await self.flush()
                except TidelogError as error:
                    errors = [error]
                if errors:
                    log.warning("topic changes not mirrored to the bucket; retrying: %s", errors[0])
                    await asyncio.sleep(PAUSE_S)
                else:
                    await self._changed.wait()
        finally:
            forget()

    async def flush(self) -> Sequence[TidelogError]:
        """Mirrors the alterations that are not mirrored yet. Returns the errors of single topics, which stay due.

        Raises Rejected if another copy of the metadata has appointed leaders, Fenced, Unavailable.
        """
        if not self._caught_up:
            await self._catch_up()
            self._caught_up = True
        altered = list(self._due.values())
        await self._prove_topics(altered)
        due = iter(altered)
        errors: list[TidelogError] = []
        while few := list(islice(due, PUTS_MAX)):  # a topic that waits for its leaders gets the lock in between
            errors += (await self.ensure(few)).values()
        return errors

    async def ensure(self, topics: Iterable[Topic]) -> dict[TopicId, TidelogError]:
        """Writes the registrations of these topics to the bucket, unless they are there. Returns the error of each that is not.

        Raises Rejected if another copy of the metadata has appointed leaders, Fenced, Unavailable.
        """
        asked = list(topics)
        async with self._ensuring:
            base = await self._revision_base()
            missing = _newer(asked, self._mirrored)
            await self._prove_topics(missing)
            missing = self._existing(missing)  # some may have been deleted meanwhile
            written = await gather_all(self._mirror(topic, base) for topic in missing)
            errors = {topic.id: error for topic, error in zip(missing, written, strict=True) if error is not None}
            self._mirrored |= {topic.id: topic.revision for topic in self._existing(missing) if topic.id not in errors}
        for topic in asked:
            due = self._due.get(topic.id)
            if due is not None and due.revision <= topic.revision and topic.id not in errors:
                del self._due[topic.id]
        return errors

    async def ensure_deleted(self, topic_ids: Collection[TopicId]) -> None:
        """Marks deleted topics on the bucket, by their ids. Raises Unavailable, Denied, Corrupt."""
        names = {topic_id: self._names[topic_id] for topic_id in topic_ids if topic_id in self._names}
        if len(names) < len(topic_ids):
            names |= await names_of(self._bucket, frozenset(topic_ids) - names.keys())  # deleted before this broker started
        if names:
            now = (await self._metadata.range(self._layout.topics, limit=1)).revision
            revision = Revision(now + await self._revision_base())
            await gather_all(self._mark_one(name, topic_id, revision) for topic_id, name in names.items())
        for topic_id in topic_ids:
            self._names.pop(topic_id, None)

    # ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _prove_topics(self, topics: Sequence[Topic]) -> None:
        """Creates a batch of appointments, unless one was created while the metadata held all these topics.

        It fails in a copy of the metadata that has lost.
        """
        if unproven := _newer(topics, self._proven):
            await self._prove()
            self._proven |= {topic.id: topic.revision for topic in self._existing(unproven)}

    async def _mirror(self, topic: Topic, base: int) -> TidelogError | None:
        named = TopicIncarnation(topic.name, topic.id)
        async with self._puts:
            try:
                await write_registration(self._bucket, named, Revision(topic.revision + base), encode_topic(topic))
            except TidelogError as error:  # Unavailable, Denied, Corrupt
                return error.with_traceback(None)
        return None

    async def _mark_one(self, name: str, topic_id: TopicId, revision: Revision) -> None:
        async with self._puts:
            await mark_deleted(self._bucket, TopicIncarnation(name, topic_id), revision, now_ms=self._now_ms())

    def _existing(self, topics: Iterable[Topic]) -> list[Topic]:
        there = {topic.id for topic in self._topics.topics()}
        return [topic for topic in topics if topic.id in there]

    # ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _topic_changed(self, old: Topic | None, new: Topic | None) -> None:
        """Notes an altered topic as due. A created topic waits for `ensure`, since it has no records before."""
        if new is None:
            assert old is not None, "what is gone was there"
            self._due.pop(old.id, None)
            self._mirrored.pop(old.id, None)
            self._proven.pop(old.id, None)
            return
        self._names[new.id] = new.name
        if old is not None:
            self._due[new.id] = new
            self._changed.set()

    async def _catch_up(self) -> None:
        base = await self._revision_base()
        snapshots = await list_snapshots(self._bucket)
        now = await current_position(self._metadata, self._layout)
        # A later snapshot comes from another copy of the metadata, or from a controller that has taken over.
        known = [
            found.position.revision for found in snapshots if found.position <= now and found.position.revision <= now.revision
        ]
        snapshot_revision = known[-1] - base if known else 0
        topics = self._topics.topics()
        self._names |= {topic.id: topic.name for topic in topics}
        self._due |= {
            topic.id: topic for topic in topics if topic.revision > max(snapshot_revision, self._mirrored.get(topic.id, 0))
        }

    async def _revision_base(self) -> int:
        if self._base is None:
            self._base = await read_revision_base(self._metadata, self._layout)
        return self._base


def _newer(topics: Iterable[Topic], known: Mapping[TopicId, Revision]) -> list[Topic]:
    return [topic for topic in topics if known.get(topic.id, -1) < topic.revision]
