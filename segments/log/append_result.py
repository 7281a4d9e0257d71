"""The result of an append: offsets that are not committed yet, or a rejection that is not certain yet.

    append ─▶ PendingAppend        ─▶ committed: waits for the segment
           └▶ UnverifiedRejection  ─▶ resolve: looks for a seal ─▶ none: the rejection counts
                                                               └▶ one, or no answer: the producer sends the batch again

A leader may reject a batch although another leader has taken over: that one may hold the batches before this one, so that there is
no gap, or this very batch, so that it is a repeat. A producer that believed the rejection would renumber its records and write them
twice. Only rejections that a newer leader could turn into an acceptance are unverified. A producer's old epoch and a reused key are
certain: epochs only rise, and keys stay used.
"""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from metadata.errors import DuplicateSequence, OutcomeUnknown, TidelogError, Unavailable
from segments.deadline import Deadline
from segments.partition.partition_log import Appended
from segments.shared_errors import copy_of
from segments.wal.pending_segment import PendingSegment


class Acks(enum.Enum):
    """Chooses when a produce request is answered."""

    # When the records are committed on the bucket.
    ALL = "all"
    # When the leader holds them in memory: a crash may lose them.
    LEADER = "leader"
    # Never.
    NONE = "none"


class PendingAppend(NamedTuple):
    """Waits for the commit of an append that has its offsets."""

    # The offsets, which count once `segment` is committed.
    appended: Appended
    # None where the batch repeats a committed one.
    segment: PendingSegment | None

    async def committed(self, deadline: Deadline) -> Appended:
        """Waits until the append is committed. Cancelling a waiter affects no other.

        Raises SessionFenced or Stopping (nothing was written), and OutcomeUnknown where there is no decision by the deadline.
        """
        if self.segment is None:
            return self.appended
        outcome = self.segment.outcome
        if not outcome.done():
            await asyncio.wait((outcome,), timeout=deadline.left_s())
        if not outcome.done():
            raise late_commit(deadline)
        error = outcome.result()
        if error is not None:
            raise copy_of(error)
        return self.appended


def late_commit(deadline: Deadline) -> OutcomeUnknown:
    """Returns the outcome of records that were not decided by the deadline."""
    return OutcomeUnknown(f"the bucket did not confirm the records within {deadline.timeout_s:g} s; they may still be committed")


class UnverifiedRejection(Unavailable):
    """Rejects a batch if this broker still led. Unresolved, it means that nothing was written, and that a retry is safe."""

    def __init__(self, rejection: TidelogError, verify_leadership: Callable[[], Awaitable[None]]) -> None:
        """`verify_leadership` raises unless no other broker led before it was called."""
        super().__init__(f"this broker may lead no more, and may know too little of the log: {rejection.message}")
        self.rejection = rejection
        self._verify_leadership = verify_leadership
        self._resolved: TidelogError | None = None

    @property
    def resolved(self) -> TidelogError:
        """Returns the error to answer with: itself until resolved, then the rejection, SessionFenced or Unavailable."""
        return self._resolved or self

    async def resolve(self) -> TidelogError:
        """Finds out whether this broker led, and returns the error to answer with."""
        await resolve_all([self])
        return self.resolved

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rejection, self._verify_leadership)


def was_written_before(error: TidelogError) -> bool:
    """Returns whether the error says that its batch is in the log already. The batches behind that one are not refused for it."""
    return isinstance(error.rejection if isinstance(error, UnverifiedRejection) else error, DuplicateSequence)


async def resolve_all(unverified: Iterable[UnverifiedRejection]) -> None:
    """Resolves all rejections, those of one SessionLog by one check: a producer that is unknown is rejected in each partition."""
    by_check: defaultdict[Callable[[], Awaitable[None]], list[UnverifiedRejection]] = defaultdict(list)
    for each in unverified:
        if each._resolved is None:
            by_check[each._verify_leadership].append(each)
    for verify_leadership, rejected in by_check.items():
        hindrance: TidelogError | None = None
        try:
            await verify_leadership()
        except TidelogError as error:
            hindrance = error.with_traceback(None)
        for each in rejected:
            each._resolved = each.rejection if hindrance is None else copy_of(hindrance)
