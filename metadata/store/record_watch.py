"""Records of one kind in memory, by the last part of their keys, fed by a watch: what brokers and API keys have in common.

Invariant: a value that can't be read is no record, whatever stood there before it; its name is remembered as damaged until another
value, or none, stands there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from metadata.errors import TidelogError
from metadata.model import Revision
from metadata.store.interface import Event, KeyValue, MetadataStore
from metadata.store.range_watch import WatchedRange

Record = TypeVar("Record")
log = logging.getLogger(__name__)


class WatchedRecords(Generic[Record]):
    """Its owner runs `watched.run()` as a task."""

    def __init__(
        self, store: MetadataStore, prefix: str, decode: Callable[[KeyValue], Record], changed: Callable[[], None]
    ) -> None:
        """`decode` raises TidelogError where a value can't be read. `changed` is called after each transaction, and after each
        reading of all; it must not block, nor raise."""
        self.by_name: dict[str, Record] = {}
        self.damaged: set[str] = set()
        self.revisions: dict[str, Revision] = {}
        """In which each was written, the damaged ones too."""
        self.prefix = prefix
        self._decode = decode
        self._changed = changed
        self.watched = WatchedRange(store, prefix, replace=self._replace, apply=self._apply)

    @property
    def revision(self) -> Revision:
        """As WatchedRange.revision."""
        return self.watched.revision

    def _replace(self, items: Sequence[KeyValue]) -> None:
        self.by_name.clear()
        self.damaged.clear()
        self.revisions.clear()
        for item in items:
            self._put(item)
        self._changed()

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "delete":
                name = event.key.removeprefix(self.prefix)
                self.by_name.pop(name, None)
                self.damaged.discard(name)
                self.revisions.pop(name, None)
            else:
                self._put(KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1))
        self._changed()

    def _put(self, kept: KeyValue) -> None:
        name = kept.key.removeprefix(self.prefix)
        self.revisions[name] = kept.mod_revision
        try:
            record = self._decode(kept)
        except TidelogError as error:
            log.error("%s", error)
            self.by_name.pop(name, None)
            self.damaged.add(name)
        else:
            self.by_name[name] = record
            self.damaged.discard(name)
