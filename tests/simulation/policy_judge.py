"""Judges the log starts that readers and clients of DeleteRecords were answered. Pure.

    DeleteRecords ──▶ answered: the log starts at L ──▶ later requests read nothing below L, and get no lower start
    a fetch       ──▶ answered: the log starts at S     S was on the bucket already; the same reader never gets less

Exempt are answers to readers of a session that somebody took out of the cluster while its lease lived: until it learns of that,
they may be old (docs/design/segments.md). What such a session answers to DeleteRecords has to hold like all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.simulation.history_checker import Event, Fetched, Invariant, Violation
from tests.simulation.policy_model import Gone


class Deleted(NamedTuple):
    """DeleteRecords was answered."""

    partition: str
    before_offset: int
    log_start_offset: int
    reported_ms: int


def judge_log_starts(events: Iterable[Event], deleted: Sequence[Deleted], gone: Mapping[str, Gone]) -> Iterator[Violation]:
    """`gone`: of every partition that is judged."""
    answers: dict[str, list[Deleted]] = defaultdict(list)
    for answer in deleted:
        answers[answer.partition].append(answer)
        reported = f"DeleteRecords before {answer.before_offset} of {answer.partition} was answered {answer.log_start_offset}"
        if answer.log_start_offset < answer.before_offset:
            yield Violation(Invariant.DELETED, reported)
        if answer.log_start_offset > gone[answer.partition].log_start:
            yield Violation(Invariant.DELETED, f"{reported}; in the end it starts at {gone[answer.partition].log_start}")
    starts: dict[tuple[str, str], int] = defaultdict(int)
    for event in events:
        if isinstance(event, Fetched) and event.partition in gone:
            yield from _fetched(event, answers[event.partition], gone[event.partition], starts)


def _fetched(event: Fetched, answers: Sequence[Deleted], gone: Gone, starts: dict[tuple[str, str], int]) -> Iterator[Violation]:
    start, who = event.log_start_offset, f"{event.reader} of {event.partition}"
    if start > (landed := gone.log_start_by(event.reported_ms)):
        yield Violation(Invariant.DELETED, f"{who} was answered that the log starts at {start}; on the bucket it was {landed}")
    if event.removed_early:
        return
    lowest = max((answer.log_start_offset for answer in answers if answer.reported_ms <= event.asked_ms), default=0)
    if event.records and event.records[0][0] < lowest:
        yield Violation(Invariant.DELETED, f"{who} read offset {event.records[0][0]}, and all below {lowest} was deleted before")
    lowest = max(lowest, starts[event.reader, event.partition])
    if start < lowest:
        reported = f"was answered that the log starts at {start} by session {event.answered_by}; it was {lowest} before"
        yield Violation(Invariant.DELETED, f"{who} {reported}")
    starts[event.reader, event.partition] = max(lowest, start)
