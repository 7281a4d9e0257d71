"""Judges a history of produces and fetches by the invariants of docs/design/README.md. Pure.

    produce   Sent ──▶ Acknowledged | Refused | (no answer, or an unknown outcome: Unknown or nothing at all)
    request   SentTogether ──▶ AnsweredTogether | Refused | the same
    fetch     Fetched
    memory    Sampled
    the end   from the bucket alone, through the brokers, and what lies on the bucket without ever being visible

A record is known by its producer, its number there, and the attempt that carried it: a client that tries again writes the new
attempt into the record. So the history shows which attempt became durable, and an attempt whose producer was answered "nothing was
written" can be found out as a lie, even where a later attempt of the same record was rightly acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol


class Invariant(Enum):
    DURABLE = "durable"
    UNIQUE = "unique"
    ORDERED = "ordered"
    PREFIX = "prefix"
    FENCED = "fenced"
    TRUTHFUL = "truthful"
    BOUNDED = "bounded"
    REACHABLE = "reachable"
    SUFFICIENT = "sufficient"
    EQUIVALENT = "equivalent"
    # Only retention, key compaction and DeleteRecords take records away, and only those that they may: see policy_model.py.
    KEPT = "kept"
    # What DeleteRecords has answered holds for all readers; no log start ever goes back: see policy_judge.py.
    DELETED = "deleted"
    # The records of a request with an Idempotency-Key are written at most once in their topic, whichever brokers take repeats.
    ONCE = "once"
    # A stream that reads a topic delivers every partition of it, those included that are added while it is open.
    ATTENTIVE = "attentive"
    # No client is served whose key or right was taken back for longer than a view may lag. None is denied whose key and right
    # hold. See access_judge.py.
    AUTHORIZED = "authorized"
    # A partition's leader changes by its own release, or by the controller and after its seal: see appointments.py.
    APPOINTED = "appointed"


class RecordId(NamedTuple):
    producer: str
    # Of the record in its producer and partition: 0, 1, 2, … in the order sent.
    number: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.producer}#{self.number}.{self.attempt}"


class Sent(NamedTuple):
    """One attempt to produce one batch."""

    operation: int
    partition: str
    records: tuple[RecordId, ...]
    idempotent: bool
    # Else it is acknowledged when the leader holds it in memory, and a crash may lose it.
    acks_all: bool = True


class SentTogether(NamedTuple):
    """One attempt of a request whose records the brokers spread over the partitions of a topic. No two requests share a record."""

    operation: int
    # Its name, of which there may be several lives. A request goes to the one that its broker knows.
    topic: str
    # The Idempotency-Key, under which the request may be repeated; empty: it is sent once.
    key: str
    records: tuple[RecordId, ...]


class AnsweredTogether(NamedTuple):
    """The answer to SentTogether: of each record (number of the partition, offset); None where it was refused, or is unknown."""

    operation: int
    positions: tuple[tuple[int, int] | None, ...]
    # Records, by their place in the request, of which the client was answered that they are not written.
    refused: tuple[int, ...] = ()


class Acknowledged(NamedTuple):
    operation: int
    # None: the broker knows that the batch is in the log, and no longer where.
    base_offset: int | None


class Refused(NamedTuple):
    """The producer was answered that nothing was written."""

    operation: int
    why: str
    # In front of a batch though all that its producer had sent before it was acknowledged.
    got_gap_error: bool = False


class Unknown(NamedTuple):
    """The producer does not know: a timeout, a broken connection, or an answer that says so."""

    operation: int
    why: str


class Fetched(NamedTuple):
    """One answer to one reader. A reader's answers stand in the history in the order in which it asked."""

    reader: str
    partition: str
    from_offset: int
    records: tuple[tuple[int, RecordId], ...]
    high_watermark: int
    # The session.
    answered_by: int = -1
    # Whether the reader named no leader epoch, and somebody had taken the session out of the cluster while its lease lived: until
    # it learns of that, it may tell an old high watermark. See docs/design/segments.md.
    may_be_old: bool = False
    # Where the reader goes on; None: behind the last record.
    next_offset: int | None = None
    log_start_offset: int = 0
    asked_ms: int = 0
    reported_ms: int = 0
    # As in `may_be_old`, whether or not the reader named an epoch: the log start may be old then, too.
    removed_early: bool = False


class GaveUp(NamedTuple):
    """A stream answered its reader that it reads a partition no more, though the partition is there."""

    reader: str
    partition: str
    why: str


class Sampled(NamedTuple):
    """Something that has a bound, at one moment."""

    what: str
    value: int
    bound: int


Event = Sent | SentTogether | Acknowledged | AnsweredTogether | Refused | Unknown | Fetched | GaveUp | Sampled
# (offset, record) of each partition, in the order read.
Contents = Mapping[str, Sequence[tuple[int, RecordId]]]


class Absence(Protocol):
    """Of the records of one partition that were let go."""

    def is_gone(self, offset: int) -> bool:
        """In the end."""

    def may_be_stepped_over(self, start: int, end: int, *, at_ms: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class History:
    events: Sequence[Event]
    # What a reader of the bucket alone takes for the log, when all is quiet.
    from_bucket: Contents
    # The same, as the last broker serves it.
    through_brokers: Contents
    # Records in segments at or after a seal or a gap, and where: they lie on the bucket and must never be seen.
    hidden: Mapping[RecordId, str] = field(default_factory=dict)
    # Places of segments that another object calls committed, and that nothing stands at.
    missing: Sequence[str] = ()
    # Partitions that no broker serves any more: their topics were deleted, and only the bucket tells of them.
    deleted: Set[str] = frozenset()
    # Of partitions that lost records to policies or DeleteRecords: `from_bucket` tells of them all the same.
    gone: Mapping[str, Absence] = field(default_factory=dict)
    # Names of topics by their ids, where clients sent by name.
    topics: Mapping[str, str] = field(default_factory=dict)
    # The partitions that each stream has to have delivered in the end, by its reader.
    subscribed: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Violation(NamedTuple):
    invariant: Invariant
    evidence: str

    def __str__(self) -> str:
        return f"{self.invariant.value}: {self.evidence}"


def check(history: History) -> list[Violation]:
    """Everything in the history that breaks an invariant, with what proves it; empty when all hold."""
    found = _Findings(history)
    return [
        *found.acknowledgements(),
        *found.refusals(),
        *found.requests(),
        *found.nothing_is_made_up(),
        *found.log_is_dense_and_unique(),
        *found.producers_are_in_order(),
        *found.readers_see_a_prefix(),
        *found.streams_are_attentive(),
        *found.all_is_reachable(),
        *found.bucket_suffices(),
        *found.bounds_hold(),
    ]


class _Findings:
    def __init__(self, history: History) -> None:
        self._history = history
        self._sent = {event.operation: event for event in history.events if isinstance(event, Sent)}
        self._together = {event.operation: event for event in history.events if isinstance(event, SentTogether)}
        self._at: dict[str, dict[int, RecordId]] = {partition: dict(records) for partition, records in history.from_bucket.items()}
        self._served = {partition: dict(records) for partition, records in history.through_brokers.items()}
        self._offsets: dict[tuple[str, RecordId], int] = {}
        self._offsets_any_attempt: dict[tuple[str, str, int], int] = {}
        for partition, records in history.from_bucket.items():
            for offset, record in records:
                self._offsets.setdefault((partition, record), offset)
                self._offsets_any_attempt.setdefault((partition, record.producer, record.number), offset)
        self._idempotent = {record.producer for sent in self._sent.values() if sent.idempotent for record in sent.records}

    def acknowledgements(self) -> Iterable[Violation]:
        """durable, truthful, fenced"""
        for event in self._history.events:
            if not isinstance(event, Acknowledged):
                continue
            sent = self._sent[event.operation]
            for delta, record in enumerate(sent.records):
                where = self._where(sent, record)
                reported = where if event.base_offset is None else event.base_offset + delta
                assigned = "without an offset" if event.base_offset is None else f"at offset {reported}"
                what = f"{record} of {sent.partition} was acknowledged {assigned}"
                if sent.acks_all and record in self._history.hidden and (sent.partition, record) not in self._offsets:
                    yield Violation(
                        Invariant.FENCED, f"{what} by a session that was sealed: it lies {self._history.hidden[record]}"
                    )
                if where is None and sent.acks_all:
                    yield Violation(Invariant.DURABLE, f"{what} and is not in the log")
                elif where is not None and where != reported:
                    yield Violation(Invariant.TRUTHFUL, f"{what} and lies at {where}")
                elif sent.acks_all and reported is not None and self._is_lost(sent, record, reported):
                    yield Violation(Invariant.DURABLE, f"{what} and can't be read there")

    def _is_lost(self, sent: Sent, record: RecordId, offset: int) -> bool:
        """Whether brokers that serve the partition answer something else at the offset."""
        if sent.partition not in self._served or sent.partition in self._history.deleted:
            return False
        if sent.partition in self._history.gone and self._history.gone[sent.partition].is_gone(offset):
            return False
        served = self._served[sent.partition].get(offset)
        if served is not None and sent.idempotent:
            served = served._replace(attempt=record.attempt)
        return served != record

    def _where(self, sent: Sent, record: RecordId) -> int | None:
        """An idempotent repeat is answered with the place of whichever attempt came first."""
        if sent.idempotent:
            return self._offsets_any_attempt.get((sent.partition, record.producer, record.number))
        return self._offsets.get((sent.partition, record))

    def refusals(self) -> Iterable[Violation]:
        """truthful"""
        for event in self._history.events:
            if not isinstance(event, Refused):
                continue
            if event.operation in self._together:
                continue  # see `requests`
            sent = self._sent[event.operation]
            if event.got_gap_error:
                reported = f"{sent.records[0]} of {sent.partition} was refused ({event.why})"
                yield Violation(Invariant.TRUTHFUL, f"{reported}, and no gap is there")
            for record in sent.records:
                offset = self._offsets.get((sent.partition, record))
                if offset is not None:
                    reported = f"{record} of {sent.partition} was refused ({event.why}) as not written"
                    yield Violation(Invariant.TRUTHFUL, f"{reported}, and lies at offset {offset}")

    def requests(self) -> Iterable[Violation]:
        """once, durable, truthful, ordered: of requests whose records go to several partitions"""
        positions: dict[tuple[str, RecordId], list[_Position]] = defaultdict(list)
        for partition, contents in self._history.from_bucket.items():
            topic_id, _, number = partition.partition("/")
            topic = self._topic(partition)
            for offset, record in contents:
                positions[topic, record].append(_Position(topic_id, int(number), offset))
        answers = {event.operation: event for event in self._history.events if isinstance(event, AnsweredTogether)}
        refused = {event.operation: event.why for event in self._history.events if isinstance(event, Refused)}
        attempts: dict[tuple[str, tuple[RecordId, ...]], list[SentTogether]] = defaultdict(list)
        for sent in self._together.values():
            attempts[sent.topic, sent.records].append(sent)
        for (topic, records), sent_together in attempts.items():
            for record in records:
                found = positions.get((topic, record), [])
                if len(found) > 1 and not sent_together[0].key:
                    yield Violation(Invariant.UNIQUE, f"{record} was sent once, and lies at {_shown_positions(found)}")
                elif len({position.topic_id for position in found}) < len(found):
                    yield Violation(Invariant.ONCE, f"{record} was sent under one key, and lies at {_shown_positions(found)}")
                if found and all(sent.operation in refused for sent in sent_together):
                    why = refused[sent_together[-1].operation]
                    yield Violation(
                        Invariant.TRUTHFUL, f"{record} was refused ({why}) as not written, and lies at {_shown_positions(found)}"
                    )
            for sent in sent_together:
                if (answer := answers.get(sent.operation)) is not None:
                    yield from self._answered(sent, answer, positions)

    def _answered(
        self, sent: SentTogether, answer: AnsweredTogether, positions: Mapping[tuple[str, RecordId], Sequence[_Position]]
    ) -> Iterable[Violation]:
        behind: set[str] = set()
        for at, (record, reported) in enumerate(zip(sent.records, answer.positions, strict=True)):
            found = positions.get((sent.topic, record), [])
            if reported is not None and reported not in [(position.partition, position.offset) for position in found]:
                what = f"{record} was acknowledged at offset {reported[1]} of partition {reported[0]} of {sent.topic}"
                if found:
                    yield Violation(Invariant.TRUTHFUL, f"{what} and lies at {_shown_positions(found)}")
                else:
                    yield Violation(Invariant.DURABLE, f"{what} and is not in the log")
            if at in answer.refused:
                behind.add(str(record))
                if found and not sent.key:
                    yield Violation(
                        Invariant.TRUTHFUL, f"{record} was refused as not written, and lies at {_shown_positions(found)}"
                    )
            elif behind and reported is not None and not sent.key:
                yield Violation(Invariant.ORDERED, f"{record} was written behind {min(behind)}, which was refused")

    def _topic(self, partition: str) -> str:
        topic_id = partition.partition("/")[0]
        return self._history.topics.get(topic_id, topic_id)

    def nothing_is_made_up(self) -> Iterable[Violation]:
        """truthful"""
        sent = {(event.partition, record) for event in self._sent.values() for record in event.records}
        together = {(event.topic, record) for event in self._together.values() for record in event.records}
        for (partition, record), offset in self._offsets.items():
            if (partition, record) not in sent and (self._topic(partition), record) not in together:
                yield Violation(Invariant.TRUTHFUL, f"{record} lies at offset {offset} of {partition}, and no client sent it there")

    def log_is_dense_and_unique(self) -> Iterable[Violation]:
        """unique, fenced"""
        for partition, records in self._history.from_bucket.items():
            for expected, (offset, record) in enumerate(records):
                if offset != expected:
                    what = "twice" if offset < expected else "nowhere"
                    index = min(offset, expected)
                    yield Violation(
                        Invariant.UNIQUE, f"offset {index} of {partition} is there {what}: {record} follows at {offset}"
                    )
                    break
            seen: dict[tuple[str, int, int], int] = {}
            for offset, record in records:
                if record in self._history.hidden:
                    hidden = self._history.hidden[record]
                    yield Violation(Invariant.FENCED, f"{record} of {partition} is read at offset {offset}, and lies {hidden}")
                attempt = -1 if record.producer in self._idempotent else record.attempt
                first = seen.setdefault((record.producer, record.number, attempt), offset)
                if first != offset:
                    yield Violation(Invariant.UNIQUE, f"{record} of {partition} is there twice, at offsets {first} and {offset}")

    def producers_are_in_order(self) -> Iterable[Violation]:
        """ordered"""
        for partition, records in self._history.from_bucket.items():
            following: dict[str, int] = defaultdict(int)
            for offset, record in records:
                if record.producer not in self._idempotent:
                    continue
                expected = following[record.producer]
                if record.number > expected:
                    missing = f"{record.producer}#{expected}"
                    yield Violation(Invariant.ORDERED, f"{record} of {partition} lies at offset {offset}, before {missing}")
                following[record.producer] = max(expected, record.number + 1)

    def readers_see_a_prefix(self) -> Iterable[Violation]:
        """prefix, unique, fenced"""
        marks: dict[tuple[str, str], int] = defaultdict(int)
        for event in self._history.events:
            if not isinstance(event, Fetched):
                continue
            who = f"{event.reader} of {event.partition}"
            mark = marks[event.reader, event.partition]
            if event.high_watermark < mark and not event.may_be_old:
                reported = f"go back from {mark} to {event.high_watermark}, reported by session {event.answered_by}"
                yield Violation(Invariant.PREFIX, f"{who} saw the high watermark {reported}")
            marks[event.reader, event.partition] = max(mark, event.high_watermark)
            yield from self._fetched(who, event)

    def _fetched(self, who: str, event: Fetched) -> Iterable[Violation]:
        log, gone = self._at.get(event.partition, {}), self._history.gone.get(event.partition)
        expected = event.from_offset
        for offset, record in event.records:
            if offset != expected and not (gone and gone.may_be_stepped_over(expected, offset, at_ms=event.reported_ms)):
                yield Violation(Invariant.PREFIX, f"{who} asked from {event.from_offset}, and got {offset} in place of {expected}")
                return
            if offset >= event.high_watermark:
                yield Violation(Invariant.PREFIX, f"{who} got offset {offset}, past the high watermark {event.high_watermark}")
            held = log.get(offset)
            if record in self._history.hidden and held != record:
                yield Violation(Invariant.FENCED, f"{who} read {record} at offset {offset}; it lies {self._history.hidden[record]}")
            elif held is None:
                yield Violation(Invariant.PREFIX, f"{who} read {record} at offset {offset}, and it is gone")
            elif held != record:
                yield Violation(Invariant.UNIQUE, f"{who} read {record} at offset {offset}, where {held} is now")
            expected = offset + 1
        following = expected if event.next_offset is None else event.next_offset
        if following != expected and not (gone and gone.may_be_stepped_over(expected, following, at_ms=event.reported_ms)):
            yield Violation(
                Invariant.PREFIX, f"{who} asked from {event.from_offset}, and was sent on to {following}, from {expected}"
            )

    def streams_are_attentive(self) -> Iterable[Violation]:
        """attentive"""
        delivered: dict[tuple[str, str], set[int]] = defaultdict(set)
        for event in self._history.events:
            if isinstance(event, Fetched):
                delivered[event.reader, event.partition].update(offset for offset, _ in event.records)
            elif isinstance(event, GaveUp):
                yield Violation(Invariant.ATTENTIVE, f"{event.reader} gave up {event.partition}, which is there: {event.why}")
        for reader, partitions in self._history.subscribed.items():
            for partition in partitions:
                missed = sorted({*self._at.get(partition, {})} - delivered[reader, partition])
                if missed:
                    reported = f"{len(missed)} records of {partition}, the first at offset {missed[0]}"
                    yield Violation(Invariant.ATTENTIVE, f"{reader} was not given {reported}")

    def all_is_reachable(self) -> Iterable[Violation]:
        """reachable"""
        return (Violation(Invariant.REACHABLE, evidence) for evidence in self._history.missing)

    def bucket_suffices(self) -> Iterable[Violation]:
        """sufficient"""
        for partition in sorted({*self._history.from_bucket, *self._history.through_brokers} - self._history.deleted):
            alone = self._still_there(partition, self._history.from_bucket)
            served = self._still_there(partition, self._history.through_brokers)
            for index in range(max(len(alone), len(served))):
                on_bucket = _shown(alone, index)
                at_broker = _shown(served, index)
                if on_bucket != at_broker:
                    evidence = f"record {index} of {partition} is {on_bucket} on the bucket, and {at_broker} through the brokers"
                    yield Violation(Invariant.SUFFICIENT, evidence)
                    break

    def _still_there(self, partition: str, contents: Contents) -> Sequence[tuple[int, RecordId]]:
        records, gone = contents.get(partition, ()), self._history.gone.get(partition)
        return records if gone is None else [(offset, record) for offset, record in records if not gone.is_gone(offset)]

    def bounds_hold(self) -> Iterable[Violation]:
        """bounded"""
        worst: dict[str, Sampled] = {}
        for event in self._history.events:
            if isinstance(event, Sampled) and event.value > event.bound:
                held = worst.setdefault(event.what, event)
                worst[event.what] = max(held, event, key=lambda sample: sample.value)
        for sample in worst.values():
            yield Violation(Invariant.BOUNDED, f"{sample.what} reached {sample.value}; the bound is {sample.bound}")


class _Position(NamedTuple):
    topic_id: str
    partition: int
    offset: int


def _shown_positions(found: Iterable[_Position]) -> str:
    return ", ".join(f"offset {offset} of {topic_id}/{partition}" for topic_id, partition, offset in sorted(found))


def _shown(records: Sequence[tuple[int, RecordId]], index: int) -> str:
    return f"{records[index][1]} at offset {records[index][0]}" if index < len(records) else "missing"
