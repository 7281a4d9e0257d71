"""Keeps somebody in step with all keys under a prefix: reads them once, then follows their changes.

    range, page by page, at one revision ─▶ replace(all) ─▶ watch from the next revision ─▶ apply(each transaction) ─▶ …
                    ▲                                                                             │
                    └──────────────────────── history was compacted away meanwhile ◀──────────────┘

Who follows very many keys takes them a page at a time (`Reading`), so that the event loop is never held for long.

Invariants: what was told was true at one revision of the store, which never goes back; each transaction is told once, in order.
While the store can't be reached, nothing is told, and nothing is taken back; neither where it answers with an older revision than
before, since it was emptied then, or set back to a backup (gateway/cluster/identity.py sees to that).

Records of one kind in memory, by the last part of their keys, fed by a watch: what brokers and API keys have in common.

Invariant: a value that can't be read is no record, whatever stood there before it; its name is remembered as damaged until another
value, or none, stands there.
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
        self.watched = RangeWatch(store, prefix, replace=self._replace, apply=self._apply)

    @property
    def revision(self) -> Revision:
        """As RangeWatch.revision."""
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


PAGE_KEYS = 1000
BACK_OFF_S = 0.1
# Short, since brokers that hear late of each other take groups for theirs that are another's.
BACK_OFF_S_MAX = 0.5
# Where all keys have to be read again and again.
READ_AGAIN_S_MAX = 5.0
WENT_WELL_S = 5.0

log = logging.getLogger(__name__)


class Reading(Protocol):
    """One reading of all keys under the prefix, by somebody who takes them a page at a time."""

    def page(self, items: Sequence[KeyValue]) -> None:
        """The next keys. They are not in force before `replace`, which may never come: then another reading begins."""
        ...

    def replace(self) -> None:
        """Every page was told: from now on this is what there is."""
        ...


class RangeWatch:
    """Its owner runs `run()` as a task. The callbacks must not block, nor raise."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        apply: Callable[[Sequence[Event]], None],
        replace: Callable[[Sequence[KeyValue]], None] | None = None,
        read: Callable[[], Reading] | None = None,
    ) -> None:
        """`replace` is told of all keys, once or again after a hole in history, or `read` begins to take them in pages; `apply` is
        told of the changes of one transaction."""
        self._store = store
        self._prefix = prefix
        assert (replace is None) != (read is None), "keys are taken either all at once, or in pages"
        self._read: Callable[[], Reading] = read or (lambda: _AllAtOnce(replace))
        self._apply = apply
        self._revision = Revision(0)  # 0: nothing was read yet
        self._advanced = asyncio.Event()  # set, and replaced, when the revision has grown

    @property
    def revision(self) -> Revision:
        """Of the store, up to which every change under the prefix was told; 0 until the first reading."""
        return self._revision

    async def wait_for(self, revision: Revision, timeout_s: float | None) -> bool:
        """Whether the change at `revision` was told in time: so a caller reads what it wrote itself.

        `revision` is one at which a key under the prefix changed, or an earlier one.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._revision < revision:
                    await self._advanced.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Reads, then follows, until cancelled. What fails is tried again, with pauses that grow while it fails at once."""
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
            log.warning("%s is not up to date; trying again in %.1f s: %s", self._prefix, pause_s, why)
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
        reading.replace()
        self._told(revision)

    async def _follow(self) -> None:
        async for batch in self._store.watch(self._prefix, Revision(self._revision + 1)):
            self._apply(batch.events)
            self._told(batch.revision)

    def _told(self, revision: Revision) -> None:
        self._revision = revision
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()


class _AllAtOnce:
    def __init__(self, replace: Callable[[Sequence[KeyValue]], None] | None) -> None:
        assert replace is not None, "nobody reads in pages"
        self._told = replace
        self._found: list[KeyValue] = []

    def page(self, items: Sequence[KeyValue]) -> None:
        self._found += items

    def replace(self) -> None:
        self._told(self._found)
