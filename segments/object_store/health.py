"""Judges the bucket by the outcomes of calls: healthy, degraded or unavailable. Pure: the caller brings the time.

                 one in DEGRADED_SHARE fails                    nearly all fail
    healthy ───────────────────────────────▶ degraded ───────────────────────────────▶ unavailable
            ◀─────────────────────────────── for CALM_S fewer ◀─────────────────────── RECOVERED_RUN calls in a row succeed
              than one in HEALTHY_SHARE fail

Counted over a window of seconds, and only from SAMPLE_MIN outcomes on: a broker at rest that meets one failure in five calls is as
healthy as before. What it takes to get worse is more than what it takes to stay there, so that a share at the border does not
make it swing. A call that was answered is a success, whatever the answer ("there is no such object"): the store is there.

Without calls for a whole window nothing is known, and the bucket counts as healthy.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

WINDOW_S: Final = 30
# Outcomes in the window, below which the state gets no worse.
SAMPLE_MIN: Final = 10
# Share of failures in the window from which on a healthy bucket is degraded.
DEGRADED_SHARE: Final = 0.25
HEALTHY_SHARE: Final = 0.05
UNAVAILABLE_SHARE: Final = 0.9
# Seconds for which at most HEALTHY_SHARE of the calls may fail before a degraded bucket is healthy.
CALM_S: Final = 10
# Calls in a row that succeed end `unavailable`: a store that comes back is used again at once.
RECOVERED_RUN: Final = 3


class HealthState(enum.Enum):
    """Names the health of the bucket."""

    HEALTHY = "healthy"
    # Some calls fail: fewer and larger ones are made.
    DEGRADED = "degraded"
    # Nearly all fail.
    UNAVAILABLE = "unavailable"


class StoreHealth:
    """Counts outcomes over a window, and derives the state."""

    def __init__(self) -> None:
        self._state = HealthState.HEALTHY
        # [second, successes, failures], the oldest first, none without an outcome.
        self._seconds: deque[list[int]] = deque()
        self._successes = 0
        self._failures = 0
        # Successes since the last failure.
        self._run = 0

    def ended(self, *, failed: bool, now_s: float) -> None:
        """Counts a call that has ended. `now_s` never falls."""
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(second)
            self._seconds.append([second, 0, 0])
        if failed:
            self._seconds[-1][2] += 1
            self._failures += 1
            self._run = 0
        else:
            self._seconds[-1][1] += 1
            self._successes += 1
            self._run += 1
            if self._state is HealthState.HEALTHY:
                return  # the way of nearly every call
        self._state = self._next(second)

    @property
    def answers(self) -> bool:
        """Returns whether the last call succeeded."""
        return self._run > 0

    def state(self, now_s: float) -> HealthState:
        if self._state is not HealthState.HEALTHY:
            self._forget(int(now_s))
            if not self._seconds:
                self._state = HealthState.HEALTHY
                self._run = 0
        return self._state

    def _next(self, second: int) -> HealthState:
        outcomes = self._successes + self._failures
        share = self._failures / outcomes
        enough = outcomes >= SAMPLE_MIN
        match self._state:
            case HealthState.HEALTHY | HealthState.DEGRADED if enough and share >= UNAVAILABLE_SHARE:
                return HealthState.UNAVAILABLE
            case HealthState.HEALTHY if enough and share >= DEGRADED_SHARE:
                return HealthState.DEGRADED
            case HealthState.UNAVAILABLE if self._run >= RECOVERED_RUN:
                # Failures before the bucket came back say nothing about its present state.
                self._seconds.clear()
                self._seconds.append([second, self._run, 0])
                self._successes, self._failures = self._run, 0
                return HealthState.DEGRADED
            case HealthState.DEGRADED if self._is_calm(second):
                return HealthState.HEALTHY
            case _:
                return self._state

    def _is_calm(self, second: int) -> bool:
        """Returns whether there are outcomes of CALM_S and more, and nearly none of CALM_S failed."""
        if second - self._seconds[0][0] < CALM_S:
            return False
        recent = [held for held in self._seconds if second - held[0] < CALM_S]
        failures = sum(held[2] for held in recent)
        return failures <= HEALTHY_SHARE * sum(held[1] + held[2] for held in recent)

    def _forget(self, second: int) -> None:
        while self._seconds and second - self._seconds[0][0] >= WINDOW_S:
            _, successes, failures = self._seconds.popleft()
            self._successes -= successes
            self._failures -= failures
