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

# A client that sends again does so within this time. One that has given the first batch up must hear of the gap.
COVERED_S: Final = 10.0
# Partitions and producers of one connection that are remembered, those that were refused last.
REMEMBERED_MAX: Final = 1_000
_SEQUENCES: Final = 1 << 31


class SentBatch(NamedTuple):
    """Identifies a batch of an idempotent producer."""

    # The name or the id, whichever the client's requests have: a broker refuses topics that it does not know by the other.
    topic: str
    partition: int
    producer_id: int
    base_sequence: int


class RefusedBatches:
    """Remembers the refused batches of the producers of one connection, one for each partition and producer.

    A refusal is noted once, when it is known: later batches are decided before the request of the refused one is answered.
    """

    def __init__(self) -> None:
        self._refused: dict[tuple[object, ...], tuple[int, TidelogError, float]] = {}

    def appended(self, batch: SentBatch) -> None:
        """Notes a batch that is appended, which may be in front of one that was refused before."""
        first = self._refused.get(batch[:3])
        if first is not None and not _is_behind(first[0], batch.base_sequence):
            del self._refused[batch[:3]]

    def refused(self, batch: SentBatch, error: TidelogError, *, is_retried: bool, now_s: float) -> TidelogError:
        """Returns the error to answer with. `is_retried`: clients send a batch again after this error."""
        first = self._refused.get(batch[:3])
        if type(error) in {OutOfOrderSequence, UnknownProducer}:
            if first is None or now_s - first[2] > COVERED_S or not _is_behind(batch.base_sequence, first[0]):
                return error
            return first[1]
        if is_retried:
            base_sequence = batch.base_sequence
            if first is not None and _is_behind(base_sequence, first[0]):
                base_sequence = first[0]
            self._refused.pop(batch[:3], None)  # the newest stay
            self._refused[batch[:3]] = base_sequence, error.with_traceback(None), now_s
            if len(self._refused) > REMEMBERED_MAX:
                del self._refused[next(iter(self._refused))]
        return error


def _is_behind(base_sequence: int, first: int) -> bool:
    """Returns whether a batch follows another one, by their first sequences, which wrap."""
    return 0 < (base_sequence - first) % _SEQUENCES < _SEQUENCES // 2
