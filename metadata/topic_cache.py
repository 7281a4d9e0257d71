"""All topics in memory, fed by a watch: what the hot path asks, without waiting.

Invariants: what is here was true at one revision of the store, which never goes back; subscribers hear of every change of what
is here, in order. While the store can't be reached, the cache goes on answering from what it knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from metadata.did_you_mean import did_you_mean
from metadata.errors import Corrupt, InvalidArgument, TidelogError, Unavailable, UnknownTopic
from metadata.etcd_layout import EtcdLayout
from metadata.model import Revision, TopicId, check_topic_name
from metadata.store import KeyValue, MetadataStore, RevisionCompacted, WatchBatch
from metadata.topic import Topic, decode_topic
from metadata.topic_settings import TopicSettings

PAGE_TOPICS = 1000
BACK_OFF_S = 0.1
BACK_OFF_S_MAX = 5.0

TopicChanged = Callable[[Topic | None, Topic | None], None]
"""Called with (old, new) of one topic: new is None when it was deleted, old when it was made. Must not block, nor raise."""

log = logging.getLogger(__name__)


class TopicCache:
    """Its owner runs `run()` as a task; until that has read all topics once, look-ups raise Unavailable."""

    def __init__(self, store: MetadataStore, layout: EtcdLayout | None = None) -> None:
        self._store = store
        self._layout = layout or EtcdLayout()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._settings: dict[TopicId, TopicSettings] = {}
        self._corrupt: dict[str, Corrupt] = {}  # topics whose newest value can't be read, by name
        self._revision = Revision(0)  # 0: nothing was read yet
        self._advanced = asyncio.Event()  # set, and replaced, when the revision has grown
        self._subscribers: list[TopicChanged] = []

    @property
    def revision(self) -> Revision:
        """Of the store, up to which every change of a topic is seen here; 0 until the first reading."""
        return self._revision

    def get(self, name: str) -> Topic:
        """UnknownTopic (with the nearest name), InvalidName, Corrupt where its value can't be read, Unavailable before the
        first reading."""
        topic = self._by_name.get(name)
        if topic is None:
            raise self._missing(name)
        return topic

    def by_id(self, topic_id: TopicId) -> Topic:
        """UnknownTopic also where a topic of that name was made anew; Unavailable before the first reading."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            self._check_loaded()
            raise UnknownTopic(f"there is no topic with the id {topic_id}", hint="It was deleted.", topic_id=topic_id)
        return topic

    def settings(self, topic_id: TopicId) -> TopicSettings:
        """The settings of by_id(topic_id), defaults filled in."""
        self.by_id(topic_id)
        return self._settings[topic_id]

    def topics(self) -> tuple[Topic, ...]:
        """All topics at one revision, in no order. Unavailable before the first reading."""
        self._check_loaded()
        return tuple(self._by_name.values())

    async def wait_for(self, revision: Revision, timeout_s: float) -> bool:
        """Whether the change of a topic at `revision` was seen in time: so a caller reads what it wrote itself.

        `revision` is that of a Topic which create, alter or delete answered, or an earlier one.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._revision < revision:
                    await self._advanced.wait()
        except TimeoutError:
            return False
        return True

    def subscribe(self, changed: TopicChanged) -> Callable[[], None]:
        """Calls `changed` for each change from now on (for every topic, where nothing was read yet); answers how to end it."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    async def run(self) -> None:
        """Reads all topics, then follows their changes, until cancelled. Store errors are retried with growing pauses."""
        back_off_s = BACK_OFF_S
        read_all = True
        while True:
            before = self._revision
            try:
                if read_all:
                    await self._read_all()
                    read_all = False
                await self._follow()
            except RevisionCompacted:
                read_all = True
            except TidelogError as error:
                if self._revision > before:
                    back_off_s = BACK_OFF_S
                log.warning("topics are not up to date; trying again in %.1f s: %s", back_off_s, error)
                await asyncio.sleep(back_off_s)
                back_off_s = min(2 * back_off_s, BACK_OFF_S_MAX)

    async def _read_all(self) -> None:
        found: dict[str, KeyValue] = {}
        page = await self._store.range(self._layout.topics, limit=PAGE_TOPICS)
        revision = page.revision
        while True:
            found |= {self._layout.parse_topic(item.key): item for item in page.items}
            if not page.more:
                break
            page = await self._store.range(
                self._layout.topics, start_after=page.items[-1].key, limit=PAGE_TOPICS, revision=revision
            )
        for name in [name for name in (*self._by_name, *self._corrupt) if name not in found]:
            self._remove(name)
        for name, kept in found.items():
            self._put(name, kept)
        self._seen(revision)

    async def _follow(self) -> None:
        async for batch in self._store.watch(self._layout.topics, Revision(self._revision + 1)):
            self._apply(batch)

    def _apply(self, batch: WatchBatch) -> None:
        for event in batch.events:
            name = self._layout.parse_topic(event.key)
            if event.kind == "delete":
                self._remove(name)
            else:
                kept = KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1)
                self._put(name, kept)
        self._seen(batch.revision)

    def _put(self, name: str, kept: KeyValue) -> None:
        try:
            topic = decode_topic(kept)
            settings = TopicSettings.parse(topic.settings, skip_unknown=True)
        except (Corrupt, InvalidArgument) as error:
            corrupt = error if isinstance(error, Corrupt) else Corrupt(f"topic {name}: {error}", key=kept.key)
            log.error("%s", corrupt)
            self._corrupt[name] = corrupt
            return  # what was read before stays in use: a damaged value must not pass for a deletion
        old = self._by_name.get(name)
        if old == topic:
            return
        if old is not None and old.id != topic.id:
            self._remove(name)
            old = None
        self._corrupt.pop(name, None)
        self._by_name[name] = self._by_id[topic.id] = topic
        self._settings[topic.id] = settings
        self._tell(old, topic)

    def _remove(self, name: str) -> None:
        self._corrupt.pop(name, None)
        old = self._by_name.pop(name, None)
        if old is not None:
            del self._by_id[old.id], self._settings[old.id]
            self._tell(old, None)

    def _tell(self, old: Topic | None, new: Topic | None) -> None:
        for changed in tuple(self._subscribers):
            changed(old, new)

    def _seen(self, revision: Revision) -> None:
        self._revision = revision
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    def _check_loaded(self) -> None:
        if not self._revision:
            raise Unavailable("the topics have not been read yet", hint="The broker is starting: retry in a moment.")

    def _missing(self, name: str) -> TidelogError:
        self._check_loaded()
        if name in self._corrupt:
            return self._corrupt[name]
        check_topic_name(name)
        return UnknownTopic(f"there is no topic {name}", hint=did_you_mean(name, self._by_name) or None, topic=name)
