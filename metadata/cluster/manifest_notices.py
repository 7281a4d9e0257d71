"""The compaction notices that still stand, from a watch, and who wants to be told of new ones.

A notice saves polling, and decides nothing (manifest_notice.py). Invariant: each is passed on once, whatever others have said of
its partition before: they may have told of a version that nobody came to write. Who is told compares with what it holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from metadata.cluster.manifest_notice import ManifestNotice, decode_notices
from metadata.errors import Corrupt
from metadata.model import TopicPartition
from metadata.store.interface import Event, KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch

log = logging.getLogger(__name__)

Told = Callable[[Sequence[ManifestNotice]], None]


class ManifestNoticeCache:
    """Its owner runs `run()` as a task."""

    def __init__(self, metadata: MetadataStore, layout: KeyLayout) -> None:
        self._told: dict[str, tuple[ManifestNotice, ...]] = {}
        self._newest: dict[TopicPartition, tuple[int, str]] = {}
        """The highest version, and the last key that tells of it."""
        self._subscribers: list[Told] = []
        self.run = RangeWatch(metadata, layout.compactions, replace=self._replace, apply=self._apply).run

    def version(self, partition: TopicPartition) -> int:
        """Of the newest manifest that was told of; 0 where none was, a short while ago."""
        newest = self._newest.get(partition)
        return newest[0] if newest is not None else 0

    def subscribe(self, told: Told) -> Callable[[], None]:
        """Calls it with each new notice; answers how to end that. It must not block, nor raise."""
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
        heard: list[ManifestNotice] = []
        for item in items:
            try:
                notices = decode_notices(item)
            except Corrupt as error:
                log.error("%s", error)
                continue
            if self._told.get(item.key) == notices:
                continue  # read anew, after a hole in the history
            self._forget(item.key)
            self._told[item.key] = notices
            for notice in notices:
                if notice.version >= self.version(notice.place):
                    self._newest[notice.place] = notice.version, item.key
            heard += notices
        if heard:
            for told in tuple(self._subscribers):
                told(heard)

    def _forget(self, key: str) -> None:
        for notice in self._told.pop(key, ()):
            if self._newest.get(notice.place) == (notice.version, key):
                del self._newest[notice.place]
