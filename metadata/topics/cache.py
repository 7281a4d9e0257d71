"""Caches all topics in memory, fed by a watch, so that the hot path never waits.

Invariants: the cache shows one revision of the store, which never falls; subscribers receive every change, in order. While the
store can't be reached, the cache answers from what it knows.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from metadata.errors import KNOWN_MAX, Corrupt, InvalidArgument, TidelogError, Unavailable, UnknownTopic, did_you_mean
from metadata.model import Revision, TopicId, TopicPartition, check_topic_name
from metadata.store.interface import Event, KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch
from metadata.store.write_batcher import UnchangedSince
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic, decode_topic

# Called with (old, new) of one topic: new is None when it was deleted, old when it was created. Must not block, nor raise.
TopicChanged = Callable[[Topic | None, Topic | None], None]

log = logging.getLogger(__name__)


# Topics that are read from the store at the same time, since clients may name any number of missing ones.
READS_AT_ONCE = 16
# The revision of a topic that is not in the store.
ABSENT = Revision(0)
# Deleted topics whose names are remembered, the last ones.
FORMER_MAX = 1_000


@dataclass(slots=True)
class _CatchingUp:
    """Holds the read of one key from the store, which all callers that wait for it share."""

    # Returns the key's revision, 0 where it does not exist, or why that is not known. None between reads.
    read: asyncio.Task[Revision | TidelogError] | None = None
    # The turn in which the read was sent; None before that.
    sent: int | None = None
    waiting: int = 0


class TopicCache:
    """Caches topics and their settings. Its owner runs `run()`; before the first reading, look-ups raise Unavailable."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout | None = None,
        *,
        may_suggest: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """`may_suggest` returns whether a hint may name a topic."""
        self._layout = layout or KeyLayout()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._settings: dict[TopicId, TopicSettings] = {}
        self._corrupt: dict[str, Corrupt] = {}  # topics whose newest value can't be read, by name
        # The names of topics that were deleted, for those whose names were used again.
        self._former: dict[TopicId, str] = {}
        self._subscribers: list[TopicChanged] = []
        self._may_suggest = may_suggest
        self._store = store
        self._catching_up: dict[str, _CatchingUp] = {}
        self._catching_up_with_all = _CatchingUp()
        self._under_way: set[asyncio.Task[Revision | TidelogError]] = set()
        self._order = itertools.count()
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._view: UnchangedSince | None = None
        self._watched = RangeWatch(store, self._layout.topics, replace=self._replace, apply=self._apply)
        self.run = self._watched.run
        self.wait_for = self._watched.wait_for

    @property
    def revision(self) -> Revision:
        """Returns the revision up to which all changes of topics are seen here; 0 until the first reading."""
        return self._watched.revision

    @property
    def view(self) -> UnchangedSince | None:
        """Returns what guards a write that relies on the topics as they are here; None before the first reading.

        It holds as long as this cache lacks no change of a topic. The caller takes it before it uses the topics.
        """
        revision = self._watched.revision
        view = self._view
        if view is None or view.revision != revision:
            # Each change of a topic writes this key in the same transaction (registry.py).
            self._view = view = UnchangedSince(self._layout.partition_count, revision) if revision else None
        return view

    def get(self, name: str) -> Topic:
        """Returns the topic of that name.

        Raises UnknownTopic (with the nearest name), InvalidName, Corrupt where its value can't be read, Unavailable before the
        first
        reading.
        """
        topic = self._by_name.get(name)
        if topic is None:
            raise self._missing(name)
        return topic

    def find(self, name: str) -> Topic | None:
        """Returns the topic of that name; None where `get` raises an error."""
        return self._by_name.get(name)

    def by_id(self, topic_id: TopicId) -> Topic:
        """Returns the topic. Raises UnknownTopic, also where its name was created again; Unavailable before the first reading.

        `details` of the error hold the new_topic_id of a name that was created again, if this cache has seen that.
        """
        topic = self._by_id.get(topic_id)
        if topic is None:
            self._check_loaded()
            now = self._by_name.get(self._former.get(topic_id, ""))
            again = {"new_topic_id": now.id} if now is not None else {}
            raise UnknownTopic(f"there is no topic with the id {topic_id}", hint="It was deleted.", topic_id=topic_id, **again)
        return topic

    async def catch_up(self, name: str, *, timeout_s: float) -> None:
        """Reads the topic from the store, and returns when this cache holds at least what was read.

        So a caller finds what was created or altered before the call, through any broker. A deletion is not waited for.
        Concurrent callers share a read that begins after all of them have called. Raises Unavailable where the store, or the
        watch, does not answer in time.
        """
        came = next(self._order)
        reading = self._catching_up.setdefault(name, _CatchingUp())
        reading.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                revision = await self._revision_of(self._layout.topic(name), reading, came, self._reads)
                await self.wait_for(revision, timeout_s=None)
        except TimeoutError:
            raise Unavailable(
                f"whether the topic {name} has changed is unknown: no answer of the metadata store in time", topic=name
            ) from None
        finally:
            reading.waiting -= 1
            if not reading.waiting:
                del self._catching_up[name]
                if reading.read is not None:  # else reads of names that clients make up would queue while the store is silent
                    reading.read.cancel()

    async def hear_of(self, partitions: Iterable[TopicPartition], *, timeout_s: float) -> None:
        """Returns when this cache knows each of these partitions that existed at the time of the call. It reads the store once,
        and only where one is unknown here. Raises Unavailable where the store, or the watch, does not answer in time.
        """
        if any(not self.knows(partition) for partition in partitions):
            await self.catch_up_with_all(timeout_s=timeout_s)

    async def catch_up_with_all(self, *, timeout_s: float) -> None:
        """Returns when this cache holds each change of a topic from before the call. Raises Unavailable as `catch_up` does.

        Concurrent callers share a read: when many consumers restart, a coordinator is asked for all of their offsets at once. The
        read takes no place among those of `catch_up`, which clients can fill with names of missing topics.
        """
        came = next(self._order)
        try:
            async with asyncio.timeout(timeout_s):
                # Each change of a topic writes this key in the same transaction (registry.py).
                key = self._layout.partition_count
                revision = await self._revision_of(key, self._catching_up_with_all, came, nullcontext())
                await self.wait_for(revision, timeout_s=None)
        except TimeoutError:
            raise Unavailable("whether topics have changed is unknown: no answer of the metadata store in time") from None

    async def _revision_of(self, key: str, reading: _CatchingUp, came: int, slots: AbstractAsyncContextManager[object]) -> Revision:
        """Returns the revision of the key in a read that is sent after the turn `came`; 0 where the key does not exist.

        The read is a task of its own: a caller that gives up does not end it for the others.
        """
        while (read := reading.read) is not None and reading.sent is not None and reading.sent < came:
            await asyncio.wait((read,))
        if read is None:
            reading.read = read = asyncio.get_running_loop().create_task(self._read_revision(key, reading, slots))
            self._under_way.add(read)
            read.add_done_callback(self._under_way.discard)
        found = await asyncio.shield(read)
        if isinstance(found, TidelogError):
            raise found.with_traceback(None)
        return found

    async def _read_revision(
        self, key: str, reading: _CatchingUp, slots: AbstractAsyncContextManager[object]
    ) -> Revision | TidelogError:
        try:
            async with slots:
                reading.sent = next(self._order)
                kept = await self._store.get(key)
        except TidelogError as error:
            return error
        finally:
            reading.read = reading.sent = None
        return kept.mod_revision if kept is not None else ABSENT

    def knows(self, partition: TopicPartition) -> bool:
        """Returns whether this cache has the partition."""
        topic = self._by_id.get(partition.topic_id)
        return topic is not None and 0 <= partition.partition < topic.partition_count

    def settings(self, topic_id: TopicId) -> TopicSettings:
        """Returns the settings of the topic, defaults filled in. Raises as `by_id` does."""
        self.by_id(topic_id)
        return self._settings[topic_id]

    def topics(self) -> tuple[Topic, ...]:
        """Returns all topics at one revision, in no order. Raises Unavailable before the first reading."""
        self._check_loaded()
        return tuple(self._by_name.values())

    def subscribe(self, changed: TopicChanged) -> Callable[[], None]:
        """Calls `changed` for each later change (for every topic, before the first reading); returns how to end that."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def _replace(self, items: Sequence[KeyValue]) -> None:
        found = {self._layout.parse_topic(item.key): item for item in items}
        for name in [name for name in (*self._by_name, *self._corrupt) if name not in found]:
            self._remove(name)
        for name, kept in found.items():
            self._put(name, kept)

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            name = self._layout.parse_topic(event.key)
            if event.kind == "delete":
                self._remove(name)
            else:
                self._put(name, KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1))

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
        self._notify(old, topic)

    def _remove(self, name: str) -> None:
        self._corrupt.pop(name, None)
        old = self._by_name.pop(name, None)
        if old is not None:
            del self._by_id[old.id], self._settings[old.id]
            self._former[old.id] = name
            if len(self._former) > FORMER_MAX:
                del self._former[next(iter(self._former))]
            self._notify(old, None)

    def _notify(self, old: Topic | None, new: Topic | None) -> None:
        for changed in tuple(self._subscribers):
            changed(old, new)

    def _check_loaded(self) -> None:
        if not self._watched.revision:
            raise Unavailable("the topics have not been read yet", hint="The broker is starting: retry in a moment.")

    def _missing(self, name: str) -> TidelogError:
        self._check_loaded()
        if name in self._corrupt:
            return self._corrupt[name]
        check_topic_name(name)
        known = [near for near in self._by_name if self._may_suggest(near)] if len(self._by_name) <= KNOWN_MAX else []
        return UnknownTopic(f"there is no topic {name}", hint=did_you_mean(name, known) or None, topic=name)
