"""Holds samples of the lag of groups that clients ask for, over the last hour. Pure: the caller brings the time.

    watch    a client asks for a group: it is sampled for WATCH_S from then
    take     the coordinator's figures of a watched group                    ─┐
    merge    samples that another broker has taken, or has heard of          ─┴▶ by time, the newest SAMPLES_MAX

Numbers say in which order the samples came here, so that another broker asks for those alone that it lacks. A sample that comes
twice is held once: its time is its name.

Invariant: memory is bounded by GROUPS_MAX × SAMPLES_MAX × TOPICS_MAX, some 13 MB. The group that was looked at longest ago makes
room. A group without a request for KEPT_MS is forgotten.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from gateway.proto import groups_pb2

# An hour, at one sample in 15 s, which group_metrics_interval_ms is by default.
SAMPLES_MAX: Final = 240
KEPT_MS: Final = 3_600_000
# Samples of one broker are at least this far apart, however often its figures are refreshed.
GAP_MIN_MS: Final = 10_000
GROUPS_MAX: Final = 100
# Topics of a group with a history of their own; the others are in that of the group.
TOPICS_MAX: Final = 20
# How long samples are taken after a client has asked for them.
WATCH_S: Final = 300.0
# Stands for a lag that is not known, and for a topic without partitions of the group.
NONE: Final = -1

_Number = TypeVar("_Number", int, float)


class PartitionLag(Protocol):
    """Offers the fields of metrics.py's GroupPartitionSnapshot."""

    @property
    def topic(self) -> str: ...
    @property
    def lag_records(self) -> int: ...
    @property
    def lag_seconds(self) -> float | None: ...


class LagSample(NamedTuple):
    """Holds the lag of one group at one time. `topic_*` follow the group's list of topics, and may be shorter."""

    at_ms: int
    records: int
    # Of the partition that is furthest behind, of those whose age is known; NONE if it is known of none.
    seconds: float
    topic_records: array[int]
    topic_seconds: array[float]
    # In the order in which samples came here.
    number: int


class TopicLagHistory(NamedTuple):
    """Holds the lag of a group in one topic, for each sample of the group."""

    topic: str
    records: Sequence[int | None]
    seconds: Sequence[float | None]


class GroupLagHistory(NamedTuple):
    """Holds what is known of the lag of one group; each list has one element for each sample, the newest last."""

    at_ms: Sequence[int] = ()
    records: Sequence[int] = ()
    seconds: Sequence[float | None] = ()
    topics: Sequence[TopicLagHistory] = ()
    topics_left_out: int = 0
    # The sums are over `topics` alone.
    is_partial: bool = False

    def only(self, may_see: Callable[[str], bool]) -> GroupLagHistory:
        """Returns the history of the topics that a reader may see, with sums over them alone.

        Whether any other topic is in the sums of a sample is not known, since only some topics have a history of their own.
        """
        seen = [each for each in self.topics if may_see(each.topic)]
        indexes = range(len(self.at_ms))
        return GroupLagHistory(
            self.at_ms,
            [sum(each.records[index] or 0 for each in seen) for index in indexes],
            [max((known for each in seen if (known := each.seconds[index]) is not None), default=None) for index in indexes],
            seen,
            is_partial=True,
        )


class _Group:
    __slots__ = ("numbers", "requested_s", "samples", "topics", "topics_left_out")

    def __init__(self) -> None:
        self.requested_s = 0.0
        self.topics: list[str] = []
        # Of the newest sample.
        self.topics_left_out = 0
        # In the order of their times.
        self.samples: list[LagSample] = []
        # By the id of another broker: its store, and the number there of the last sample that was asked for.
        self.numbers: dict[str, tuple[str, int]] = {}


class LagSamples:
    """Holds the samples of one broker: its own, and those that it has heard of."""

    def __init__(self, store_id: str) -> None:
        """`store_id` tells these numbers from those of another life of the broker."""
        self.store_id = store_id
        self._groups: dict[str, _Group] = {}
        self._number = 0

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def watch(self, group: str, *, requested_s: float) -> bool:
        """Notes that a client asked for the group at that time. Returns whether the group is new here."""
        held = self._groups.get(group)
        if held is not None:
            held.requested_s = max(held.requested_s, requested_s)
            return False
        while len(self._groups) >= GROUPS_MAX:
            del self._groups[min(self._groups, key=lambda name: self._groups[name].requested_s)]
        held = self._groups[group] = _Group()
        held.requested_s = requested_s
        return True

    def watched(self, *, now_s: float) -> dict[str, float]:
        """Returns the groups that are sampled, each with the seconds since a client asked for it."""
        return {name: now_s - held.requested_s for name, held in self._groups.items() if now_s - held.requested_s < WATCH_S}

    def is_due(self, group: str, *, now_s: float, at_ms: int) -> bool:
        """Returns whether a sample of the group at that time is wanted."""
        held = self._groups.get(group)
        if held is None or now_s - held.requested_s >= WATCH_S:
            return False
        return not held.samples or abs(at_ms - held.samples[-1].at_ms) >= GAP_MIN_MS

    def take(self, group: str, rows: Iterable[PartitionLag], *, at_ms: int) -> None:
        """Takes the lag of a watched group from that of its partitions."""
        held = self._groups[group]
        records: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for row in rows:
            records[row.topic] = records.get(row.topic, 0) + row.lag_records
            known = NONE if row.lag_seconds is None else row.lag_seconds
            seconds[row.topic] = max(seconds.get(row.topic, NONE), known)
        for topic in sorted(records, key=lambda name: (-records[name], name)):
            _add_topic(held, topic)
        held.topics_left_out = len(records.keys() - set(held.topics))
        self._insert(
            held,
            at_ms,
            sum(records.values()),
            max(seconds.values(), default=0.0),
            array("q", [records.get(topic, NONE) for topic in held.topics]),
            array("d", [seconds.get(topic, NONE) for topic in held.topics]),
        )

    def drop_old(self, *, now_s: float, now_ms: int) -> None:
        """Forgets samples that are older than KEPT_MS, groups without a request for as long, and topics that no sample has."""
        for name, held in list(self._groups.items()):
            if now_s - held.requested_s >= KEPT_MS / 1000:
                del self._groups[name]
                continue
            old = bisect_left(held.samples, now_ms - KEPT_MS, key=lambda sample: sample.at_ms)
            del held.samples[:old]
            _drop_topics(held)

    def history(self, group: str) -> GroupLagHistory:
        """Returns what is known of the group."""
        held = self._groups.get(group)
        if held is None:
            return GroupLagHistory()
        samples = held.samples
        topics = [
            TopicLagHistory(
                topic,
                [_known(sample.topic_records, index) for sample in samples],
                [_known(sample.topic_seconds, index) for sample in samples],
            )
            for index, topic in enumerate(held.topics)
        ]
        return GroupLagHistory(
            [sample.at_ms for sample in samples],
            [sample.records for sample in samples],
            [None if sample.seconds < 0 else sample.seconds for sample in samples],
            [each for each in topics if any(records is not None for records in each.records)],
            held.topics_left_out,
        )

    # ── between brokers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def heard(self, group: str, broker_id: str) -> tuple[str, int]:
        """Returns the store of another broker, and the number there of the last sample that this one has."""
        held = self._groups.get(group)
        return held.numbers.get(broker_id, ("", 0)) if held is not None else ("", 0)

    def since(self, group: str, number: int) -> groups_pb2.GroupLagSamples:
        """Returns the samples that came here after that number."""
        found = groups_pb2.GroupLagSamples(group=group, last=self._number)
        held = self._groups.get(group)
        if held is None:
            return found
        samples = [sample for sample in held.samples if sample.number > number]
        found.at_ms.extend(sample.at_ms for sample in samples)
        found.lag_records.extend(sample.records for sample in samples)
        found.lag_seconds.extend(sample.seconds for sample in samples)
        found.topics_left_out = held.topics_left_out
        for index, topic in enumerate(held.topics):
            records = [_at(sample.topic_records, index) for sample in samples]
            if _has_value(records):
                seconds = [_at(sample.topic_seconds, index) for sample in samples]
                found.topics.add(topic=topic, lag_records=records, lag_seconds=seconds)
        return found

    def merge(self, found: groups_pb2.GroupLagSamples, *, broker_id: str, store_id: str) -> None:
        """Takes in what another broker has of a group, if it is held here."""
        held = self._groups.get(found.group)
        if held is None:
            return
        columns = [
            each
            for each in found.topics
            if len(each.lag_records) == len(each.lag_seconds) == len(found.at_ms) and _has_value(each.lag_records)
        ]
        for each in columns:
            _add_topic(held, each.topic)
        if found.at_ms and (not held.samples or found.at_ms[-1] > held.samples[-1].at_ms):
            left_out = [each for each in columns if each.topic not in held.topics and each.lag_records[-1] != NONE]
            held.topics_left_out = found.topics_left_out + len(left_out)
        indexes = {topic: index for index, topic in enumerate(held.topics)}
        for row, (at_ms, records, seconds) in enumerate(zip(found.at_ms, found.lag_records, found.lag_seconds, strict=False)):
            topic_records, topic_seconds = array("q", [NONE]) * len(held.topics), array("d", [NONE]) * len(held.topics)
            for each in columns:
                if (index := indexes.get(each.topic)) is not None:
                    topic_records[index], topic_seconds[index] = each.lag_records[row], each.lag_seconds[row]
            self._insert(held, at_ms, records, seconds, topic_records, topic_seconds)
        held.numbers[broker_id] = store_id, found.last

    def _insert(
        self, held: _Group, at_ms: int, records: int, seconds: float, topic_records: array[int], topic_seconds: array[float]
    ) -> None:
        index = bisect_left(held.samples, at_ms, key=lambda sample: sample.at_ms)
        if index < len(held.samples) and held.samples[index].at_ms == at_ms:
            return
        self._number += 1
        held.samples.insert(index, LagSample(at_ms, records, seconds, topic_records, topic_seconds, self._number))
        del held.samples[:-SAMPLES_MAX]


def _add_topic(held: _Group, topic: str) -> None:
    if topic not in held.topics and len(held.topics) < TOPICS_MAX:
        held.topics.append(topic)


def _drop_topics(held: _Group) -> None:
    """Gives back the places of topics that no sample has."""
    kept = [
        index
        for index in range(len(held.topics))
        if any(_at(sample.topic_records, index) != NONE for sample in reversed(held.samples))
    ]
    if len(kept) == len(held.topics):
        return
    held.topics = [held.topics[index] for index in kept]
    held.samples = [
        sample._replace(
            topic_records=array("q", [_at(sample.topic_records, index) for index in kept]),
            topic_seconds=array("d", [_at(sample.topic_seconds, index) for index in kept]),
        )
        for sample in held.samples
    ]


def _has_value(records: Iterable[int]) -> bool:
    return any(value != NONE for value in records)


def _at(values: array[_Number], index: int) -> _Number:
    return values[index] if index < len(values) else NONE


def _known(values: array[_Number], index: int) -> _Number | None:
    return values[index] if index < len(values) and values[index] >= 0 else None
