"""Wakes those that wait for news of partitions: readers for records, a handover for the last commit. No I/O.

    committed, dropped, leadership or log start changed ─▶ wake(partition) ─▶ each News that watches it: noted, and `woken` is set

Invariants: it keeps nothing of a partition without waiters. Each change that a look-up could see is news, so that a reader need not
look up a partition without news again. A watch's partition at rest has had no news since it was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic

from metadata.model import TopicPartition
from segments.read.due_lookups import DueLookups, Key


class News:
    """Collects which partitions have news, for one waiter."""

    __slots__ = ("is_watched", "partitions", "woken")

    def __init__(self, *, is_watched: bool = False) -> None:
        """`is_watched`: a notifier adds the news of every partition of the reader."""
        self.is_watched = is_watched
        self.woken = asyncio.Event()
        # The waiter takes them out.
        self.partitions: set[TopicPartition] = set()

    def add(self, partition: TopicPartition) -> None:
        self.partitions.add(partition)
        self.woken.set()

    def take(self) -> set[TopicPartition]:
        """Returns the partitions with news since the last call."""
        taken, self.partitions = self.partitions, set()
        return taken


class ReaderNotifier:
    """Knows who waits for news of which partition."""

    def __init__(self) -> None:
        self._watching: dict[TopicPartition, dict[News, None]] = {}

    def __len__(self) -> int:
        """Returns the number of partitions for which a reader waits."""
        return len(self._watching)

    @contextmanager
    def at(self, partitions: Iterable[TopicPartition]) -> Iterator[News]:
        """Yields the news of the partitions from now on."""
        news, watched = News(is_watched=True), list(partitions)
        for partition in watched:
            self.watch(partition, news)
        try:
            yield news
        finally:
            for partition in watched:
                self.forget(partition, news)

    def watch(self, partition: TopicPartition, news: News) -> None:
        """Adds the partition's news from now on, until `forget`."""
        self._watching.setdefault(partition, {})[news] = None

    def forget(self, partition: TopicPartition, news: News) -> None:
        watching = self._watching.get(partition, {})
        watching.pop(news, None)
        if not watching:
            self._watching.pop(partition, None)

    def wake(self, partition: TopicPartition) -> None:
        for news in self._watching.get(partition, ()):
            news.add(partition)


class PartitionWatch(Generic[Key]):
    """Watches partitions for a reader with several look-ups, by keys of its choice, and says which are due. `close` ends that."""

    __slots__ = ("_due", "_key_of", "_news", "_partition_of", "is_closed", "notifier")

    def __init__(self, notifier: ReaderNotifier, keys: Iterable[Key]) -> None:
        """Marks all partitions as due, in the order of `keys`."""
        self.is_closed = False
        self.notifier = notifier
        self._news = News(is_watched=True)
        self._due: DueLookups[Key] = DueLookups(keys)
        self._partition_of: dict[Key, TopicPartition] = {}
        self._key_of: dict[TopicPartition, Key] = {}

    def take(self) -> list[Key]:
        """Returns the due partitions in the order of reading. The caller then calls `follow` before it looks any of them up."""
        self._news.woken.clear()
        for partition in self._news.take():
            if (key := self._key_of.get(partition)) is not None:
                self._due.mark(key)
        return self._due.take()

    def follow(self, key: Key, partition: TopicPartition | None) -> None:
        """Watches the partition that the key names now; None where it names none. A topic that is created again has another id."""
        if self.is_closed or (before := self._partition_of.get(key)) == partition:
            return
        if before is not None:
            self._forget(key)
        if partition is not None:
            self._partition_of[key], self._key_of[partition] = partition, key
            self.notifier.watch(partition, self._news)

    async def woken(self) -> None:
        """Returns once a partition has had news since `take`, or the watch is closed."""
        await self._news.woken.wait()

    def add(self, key: Key) -> None:
        """Notes that the reader asks for this partition, or for something else of it than before."""
        self._due.add(key)

    def mark(self, key: Key) -> None:
        """Makes a partition due, unless it was removed."""
        self._due.mark(key)

    def mark_all(self) -> None:
        self._due.mark_all()

    def move_to_end(self, key: Key) -> None:
        self._due.move_to_end(key)

    def remove(self, key: Key) -> None:
        self._due.remove(key)
        if key in self._partition_of:
            self._forget(key)

    def close(self) -> None:
        """Ends the watch. A fetch that waits is woken."""
        for key in tuple(self._partition_of):
            self._forget(key)
        self.is_closed = True
        self._news.woken.set()

    def _forget(self, key: Key) -> None:
        partition = self._partition_of.pop(key)
        if self._key_of.get(partition) == key:
            del self._key_of[partition]
            self.notifier.forget(partition, self._news)
