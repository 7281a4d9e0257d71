"""Decides when a segment is flushed. Pure: the caller brings the time, in seconds of a monotonic clock.

    the open segment is full                           flush
    its oldest batch has waited linger_ms              flush
    nothing is in flight, and the budget allows a PUT  flush: a quiet broker answers in one PUT time
    nothing is in flight, the open segment is large,   flush: every producer waits for this segment, and lingering gathers nothing
      and no batch has come for QUIET_S
    both, but the bucket is not healthy                linger: fewer and larger PUTs
    puts_in_flight_max are in flight                   wait for one to land
    the log is closing, or a caller waits              flush what is left

Invariant: a batch never waits longer than linger_ms while there is room in flight; PUTs per second stay below the larger of
puts_per_second_max and 1000 / linger_ms, but for full segments, for large ones whose producers all wait, for those that a handover
waits for, and for a burst of a quarter second after a pause.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from segments.settings import KIB, SegmentSettings

# A segment of this many bytes may leave without budget once no batch comes any more: its PUT costs at most 0.02 dollars a gigabyte.
LARGE_BYTES: Final = 256 * KIB
# A producer that is not blocked sends its next batch within this time.
QUIET_S: Final = 0.003


class FlushState(NamedTuple):
    """Describes the writer's queues to the policy."""

    # Segments that are full and wait for their PUT.
    full_segments: int
    # When the first batch of the open segment came; None while it is empty.
    open_since_s: float | None
    in_flight: int
    closing: bool
    # The size of the open segment, and when its last batch came; 0 while it is empty.
    open_bytes: int = 0
    newest_at_s: float = 0.0
    # Whether a caller waits for the open segment that a fuller one would not answer: its batches are not to linger.
    waited_for: bool = False
    # Whether the bucket is unhealthy, so that nothing is sent early.
    spared: bool = False


class FlushPolicy:
    """Decides when the next segment is flushed, and keeps the budget of PUTs."""

    def __init__(self, settings: SegmentSettings) -> None:
        self._linger_s = settings.linger_ms / 1000
        self._in_flight_max = settings.puts_in_flight_max
        self._puts_per_second = settings.puts_per_second_max
        self._budget = self._budget_max = max(1.0, settings.puts_per_second_max / 4)
        self._budget_at_s = float("-inf")

    def due_at_s(self, state: FlushState, *, now_s: float) -> float | None:
        """Returns when the next segment is due: `now_s` or earlier is at once; None is not before something changes."""
        if state.in_flight >= self._in_flight_max:
            return None
        if state.full_segments:
            return now_s
        if state.open_since_s is None:
            return None
        if state.closing or state.waited_for:
            return now_s
        linger_over_s = state.open_since_s + self._linger_s
        if state.in_flight or state.spared:
            return linger_over_s
        return min(linger_over_s, self._budget_allows_at_s(now_s), self._quiet_at_s(state))

    def flushed(self, *, now_s: float) -> None:
        """Charges a started PUT to the request budget, which may become negative and is then refilled first."""
        self._refill(now_s)
        self._budget = max(self._budget - 1.0, -self._budget_max)

    def _quiet_at_s(self, state: FlushState) -> float:
        """Returns when every producer counts as waiting. A budget of 0 asks for few PUTs, and there is no such time."""
        if not self._puts_per_second or state.open_bytes < LARGE_BYTES:
            return float("inf")
        return state.newest_at_s + QUIET_S

    def _budget_allows_at_s(self, now_s: float) -> float:
        self._refill(now_s)
        if self._budget >= 1.0:
            return now_s
        return now_s + (1.0 - self._budget) / self._puts_per_second if self._puts_per_second else float("inf")

    def _refill(self, now_s: float) -> None:
        if now_s > self._budget_at_s:
            elapsed_s = now_s - self._budget_at_s
            self._budget = min(self._budget_max, self._budget + elapsed_s * self._puts_per_second) if self._puts_per_second else 0.0
            self._budget_at_s = now_s
