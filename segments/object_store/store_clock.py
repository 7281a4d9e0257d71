"""Keeps what the object store's answers say of the time. The store feeds it; who expires or deletes anything asks it.

    S3: `Date` of each answer ───┐
    directory: mtime of what is ─┴─▶ heard ─▶ reading: this machine's clock and the store's ─▶ clock_reading.py decides
    created there

No request is sent for it. The time since an answer is measured by a clock that never jumps and that goes on while the machine is
suspended, where there is one: so a jump of the wall clock shows at once, not only with the next answer. A directory on a local disk
has the clock of its machine: there it shows jumps alone.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping
from typing import Final

from segments.object_store.clock_reading import DIFFERENCE_MS_MAX, ClockReading, store_time

# Answers that come sooner after the one that was heard last say nothing new.
_HEARD_EACH_S: Final = 1.0
# By how much the store's time goes on between two answers, beyond the steady clock's, where the machine has stood still.
JUMP_MS_MIN: Final = 60_000
# A silence this long counts as a leap, too: some machines set a steady clock to the host's when they are resumed.
SILENCE_S: Final = 300.0


def steady_s() -> float:
    """Returns seconds of a clock that never goes back, with suspends where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class StoreClock:
    """Compares the wall clock with the store's. Used from any thread."""

    def __init__(self, wall_ms: Callable[[], int], *, steady: Callable[[], float] = steady_s) -> None:
        self._wall_ms = wall_ms
        self.steady_s = steady
        self._heard: tuple[int, float, float] | None = None  # date in ms, when it was asked for and answered, by `steady_s`
        self._date = ""
        # How often the store's time has leapt ahead of the steady clock, or nothing was heard for SILENCE_S. The machine may have
        # stood still, or may have been set back with its memory, as a virtual machine is that is resumed from a snapshot.
        self.leaps = 0

    def heard(self, date_ms: int, *, asked_s: float) -> None:
        """Takes in the date of an answer that has just come; it was asked for at `asked_s` of `steady_s`."""
        self._notice_leap(date_ms)
        self._heard = date_ms, asked_s, self.steady_s()

    def _notice_leap(self, date_ms: int) -> None:
        if self._heard is not None:
            before_ms, asked_s, answered_s = self._heard
            now_s = self.steady_s()
            self.leaps += now_s - answered_s > SILENCE_S or date_ms - before_ms > 1000 * (now_s - asked_s) + JUMP_MS_MIN

    def heard_headers(self, headers: Mapping[str, str], *, asked_s: float) -> None:
        """Takes in an answer over HTTP by its headers, named in lower case. One from a cache, or without a date, says nothing."""
        is_soon = self._heard is not None and self.steady_s() - self._heard[2] < _HEARD_EACH_S
        date = headers.get("date")
        if date is None or "age" in headers or (is_soon and date == self._date):
            return
        self._date = date
        try:
            date_ms = http_date_ms(date)
        except ValueError:
            return
        if is_soon:
            self._notice_leap(date_ms)
        else:
            self.heard(date_ms, asked_s=asked_s)

    def reading(self) -> ClockReading:
        local_ms = self._wall_ms()
        if self._heard is None:
            return ClockReading(local_ms, None)
        date_ms, asked_s, answered_s = self._heard
        now_s = self.steady_s()
        since_asked_ms, since_answered_ms = round(1000 * (now_s - asked_s)), round(1000 * (now_s - answered_s))
        return ClockReading(local_ms, store_time(date_ms, since_asked_ms=since_asked_ms, since_answered_ms=since_answered_ms))

    @property
    def is_doubted(self) -> bool:
        return self.reading().is_doubted

    def now_ms(self) -> int:
        """Returns the time by which things expire."""
        local_ms = self._wall_ms()
        return local_ms if self._surely_agrees(local_ms) else self.reading().now_ms

    def stamp_ms(self) -> int:
        """Returns the time to write down where something may expire later."""
        local_ms = self._wall_ms()
        return local_ms if self._surely_agrees(local_ms) else self.reading().stamp_ms

    def _surely_agrees(self, local_ms: int) -> bool:
        """Returns quickly, for each batch of a producer, that the whole reading would not be doubted."""
        if self._heard is None:
            return True
        date_ms, _, answered_s = self._heard
        return abs(local_ms - date_ms - 1000 * (self.steady_s() - answered_s)) <= DIFFERENCE_MS_MAX


def http_date_ms(date: str) -> int:
    """Raises ValueError where it is no HTTP date."""
    return round(1000 * email.utils.parsedate_to_datetime(date).timestamp())
