"""Refuses the batches behind a refused one of an idempotent producer like that one. Pure: the caller brings the time.

    7, 8, 9 on their way ─▶ 7 is refused, and may be sent again ─▶ 8 and 9 leave a gap ─▶ refused like 7, not out of order

A producer sends further batches before the first one is answered. If the leader refuses the first and leads again a moment later,
the others leave a gap. librdkafka takes a new epoch for a gap, and sends again what it holds: records whose answers were lost are
in the log twice then. For an error like the first one, clients send all of them again, in order.

Invariant: only a gap is covered, by a batch in front of it that was refused at most COVERED_S ago.
"""

from __future__ import annotations

from typing import Final, TypeVar

from metadata.errors import OutOfOrderSequence, TidelogError, UnknownProducer
from metadata.model import ProducerId, TopicPartition

# A client that sends again does so within this time. One that has given the first batch up must hear of the gap.
COVERED_S: Final = 10.0
# Partitions and producers of one connection that are remembered, those that were refused last.
REMEMBERED_MAX: Final = 1_000
_SEQUENCES: Final = 1 << 31
_Appended = TypeVar("_Appended")


class RefusedBatches:
    """Remembers the refused batches of the producers of one connection, one for each partition and producer."""

    def __init__(self) -> None:
        self._refused: dict[tuple[TopicPartition, ProducerId], tuple[int, TidelogError, float]] = {}

    def outcome(
        self,
        partition: TopicPartition,
        producer_id: ProducerId,
        base_sequence: int,
        outcome: _Appended | TidelogError,
        *,
        now_s: float,
    ) -> _Appended | TidelogError:
        """Returns the outcome to answer with. Called when a batch is decided, which for one in front may be after a later one."""
        key = partition, producer_id
        first = self._refused.get(key)
        if not isinstance(outcome, TidelogError):
            if first is not None and not _is_behind(first[0], base_sequence):
                del self._refused[key]
            return outcome
        if type(outcome) in {OutOfOrderSequence, UnknownProducer}:
            if first is None or now_s - first[2] > COVERED_S or not _is_behind(base_sequence, first[0]):
                return outcome
            return first[1]
        if outcome.retryable:
            if first is not None and _is_behind(base_sequence, first[0]):
                base_sequence = first[0]
            self._refused.pop(key, None)  # the newest stay
            self._refused[key] = base_sequence, outcome.with_traceback(None), now_s
            if len(self._refused) > REMEMBERED_MAX:
                del self._refused[next(iter(self._refused))]
        return outcome


def _is_behind(base_sequence: int, first: int) -> bool:
    """Returns whether a batch follows another one, by their first sequences, which wrap."""
    return 0 < (base_sequence - first) % _SEQUENCES < _SEQUENCES // 2
