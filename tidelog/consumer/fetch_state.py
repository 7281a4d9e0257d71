"""Tracks a reader's position in each partition, which ones it fetches next, and what their errors mean. Pure.

The set of partitions may change at any moment: they are begun, dropped, paused, and begun again elsewhere.

    what a partition met                                   then
    records, or a long poll without any                    it goes on behind what was found, and has its turn after the others
    what passes (no leader, the broker is away)            it pauses, longer each time; one that follows never gives up, one that
                                                           has an end does after `patience_s` without progress
    a refusal for want of a right or a key                 it pauses, too, until that has lasted DENIED_S: the broker may not have
                                                           heard of a new right or key yet
    anything else (damage, an offset that is gone)         it ends there and keeps the error; the others go on

Invariant: a partition goes forward only, unless its reader moves it. An answer counts only where it begins at the offset that
is wanted next: so an answer to a request from before the move is never taken for a later one's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Final

from metadata.errors import NotAuthorized, NotFound, OutOfRange, Throttled, TidelogError, Unauthenticated, Unavailable
from metadata.groups.assignors import TopicPartitionName
from tidelog.settings import ResetPolicy
from tidelog.transport.descriptions import OffsetRange

# The refusals for want of a right or a key. They may be those of a broker that has not heard of a new one yet.
REFUSALS: Final = (NotAuthorized, Unauthenticated)
# How long refusals are retried. A broker's view of rights and keys is at most access_max_age_ms old, by default 9 s.
DENIED_S: Final = 10.0
# Partitions that a message names; more are counted.
NAMED_MAX: Final = 10

_RESET_HINT: Final = (
    "Begin elsewhere, or choose where to go on by itself: auto_offset_reset='earliest' or 'latest' "
    "(on the command line --auto-offset-reset)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a reader retries, and the pauses between retries, in seconds."""

    # Pause before the first retry; doubles up to `pause_s_max`.
    pause_s: float
    pause_s_max: float
    patience_s: float


@dataclass(slots=True)
class _Partition:
    # Where the next fetch begins.
    next_offset: int
    # It was added while its topic was followed, and is unread: it begins at its log start offset at that time.
    was_added: bool
    # Where reading ends; None: it does not end.
    end_offset: int | None = None
    # What ended it before its end.
    error: TidelogError | None = None
    is_paused: bool = False
    # From the last answer.
    high_watermark: int | None = None
    troubled_since_s: float | None = None
    # The first refusal for want of a right since its last answer.
    denied_since_s: float | None = None
    pause_s: float = 0.0
    resumes_s: float = -math.inf

    @property
    def is_finished(self) -> bool:
        return self.error is not None or (self.end_offset is not None and self.next_offset >= self.end_offset)


class FetchState:
    """The state of one reader's partitions. `now_s` is from any monotonic clock."""

    def __init__(self, *, follow: bool, reset: ResetPolicy, patience: Patience) -> None:
        self._follow = follow
        self._reset = reset
        self._patience = patience
        # In the order of their turns.
        self._partitions: dict[TopicPartitionName, _Partition] = {}

    def __contains__(self, partition: TopicPartitionName) -> bool:
        return partition in self._partitions

    # ── where it begins and ends ──

    def begin(self, partition: TopicPartitionName, next_offset: int, *, was_added: bool = False) -> None:
        """Begins a partition, or moves it: it keeps its pause and its end, and forgets its error."""
        before = self._partitions.get(partition)
        self._partitions[partition] = _Partition(
            next_offset,
            was_added=was_added,
            end_offset=None if before is None else before.end_offset,
            is_paused=before is not None and before.is_paused,
            high_watermark=None if before is None else before.high_watermark,
        )

    def drop(self, partition: TopicPartitionName) -> None:
        self._partitions.pop(partition, None)

    def pause(self, partition: TopicPartitionName) -> None:
        self._partitions[partition].is_paused = True

    def resume(self, partition: TopicPartitionName) -> None:
        self._partitions[partition].is_paused = False

    def paused(self) -> list[TopicPartitionName]:
        return [partition for partition, held in self._partitions.items() if held.is_paused]

    def end_at(self, partition: TopicPartitionName, ends: OffsetRange) -> OutOfRange | None:
        """Ends reading at the partition's present end. Returns an error if its start is out of range."""
        held = self._partitions[partition]
        held.end_offset = ends.high_watermark
        if ends.log_start_offset <= held.next_offset <= ends.high_watermark:
            return None
        return OutOfRange("", log_start_offset=ends.log_start_offset, high_watermark=ends.high_watermark)

    def of_topic(self, topic: str) -> list[TopicPartitionName]:
        return [partition for partition in self._partitions if partition[0] == topic]

    def unfinished(self) -> list[TopicPartitionName]:
        return [partition for partition, held in self._partitions.items() if not held.is_finished]

    def errors(self) -> dict[TopicPartitionName, TidelogError]:
        """Returns, by partition, the error that ended it before its end."""
        return {partition: held.error for partition, held in sorted(self._partitions.items()) if held.error is not None}

    def outcome(self) -> TidelogError | None:
        """Returns the error to raise once nothing is left to read: the first partition's, with a note if there are more."""
        errors = self.errors()
        if not errors:
            return None
        error = copy(next(iter(errors.values())))
        if len(errors) > 1:
            topics = {topic for topic, _ in errors}
            of_topic = f" of {topics.pop()}" if len(topics) == 1 else ""
            names = [str(partition[1]) if of_topic else shown(partition) for partition in errors]
            listed = ", ".join(names[:NAMED_MAX]) + (", …" if len(errors) > NAMED_MAX else "")
            error.add_note(f"{len(errors)} partitions{of_topic} were not read to their ends: {listed}.")
        return error

    # ── what is asked for, and what was answered ──

    def next_offset(self, partition: TopicPartitionName) -> int:
        return self._partitions[partition].next_offset

    def end_offset(self, partition: TopicPartitionName) -> int | None:
        return self._partitions[partition].end_offset

    def due(self, partitions: Iterable[TopicPartitionName], now_s: float) -> tuple[list[TopicPartitionName], float]:
        """Returns the partitions to fetch now, and when the next of the others is due; infinity if there is none."""
        due: list[TopicPartitionName] = []
        resumes_s = math.inf
        for partition in partitions:
            held = self._partitions[partition]
            if held.is_paused:
                continue
            if held.resumes_s <= now_s:
                due.append(partition)
            else:
                resumes_s = min(resumes_s, held.resumes_s)
        return due, resumes_s

    def answered(self, partition: TopicPartitionName, *, asked_offset: int, behind: int, next_offset: int) -> int | None:
        """Takes in a whole answer: its records end before `behind` (0: none), and reading goes on at `next_offset`.

        Returns the offset of the first record that is new; None where there is none, or the answer is not wanted any more: the
        partition has ended meanwhile, was dropped or paused, or is read from elsewhere than the offset that was asked for.
        """
        held = self._partitions.get(partition)
        if held is None or held.is_finished or held.is_paused or held.next_offset != asked_offset:
            return None
        start = held.next_offset
        held.next_offset = max(start, behind, next_offset)
        held.was_added = False
        held.denied_since_s = None
        if held.end_offset is None or held.next_offset > start:
            held.troubled_since_s = None
        if behind <= start:
            return None
        self._partitions[partition] = self._partitions.pop(partition)
        return start

    def ends_at(self, partition: TopicPartitionName, high_watermark: int) -> None:
        """Notes the high watermark of an answer."""
        if (held := self._partitions.get(partition)) is not None:
            held.high_watermark = high_watermark

    def high_watermark(self, partition: TopicPartitionName) -> int | None:
        held = self._partitions.get(partition)
        return None if held is None else held.high_watermark

    def missing(self, partition: TopicPartitionName, high_watermark: int) -> Unavailable | None:
        """Returns an error if the partition ends before reading does: the reader would wait without end for lost records."""
        held = self._partitions.get(partition)
        if held is None or held.end_offset is None or not high_watermark <= held.next_offset < held.end_offset:
            return None
        return Unavailable(
            f"{shown(partition)} ends at offset {high_watermark}; when reading began, it ended at {held.end_offset}",
            hint="Committed records are gone, if this stays so: run `tidelog bucket verify`.",
        )

    # ── what went wrong ──

    def met(
        self, errors: Mapping[TopicPartitionName, TidelogError], now_s: float, *, jitter: float
    ) -> tuple[list[TopicPartitionName], list[TopicPartitionName]]:
        """Notes the errors by partition. Returns the partitions that pause for the first time, and those that have ended.

        `jitter` scales the pauses: 0.5 to 1.5. A throttled reader waits as long as the broker asks, or up to half as long again.
        """
        troubled: list[TopicPartitionName] = []
        ended: list[TopicPartitionName] = []
        for partition, error in errors.items():
            held = self._partitions.get(partition)
            if held is None or held.is_finished:
                continue
            is_new = held.troubled_since_s is None
            if held.troubled_since_s is None:
                held.troubled_since_s, held.pause_s = now_s, self._patience.pause_s
            if isinstance(error, REFUSALS):
                held.denied_since_s = now_s if held.denied_since_s is None else held.denied_since_s
                passes = now_s - held.denied_since_s <= DENIED_S
            else:
                # The route has it: not every broker hears of a new topic or partition at the same moment.
                passes = error.retryable or isinstance(error, NotFound)
            if passes and (self._follow or now_s - held.troubled_since_s <= self._patience.patience_s):
                throttled_s = error.retry_after_s * (0.75 + jitter / 2) if isinstance(error, Throttled) else None
                held.resumes_s = now_s + (held.pause_s * jitter if throttled_s is None else throttled_s)
                held.pause_s = min(2 * held.pause_s, self._patience.pause_s_max)
                if is_new:
                    troubled.append(partition)
            else:
                held.error = error
                ended.append(partition)
        return troubled, ended

    def end(self, partition: TopicPartitionName, error: TidelogError) -> None:
        """Ends a partition with an error, also one that could not begin."""
        if partition not in self._partitions:
            self.begin(partition, 0)
        self._partitions[partition].error = error

    def reset_position(self, partition: TopicPartitionName, gone: OutOfRange) -> int:
        """Moves a partition whose offset is not in the log to where the reader chose, and returns that. Raises OutOfRange without a
        choice."""
        held = self._partitions[partition]
        bounds = {"earliest": gone.details.get("log_start_offset"), "latest": gone.details.get("high_watermark")}
        next_offset = bounds.get("earliest" if held.was_added else self._reset)
        if not isinstance(next_offset, int):
            raise self.out_of_range(partition, gone)
        held.next_offset = next_offset
        return next_offset

    def out_of_range(self, partition: TopicPartitionName, gone: OutOfRange) -> OutOfRange:
        """Rewrites the error in the reader's words."""
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
            f"offset {offset} of {shown(partition)} is outside of [{first}, {end}]: {why}", hint=_RESET_HINT, **gone.details
        )


def shown(partition: TopicPartitionName) -> str:
    """Formats a partition as TOPIC/NUMBER."""
    return f"{partition[0]}/{partition[1]}"


def named(error: TidelogError, partition: TopicPartitionName) -> TidelogError:
    """Copies the error and adds the partition, unless the error names it."""
    name = shown(partition)
    renamed = copy(error)
    if name not in error.message:
        renamed.message = f"{error.message} ({name})"
        renamed.args = (renamed.message,)
    renamed.details = {**error.details, "topic": partition[0], "partition": partition[1]}
    return renamed
