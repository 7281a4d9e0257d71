"""Remembers the idempotent producers of a partition, and classifies each new batch of theirs. Pure.

What lies below `compacted_to` is in no footer any more, so a manifest takes it along (`remembered`, `recall`).

The rules of KIP-98, with the last five batches of each producer, and sequences that wrap from 2^31-1 to 0. One rule is stricter
than Kafka's: a producer that is not remembered must begin at sequence 0. Kafka takes any sequence then, and so lets a later
batch of a pipeline in when the first was refused. So all sequences of an epoch below the remembered ones are in the log, and a
batch of these is a repeat.

All partitions of a broker share one ProducerRoom: thousands of them, each with its own bound alone, would remember more than there
is memory for.

A producer id from ONE_SHOT on stands for an HTTP Idempotency-Key: it writes one batch in its life, the batch's base sequence is the
fingerprint of the request, and its epoch the number of partitions that the request was routed over
(gateway/records/idempotency_key.py).

Invariant: batches of one producer and epoch are accepted in sequence order, each once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace, merge
from typing import Final, NamedTuple

import msgspec

from metadata.errors import DuplicateSequence, IdempotencyKeyReused, OutOfOrderSequence, ProducerFenced, UnknownProducer
from metadata.model import NO_PRODUCER, Offset, ProducerId
from segments.history.manifest import RememberedBatch, RememberedProducer

# A Kafka client keeps at most five requests in flight. An acknowledged batch behind one whose answer was lost is not one of them.
# So Java's client may repeat a batch that is older than the last five.
BATCHES_REMEMBERED: Final = 5
SEQUENCE_MAX: Final = 2**31 - 1
ONE_SHOT: Final = 2**62
# The epoch of a one-shot batch whose sender names the partition, whatever their number.
NOT_ROUTED: Final = 0
# Producers, and one-shot producers.
_TABLES: Final = (0, 1)
# How often appends look for producers that were silent for the expiry, to free their memory.
_SWEEP_EVERY_MS: Final = 1_000


class SequencedBatch(NamedTuple):
    """Holds the part of a batch that sequence checks need."""

    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    # Of its records: in a topic with log append time, when it was appended. -1 where it is not known, as of a batch in a manifest.
    max_timestamp: int = -1


class _Producer(msgspec.Struct):
    epoch: int
    last_active_ms: int
    batches: tuple[SequencedBatch, ...] = ()


def next_sequence(sequence: int) -> int:
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


class ProducerRoom:
    """Bounds the producers that the partitions of one broker remember: `producers_max` in all tables of a kind.

    The one that was silent longest is dropped first, in any partition.
    """

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._states: dict[int, ProducerStates] = {}
        # Producers in use, by table.
        self.used = [0, 0]

    def __contains__(self, states: ProducerStates) -> bool:
        return id(states) in self._states

    def enter(self, states: ProducerStates) -> None:
        assert states not in self, "it counts once"
        self._states[id(states)] = states
        for table in _TABLES:
            self.grew(table, states.count(table))

    def leave(self, states: ProducerStates) -> None:
        if self._states.pop(id(states), None) is not None:
            for table in _TABLES:
                self.used[table] -= states.count(table)

    def grew(self, table: int, by: int) -> None:
        """`by` may be below 0."""
        self.used[table] += by
        if by > 0 and self.used[table] > self._producers_max:
            self._make_room(table, self._producers_max - self._producers_max // 100)

    def _make_room(self, table: int, producers_left: int) -> None:
        """Evicts a hundredth more than is due, so that all partitions are seldom looked at."""
        oldest = [(states.oldest_ms(table), key) for key, states in self._states.items() if states.count(table)]
        heapify(oldest)
        while self.used[table] > producers_left:
            states = self._states[oldest[0][1]]
            states.drop_oldest(table)
            if states.count(table):
                heapreplace(oldest, (states.oldest_ms(table), oldest[0][1]))
            else:
                heappop(oldest)


class ProducerStates:
    """Holds the producers of one partition, the most recently active last.

    One-shot producers have a table of their own. Each request with an Idempotency-Key creates one, and these must not displace the
    others.
    """

    def __init__(self, *, producers_max: int, expiry_ms: int) -> None:
        """`producers_max` bounds each of the two tables."""
        self._producers: OrderedDict[ProducerId, _Producer] = OrderedDict()
        self._one_shots: OrderedDict[ProducerId, _Producer] = OrderedDict()
        self._tables = (self._producers, self._one_shots)
        self._producers_max = producers_max
        self._expiry_ms = expiry_ms
        # When expired producers were last looked for.
        self._swept_at_ms = -_SWEEP_EVERY_MS
        self._room: ProducerRoom | None = None

    def __len__(self) -> int:
        return len(self._producers) + len(self._one_shots)

    def check(
        self, *, producer_id: ProducerId, epoch: int, base_sequence: int, last_sequence: int, now_ms: int, high_watermark: int
    ) -> SequencedBatch | None:
        """Returns the batch that this one repeats; None if it is new and may be appended.

        Raises ProducerFenced for an older epoch, UnknownProducer or OutOfOrderSequence for a gap, IdempotencyKeyReused, and
        DuplicateSequence for a repeat of a committed batch that is older than those remembered.
        """
        if producer_id == NO_PRODUCER:
            return None
        if not 0 <= now_ms - self._swept_at_ms < _SWEEP_EVERY_MS:  # below 0: the clock was set back
            self._expire(now_ms)
        producers = self._one_shots if producer_id >= ONE_SHOT else self._producers
        producer = producers.get(producer_id)
        if producer is not None and producer.last_active_ms + self._expiry_ms <= now_ms:
            self._drop(producer_id)
            producer = None
        if producer_id >= ONE_SHOT:
            return _check_one_shot(producer, base_sequence=base_sequence, last_sequence=last_sequence)
        if producer is None:
            if base_sequence != 0:
                raise UnknownProducer(
                    f"producer {producer_id} is not known here, but begins at sequence {base_sequence}", producer_id=producer_id
                )
            return None
        if epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {producer_id} has epoch {producer.epoch}; this batch was sent with epoch {epoch}",
                producer_id=producer_id,
            )
        if epoch > producer.epoch:
            if base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {producer_id} begins epoch {epoch} at sequence {base_sequence} instead of 0",
                    producer_id=producer_id,
                )
            return None
        for batch in producer.batches:
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        expected = next_sequence(producer.batches[-1].last_sequence)
        if base_sequence == expected:
            return None
        if _is_forgotten(producer, base_sequence=base_sequence, last_sequence=last_sequence, high_watermark=high_watermark):
            raise DuplicateSequence(
                f"producer {producer_id} sent sequences {base_sequence} to {last_sequence} again; their offsets are not remembered",
                producer_id=producer_id,
                expected_sequence=expected,
            )
        raise OutOfOrderSequence(
            f"producer {producer_id} sent sequence {base_sequence}; {expected} comes next",
            producer_id=producer_id,
            expected_sequence=expected,
        )

    def written_once(self, producer_id: ProducerId, *, now_ms: int) -> SequencedBatch | None:
        """Returns the one batch of a one-shot producer; None if it has written none, or was forgotten since."""
        producer = self._one_shots.get(producer_id)
        if producer is None or producer.last_active_ms + self._expiry_ms <= now_ms:
            return None
        return producer.batches[-1]

    def remember(self, batch: SequencedBatch, *, now_ms: int) -> None:
        """Takes in a batch that was appended, or one that was read back from the bucket."""
        if batch.producer_id == NO_PRODUCER:
            return
        producers = self._table(batch.producer_id)
        count_before = len(producers)
        producer = producers.get(batch.producer_id)
        if producer is None or batch.producer_epoch > producer.epoch:
            producer = producers[batch.producer_id] = _Producer(batch.producer_epoch, now_ms)
        producer.batches = (*producer.batches[1 - BATCHES_REMEMBERED :], batch)
        producer.last_active_ms = now_ms
        producers.move_to_end(batch.producer_id)
        while len(producers) > self._producers_max:
            producers.popitem(last=False)
        if len(producers) != count_before and self._room is not None:
            self._room.grew(_table_of(batch.producer_id), len(producers) - count_before)

    def remembered(self, *, now_ms: int) -> tuple[RememberedProducer, ...]:
        """Returns all known producers for a manifest, by the time of their last batch, ascending."""
        self._expire(now_ms)
        known = (producers.items() for producers in (self._producers, self._one_shots))
        return tuple(
            RememberedProducer(
                producer_id,
                producer.epoch,
                producer.last_active_ms,
                tuple(
                    RememberedBatch(batch.base_sequence, batch.last_sequence, batch.base_offset, batch.last_offset)
                    for batch in producer.batches
                ),
            )
            for producer_id, producer in merge(*known, key=lambda item: item[1].last_active_ms)
        )

    def recall(self, remembered: Iterable[RememberedProducer]) -> None:
        """Takes in what a manifest remembers, before the batches behind it, and before a room is entered."""
        for producer_id, epoch, last_active_ms, batches in map(msgspec.structs.astuple, remembered):
            sequenced = tuple(SequencedBatch(producer_id, epoch, *msgspec.structs.astuple(batch)) for batch in batches)
            producers = self._table(producer_id)
            producers[producer_id] = _Producer(epoch, last_active_ms, sequenced)
            producers.move_to_end(producer_id)
            while len(producers) > self._producers_max:
                producers.popitem(last=False)

    # ── what all partitions of a broker remember together ───────────────────────────────────────────────────────────────

    def enter(self, room: ProducerRoom) -> None:
        self._room = room
        room.enter(self)

    def leave(self) -> None:
        if self._room is not None:
            self._room.leave(self)
            self._room = None

    def count(self, table: int) -> int:
        return len(self._tables[table])

    def oldest_ms(self, table: int) -> int:
        """Returns when the producer that was silent longest was last active."""
        return next(iter(self._tables[table].values())).last_active_ms

    def drop_oldest(self, table: int) -> None:
        self._tables[table].popitem(last=False)
        if self._room is not None:
            self._room.grew(table, -1)

    # ── of one partition ────────────────────────────────────────────────────────────────────────────────────────────────

    def _table(self, producer_id: ProducerId) -> OrderedDict[ProducerId, _Producer]:
        return self._tables[_table_of(producer_id)]

    def _drop(self, producer_id: ProducerId) -> None:
        table = _table_of(producer_id)
        del self._tables[table][producer_id]
        if self._room is not None:
            self._room.grew(table, -1)

    def _expire(self, now_ms: int) -> None:
        self._swept_at_ms = now_ms
        for table, producers in enumerate(self._tables):
            while producers and self.oldest_ms(table) + self._expiry_ms <= now_ms:
                self.drop_oldest(table)


def _table_of(producer_id: ProducerId) -> int:
    return int(producer_id >= ONE_SHOT)


def _is_forgotten(producer: _Producer, *, base_sequence: int, last_sequence: int, high_watermark: int) -> bool:
    """Returns whether a batch is certainly committed, and older than all that are remembered of its producer and epoch.

    Sequences wrap, so a lower one may also lie ahead, behind batches that have not arrived. None is called forgotten while they
    wrap within the remembered batches, nor where it lies more than half of all sequences below them.
    """
    oldest, newest = producer.batches[0], producer.batches[-1]
    if oldest.base_sequence > newest.last_sequence or oldest.base_sequence - base_sequence > SEQUENCE_MAX // 2:
        return False
    return base_sequence <= last_sequence < oldest.base_sequence and oldest.last_offset < high_watermark


def _check_one_shot(producer: _Producer | None, *, base_sequence: int, last_sequence: int) -> SequencedBatch | None:
    if producer is None:
        return None
    written = producer.batches[-1]
    if (written.base_sequence, written.last_sequence) != (base_sequence, last_sequence):
        raise IdempotencyKeyReused("this Idempotency-Key was used before, with other records")
    return written
