"""Decides when a record is committed, for its writer: PUTs land in any order, segments commit in theirs. Pure.

    seq        0    1    2    3    4
    landed     ✓    ✓    ·    ✓    ·
    committed  ✓    ✓    ─ 3 waits for 2 ─

Segment n is committed exactly when every object from the trim point to n exists and none of them is a seal
(docs/design/segments.md). Invariant: `landed` answers each segment once, in order, without a gap; nothing at or after a seal is
ever answered. `committed_to` never goes back.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from metadata.model import SegmentSeq

Segment = TypeVar("Segment")


class CommitOrder(Generic[Segment]):
    """Tracks the segments of one session from issue to commit."""

    def __init__(self) -> None:
        self.next_seq = SegmentSeq(0)
        # Every place below this one is committed.
        self.committed_to = SegmentSeq(0)
        self.sealed_at: SegmentSeq | None = None
        self._in_flight: dict[SegmentSeq, Segment] = {}
        self._landed: set[SegmentSeq] = set()

    @property
    def in_flight(self) -> int:
        """Counts segments that were issued and have not landed. Those that landed early only wait for their turn."""
        return len(self._in_flight) - len(self._landed)

    @property
    def undecided(self) -> int:
        return len(self._in_flight)

    def issue(self, segment: Segment) -> SegmentSeq:
        """Gives the segment the next place of the session."""
        assert self.sealed_at is None, "a sealed session issues nothing"
        seq = self.next_seq
        self.next_seq = SegmentSeq(seq + 1)
        self._in_flight[seq] = segment
        return seq

    def landed(self, seq: SegmentSeq) -> list[Segment]:
        """Notes that object `seq` exists and is ours, and returns the segments that this commits, in order."""
        if seq not in self._in_flight:
            return []  # it was refused already: a seal stands before it
        self._landed.add(seq)
        committed = []
        while self._in_flight and (first := next(iter(self._in_flight))) in self._landed:
            self._landed.remove(first)
            committed.append(self._in_flight.pop(first))
            self.committed_to = SegmentSeq(first + 1)
        return committed

    def sealed(self, seq: SegmentSeq) -> list[Segment]:
        """Notes a seal at `seq`. Returns the segments that will never be visible, in order; earlier ones stay undecided."""
        self.sealed_at = seq if self.sealed_at is None else min(seq, self.sealed_at)
        refused = [seq for seq in self._in_flight if seq >= self.sealed_at]
        self._landed.difference_update(refused)
        return [self._in_flight.pop(seq) for seq in refused]
