"""Counts the outcomes of the records that a client accepted. Pure.

    acknowledged   the broker has them, as `acks` asks for
    refused        failed, and nothing of them was written
    unknown        failed, and may be in the log

Invariant: a record is counted once, when its batch gets its outcome; an answer that comes later changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Outcomes:
    """Numbers of records by outcome."""

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0

    @property
    def total(self) -> int:
        return self.acknowledged + self.refused + self.unknown

    def __str__(self) -> str:
        what = "it" if self.refused == 1 else "them"
        return (
            f"{count_of_records(self.acknowledged)} acknowledged, {self.refused:,} refused (nothing of {what} was written), "
            f"{self.unknown:,} unknown (may be in the log)"
        )


def count_of_records(count: int) -> str:
    return f"{count:,} record" if count == 1 else f"{count:,} records"
