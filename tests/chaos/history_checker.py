"""Judges the history of a chaos run. Pure.

The anomalies are those of Jepsen's Kafka workload (jepsen.tests.kafka), and a few that Tidelog promises besides:

    lost-write            acknowledged or read, and missing from the log in the end, though the log goes on behind it
    unseen                acknowledged, and at the end, or behind where a reader ended, no reader can see it
    duplicate             one value at two places
    inconsistent-offsets  two values at one place
    nonmonotonic-poll     a reader went back
    int-poll-skip         a reader's answer leaves out offsets
    poll-skip             a reader's next answer begins too late
    reordered             a later record of an idempotent producer lies before an earlier one
    refused-write         what was refused as "nothing was written" is in the log
    made-up               a value that no producer sent
    uncommitted-read      a reader got a record at or past the high watermark that it received
    watermark-went-back   for one reader
    insufficient-bucket   the bucket alone says something else than the brokers
    unexpected            an answer or an end that no fault excuses

Those of consumer groups stand in group_checker.py.
Offsets are dense, so a skip needs no knowledge of what lies between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.chaos import group_checker
from tests.chaos.history import (
    Acknowledged,
    AnyEvent,
    Ended,
    HandedOut,
    OnBucket,
    Polled,
    Refused,
    Sent,
    Served,
    Unexpected,
)

# (partition, offset)
Position = tuple[int, int]


class Violation(NamedTuple):
    anomaly: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.evidence}"


def check(events: Sequence[AnyEvent]) -> list[Violation]:
    """Every anomaly with what proves it; none when all promises hold."""
    found = _Findings(events)
    return [
        *found.one_value_at_each_position(),
        *found.acknowledged_is_kept(),
        *found.read_is_kept(),
        *found.readers_go_on_without_gaps(),
        *found.readers_see_all(),
        *found.only_what_was_sent(),
        *found.producers_are_in_order(),
        *found.bucket_suffices(),
        *found.nothing_unexpected(),
        *(Violation(anomaly, evidence) for anomaly, evidence in group_checker.anomalies(events)),
    ]


class _Findings:
    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self._events = events
        self._sent = {event.operation: event for event in events if isinstance(event, Sent)}
        self._polls = [event for event in events if isinstance(event, Polled)]
        self._log = {event.partition: dict(event.records) for event in events if isinstance(event, Served)}
        self._values = {partition: frozenset(log.values()) for partition, log in self._log.items()}
        self._acknowledged: dict[str, Position] = {}
        for event in events:
            if isinstance(event, Acknowledged):
                self._acknowledged.update(zip(self._sent[event.operation].values, event.positions, strict=True))

    def one_value_at_each_position(self) -> Iterator[Violation]:
        """inconsistent-offsets, duplicate: over acknowledgements and everything that anybody read."""
        at: dict[Position, tuple[str, str]] = {}
        of: dict[str, tuple[Position, str]] = {}
        reported: set[tuple[str, Position]] = set()
        for value, position, by in self._observations():
            if (value, position) in reported:
                continue
            reported.add((value, position))
            held, first_by = at.setdefault(position, (value, by))
            if held != value:
                evidence = f"{_at(position)} is {held} ({first_by}) and {value} ({by})"
                yield Violation("inconsistent-offsets", evidence)
            first, first_by = of.setdefault(value, (position, by))
            if first != position:
                yield Violation("duplicate", f"{value} lies at {_at(first)} ({first_by}) and at {_at(position)} ({by})")

    def _observations(self) -> Iterator[tuple[str, Position, str]]:
        for value, position in self._acknowledged.items():
            yield value, position, "acknowledged"
        for event in self._events:
            match event:
                case Polled(reader=reader, partition=partition, records=records):
                    yield from ((value, (partition, offset), f"read by {reader}") for offset, value in records)
                case HandedOut(member=member, partition=partition, records=records):
                    yield from ((value, (partition, offset), f"handed out by {member}") for offset, value in records)
                case Served(partition=partition, records=records):
                    yield from ((value, (partition, offset), "served in the end") for offset, value in records)
                case OnBucket(partition=partition, records=records):
                    yield from ((value, (partition, offset), "on the bucket") for offset, value in records)

    def acknowledged_is_kept(self) -> Iterator[Violation]:
        """lost-write, unseen"""
        for value, (partition, offset) in self._acknowledged.items():
            yield from self._kept(value, (partition, offset), "was acknowledged at")

    def read_is_kept(self) -> Iterator[Violation]:
        """lost-write"""
        reported: set[Position] = set()
        for poll in self._polls:
            for offset, value in poll.records:
                position = poll.partition, offset
                if position not in reported and value not in self._acknowledged:
                    reported.add(position)
                    yield from self._kept(value, position, f"was read by {poll.reader} at")

    def _kept(self, value: str, position: Position, how: str) -> Iterator[Violation]:
        partition, offset = position
        log = self._log.get(partition)
        if log is None or value in self._values[partition]:
            return
        end = max(log, default=-1) + 1
        anomaly = "lost-write" if offset < end else "unseen"
        yield Violation(anomaly, f"{value} {how} {_at(position)}; in the end the partition is served to {end}, without it")

    def readers_go_on_without_gaps(self) -> Iterator[Violation]:
        """nonmonotonic-poll, int-poll-skip, poll-skip, uncommitted-read, watermark-went-back"""
        following: dict[tuple[str, int], int] = {}
        marks: dict[tuple[str, int], int] = {}
        for poll in self._polls:
            key = poll.reader, poll.partition
            who = f"{poll.reader} in partition {poll.partition} after {poll.time_s} s"
            expected = following.get(key, poll.from_offset)
            for index, (offset, value) in enumerate(poll.records):
                if offset < expected:
                    yield Violation("nonmonotonic-poll", f"{who} got {value} at {offset}, and had read up to {expected}")
                elif offset > expected:
                    anomaly = "int-poll-skip" if index else "poll-skip"
                    yield Violation(anomaly, f"{who} got {value} at {offset} in place of {expected}")
                expected = offset + 1
            following[key] = expected
            if poll.high_watermark is None:
                continue
            if poll.records and expected > poll.high_watermark:
                yield Violation("uncommitted-read", f"{who} read up to {expected}, past its high watermark {poll.high_watermark}")
            if poll.high_watermark < marks.get(key, 0):
                yield Violation("watermark-went-back", f"{who} received {poll.high_watermark} after {marks[key]}")
            marks[key] = max(marks.get(key, 0), poll.high_watermark)

    def readers_see_all(self) -> Iterator[Violation]:
        """unseen: a reader ends behind the last record only."""
        ends: dict[tuple[str, int], int] = {}
        for poll in self._polls:
            key = poll.reader, poll.partition
            ends[key] = max(ends.get(key, 0), poll.from_offset, *(offset + 1 for offset, _ in poll.records))
        for reader in sorted({reader for reader, _ in ends}):
            for partition, log in sorted(self._log.items()):
                seen_to = ends.get((reader, partition), 0)
                missed = [value for offset, value in log.items() if offset >= seen_to and value in self._acknowledged]
                if missed:
                    evidence = f"{reader} ended at {seen_to} of partition {partition}, before {missed[0]} ({len(missed)} records)"
                    yield Violation("unseen", evidence)

    def only_what_was_sent(self) -> Iterator[Violation]:
        """refused-write, made-up"""
        sent = {value for event in self._sent.values() for value in event.values}
        refused = {
            value: event.why for event in self._events if isinstance(event, Refused) for value in self._sent[event.operation].values
        }
        reported: set[str] = set()
        for value, position, by in self._observations():
            if value in reported:
                continue
            if value not in sent:
                reported.add(value)
                yield Violation("made-up", f"{value} lies at {_at(position)} ({by}), and no client sent it")
            elif value in refused:
                reported.add(value)
                yield Violation("refused-write", f"{value} was refused ({refused[value]}), and lies at {_at(position)} ({by})")

    def producers_are_in_order(self) -> Iterator[Violation]:
        """reordered"""
        ordered = {event.producer for event in self._sent.values() if event.ordered}
        for partition, log in sorted(self._log.items()):
            last: dict[str, int] = {}
            for offset, value in sorted(log.items()):
                producer, _, number = value.partition("#")
                if producer not in ordered:
                    continue
                if int(number) <= last.get(producer, -1):
                    evidence = f"{value} lies at {_at((partition, offset))}, behind {producer}#{last[producer]}"
                    yield Violation("reordered", evidence)
                last[producer] = max(last.get(producer, -1), int(number))

    def bucket_suffices(self) -> Iterable[Violation]:
        """insufficient-bucket"""
        on_bucket = {event.partition: dict(event.records) for event in self._events if isinstance(event, OnBucket)}
        for partition in sorted(on_bucket.keys() & self._log.keys()):
            alone, served = on_bucket[partition], self._log[partition]
            if alone != served:
                offset = min(offset for offset in alone.keys() | served.keys() if alone.get(offset) != served.get(offset))
                what = f"{alone.get(offset, 'nothing')} on the bucket, {served.get(offset, 'nothing')} through the brokers"
                yield Violation("insufficient-bucket", f"{_at((partition, offset))} is {what}")

    def nothing_unexpected(self) -> Iterator[Violation]:
        """unexpected"""
        for event in self._events:
            if isinstance(event, Unexpected):
                yield Violation("unexpected", f"{event.who} after {event.time_s} s: {event.why}")
            elif isinstance(event, Ended) and event.was_ready:
                yield Violation("unexpected", f"{event.broker} ended by itself after {event.time_s} s, exit code {event.code}")


def _at(position: Position) -> str:
    return f"{position[0]}/{position[1]}"
