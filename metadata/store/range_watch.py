"""Follows all keys under a prefix: reads them once, then applies their changes.

    range, page by page, at one revision ─▶ replace(all) ─▶ watch from the next revision ─▶ apply(each transaction) ─▶ …
                    ▲                                                                             │
                    └──────────────────────── history was compacted away meanwhile ◀──────────────┘

A follower of very many keys takes them a page at a time (`Reading`), so that the event loop is never held for long.

Invariants: the follower is at one revision of the store, which never falls; each later transaction is applied once, in order.
While the store can't be reached, nothing changes; nor where it answers with an older revision than before, since it was emptied, or
set back to a backup (gateway/cluster/identity.py handles that).

`RecordWatch` keeps records of one kind, such as brokers or API keys, by the last part of their keys. Invariant: an unreadable value
is no record, whatever was there before; its name stays damaged until another value, or none, replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from metadata.errors import TidelogError, Unavailable
from metadata.model import Revision
from metadata.store.interface import Event, KeyValue, MetadataStore, RevisionCompacted

Record = TypeVar("Record")


class RecordWatch(Generic[Record]):
    """Keeps the decoded records under a prefix. Its owner runs `watched.run()` as a task."""

    def __init__(
        self, store: MetadataStore, prefix: str, decode: Callable[[KeyValue], Record], changed: Callable[[], None]
    ) -> None:
        """`decode` raises TidelogError for an unreadable value. `changed` follows each change; must not block, nor raise."""
        self.by_name: dict[str, Record] = {}
        self.damaged: set[str] = set()
        # The revision that wrote each record, also of damaged ones.
        self.revisions: dict[str, Revision] = {}
        self.prefix = prefix
        self._decode = decode
        self._changed = changed
        self.watched = RangeWatch(store, prefix, replace=self._replace, apply=self._apply)

    @property
    def revision(self) -> Revision:
        """Returns RangeWatch.revision."""
        return self.watched.revision

    def is_at(self, revision: Revision) -> None:
        """Calls RangeWatch.is_at."""
        self.watched.is_at(revision)

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


PAGE_KEYS = 1000
BACK_OFF_S = 0.1
# Short, since brokers with an outdated list of each other claim the same groups.
BACK_OFF_S_MAX = 0.5
# Upper bound of the pause between whole readings.
READ_AGAIN_S_MAX = 5.0
WENT_WELL_S = 5.0

log = logging.getLogger(__name__)


class Reading(Protocol):
    """Reads all keys under the prefix once, a page at a time."""

    def page(self, items: Sequence[KeyValue]) -> None:
        """Takes the next keys. They count from `replace` on, which may never come: then another reading begins."""
        ...

    def replace(self) -> None:
        """Makes the keys of all pages replace those of the reading before."""
        ...


class RangeWatch:
    """Follows the keys under a prefix. Its owner runs `run()` as a task. The callbacks must not block, nor raise."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        apply: Callable[[Sequence[Event]], None],
        replace: Callable[[Sequence[KeyValue]], None] | None = None,
        read: Callable[[], Reading] | None = None,
    ) -> None:
        """Takes the callbacks of the reader: either `replace` takes all keys at each whole reading, or `read` begins one in pages;
        `apply` takes each transaction."""
        self._store = store
        self._prefix = prefix
        assert (replace is None) != (read is None), "keys are taken either all at once, or in pages"
        self._read: Callable[[], Reading] = read or (lambda: _AllAtOnce(replace))
        self._apply = apply
        self._revision = Revision(0)  # 0: nothing was read yet
        self._advanced = asyncio.Event()  # set, and replaced, when the revision has grown

    @property
    def revision(self) -> Revision:
        """Returns the revision up to which all changes under the prefix were applied; 0 until the first reading."""
        return self._revision

    async def wait_for(self, revision: Revision, timeout_s: float | None) -> bool:
        """Waits until the change at `revision` was applied, so that a caller reads its own write. False after `timeout_s`.

        `revision` is one at which a key under the prefix changed, or an earlier one.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._revision < revision:
                    await self._advanced.wait()
        except TimeoutError:
            return False
        return True

    def is_at(self, revision: Revision) -> None:
        """Notes that the keys are those of `revision`, by a read of the store.

        The watch may lag behind it, if each change meanwhile was taken back. Those changes are not applied any more: they would
        bring back keys that had been deleted before that read.
        """
        if revision > self._revision:
            self._advance(revision)

    async def run(self) -> None:
        """Reads, then follows, until cancelled. Failures are retried, with pauses that grow while they repeat at once."""
        loop = asyncio.get_running_loop()
        back_off_s = BACK_OFF_S
        read_all = True
        while True:
            begun_s, followed_from = loop.time(), Revision(0)
            why: Exception | str = "the watch has ended"
            try:
                if read_all:
                    await self._read_all()
                    read_all = False
                followed_from = self._revision
                await self._follow()
            except RevisionCompacted as error:
                read_all = True
                why = error
            except TidelogError as error:
                why = error
            if 0 < followed_from < self._revision or loop.time() - begun_s > WENT_WELL_S:
                back_off_s = BACK_OFF_S  # it went well until now
            pause_s = back_off_s if read_all else min(back_off_s, BACK_OFF_S_MAX)
            log.warning("watch failed prefix=%s: %s; retrying in %.1f s", self._prefix, why, pause_s)
            await asyncio.sleep(pause_s)
            back_off_s = min(2 * back_off_s, READ_AGAIN_S_MAX)

    async def _read_all(self) -> None:
        page = await self._store.range(self._prefix, limit=PAGE_KEYS)
        revision = page.revision
        if revision < self._revision:
            raise Unavailable(f"the metadata are at revision {revision}, and were at {self._revision}: they were lost or set back")
        reading = self._read()
        while True:
            reading.page(page.items)
            if not page.more:
                break
            page = await self._store.range(self._prefix, start_after=page.items[-1].key, limit=PAGE_KEYS, revision=revision)
        if revision < self._revision:
            raise Unavailable(f"another read has shown the keys of revision {self._revision} meanwhile, which are newer")
        reading.replace()
        self._advance(revision)

    async def _follow(self) -> None:
        async for batch in self._store.watch(self._prefix, Revision(self._revision + 1)):
            if batch.revision > self._revision:
                self._apply(batch.events)
                self._advance(batch.revision)

    def _advance(self, revision: Revision) -> None:
        self._revision = revision
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()


class _AllAtOnce:
    def __init__(self, replace: Callable[[Sequence[KeyValue]], None] | None) -> None:
        assert replace is not None, "keys are taken either all at once, or in pages"
        self._replace = replace
        self._found: list[KeyValue] = []

    def page(self, items: Sequence[KeyValue]) -> None:
        self._found += items

    def replace(self) -> None:
        self._replace(self._found)
