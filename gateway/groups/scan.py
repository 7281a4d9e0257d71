"""Looks at all groups of this broker from time to time, those that nobody calls for as well, and tells who asks to be told.

    groups/… in pages ─▶ those that this broker coordinates ─▶ offsets that are not known ─▶ expiry.py, metrics.py

Nothing is adopted for a look: what is told may be older than what the coordinator knows, and is no ground for a write. Each broker
reads the records of all groups: there is no other way to find those that it coordinates and nobody calls for. It takes its time:
what members ask goes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from gateway.groups.offset_cache import CommittedOffsetCache
from metadata.errors import Corrupt, TidelogError
from metadata.groups.model import Group
from metadata.groups.offsets import read_offsets
from metadata.groups.record import decode_group
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout

# Records, each of up to group_bytes_max.
PAGE: Final = 100

# After so many records.
PAUSE_S: Final = 0.1
# After brokers came or went: others may follow.
SETTLES_S: Final = 5.0

# Called with the name of a group and the group; its offsets are known then.
Look = Callable[[str, Group], Awaitable[None]]

log = logging.getLogger(__name__)


class GroupScanner:
    """Its owner runs `run()` as a task."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        known: CommittedOffsetCache,
        looks: Sequence[Look],
        *,
        interval_s: float,
        coordinates: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._layout = layout
        self._known = known
        self._looks = looks
        self._interval_s = interval_s
        self._coordinates = coordinates
        self._now_ms = now_ms
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Looks again without waiting for the next time: groups may have moved here."""
        self._wanted.set()

    async def run(self) -> None:
        """The first at once, then one after each interval, until cancelled."""
        while True:
            self._wanted.clear()
            try:
                await self.once()
            except TidelogError as error:
                log.warning("the consumer groups were not looked at: %s; it is tried again in %g s", error, self._interval_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()
                await asyncio.sleep(SETTLES_S)

    async def once(self) -> None:
        """A group that can't be read, or dealt with, is told in the log, and does not hold up the others."""
        count = 0
        async for kept in stored_groups(self._store, self._layout):
            count += 1
            if count % PAGE == 0:
                await asyncio.sleep(PAUSE_S)
            try:
                name = self._layout.parse_group(kept.key)
                if self._coordinates(name):
                    await self._look_at(name, decode_group(kept, now_ms=0))
            except TidelogError as error:
                level = logging.ERROR if isinstance(error, Corrupt) else logging.WARNING
                log.log(level, "%s was not looked at: %s", kept.key, error)

    async def _look_at(self, name: str, group: Group) -> None:
        if not self._known.is_whole(name):
            began_ms = self._now_ms()
            stored = await read_offsets(self._store, self._layout, name)
            self._known.read(name, stored.committed, began_ms=began_ms)
            for error in stored.damaged.values():
                log.error("group %s: %s", name, error)
        for look in self._looks:
            await look(name, group)


async def stored_groups(
    store: MetadataStore, layout: KeyLayout, *, after_key: str = "", page_size: int = PAGE
) -> AsyncIterator[KeyValue]:
    """Their records, in byte order of their keys, a page at a time, each page of its own instant."""
    while True:
        page = await store.range(layout.groups, start_after=after_key, limit=page_size)
        for kept in page.items:
            yield kept
        if not page.more:
            return
        after_key = page.items[-1].key
