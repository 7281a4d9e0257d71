"""Which row groups readers are in the middle of, and how many there may be at a time.

    begin (waits for room) ─▶ read ─▶ go_on, go_on, … ─▶ end: a reader has taken its last record
         │                                └ nobody in IN_USE_S ─▶ end
         └ none in time, or larger than all the room ─▶ read all the same, and not in use

Decides nothing about what is kept: read_cache.py does. Invariant: what is in use never takes more than `bytes_max`, as far as the
manifest tells how large it is; whoever waits for room is served in order of arrival, and nobody waits for long: who gets none has
to read the group again for the rest of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from metadata.errors import Throttled, TooLarge
from segments.byte_budget import ByteBudget
from segments.history.index import GroupPlace

# A reader that takes longer to come back for the rest has to read the row group again, if others need the room.
IN_USE_S: Final = 2.0


@dataclass(slots=True)
class _InUse:
    size_bytes: int
    used_s: float = 0.0
    expiry: asyncio.TimerHandle | None = None


class RowGroupPins:
    def __init__(self, bytes_max: int) -> None:
        self._room = ByteBudget(bytes_max, of="row groups that readers are in the middle of")
        self._groups: dict[Hashable, _InUse] = {}

    def __contains__(self, identity: Hashable) -> bool:
        return identity in self._groups

    @property
    def bytes_used(self) -> int:
        return self._room.bytes_used

    def has_room(self, place: GroupPlace) -> bool:
        return self._room.has_room(place.size_bytes)

    async def begin(self, place: GroupPlace, *, patience_s: float) -> None:
        """Waits until there is room to read this group, or for so long: it is read then all the same."""
        size_bytes = place.size_bytes
        with suppress(Throttled, TooLarge):
            await self._room.acquire(size_bytes, timeout_s=patience_s)
            self._groups[place.identity] = _InUse(size_bytes)

    def go_on(self, place: GroupPlace) -> None:
        """The group is there, or a reader has taken a part of it: somebody comes back for the rest."""
        group = self._groups.get(place.identity)
        if group is None:
            if not self.has_room(place):
                return
            group = self._groups[place.identity] = _InUse(place.size_bytes)
            self._room.take(group.size_bytes)
        loop = asyncio.get_running_loop()
        group.used_s = loop.time()
        if group.expiry is None:
            group.expiry = loop.call_later(IN_USE_S, self._on_expiry, place.identity)

    def end(self, identity: Hashable) -> None:
        """Nobody is in the middle of it any more."""
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
