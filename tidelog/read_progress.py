"""How far a reader is in each partition, which of them it asks for next, and what an error of one of them means. Pure.

    what a partition met                                   then
    records, or a long poll without any                    it goes on behind what was found, and has its turn after the others
    what passes (nobody leads, the broker is away)         it pauses, longer each time; one that follows never gives up, one that
                                                           has an end does after `patience_s` without progress
    anything else (damage, an offset that is gone)         it ends there and keeps the error; the others go on

Invariant: a partition goes forward only, unless its reader chose to begin anew where its offset is gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Final

from metadata.errors import NotFound, OutOfRange, Throttled, TidelogError, Unavailable
from tidelog.descriptions import OffsetRange
from tidelog.settings import ResetPolicy

NAMED_MAX: Final = 10
"""Partitions that a message names; more are counted."""

_RESET_HINT: Final = (
    "Begin elsewhere, or choose where to go on by itself: auto_offset_reset='earliest' or 'latest' "
    "(on the command line --auto-offset-reset)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    pause_s: float
    """Before the first repeat; doubles up to `pause_s_max`."""
    pause_s_max: float
    patience_s: float


@dataclass(slots=True)
class _Partition:
    next_offset: int
    """Where the next fetch begins."""
    was_added: bool
    """It came while its topic was followed, and was not read yet: it begins at its start, wherever that is by then."""
    end_offset: int | None = None
    """Where reading ends; None: nowhere."""
    error: TidelogError | None = None
    """What ended it before its end."""
    troubled_since_s: float | None = None
    pause_s: float = 0.0
    resumes_s: float = -math.inf

    @property
    def is_finished(self) -> bool:
        return self.error is not None or (self.end_offset is not None and self.next_offset >= self.end_offset)


class ReadProgress:
    """Of one reader. `now_s` is of any clock that does not go back."""

    def __init__(self, topic: str, *, follow: bool, reset: ResetPolicy, patience: Patience) -> None:
        self._topic = topic
        self._follow = follow
        self._reset = reset
        self._patience = patience
        self._partitions: dict[int, _Partition] = {}
        """In the order of their turns."""

    def __contains__(self, partition: int) -> bool:
        return partition in self._partitions

    # ── where it begins and ends ──

    def begin(self, partition: int, next_offset: int, *, was_added: bool = False) -> None:
        self._partitions[partition] = _Partition(next_offset, was_added=was_added)

    def end_at(self, partition: int, ends: OffsetRange) -> OutOfRange | None:
        """Reading ends at the partition's present end. Answers what is wrong where it can't even begin."""
        held = self._partitions[partition]
        held.end_offset = ends.high_watermark
        if ends.log_start_offset <= held.next_offset <= ends.high_watermark:
            return None
        return OutOfRange("", log_start_offset=ends.log_start_offset, high_watermark=ends.high_watermark)

    def unfinished(self) -> list[int]:
        return [partition for partition, held in self._partitions.items() if not held.is_finished]

    def errors(self) -> dict[int, TidelogError]:
        """By partition: what ended it before its end."""
        return {partition: held.error for partition, held in sorted(self._partitions.items()) if held.error is not None}

    def outcome(self) -> TidelogError | None:
        """What to raise once nothing is left to read: the first partition's error, with a note where there are more."""
        errors = self.errors()
        if not errors:
            return None
        error = copy(next(iter(errors.values())))
        if len(errors) > 1:
            shown = ", ".join(map(str, list(errors)[:NAMED_MAX])) + (", …" if len(errors) > NAMED_MAX else "")
            error.add_note(f"{len(errors)} partitions of {self._topic} were not read to their ends: {shown}.")
        return error

    # ── what is asked for, and what was answered ──

    def next_offset(self, partition: int) -> int:
        return self._partitions[partition].next_offset

    def end_offset(self, partition: int) -> int | None:
        return self._partitions[partition].end_offset

    def due(self, partitions: Iterable[int], now_s: float) -> tuple[list[int], float]:
        """Those that may be asked for now, and when the next one of the others may be: at infinity where there is none."""
        due: list[int] = []
        resumes_s = math.inf
        for partition in partitions:
            held = self._partitions[partition]
            if held.resumes_s <= now_s:
                due.append(partition)
            else:
                resumes_s = min(resumes_s, held.resumes_s)
        return due, resumes_s

    def answered(self, partition: int, *, behind: int, next_offset: int) -> int | None:
        """An answer arrived whole: its records end before `behind` (0: there are none), and it goes on at `next_offset`.

        Answers the offset of the first record that is new; None where there is none, or where the partition has ended meanwhile.
        """
        held = self._partitions[partition]
        if held.is_finished:
            return None
        start = held.next_offset
        held.next_offset = max(start, behind, next_offset)
        held.was_added = False
        if held.end_offset is None or held.next_offset > start:
            held.troubled_since_s = None
        if behind <= start:
            return None
        self._partitions[partition] = self._partitions.pop(partition)
        return start

    def missing(self, partition: int, high_watermark: int) -> Unavailable | None:
        """What to think of a partition that ends before reading does: waiting for records that are gone would never end."""
        held = self._partitions[partition]
        if held.end_offset is None or not high_watermark <= held.next_offset < held.end_offset:
            return None
        return Unavailable(
            f"{self._topic}/{partition} ends at offset {high_watermark}; when reading began, it ended at {held.end_offset}",
            hint="Committed records are gone, if this stays so: run `tidelog bucket verify`.",
        )

    # ── what went wrong ──

    def met(self, errors: Mapping[int, TidelogError], now_s: float, *, jitter: float) -> tuple[list[int], list[int]]:
        """By partition, what it met. Answers which of them pause for the first time, and which have ended.

        `jitter` scales the pauses: about 1.
        """
        troubled: list[int] = []
        ended: list[int] = []
        for partition, error in errors.items():
            held = self._partitions[partition]
            if held.is_finished:
                continue
            is_new = held.troubled_since_s is None
            if held.troubled_since_s is None:
                held.troubled_since_s, held.pause_s = now_s, self._patience.pause_s
            # The route has it: not every broker hears of a new topic or partition at the same moment.
            passes = error.retryable or isinstance(error, NotFound)
            if passes and (self._follow or now_s - held.troubled_since_s <= self._patience.patience_s):
                held.resumes_s = now_s + (error.retry_after_s if isinstance(error, Throttled) else held.pause_s * jitter)
                held.pause_s = min(2 * held.pause_s, self._patience.pause_s_max)
                if is_new:
                    troubled.append(partition)
            else:
                held.error = error
                ended.append(partition)
        return troubled, ended

    def end(self, partition: int, error: TidelogError) -> None:
        """It can't be read any further."""
        self._partitions[partition].error = error

    def begin_anew(self, partition: int, gone: OutOfRange) -> int:
        """Its offset is gone, or never was: goes on where its reader chose, and answers that. OutOfRange if it chose nothing."""
        held = self._partitions[partition]
        bounds = {"earliest": gone.details.get("log_start_offset"), "latest": gone.details.get("high_watermark")}
        next_offset = bounds.get("earliest" if held.was_added else self._reset)
        if not isinstance(next_offset, int):
            raise self.out_of_range(partition, gone)
        held.next_offset = next_offset
        return next_offset

    def out_of_range(self, partition: int, gone: OutOfRange) -> OutOfRange:
        """The same in the reader's words."""
        offset = self._partitions[partition].next_offset
        first, end = gone.details.get("log_start_offset"), gone.details.get("high_watermark")
        if not isinstance(first, int) or not isinstance(end, int):
            return gone
        if first == end:
            why = "the partition is empty"
        elif offset < first:
            why = f"its oldest record has offset {first}"
        else:
            why = f"its newest record has offset {end - 1}"
        return OutOfRange(
            f"offset {offset} of {self._topic}/{partition} is outside of [{first}, {end}]: {why}", hint=_RESET_HINT, **gone.details
        )


def named(error: TidelogError, topic: str, partition: int) -> TidelogError:
    """A copy that says which partition it is of, where it does not yet."""
    place = f"{topic}/{partition}"
    told = copy(error)
    if place not in error.message:
        told.message = f"{error.message} ({place})"
        told.args = (told.message,)
    told.details = {**error.details, "topic": topic, "partition": partition}
    return told
