"""Keeps a compactor's view of the segments on the bucket up to date: what segments/wal/scanner.py finds goes into state.py.

The session whose segments were written first is read on, and nothing more where `runs_max` runs wait: the rest stays on the bucket
until these are compacted. Of a sealed session in which something waits, the trim markers are listed now and then, since another
compactor may have done it.
"""

from __future__ import annotations

from typing import Final

from compaction.wal.state import SessionState, WalState
from segments.object_store.interface import ObjectStore
from segments.wal.scanner import WalScanner
from segments.wal.session import trim_markers

# Pause between two listings of the trim markers of sealed sessions.
MARKERS_LOOKED_MS: Final = 60_000


class WalBacklog:
    """Holds the runs in segments that are not compacted yet, as of the last poll. Its owner makes one call at a time."""

    def __init__(self, store: ObjectStore, *, runs_max: int, reads_max: int) -> None:
        self._store = store
        self._runs_max = runs_max
        self._reads_max = reads_max
        self.state = WalState()
        self.begin_anew()

    def begin_anew(self) -> None:
        """The next look lists and reads everything, as the first one did: what was damaged may have been restored."""
        self.state.clear()
        self._scanner = WalScanner(self._store, self.state, reads_max=self._reads_max)
        self._markers_looked_ms: int | None = None

    @property
    def has_read_all(self) -> bool:
        """Else there are more segments than there is room to know at a time."""
        return self._scanner.has_read_all

    async def look(self, *, now_ms: int) -> None:
        """Raises what the store raises; what was found until then is kept."""
        await self._scanner.poll(now_ms=now_ms, has_room=self._has_room)
        if self._markers_looked_ms is None:
            self._markers_looked_ms = now_ms
        if now_ms - self._markers_looked_ms >= MARKERS_LOOKED_MS:
            self._markers_looked_ms = now_ms
            for state in [state for state in self.state.sessions.values() if state.is_ended and state.done_to < state.known_to]:
                await self.look_at_marker(state)
        self.state.drop_sessions_that_are_over()

    async def look_at_marker(self, state: SessionState) -> None:
        for marker in await trim_markers(self._store, state.session):
            state.markers.setdefault(marker, None)
            self._scanner.trimmed(state.listed, marker)

    def _has_room(self) -> bool:
        return self.state.run_count < self._runs_max
