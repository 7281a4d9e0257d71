"""Refuses the batches behind a refused one of an idempotent producer like that one. Pure: the caller brings the time.

    7, 8, 9 on their way ─▶ 7 is refused, and may be sent again ─▶ 8 and 9 leave a gap ─▶ refused like 7, not out of order

A producer sends further batches before the first one is answered. If the leader refuses the first and leads again a moment later,
the others leave a gap. librdkafka takes a new epoch for a gap, and sends again what it holds: records whose answers were lost are
in the log twice then. For an error like the first one, clients send all of them again, in order.

Invariant: only a gap is covered, by a batch in front of it that was refused at most COVERED_S ago.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from metadata.errors import OutOfOrderSequence, TidelogError, UnknownProducer
from metadata.model import TOPIC_NAME_CHARACTERS_MAX

# A client that sends again does so within this time. One that has given the first batch up must hear of the gap.
COVERED_S: Final = 10.0
# Partitions and producers of one connection that are remembered, those that were refused last.
REMEMBERED_MAX: Final = 1_000
_SEQUENCES: Final = 1 << 31


class SentBatch(NamedTuple):
    """Identifies a batch of an idempotent producer."""

    # The topic's name or id, as the request has it. The other one is not known for an unknown topic.
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class _Refusal(NamedTuple):
    """Describes the refused batches of one partition and producer that were not appended since."""

    first: int
    last: int
    error: TidelogError
    # Of the last one.
    at_s: float


class RefusedBatches:
    """Remembers the refused batches of the producers of one connection, one for each partition and producer.

    A refusal is noted as soon as it is known. Its request may be answered later than those of the batches behind it.
    """

    def __init__(self) -> None:
        self._refused: dict[tuple[object, ...], _Refusal] = {}

    def appended(self, batch: SentBatch) -> None:
        """Notes a batch that is appended, which may be in front of one that was refused before."""
        key, sequence = batch[:-1], batch.base_sequence
        refusal = self._refused.get(key)
        if refusal is None or _is_behind(refusal.first, sequence):
            return
        if _is_behind(refusal.last, sequence):  # refused while the repeat of the first one was under way
            self._refused[key] = refusal._replace(first=sequence)
        else:
            del self._refused[key]

    def refused(self, batch: SentBatch, error: TidelogError, *, is_retried: bool, now_s: float) -> TidelogError:
        """Returns the error to answer with. `is_retried`: clients send a batch again after this error."""
        key, sequence = batch[:-1], batch.base_sequence
        refusal = self._refused.get(key)
        if type(error) in {OutOfOrderSequence, UnknownProducer}:
            if refusal is None or now_s - refusal.at_s > COVERED_S or not _is_behind(sequence, refusal.first):
                return error
            return refusal.error
        if is_retried and len(batch.topic) <= TOPIC_NAME_CHARACTERS_MAX:  # a longer name is of no topic
            first = last = sequence
            if refusal is not None:
                first = refusal.first if _is_behind(sequence, refusal.first) else sequence
                last = refusal.last if _is_behind(refusal.last, sequence) else sequence
            self._refused.pop(key, None)  # the newest stay
            self._refused[key] = _Refusal(first, last, error.with_traceback(None), now_s)
            if len(self._refused) > REMEMBERED_MAX:
                del self._refused[next(iter(self._refused))]
        return error


def _is_behind(base_sequence: int, first: int) -> bool:
    """Returns whether a batch follows another one, by their first sequences, which wrap."""
    return 0 < (base_sequence - first) % _SEQUENCES < _SEQUENCES // 2
