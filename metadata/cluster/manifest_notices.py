"""Follows the manifest notices by a watch, and passes new ones on to subscribers.

A notice saves polling and decides nothing (manifest_notice.py). Invariant: each notice is passed on once, whatever others of its
partition said before, since their version may never have been written. Subscribers compare the version with the one they hold.
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

NoticesReceived = Callable[[Sequence[ManifestNotice]], None]


class ManifestNoticeCache:
    """Keeps the notices whose lease has not expired. Its owner runs `run()` as a task."""

    def __init__(self, metadata: MetadataStore, layout: KeyLayout) -> None:
        self._notices: dict[str, tuple[ManifestNotice, ...]] = {}
        # The highest version of each partition, and the last key that announces it.
        self._newest: dict[TopicPartition, tuple[int, str]] = {}
        self._subscribers: list[NoticesReceived] = []
        self.run = RangeWatch(metadata, layout.compactions, replace=self._replace, apply=self._apply).run

    def version(self, partition: TopicPartition) -> int:
        """Returns the newest announced version of the partition's manifest; 0 where no notice stands."""
        newest = self._newest.get(partition)
        return newest[0] if newest is not None else 0

    def subscribe(self, received: NoticesReceived) -> Callable[[], None]:
        """Calls `received` with new notices, and returns how to end that. It must not block, nor raise."""
        self._subscribers.append(received)
        return lambda: self._subscribers.remove(received)

    def _replace(self, items: Sequence[KeyValue]) -> None:
        for key in self._notices.keys() - {item.key for item in items}:
            self._forget(key)
        self._receive(items)

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "delete":
                self._forget(event.key)
        puts = [event for event in events if event.kind != "delete"]
        self._receive([KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1) for event in puts])

    def _receive(self, items: Sequence[KeyValue]) -> None:
        new: list[ManifestNotice] = []
        for item in items:
            try:
                notices = decode_notices(item)
            except Corrupt as error:
                log.error("%s", error)
                continue
            if self._notices.get(item.key) == notices:
                continue  # the whole range was read again, after a gap in the watch
            self._forget(item.key)
            self._notices[item.key] = notices
            for notice in notices:
                if notice.version >= self.version(notice.topic_partition):
                    self._newest[notice.topic_partition] = notice.version, item.key
            new += notices
        if new:
            for received in tuple(self._subscribers):
                received(new)

    def _forget(self, key: str) -> None:
        for notice in self._notices.pop(key, ()):
            if self._newest.get(notice.topic_partition) == (notice.version, key):
                del self._newest[notice.topic_partition]
