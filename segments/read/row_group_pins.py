"""Tracks which row groups readers are in the middle of, and bounds them.

    begin (waits for room) ─▶ read ─▶ go_on, go_on, … ─▶ end: a reader has taken its last record
         │                                └ no reader in IN_USE_S ─▶ end
         └ none in time, or larger than all the room ─▶ read all the same, and not in use

read_cache.py decides what is kept. Invariant: groups in use never take more than `bytes_max`, by the manifest's sizes; waiters for
room are served in order of arrival, and for a short time only: without room, a reader reads the group again for the rest of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from metadata.errors import Throttled, TooLarge
from segments.byte_budget import ByteBudget
from segments.history.index import RowGroupLocation

# A reader that takes longer to come back for the rest has to read the row group again, if others need the room.
IN_USE_S: Final = 2.0


@dataclass(slots=True)
class _InUse:
    size_bytes: int
    used_s: float = 0.0
    expiry: asyncio.TimerHandle | None = None


class RowGroupPins:
    """Reserves room for row groups that readers are in the middle of."""

    def __init__(self, bytes_max: int) -> None:
        self._room = ByteBudget(bytes_max, of="row groups that readers are in the middle of")
        self._groups: dict[Hashable, _InUse] = {}

    def __contains__(self, identity: Hashable) -> bool:
        return identity in self._groups

    @property
    def bytes_used(self) -> int:
        return self._room.bytes_used

    def has_room(self, location: RowGroupLocation) -> bool:
        return self._room.has_room(location.size_bytes)

    async def begin(self, location: RowGroupLocation, *, patience_s: float) -> None:
        """Waits until there is room for this group, at most `patience_s`: it is read afterwards in any case."""
        size_bytes = location.size_bytes
        with suppress(Throttled, TooLarge):
            await self._room.acquire(size_bytes, timeout_s=patience_s)
            self._groups[location.identity] = _InUse(size_bytes)

    def go_on(self, location: RowGroupLocation) -> None:
        """Keeps the group in use: a reader has taken a part of it, and will come back for the rest."""
        group = self._groups.get(location.identity)
        if group is None:
            if not self.has_room(location):
                return
            group = self._groups[location.identity] = _InUse(location.size_bytes)
            self._room.take(group.size_bytes)
        loop = asyncio.get_running_loop()
        group.used_s = loop.time()
        if group.expiry is None:
            group.expiry = loop.call_later(IN_USE_S, self._on_expiry, location.identity)

    def end(self, identity: Hashable) -> None:
        """Ends the use of the group."""
        group = self._groups.pop(identity, None)
        if group is not None:
            if group.expiry is not None:
                group.expiry.cancel()
            self._room.release(group.size_bytes)

    def _on_expiry(self, identity: Hashable) -> None:
        group = self._groups[identity]
        loop = asyncio.get_running_loop()
        if group.used_s + IN_USE_S <= loop.time():
            self.end(identity)
        else:
            group.expiry = loop.call_at(group.used_s + IN_USE_S, self._on_expiry, identity)
