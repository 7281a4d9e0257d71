"""Compares this machine's clock with the object store's, and decides which time counts. Pure: the caller brings both.

    they differ by    things expire by     what is written is dated by     does anything expire?
    up to 5 minutes   this clock           this clock                      yes
    more              the earlier one      the later one                   no: one of the two is wrong, and which is not known
    not known         this clock           this clock                      yes

A store dates each answer (the header `Date`), at some moment between the sending of the request and the coming of the answer. The
comparison is exact but for that time and for the whole seconds of the header.

Invariant: while either clock is right within the bound, nothing expires before its time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

# A larger difference between this machine's clock and the store's stops everything that expires. Graces are an hour by default, and
# NTP keeps clocks within milliseconds; S3 itself refuses requests that are dated 15 minutes off.
DIFFERENCE_MS_MAX: Final = 300_000
# A `Date` has whole seconds, and file systems stamp files some milliseconds late.
RESOLUTION_MS: Final = 1_000
# An answer that is older says nothing: the clock that counts the time since may have drifted or stood still.
ANSWER_AGE_MS_MAX: Final = 3_600_000


class StoreTime(NamedTuple):
    """The bounds of the store's time at one moment, in ms since 1970."""

    earliest_ms: int
    latest_ms: int


class ClockReading(NamedTuple):
    """Both clocks at one moment."""

    local_ms: int
    # None where the store has not shown its time lately, or never does.
    store: StoreTime | None

    @property
    def difference_ms(self) -> int:
        """Returns how far this clock is ahead of the store's, at least; below 0 where behind, 0 where they may agree."""
        if self.store is None:
            return 0
        earliest_ms, latest_ms = self.store
        return max(0, self.local_ms - latest_ms) or min(0, self.local_ms - earliest_ms)

    @property
    def is_doubted(self) -> bool:
        """Returns whether nothing may expire by this clock."""
        return abs(self.difference_ms) > DIFFERENCE_MS_MAX

    @property
    def now_ms(self) -> int:
        """Returns the time by which things expire."""
        return min(self.local_ms, self.store.earliest_ms) if self.store is not None and self.is_doubted else self.local_ms

    @property
    def stamp_ms(self) -> int:
        """Returns the time to write down where something may expire later, by this clock or by another machine's."""
        return max(self.local_ms, self.store.latest_ms) if self.store is not None and self.is_doubted else self.local_ms


def difference_ms(date_ms: int, *, before_ms: int, after_ms: int) -> int:
    """Returns how far a clock is ahead of the store's, that said `before_ms` before a request and `after_ms` after its answer."""
    return ClockReading(after_ms, StoreTime(date_ms, date_ms + RESOLUTION_MS + after_ms - before_ms)).difference_ms


def doubt_for_people(reading: ClockReading, store_url: str) -> str:
    """Returns what is wrong where a reading is doubted, what follows from it, and what helps."""
    assert reading.store is not None, "there is nothing to compare"
    return (
        f"this machine says {_utc(reading.local_ms)}, and {store_url} says {_utc(reading.store.earliest_ms)}, "
        f"{abs(reading.difference_ms) / 1000:,.0f} s {'earlier' if reading.difference_ms > 0 else 'later'}. Nothing expires and "
        f"nothing is deleted until they agree within {DIFFERENCE_MS_MAX // 1000} s; compaction goes on. Synchronise the clock that "
        "is wrong (chrony, ntpd)"
    )


def _utc(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"


def store_time(date_ms: int, *, since_asked_ms: int, since_answered_ms: int) -> StoreTime | None:
    """Returns the store's time now, by an answer of this date; None where the answer is too old."""
    if since_answered_ms > ANSWER_AGE_MS_MAX:
        return None
    return StoreTime(date_ms + since_answered_ms, date_ms + RESOLUTION_MS + since_asked_ms)
