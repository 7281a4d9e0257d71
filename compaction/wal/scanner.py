"""Keeps a compactor's view of the segments on the bucket up to date: segments/wal/scanner.py finds them, state.py keeps them.

The session with the oldest next segment is read first, and none while `runs_max` runs wait: the rest stays on the bucket
until these are compacted. The trim markers of a sealed session with waiting runs are listed now and then, since another
compactor may have compacted them.
"""

from __future__ import annotations

from typing import Final

from compaction.wal.state import SessionState, WalState
from segments.object_store.interface import ObjectStore
from segments.wal.scanner import WalScanner
from segments.wal.session import trim_markers

# Pause between two listings of the trim markers of sealed sessions.
MARKERS_INTERVAL_MS: Final = 60_000


class WalBacklog:
    """Holds the runs in segments that are not compacted yet, as of the last poll. Its owner makes one call at a time."""

    def __init__(self, store: ObjectStore, *, runs_max: int, reads_max: int) -> None:
        self._store = store
        self._runs_max = runs_max
        self._reads_max = reads_max
        self.state = WalState()
        self.begin_again()

    def begin_again(self) -> None:
        """Makes the next pass list and read everything, as the first one did: damaged objects may have been restored."""
        self.state.clear()
        self._scanner = WalScanner(self._store, self.state, reads_max=self._reads_max)
        self._markers_listed_ms: int | None = None

    @property
    def has_read_all(self) -> bool:
        """Returns whether all segments are known; otherwise there are more than fit in memory."""
        return self._scanner.has_read_all

    async def poll(self, *, now_ms: int) -> None:
        """Polls the bucket. Raises what the store raises; it keeps what it found."""
        await self._scanner.poll(now_ms=now_ms, has_room=self._has_room)
        if self._markers_listed_ms is None:
            self._markers_listed_ms = now_ms
        if now_ms - self._markers_listed_ms >= MARKERS_INTERVAL_MS:
            self._markers_listed_ms = now_ms
            for state in [state for state in self.state.sessions.values() if state.is_ended and state.done_to < state.known_to]:
                await self.read_trim_markers(state)
        self.state.drop_sessions_that_are_over()

    async def read_trim_markers(self, state: SessionState) -> None:
        for marker in await trim_markers(self._store, state.session):
            state.markers.setdefault(marker, None)
            self._scanner.trimmed(state.listed, marker)

    def _has_room(self) -> bool:
        return self.state.run_count < self._runs_max
