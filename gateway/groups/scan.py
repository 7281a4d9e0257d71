"""Scans all groups of this broker at intervals, also those without calls, and passes them to expiry and metrics.

  groups/… in pages ─▶ those that this broker coordinates ─▶ offsets that are not known ─▶ expiry.py, metrics.py

A scan adopts no group: what it passes on may be older than the coordinator's state, and is no ground for a write. Each broker reads
the
records of all groups, the only way to find its groups without calls. It takes its time: members' calls come first.
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

# Records of one page, each of up to group_bytes_max.
PAGE: Final = 100

# Pause after each page.
PAUSE_S: Final = 0.1
# Delay after brokers joined or left: others may follow.
SETTLES_S: Final = 5.0

# Called with the name of a group and the group; its offsets are known then.
GroupVisitor = Callable[[str, Group], Awaitable[None]]

log = logging.getLogger(__name__)


class GroupScanner:
    """Scans the groups, and calls each of `visitors` with every group of this broker. Its owner runs `run()` as a task."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        known: CommittedOffsetCache,
        visitors: Sequence[GroupVisitor],
        *,
        interval_s: float,
        coordinates: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._layout = layout
        self._known = known
        self._visitors = visitors
        self._interval_s = interval_s
        self._coordinates = coordinates
        self._now_ms = now_ms
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Starts the next scan without waiting for the interval: groups may have moved here."""
        self._wanted.set()

    async def run(self) -> None:
        """Scans at once, then after each interval, until cancelled."""
        while True:
            self._wanted.clear()
            try:
                await self.once()
            except TidelogError as error:
                log.warning("group scan failed: %s; retrying in %g s", error, self._interval_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()
                await asyncio.sleep(SETTLES_S)

    async def once(self) -> None:
        """Scans once. A group that cannot be read or handled is logged, and does not hold up the others."""
        count = 0
        async for kept in stored_groups(self._store, self._layout):
            count += 1
            if count % PAGE == 0:
                await asyncio.sleep(PAUSE_S)
            try:
                name = self._layout.parse_group(kept.key)
                if self._coordinates(name):
                    await self._visit(name, decode_group(kept, now_ms=0))
            except TidelogError as error:
                level = logging.ERROR if isinstance(error, Corrupt) else logging.WARNING
                log.log(level, "group not scanned key=%s: %s; the next scan retries", kept.key, error)

    async def _visit(self, name: str, group: Group) -> None:
        if not self._known.is_whole(name):
            began_ms = self._now_ms()
            stored = await read_offsets(self._store, self._layout, name)
            self._known.read(name, stored.committed, began_ms=began_ms)
            for error in stored.damaged.values():
                log.error("committed offset corrupt group=%s: %s; a new commit replaces it", name, error)
        for visit in self._visitors:
            await visit(name, group)


async def stored_groups(
    store: MetadataStore, layout: KeyLayout, *, after_key: str = "", page_size: int = PAGE
) -> AsyncIterator[KeyValue]:
    """Reads the records of all groups, in byte order of their keys, a page at a time, each page of its own instant."""
    while True:
        page = await store.range(layout.groups, start_after=after_key, limit=page_size)
        for kept in page.items:
            yield kept
        if not page.more:
            return
        after_key = page.items[-1].key
