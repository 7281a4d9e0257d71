"""What a producer is answered with, and when: an append that has its offsets, and is not committed yet."""

from __future__ import annotations

import asyncio
import enum
from typing import NamedTuple

from metadata.errors import OutcomeUnknown
from segments.partition.partition_log import Appended
from segments.shared_errors import own_copy
from segments.wal.pending_segment import PendingSegment


class Acks(enum.Enum):
    """When a producer is answered."""

    ALL = "all"
    """When the records are committed on the bucket."""
    LEADER = "leader"
    """When the leader holds them in memory: a crash may lose them."""
    NONE = "none"
    """Never."""


class PendingAppend(NamedTuple):
    appended: Appended
    """Known at once; true for good when `segment` is committed."""
    segment: PendingSegment | None
    """None when the batch repeats one that is committed already."""

    async def committed(self, *, timeout_s: float) -> Appended:
        """Waits until the append is committed. A waiter that is cancelled disturbs no other.

        Raises SessionFenced or Stopping (nothing was written), OutcomeUnknown when it is not decided in time.
        """
        if self.segment is None:
            return self.appended
        outcome = self.segment.outcome
        if not outcome.done():
            await asyncio.wait((outcome,), timeout=timeout_s)
        if not outcome.done():
            raise OutcomeUnknown(f"the bucket did not confirm the records within {timeout_s:g} s; they may still be committed")
        error = outcome.result()
        if error is not None:
            raise own_copy(error)
        return self.appended
